//! The calls of App Mesh's API that we make.
//!
//! All go at the pace that Amazon's own controller keeps, over all Canaries of
//! this controller; who would have to wait too long is told so. A request
//! that the library repeats is the same request with the same token.

use std::{fmt, time::Duration};

use aws_sdk_appmesh::{
    Client, Error as Refused,
    error::DisplayErrorContext,
    primitives::DateTime,
    types::{
        ResourceMetadata, RouteSpec, RouteStatusCode, TagRef, VirtualNodeSpec, VirtualNodeStatusCode,
        VirtualRouterSpec, VirtualRouterStatusCode, VirtualServiceSpec, VirtualServiceStatusCode,
    },
};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, sleep_until};

use super::error::{Error, Trouble};

/// How long a request may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// When to look whether a write shows. It is stored at once as a rule.
const SHOWS_AFTER: [u64; 6] = [0, 100, 250, 500, 1000, 2000];

/// When to try again to delete what was in use a moment ago.
const FREE_AFTER: [u64; 4] = [0, 250, 500, 1000];

/// So many requests a second, and so many at once.
#[derive(Debug)]
pub struct Pace {
    every: Duration,
    at_once: u32,
    /// When the next would come if all came evenly.
    next: Mutex<Instant>,
}

impl Pace {
    fn of(a_second: u32, at_once: u32) -> Self {
        Self { every: Duration::from_secs(1) / a_second, at_once, next: Mutex::new(Instant::now()) }
    }

    async fn turn(&self) -> Result<(), Trouble> {
        let at = {
            let (mut next, now) = (self.next.lock(), Instant::now());
            let due = (*next).max(now);
            let at = due.checked_sub(self.every * (self.at_once - 1)).unwrap_or(now);
            if at.saturating_duration_since(now) > PATIENCE {
                return Err(Trouble::Busy);
            }
            *next = due + self.every;
            at
        };
        sleep_until(at).await;
        Ok(())
    }
}

/// Of everything that this controller asks of App Mesh.
#[derive(Debug)]
pub struct Paces {
    reads: Pace,
    writes: Pace,
}

impl Default for Paces {
    fn default() -> Self {
        Self { reads: Pace::of(40, 5), writes: Pace::of(8, 5) }
    }
}

/// One mesh, and on whose behalf it is written to.
pub struct Mesh<'a> {
    pub client: Client,
    pub paces: &'a Paces,
    pub name: String,
    /// The account that shared it with ours.
    pub owner: Option<String>,
    /// May anything still be written for the Canary?
    pub may_write: &'a (dyn Fn() -> bool + Send + Sync),
}

/// What something is called within its mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub name: String,
    /// Of a route.
    pub router: String,
}

impl Name {
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), router: String::new() }
    }

    pub fn route(name: &str, router: &str) -> Self {
        Self { name: name.to_owned(), router: router.to_owned() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.router.as_str() {
            "" => write!(f, "{}", self.name),
            router => write!(f, "{} of the virtual router {router}", self.name),
        }
    }
}

/// Something as App Mesh has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Live<S> {
    pub spec: S,
    pub arn: String,
    pub uid: String,
    pub version: i64,
    pub created: DateTime,
    pub active: bool,
}

/// A kind of things in a mesh.
pub trait Kind {
    type Spec: Clone + PartialEq + fmt::Debug + Send + Sync;
    /// For sentences.
    const NOUN: &'static str;
    /// What of it a Canary may say or leave to others.
    const SAYS: &'static [Said];

    fn describe(mesh: &Mesh<'_>, name: &Name) -> impl Future<Output = Answer<Live<Self::Spec>>> + Send;

    fn create(
        mesh: &Mesh<'_>,
        name: &Name,
        spec: Self::Spec,
        tags: Vec<TagRef>,
        token: String,
    ) -> impl Future<Output = Answer<Live<Self::Spec>>> + Send;

    fn update(
        mesh: &Mesh<'_>,
        name: &Name,
        spec: Self::Spec,
        token: String,
    ) -> impl Future<Output = Answer<Live<Self::Spec>>> + Send;

    fn delete(mesh: &Mesh<'_>, name: &Name) -> impl Future<Output = Answer<()>> + Send;
}

type Answer<T> = Result<T, Trouble>;

/// Something in `spec.service` that is written only if it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
    Backends,
    Retries,
    Timeout,
}

/// The four calls that every kind has, which differ in nothing but names.
macro_rules! kind {
    (
        $Kind:ident, $noun:literal, $Spec:ident, $Code:ident, $data:ident, $name:ident $(, in $router:ident)?;
        says [$($said:ident)*];
        $describe:ident $create:ident $update:ident $delete:ident
    ) => {
        pub struct $Kind;

        impl Kind for $Kind {
            type Spec = $Spec;
            const NOUN: &'static str = $noun;
            const SAYS: &'static [Said] = &[$(Said::$said),*];

            async fn describe(mesh: &Mesh<'_>, name: &Name) -> Answer<Live<$Spec>> {
                let call = mesh.client.$describe().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                let data = call.send().await.map_err(refused)?.$data.ok_or(Trouble::Incomplete)?;
                let active = data.status.is_none_or(|status| status.status == $Code::Active);
                live(data.spec, data.metadata, active)
            }

            async fn create(
                mesh: &Mesh<'_>,
                name: &Name,
                spec: $Spec,
                tags: Vec<TagRef>,
                token: String,
            ) -> Answer<Live<$Spec>> {
                let call = mesh.client.$create().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                let call = call.spec(spec).set_tags(Some(tags)).client_token(token);
                let data = call.send().await.map_err(refused)?.$data.ok_or(Trouble::Incomplete)?;
                live(data.spec, data.metadata, true)
            }

            async fn update(mesh: &Mesh<'_>, name: &Name, spec: $Spec, token: String) -> Answer<Live<$Spec>> {
                let call = mesh.client.$update().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                let call = call.spec(spec).client_token(token);
                let data = call.send().await.map_err(refused)?.$data.ok_or(Trouble::Incomplete)?;
                live(data.spec, data.metadata, true)
            }

            async fn delete(mesh: &Mesh<'_>, name: &Name) -> Answer<()> {
                let call = mesh.client.$delete().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                call.send().await.map_err(refused).map(drop)
            }
        }
    };
}

kind! {
    Node, "virtual node", VirtualNodeSpec, VirtualNodeStatusCode, virtual_node, virtual_node_name;
    says [Backends Timeout];
    describe_virtual_node create_virtual_node update_virtual_node delete_virtual_node
}
kind! {
    Router, "virtual router", VirtualRouterSpec, VirtualRouterStatusCode, virtual_router, virtual_router_name;
    says [];
    describe_virtual_router create_virtual_router update_virtual_router delete_virtual_router
}
kind! {
    Service, "virtual service", VirtualServiceSpec, VirtualServiceStatusCode, virtual_service,
    virtual_service_name;
    says [];
    describe_virtual_service create_virtual_service update_virtual_service delete_virtual_service
}
kind! {
    Route, "route", RouteSpec, RouteStatusCode, route, route_name, in virtual_router_name;
    says [Retries Timeout];
    describe_route create_route update_route delete_route
}

fn live<S>(spec: Option<S>, metadata: Option<ResourceMetadata>, active: bool) -> Answer<Live<S>> {
    let (Some(spec), Some(metadata)) = (spec, metadata) else { return Err(Trouble::Incomplete) };
    let ResourceMetadata { arn, uid, version, created_at: created, .. } = metadata;
    Ok(Live { spec, arn, uid, version, created, active })
}

fn refused(why: impl Into<Refused>) -> Trouble {
    let why = why.into();
    let text =
        aws_sdk_appmesh::error::ProvideErrorMetadata::message(&why).unwrap_or("no reason given").to_owned();
    let code = aws_sdk_appmesh::error::ProvideErrorMetadata::code(&why).unwrap_or_default();
    match &why {
        Refused::NotFoundException(_) => Trouble::NotFound(text),
        Refused::ConflictException(_) => Trouble::Conflict(text),
        Refused::BadRequestException(_) => Trouble::BadRequest(text),
        Refused::ForbiddenException(_) => Trouble::Forbidden(text),
        Refused::InternalServerErrorException(_) => Trouble::Internal(text),
        Refused::LimitExceededException(_) => Trouble::LimitExceeded(text),
        Refused::ResourceInUseException(_) => Trouble::InUse(text),
        Refused::ServiceUnavailableException(_) => Trouble::Unavailable(text),
        Refused::TooManyRequestsException(_) => Trouble::TooManyRequests(text),
        Refused::TooManyTagsException(_) => Trouble::TooManyTags(text),
        // What stands before every service of Amazon's says this.
        _ if [
            "AccessDenied",
            "UnrecognizedClient",
            "InvalidSignature",
            "ExpiredToken",
            "InvalidClientTokenId",
        ]
        .iter()
        .any(|begins| code.starts_with(begins)) =>
        {
            Trouble::Forbidden(text)
        }
        other => Trouble::NoAnswer(DisplayErrorContext(other).to_string()),
    }
}

/// One intent, one token, of at most 36 characters: the same intent is the
/// same request, whoever repeats it.
pub fn token(intent: &[&str]) -> String {
    let digest = Sha256::digest(intent.join("\n"));
    digest[..18].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Mesh<'_> {
    fn failed<K: Kind>(&self, doing: &'static str, name: &Name) -> impl Fn(Trouble) -> Error + use<K> {
        let what = format!("the {} {name} in the mesh {}", K::NOUN, self.name);
        move |why| Error::Trouble { doing, what: what.clone(), why }
    }

    fn may_write(&self) -> Answer<()> {
        if (self.may_write)() { Ok(()) } else { Err(Trouble::Fenced) }
    }

    /// None if there is none.
    pub async fn find<K: Kind>(&self, name: &Name) -> Result<Option<Live<K::Spec>>, Error> {
        self.paces.reads.turn().await.map_err(self.failed::<K>("read", name))?;
        match K::describe(self, name).await {
            Ok(live) => Ok(Some(live)),
            Err(Trouble::NotFound(_)) => Ok(None),
            Err(why) => Err(self.failed::<K>("read", name)(why)),
        }
    }

    /// Makes it; `moment` tells this time from an earlier one.
    pub async fn create<K: Kind>(
        &self,
        name: &Name,
        spec: K::Spec,
        tags: Vec<TagRef>,
        moment: &str,
    ) -> Result<Live<K::Spec>, Error> {
        let token = token(&["create", &self.name, K::NOUN, &name.to_string(), &format!("{spec:?}"), moment]);
        let doing = self.paces.writes.turn().await.and_then(|()| self.may_write());
        doing.map_err(self.failed::<K>("create", name))?;
        match K::create(self, name, spec, tags, token).await {
            Ok(live) => self.shows::<K>(name, live.version).await,
            Err(why) => Err(self.failed::<K>("create", name)(why)),
        }
    }

    pub async fn update<K: Kind>(
        &self,
        name: &Name,
        live: &Live<K::Spec>,
        spec: K::Spec,
    ) -> Result<Live<K::Spec>, Error> {
        let version = live.version.to_string();
        let token = token(&["update", &live.arn, &live.uid, &version, &format!("{spec:?}")]);
        let doing = self.paces.writes.turn().await.and_then(|()| self.may_write());
        doing.map_err(self.failed::<K>("update", name))?;
        match K::update(self, name, spec, token).await {
            Ok(live) => self.shows::<K>(name, live.version).await,
            Err(Trouble::NotFound(_)) => Err(Error::Changed { what: format!("the {} {name}", K::NOUN) }),
            Err(why) => Err(self.failed::<K>("update", name)(why)),
        }
    }

    /// Reads back what was written, until it shows.
    async fn shows<K: Kind>(&self, name: &Name, version: i64) -> Result<Live<K::Spec>, Error> {
        for wait in SHOWS_AFTER {
            sleep(Duration::from_millis(wait)).await;
            match self.find::<K>(name).await? {
                Some(live) if live.version >= version && live.active => return Ok(live),
                _ => {}
            }
        }
        Err(self.failed::<K>("read back", name)(Trouble::NotYet))
    }

    /// Says whether it is gone; what others have come to use is not.
    pub async fn delete<K: Kind>(&self, name: &Name) -> Result<bool, Error> {
        for wait in FREE_AFTER {
            sleep(Duration::from_millis(wait)).await;
            let doing = self.paces.writes.turn().await.and_then(|()| self.may_write());
            doing.map_err(self.failed::<K>("delete", name))?;
            match K::delete(self, name).await {
                Ok(()) | Err(Trouble::NotFound(_)) => return Ok(true),
                Err(Trouble::InUse(_)) => {}
                Err(why) => return Err(self.failed::<K>("delete", name)(why)),
            }
        }
        Ok(false)
    }

    /// Every route of a router: its name, identifier, version and birth.
    pub async fn routes(&self, router: &str) -> Result<Vec<(String, String, i64, DateTime)>, Error> {
        let (mut routes, mut next) = (Vec::new(), None);
        let failed = self.failed::<Router>("list the routes of", &Name::of(router));
        loop {
            if let Err(why) = self.paces.reads.turn().await {
                return Err(failed(why));
            }
            let call = self.client.list_routes().virtual_router_name(router).set_next_token(next);
            let call = call.mesh_name(&self.name).set_mesh_owner(self.owner.clone());
            let page = match call.limit(100).send().await.map_err(refused) {
                Ok(page) => page,
                // Gone since it was looked at.
                Err(Trouble::NotFound(_)) => return Ok(Vec::new()),
                Err(why) => return Err(failed(why)),
            };
            routes.extend(page.routes.into_iter().map(|r| (r.route_name, r.arn, r.version, r.created_at)));
            next = page.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(routes);
            }
        }
    }

    pub async fn tags(&self, arn: &str) -> Result<Vec<TagRef>, Error> {
        let (mut tags, mut next) = (Vec::new(), None);
        loop {
            let failed = |why| Error::Trouble { doing: "read the tags of", what: arn.to_owned(), why };
            self.paces.reads.turn().await.map_err(failed)?;
            let call = self.client.list_tags_for_resource().resource_arn(arn).set_next_token(next);
            let page = match call.send().await.map_err(refused) {
                Ok(page) => page,
                Err(Trouble::NotFound(_)) => return Ok(tags),
                Err(why) => return Err(failed(why)),
            };
            tags.extend(page.tags);
            next = page.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(tags);
            }
        }
    }

    pub async fn tag(&self, arn: &str, tags: Vec<TagRef>) -> Result<(), Error> {
        let failed = |why| Error::Trouble { doing: "tag", what: arn.to_owned(), why };
        self.paces.writes.turn().await.and_then(|()| self.may_write()).map_err(failed)?;
        let call = self.client.tag_resource().resource_arn(arn).set_tags(Some(tags));
        call.send().await.map_err(|why| failed(refused(why)))?;
        Ok(())
    }

    pub async fn untag(&self, arn: &str, keys: Vec<String>) -> Result<(), Error> {
        let failed = |why| Error::Trouble { doing: "untag", what: arn.to_owned(), why };
        self.paces.writes.turn().await.and_then(|()| self.may_write()).map_err(failed)?;
        match self
            .client
            .untag_resource()
            .resource_arn(arn)
            .set_tag_keys(Some(keys))
            .send()
            .await
            .map_err(refused)
        {
            Ok(_) | Err(Trouble::NotFound(_)) => Ok(()),
            Err(why) => Err(failed(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_has_one_token_and_another_has_another() {
        let one = token(&["update", "arn", "1", "spec"]);
        assert_eq!(one.len(), 36);
        assert_eq!(one, token(&["update", "arn", "1", "spec"]));
        assert_ne!(one, token(&["update", "arn", "2", "spec"]));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_keep_their_pace_and_do_not_wait_for_ever() {
        let (pace, began) = (Pace::of(8, 5), Instant::now());
        for _ in 0..13 {
            pace.turn().await.unwrap();
        }
        assert_eq!(began.elapsed().as_millis(), 1000, "five at once, eight in the second after");
        let waiting = (0..100).map(|_| pace.turn());
        let turned = futures::future::join_all(waiting).await;
        assert!(matches!(turned.last(), Some(Err(Trouble::Busy))));
        assert!(began.elapsed() < Duration::from_secs(7));
    }
}
