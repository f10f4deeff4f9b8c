//! Follows the APIs that MeshApis register, in the one replica that holds the shard of
//! the inventory: each account is polled once however many replicas run, and one of them
//! writes the statuses and the Mesh resources.
//!
//! The others have no object of these APIs, and a note beside their inventory for it. No
//! provider is chosen by such an object.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{registries::RegistryWriter, writer};
use crate::{
    controller::context::Context,
    discovery::{live::LiveInventory, model::Key, rest::Sources},
};

/// Changes that are applied before views are computed again.
const MAX_CHANGE_BATCH: usize = 1024;

/// Follows them until dropped, if that is switched on.
pub fn spawn(ctx: &Arc<Context>) -> Option<AbortOnDropHandle<()>> {
    let ctx = Arc::clone(ctx);
    let wanted = ctx.options.inventory.mesh_apis;
    wanted.then(|| AbortOnDropHandle::new(tokio::spawn(async move { follow_while_held(&ctx).await })))
}

async fn follow_while_held(ctx: &Context) {
    let mut fence = ctx.fence.clone();
    let shard = fence.shard_of(&writer(ctx));
    let mut following: Option<AbortOnDropHandle<()>> = None;
    loop {
        let is_held = fence.owned_shards()[shard].is_held();
        ctx.inventory.set_followed_elsewhere(!is_held);
        match (is_held, following.take()) {
            (true, None) => following = Some(follow(ctx)),
            (true, running) => following = running,
            (false, Some(ended)) => {
                ended.abort();
                // Until nothing of it is applied any more; an abort is an error here.
                let _ = ended.await;
                drop_foreign_objects(&ctx.inventory);
            }
            (false, None) => {}
        }
        fence.changed().await;
    }
}

fn follow(ctx: &Context) -> AbortOnDropHandle<()> {
    let client = ctx.fence.fenced_client(&ctx.client, &writer(ctx));
    let (changes, mut received) = mpsc::channel(MAX_CHANGE_BATCH);
    let namespace = ctx.options.controller_namespace.clone();
    let mut sources = Sources::new(client.clone(), namespace, ctx.clock, changes);
    let mut writer = None;
    if let Some(server) = &ctx.xds {
        let (of_groups, registries) = RegistryWriter::new(client, &server.objects);
        sources = sources.with_registries(registries);
        writer = Some(of_groups);
    }
    let inventory = Arc::clone(&ctx.inventory);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let apply = async {
            let mut batch = Vec::new();
            while received.recv_many(&mut batch, MAX_CHANGE_BATCH).await > 0 {
                inventory.update(|inventory| batch.drain(..).for_each(|change| inventory.change(change)));
            }
        };
        let write = async {
            if let Some(writer) = writer {
                writer.run().await;
            }
        };
        tokio::join!(sources.run(CancellationToken::new()), apply, write);
    }))
}

/// Nobody keeps them current here any more.
fn drop_foreign_objects(live: &LiveInventory) {
    live.update(|inventory| {
        let foreign: Vec<Key> =
            inventory.keys().filter(|key| key.cluster != live.cluster()).cloned().collect();
        foreign.iter().for_each(|key| inventory.remove(key, None));
    });
}
