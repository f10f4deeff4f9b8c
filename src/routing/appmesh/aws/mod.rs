//! AWS App Mesh by its own API: no controller is needed in the cluster.
//!
//! ```text
//!   virtual service web.shop ─▶ virtual router web_shop ─▶ route web
//!                                                            ├─ 90 ─▶ virtual node web-primary_shop
//!   virtual service web-canary.shop ─────────────────────────┴─ 10 ─▶ virtual node web-canary_shop
//! ```
//!
//! Missing resources are created, tagged, and deleted with the Canary. Existing
//! ones are used as they are: the virtual router of an existing virtual service,
//! existing virtual nodes; of an existing route only the targets are changed, and
//! restored in the end.
//!
//! App Mesh has no watch and no version to write against. So a reconcile
//! [refreshes](routing::Router::refresh) first, a resource is read again just
//! before it is written, and read back afterwards until the write shows. An idle
//! Canary sends no request. The API reports that a route is stored, not when the
//! last proxy has it.
//!
//! The proxies of both sides may have the identity of the same virtual node, since
//! the primary is a copy of the target: the identity selects the backends that a
//! pod calls, which are equal on both sides, not its callers.

mod api;
mod error;
mod routes;
mod state;
mod write;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use aws_sdk_appmesh::Client;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::time::Instant;

pub use error::{Error, MeshApiError};

use self::{
    api::{MeshClient, RequestRateLimiters},
    state::{MeshNames, MeshState},
    write::MeshWriter,
};
use super::{MATCH_WAY_OUT, Protocol};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service::Service},
    },
    aws::Accounts,
    engine::{Plan, action::Split},
    routing::{
        self, AppMeshOptions, Capabilities, ObjectCache, ObjectKey, RouteContext, Router, Unsupported,
        WriteFence, check_capabilities, check_service_match,
        services::{self, ApexTarget},
    },
};

const NAME: &str = "appmesh:aws";

/// Limit of App Mesh.
const MAX_HEADERS_PER_ROUTE: usize = 10;

/// The cache is cleared at this size.
const MAX_CACHED_STATES: usize = 4096;

/// Calls the App Mesh API.
pub struct AppMesh {
    options: AppMeshOptions,
    accounts: Accounts,
    rate_limiters: RequestRateLimiters,
    check_fence: WriteFence,
    cached_states: Mutex<HashMap<String, CachedState>>,
    /// With `writer_count`, a nonce for client tokens.
    started_at: Instant,
    writer_count: AtomicU64,
}

/// The mesh resources of a Canary as last fetched.
#[derive(Clone)]
struct CachedState {
    fetched_at: Instant,
    names: MeshNames,
    state: Arc<MeshState>,
    /// The split written last: its conditions cannot be derived from the routes.
    split: Option<Split>,
}

impl fmt::Debug for AppMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppMesh").field("options", &self.options).finish_non_exhaustive()
    }
}

impl AppMesh {
    pub fn new(options: AppMeshOptions, accounts: Accounts, check_fence: WriteFence) -> Self {
        Self {
            options,
            accounts,
            rate_limiters: RequestRateLimiters::default(),
            check_fence,
            cached_states: Mutex::default(),
            started_at: Instant::now(),
            writer_count: AtomicU64::new(0),
        }
    }

    fn mesh_name<'a>(&'a self, canary: &'a Canary) -> Option<&'a String> {
        let written = canary.spec.service.as_ref().and_then(|service| service.mesh_name.as_ref());
        written.filter(|name| !name.is_empty()).or(self.options.mesh.as_ref())
    }

    /// Calls `work` with a client for the mesh of a Canary.
    async fn with_mesh<T>(
        &self,
        canary: &Canary,
        work: impl AsyncFnOnce(&MeshClient<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let AppMeshOptions { mesh_owner, account, .. } = &self.options;
        let name = self.mesh_name(canary).cloned().ok_or_else(missing_mesh_error)?;
        let client = Client::new(&self.accounts.config(account).await?);
        let (namespace, canary) = (canary.namespace().unwrap_or_default(), canary.name_any());
        let check_fence = || (self.check_fence)(&namespace, &canary);
        let mesh = MeshClient {
            client,
            rate_limiters: &self.rate_limiters,
            name,
            owner: mesh_owner.clone(),
            check_fence: &check_fence,
        };
        work(&mesh).await
    }

    fn cached_state(&self, canary: &Canary) -> Option<CachedState> {
        let names = MeshNames::of(canary);
        self.cached_states
            .lock()
            .get(&state::canary_tag_value(canary))
            .filter(|cached| cached.names == names)
            .cloned()
    }

    fn store_state(&self, canary: &Canary, state: MeshState, split: Option<Split>) -> Arc<MeshState> {
        let (at, names, state) = (Instant::now(), MeshNames::of(canary), Arc::new(state));
        let mut cached = self.cached_states.lock();
        if cached.len() >= MAX_CACHED_STATES {
            cached.clear();
        }
        cached.insert(
            state::canary_tag_value(canary),
            CachedState { fetched_at: at, names, state: Arc::clone(&state), split },
        );
        state
    }

    /// Fetches, whatever the age of the cached state.
    async fn fetch_state(&self, canary: &Canary) -> Result<Arc<MeshState>, Error> {
        let (names, before) = (MeshNames::of(canary), self.cached_state(canary));
        let known = before.as_ref().map(|before| &*before.state);
        let fetch = async |mesh: &MeshClient<'_>| MeshState::fetch(mesh, canary, &names, known).await;
        let state = self.with_mesh(canary, fetch).await?;
        Ok(self.store_state(canary, state, before.and_then(|before| before.split)))
    }

    fn writer<'a>(&'a self, mesh: &'a MeshClient<'a>, canary: &'a Canary) -> MeshWriter<'a> {
        let nonce = format!("{:?} {}", self.started_at, self.writer_count.fetch_add(1, Ordering::Relaxed));
        MeshWriter { mesh, canary, names: MeshNames::of(canary), options: &self.options, nonce }
    }

    async fn apply_to_mesh(&self, on: &RouteContext<'_>, split: &Split) -> Result<(), Error> {
        let known = self.cached_state(on.canary).map(|cached| cached.state);
        let state = match known.filter(|state| state.is_complete()) {
            Some(state) => state,
            // Resources just created may not be in the cache yet.
            None => self.fetch_state(on.canary).await?,
        };
        let mut state = MeshState::clone(&state);
        let written = self
            .with_mesh(on.canary, async |mesh| {
                self.writer(mesh, on.canary).write(&mut state, on.pod_selectors, split).await
            })
            .await;
        self.store_state(on.canary, state, written.is_ok().then(|| split.clone()));
        written
    }

    /// Deletes the mesh resources of this Canary, except those with a name in
    /// `kept`.
    async fn remove_from_mesh(&self, canary: &Canary, kept: Option<&MeshNames>) -> Result<(), Error> {
        let state = self.fetch_state(canary).await?;
        self.with_mesh(canary, async |mesh| self.writer(mesh, canary).remove(&state, kept).await).await?;
        self.cached_states.lock().remove(&state::canary_tag_value(canary));
        if kept.is_none() {
            self.fetch_state(canary).await?;
        }
        Ok(())
    }

    /// Every set of conditions that could be in force.
    fn candidate_matches(canary: &Canary, last: Option<&Split>) -> Vec<Arc<[HttpMatch]>> {
        let analysis = &canary.spec.analysis;
        let written = analysis.steps.iter().map(|step| &step.match_).chain([&analysis.match_]);
        let written = written.map(|matches| Arc::from(&matches[..]));
        let mut all: Vec<Arc<[HttpMatch]>> = vec![Arc::default()];
        all.extend(last.map(|split| split.matches.clone()).into_iter().chain(written));
        all.dedup();
        all
    }
}

fn missing_mesh_error() -> Error {
    Error::Unsupported(Unsupported::Field {
        router: NAME.to_owned(),
        field: "spec.service.meshName",
        what: "no mesh, and the controller was started without --appmesh-mesh".to_owned(),
        way_out: "name the mesh in either place",
    })
}

#[async_trait]
impl Router for AppMesh {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn capabilities(&self, canary: &Canary) -> Capabilities {
        super::capabilities(canary)
    }

    fn supports_match(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        match condition.headers.len() + condition.without_headers.len() {
            0..=MAX_HEADERS_PER_ROUTE => super::routes::supports_match(condition),
            _ => Err("more than ten headers"),
        }
    }

    fn route_fields(&self, canary: &Canary) -> &'static [&'static str] {
        match Protocol::of(canary) {
            Protocol::Tcp => &["backends", "meshName"],
            Protocol::Http | Protocol::Http2 | Protocol::Grpc => {
                &["match", "timeout", "retries", "backends", "meshName"]
            }
        }
    }

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)?;
        check_service_match(self, canary, MATCH_WAY_OUT)?;
        if self.mesh_name(canary).is_none()
            && let Error::Unsupported(why) = missing_mesh_error()
        {
            return Err(why);
        }
        if !state::can_be_tagged(canary) {
            return Err(Unsupported::Field {
                router: self.name(),
                field: "metadata.name",
                what: "a name of more than 190 characters".to_owned(),
                way_out: "give the Canary a shorter name",
            });
        }
        Ok(())
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        services::objects(canary)
    }

    fn is_watchable(&self) -> bool {
        false
    }

    async fn refresh(&self, canary: &Canary) -> Result<(), routing::Error> {
        let fresh = |cached: CachedState| cached.fetched_at.elapsed() < self.options.cache_ttl;
        // Without a mesh there is nothing to fetch and nothing to restore.
        if self.mesh_name(canary).is_some() && !self.cached_state(canary).is_some_and(fresh) {
            self.fetch_state(canary).await?;
        }
        Ok(())
    }

    fn effective_split(&self, on: &RouteContext<'_>, cache: &dyn ObjectCache) -> Option<Split> {
        let stable = services::stable_side(on, cache)?;
        let CachedState { names, state, split, .. } = self.cached_state(on.canary)?;
        let protocol = Protocol::of(on.canary);
        Self::candidate_matches(on.canary, split.as_ref()).into_iter().find_map(|matches| {
            let all_primary = Split { matches: matches.clone(), ..Split::all_primary() };
            let desired_routes =
                routes::desired_routes(on.canary, &names, &state.routes, &all_primary, protocol).ok()?;
            let canary = routes::canary_share(&names, &desired_routes, &state.routes)?;
            let effective_split = Split { canary, matches, stable, mirror: Weight::ZERO };
            write::is_effective(on, &self.options, &names, &state, &effective_split)
                .ok()?
                .then_some(effective_split)
        })
    }

    async fn apply_split(
        &self,
        client: &kube::Client,
        on: &RouteContext<'_>,
        cache: &dyn ObjectCache,
        split: &Split,
    ) -> Result<(), routing::Error> {
        self.capabilities(on.canary).check_split(split, || self.name())?;
        // Existing resources that cannot be used are rejected before any write.
        if let Some(cached) = self.cached_state(on.canary) {
            write::check(&cached.names, &cached.state)?;
        }
        services::ensure(client, on, cache, ApexTarget::Stable, split.stable).await?;
        Ok(self.apply_to_mesh(on, split).await?)
    }

    fn is_restored(&self, canary: &Canary, cache: &dyn ObjectCache) -> bool {
        let is_clean = |cached: CachedState| !cached.state.has_managed();
        services::is_restored(canary, cache)
            && (self.mesh_name(canary).is_none() || self.cached_state(canary).is_some_and(is_clean))
    }

    async fn restore(
        &self,
        client: &kube::Client,
        canary: &Canary,
        cache: &dyn ObjectCache,
    ) -> Result<(), routing::Error> {
        // The apex selects the target's pods before the route is removed.
        services::restore(client, canary, cache).await?;
        self.cleanup_external(canary, None).await
    }

    async fn cleanup_external(&self, canary: &Canary, next: Option<&Canary>) -> Result<(), routing::Error> {
        let kept = next.map(MeshNames::of);
        match self.mesh_name(canary) {
            Some(_) => Ok(self.remove_from_mesh(canary, kept.as_ref()).await?),
            None => Ok(()),
        }
    }
}

/// The DNS name of a virtual node's pods.
fn hostname(service: &str, canary: &Canary) -> String {
    format!("{service}.{}.svc.cluster.local", canary.namespace().unwrap_or_default())
}

fn service_of(canary: &Canary) -> Service {
    canary.spec.service.clone().unwrap_or_default()
}
