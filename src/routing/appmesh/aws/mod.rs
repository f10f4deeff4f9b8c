//! AWS App Mesh by its own API: no controller is needed in the cluster.
//!
//! ```text
//!   virtual service web.shop ─▶ virtual router web_shop ─▶ route web
//!                                                            ├─ 90 ─▶ virtual node web-primary_shop
//!   virtual service web-canary.shop ─────────────────────────┴─ 10 ─▶ virtual node web-canary_shop
//! ```
//!
//! What is missing is made, marked by a tag, and goes with the Canary. What
//! people have is used as it is: the router that their virtual service leads
//! to, their virtual nodes; of their route only the targets are changed, and put
//! back in the end.
//!
//! The mesh tells nobody of changes and has no versions to write against. So a
//! reconcile [looks](routing::Router::look) first, what is about to be written
//! is read once more, and what was written is read back until it shows. A Canary
//! at rest asks nothing. That a route is stored is all that the mesh says, not
//! when the last proxy has it.
//!
//! The proxies of both sides may say that they are one and the same virtual
//! node, since the primary is a copy of the target: that is about what they
//! call, which is equal on both sides, and not about who calls them.

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

pub use error::{Error, Trouble};

use self::{
    api::{Mesh, Paces},
    state::{Names, State},
    write::Writer,
};
use super::{Protocol, check_conditions};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service::Service},
    },
    aws::Accounts,
    engine::{
        Plan,
        action::{Split, Stable},
    },
    routing::{
        self, AppMeshOptions, Capabilities, Lookup, MayWrite, ObjectName, Router, Subject, Unsupported,
        check_capabilities,
        services::{self, Apex},
    },
};

const NAME: &str = "appmesh:aws";

/// More headers than this are not compared in one route.
const HEADERS: usize = 10;

/// Of more Canaries than this nothing is remembered.
const REMEMBERED: usize = 4096;

/// Calls App Mesh.
pub struct AppMesh {
    options: AppMeshOptions,
    accounts: Accounts,
    paces: Paces,
    may_write: MayWrite,
    memory: Mutex<HashMap<String, Memory>>,
    /// Tells one making of a thing from the next.
    began: Instant,
    looks: AtomicU64,
}

/// What was last seen for a Canary.
#[derive(Clone)]
struct Memory {
    at: Instant,
    names: Names,
    state: Arc<State>,
    /// What was set last: its conditions cannot be read back from the routes.
    split: Option<Split>,
}

impl fmt::Debug for AppMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppMesh").field("options", &self.options).finish_non_exhaustive()
    }
}

impl AppMesh {
    pub fn new(options: AppMeshOptions, accounts: Accounts, may_write: MayWrite) -> Self {
        Self {
            options,
            accounts,
            paces: Paces::default(),
            may_write,
            memory: Mutex::default(),
            began: Instant::now(),
            looks: AtomicU64::new(0),
        }
    }

    fn mesh_name<'a>(&'a self, canary: &'a Canary) -> Option<&'a String> {
        let written = canary.spec.service.as_ref().and_then(|service| service.mesh_name.as_ref());
        written.filter(|name| !name.is_empty()).or(self.options.mesh.as_ref())
    }

    /// Does something with the mesh of a Canary.
    async fn with_mesh<T>(
        &self,
        canary: &Canary,
        work: impl AsyncFnOnce(&Mesh<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let AppMeshOptions { mesh_owner, account, .. } = &self.options;
        let name = self.mesh_name(canary).cloned().ok_or_else(no_mesh)?;
        let client = Client::new(&self.accounts.config(account).await?);
        let (namespace, canary) = (canary.namespace().unwrap_or_default(), canary.name_any());
        let may_write = || (self.may_write)(&namespace, &canary);
        let mesh =
            Mesh { client, paces: &self.paces, name, owner: mesh_owner.clone(), may_write: &may_write };
        work(&mesh).await
    }

    fn remembered(&self, canary: &Canary) -> Option<Memory> {
        let names = Names::of(canary);
        self.memory.lock().get(&state::mark_of(canary)).filter(|memory| memory.names == names).cloned()
    }

    fn remember(&self, canary: &Canary, state: State, split: Option<Split>) -> Arc<State> {
        let (at, names, state) = (Instant::now(), Names::of(canary), Arc::new(state));
        let mut memory = self.memory.lock();
        if memory.len() >= REMEMBERED {
            memory.clear();
        }
        memory.insert(state::mark_of(canary), Memory { at, names, state: Arc::clone(&state), split });
        state
    }

    /// Asks, whatever is remembered.
    async fn look_now(&self, canary: &Canary) -> Result<Arc<State>, Error> {
        let (names, before) = (Names::of(canary), self.remembered(canary));
        let known = before.as_ref().map(|before| &*before.state);
        let look = async |mesh: &Mesh<'_>| State::look(mesh, canary, &names, known).await;
        let state = self.with_mesh(canary, look).await?;
        Ok(self.remember(canary, state, before.and_then(|before| before.split)))
    }

    fn writer<'a>(&'a self, mesh: &'a Mesh<'a>, canary: &'a Canary) -> Writer<'a> {
        let moment = format!("{:?} {}", self.began, self.looks.fetch_add(1, Ordering::Relaxed));
        Writer { mesh, canary, names: Names::of(canary), options: &self.options, moment }
    }

    async fn set_mesh(&self, on: &Subject<'_>, split: &Split) -> Result<(), Error> {
        let known = self.remembered(on.canary).map(|memory| memory.state);
        let state = match known.filter(|state| state.is_complete()) {
            Some(state) => state,
            // What was made a moment ago may not have been seen yet.
            None => self.look_now(on.canary).await?,
        };
        let mut state = State::clone(&state);
        let written = self
            .with_mesh(on.canary, async |mesh| {
                self.writer(mesh, on.canary).write(&mut state, on.arms, split).await
            })
            .await;
        self.remember(on.canary, state, written.is_ok().then(|| split.clone()));
        written
    }

    /// Takes away what this Canary has in its mesh, but for what goes by a
    /// name in `kept`.
    async fn take_away(&self, canary: &Canary, kept: Option<&Names>) -> Result<(), Error> {
        let state = self.look_now(canary).await?;
        self.with_mesh(canary, async |mesh| self.writer(mesh, canary).take_away(&state, kept).await).await?;
        self.memory.lock().remove(&state::mark_of(canary));
        if kept.is_none() {
            self.look_now(canary).await?;
        }
        Ok(())
    }

    /// Every set of conditions that may be in force.
    fn conditions(canary: &Canary, last: Option<&Split>) -> Vec<Arc<[HttpMatch]>> {
        let analysis = &canary.spec.analysis;
        let written = analysis.steps.iter().map(|step| &step.match_).chain([&analysis.match_]);
        let written = written.map(|matches| Arc::from(&matches[..]));
        let mut all: Vec<Arc<[HttpMatch]>> = vec![Arc::default()];
        all.extend(last.map(|split| split.matches.clone()).into_iter().chain(written));
        all.dedup();
        all
    }
}

fn no_mesh() -> Error {
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

    fn understands(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        match condition.headers.len() + condition.without_headers.len() {
            0..=HEADERS => super::routes::understands(condition),
            _ => Err("more than ten headers"),
        }
    }

    fn check(&self, canary: &Canary, plan: &Plan) -> Result<(), Unsupported> {
        check_capabilities(self, canary, plan)?;
        check_conditions(self, canary)?;
        if self.mesh_name(canary).is_none()
            && let Error::Unsupported(why) = no_mesh()
        {
            return Err(why);
        }
        if !state::can_be_marked(canary) {
            return Err(Unsupported::Field {
                router: self.name(),
                field: "metadata.name",
                what: "a name of more than 190 characters".to_owned(),
                way_out: "give the Canary a shorter name",
            });
        }
        Ok(())
    }

    fn objects(&self, canary: &Canary) -> Vec<ObjectName> {
        services::objects(canary)
    }

    fn is_in_cluster(&self) -> bool {
        false
    }

    async fn look(&self, canary: &Canary) -> Result<(), routing::Error> {
        let fresh = |memory: Memory| memory.at.elapsed() < self.options.remembered_for;
        // Without a mesh there is nothing to look at, and nothing to put back.
        if self.mesh_name(canary).is_some() && !self.remembered(canary).is_some_and(fresh) {
            self.look_now(canary).await?;
        }
        Ok(())
    }

    fn split(&self, on: &Subject<'_>, seen: &dyn Lookup) -> Option<Split> {
        let stable = [Stable::Primary, Stable::Previous]
            .into_iter()
            .find(|stable| services::stand(on, seen, Apex::Stable, *stable))?;
        let Memory { names, state, split, .. } = self.remembered(on.canary)?;
        let protocol = Protocol::of(on.canary);
        Self::conditions(on.canary, split.as_ref()).into_iter().find_map(|matches| {
            let home = Split { matches: matches.clone(), ..Split::home() };
            let wishes = routes::wishes(on.canary, &names, &state.routes, &home, protocol).ok()?;
            let canary = routes::share(&names, &wishes, &state.routes)?;
            let split = Split { canary, matches, stable, mirror: Weight::ZERO };
            write::is_in_force(on, &self.options, &names, &state, &split).ok()?.then_some(split)
        })
    }

    async fn set(
        &self,
        client: &kube::Client,
        on: &Subject<'_>,
        seen: &dyn Lookup,
        split: &Split,
    ) -> Result<(), routing::Error> {
        self.capabilities(on.canary).allow(split, || self.name())?;
        // Refused before anything is touched, what people's own forbids.
        if let Some(memory) = self.remembered(on.canary) {
            write::check(&memory.names, &memory.state)?;
        }
        services::ensure(client, on, seen, Apex::Stable, split.stable).await?;
        Ok(self.set_mesh(on, split).await?)
    }

    fn restored(&self, canary: &Canary, seen: &dyn Lookup) -> bool {
        let is_clean = |memory: Memory| !memory.state.has_ours();
        services::restored(canary, seen)
            && (self.mesh_name(canary).is_none() || self.remembered(canary).is_some_and(is_clean))
    }

    async fn restore(
        &self,
        client: &kube::Client,
        canary: &Canary,
        seen: &dyn Lookup,
    ) -> Result<(), routing::Error> {
        // The apex leads to the target before the mesh lets go of it.
        services::restore(client, canary, seen).await?;
        self.leave(canary, None).await
    }

    async fn leave(&self, canary: &Canary, next: Option<&Canary>) -> Result<(), routing::Error> {
        let kept = next.map(Names::of);
        match self.mesh_name(canary) {
            Some(_) => Ok(self.take_away(canary, kept.as_ref()).await?),
            None => Ok(()),
        }
    }
}

/// What the pods of a virtual node are found by.
fn hostname(service: &str, canary: &Canary) -> String {
    format!("{service}.{}.svc.cluster.local", canary.namespace().unwrap_or_default())
}

fn service_of(canary: &Canary) -> Service {
    canary.spec.service.clone().unwrap_or_default()
}
