//! The App Mesh API calls that Serin makes.
//!
//! Rate limits are those of Amazon's own controller, shared by all Canaries; a
//! request that would wait too long fails. A retry by the SDK has the same client
//! token.

use std::{fmt, time::Duration};

use aws_sdk_appmesh::{
    Client, Error as AwsError,
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

use super::error::{Error, MeshApiError};

/// How long a request may wait for the rate limit.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(5);

/// Delays before reading a write back. As a rule it shows at once.
const READ_BACK_DELAYS_MS: [u64; 6] = [0, 100, 250, 500, 1000, 2000];

/// Delays before deleting a resource that was in use.
const DELETE_RETRY_DELAYS_MS: [u64; 4] = [0, 250, 500, 1000];

/// Requests per second, with a burst.
#[derive(Debug)]
pub struct RequestRateLimiter {
    interval: Duration,
    burst: u32,
    /// The time of the next request if all were evenly spaced.
    next: Mutex<Instant>,
}

impl RequestRateLimiter {
    fn new(per_second: u32, burst: u32) -> Self {
        Self { interval: Duration::from_secs(1) / per_second, burst, next: Mutex::new(Instant::now()) }
    }

    async fn acquire(&self) -> Result<(), MeshApiError> {
        let at = {
            let (mut next, now) = (self.next.lock(), Instant::now());
            let due = (*next).max(now);
            let at = due.checked_sub(self.interval * (self.burst - 1)).unwrap_or(now);
            if at.saturating_duration_since(now) > MAX_RATE_LIMIT_WAIT {
                return Err(MeshApiError::RateLimitTimeout);
            }
            *next = due + self.interval;
            at
        };
        sleep_until(at).await;
        Ok(())
    }
}

/// For all requests of this controller.
#[derive(Debug)]
pub struct RequestRateLimiters {
    reads: RequestRateLimiter,
    writes: RequestRateLimiter,
}

impl Default for RequestRateLimiters {
    fn default() -> Self {
        Self { reads: RequestRateLimiter::new(40, 5), writes: RequestRateLimiter::new(8, 5) }
    }
}

/// A client for one mesh, on behalf of one Canary.
pub struct MeshClient<'a> {
    pub client: Client,
    pub rate_limiters: &'a RequestRateLimiters,
    pub name: String,
    /// The account that shares it with ours.
    pub owner: Option<String>,
    /// True if this replica may still write for the Canary.
    pub check_fence: &'a (dyn Fn() -> bool + Send + Sync),
}

/// The name of a resource within its mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceName {
    pub name: String,
    /// The virtual router of a route, else empty.
    pub router: String,
}

impl ResourceName {
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), router: String::new() }
    }

    pub fn route(name: &str, router: &str) -> Self {
        Self { name: name.to_owned(), router: router.to_owned() }
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.router.as_str() {
            "" => write!(f, "{}", self.name),
            router => write!(f, "{} of the virtual router {router}", self.name),
        }
    }
}

/// A resource as App Mesh returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveResource<S> {
    pub spec: S,
    pub arn: String,
    pub uid: String,
    pub version: i64,
    pub created: DateTime,
    pub active: bool,
}

/// A kind of mesh resource.
pub trait ResourceKind {
    type Spec: Clone + PartialEq + fmt::Debug + Send + Sync;
    /// For messages.
    const NOUN: &'static str;
    /// Fields that are written only if the Canary sets them.
    const MANAGED_FIELDS: &'static [ManagedField];

    fn describe(
        mesh: &MeshClient<'_>,
        name: &ResourceName,
    ) -> impl Future<Output = ApiResult<LiveResource<Self::Spec>>> + Send;

    fn create(
        mesh: &MeshClient<'_>,
        name: &ResourceName,
        spec: Self::Spec,
        tags: Vec<TagRef>,
        token: String,
    ) -> impl Future<Output = ApiResult<LiveResource<Self::Spec>>> + Send;

    fn update(
        mesh: &MeshClient<'_>,
        name: &ResourceName,
        spec: Self::Spec,
        token: String,
    ) -> impl Future<Output = ApiResult<LiveResource<Self::Spec>>> + Send;

    fn delete(mesh: &MeshClient<'_>, name: &ResourceName) -> impl Future<Output = ApiResult<()>> + Send;
}

type ApiResult<T> = Result<T, MeshApiError>;

/// A field of `spec.service` that is written only if it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ManagedField {
    Backends,
    Retries,
    Timeout,
}

/// The four calls of a kind, which differ only in names.
macro_rules! resource_kind {
    (
        $ResourceKind:ident, $noun:literal, $Spec:ident, $Code:ident, $data:ident, $name:ident $(, in $router:ident)?;
        managed [$($field:ident)*];
        $describe:ident $create:ident $update:ident $delete:ident
    ) => {
        pub struct $ResourceKind;

        impl ResourceKind for $ResourceKind {
            type Spec = $Spec;
            const NOUN: &'static str = $noun;
            const MANAGED_FIELDS: &'static [ManagedField] = &[$(ManagedField::$field),*];

            async fn describe(mesh: &MeshClient<'_>, name: &ResourceName) -> ApiResult<LiveResource<$Spec>> {
                let call = mesh.client.$describe().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                let data = call.send().await.map_err(to_api_error)?.$data.ok_or(MeshApiError::Incomplete)?;
                let active = data.status.is_none_or(|status| status.status == $Code::Active);
                live(data.spec, data.metadata, active)
            }

            async fn create(
                mesh: &MeshClient<'_>,
                name: &ResourceName,
                spec: $Spec,
                tags: Vec<TagRef>,
                token: String,
            ) -> ApiResult<LiveResource<$Spec>> {
                let call = mesh.client.$create().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                let call = call.spec(spec).set_tags(Some(tags)).client_token(token);
                let data = call.send().await.map_err(to_api_error)?.$data.ok_or(MeshApiError::Incomplete)?;
                live(data.spec, data.metadata, true)
            }

            async fn update(mesh: &MeshClient<'_>, name: &ResourceName, spec: $Spec, token: String) -> ApiResult<LiveResource<$Spec>> {
                let call = mesh.client.$update().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                let call = call.spec(spec).client_token(token);
                let data = call.send().await.map_err(to_api_error)?.$data.ok_or(MeshApiError::Incomplete)?;
                live(data.spec, data.metadata, true)
            }

            async fn delete(mesh: &MeshClient<'_>, name: &ResourceName) -> ApiResult<()> {
                let call = mesh.client.$delete().$name(&name.name)$(.$router(&name.router))?;
                let call = call.mesh_name(&mesh.name).set_mesh_owner(mesh.owner.clone());
                call.send().await.map_err(to_api_error).map(drop)
            }
        }
    };
}

resource_kind! {
    VirtualNode, "virtual node", VirtualNodeSpec, VirtualNodeStatusCode, virtual_node, virtual_node_name;
    managed [Backends Timeout];
    describe_virtual_node create_virtual_node update_virtual_node delete_virtual_node
}
resource_kind! {
    VirtualRouter, "virtual router", VirtualRouterSpec, VirtualRouterStatusCode, virtual_router, virtual_router_name;
    managed [];
    describe_virtual_router create_virtual_router update_virtual_router delete_virtual_router
}
resource_kind! {
    VirtualService, "virtual service", VirtualServiceSpec, VirtualServiceStatusCode, virtual_service,
    virtual_service_name;
    managed [];
    describe_virtual_service create_virtual_service update_virtual_service delete_virtual_service
}
resource_kind! {
    MeshRoute, "route", RouteSpec, RouteStatusCode, route, route_name, in virtual_router_name;
    managed [Retries Timeout];
    describe_route create_route update_route delete_route
}

fn live<S>(spec: Option<S>, metadata: Option<ResourceMetadata>, active: bool) -> ApiResult<LiveResource<S>> {
    let (Some(spec), Some(metadata)) = (spec, metadata) else { return Err(MeshApiError::Incomplete) };
    let ResourceMetadata { arn, uid, version, created_at: created, .. } = metadata;
    Ok(LiveResource { spec, arn, uid, version, created, active })
}

fn to_api_error(why: impl Into<AwsError>) -> MeshApiError {
    let why = why.into();
    let text =
        aws_sdk_appmesh::error::ProvideErrorMetadata::message(&why).unwrap_or("no reason given").to_owned();
    let code = aws_sdk_appmesh::error::ProvideErrorMetadata::code(&why).unwrap_or_default();
    match &why {
        AwsError::NotFoundException(_) => MeshApiError::NotFound(text),
        AwsError::ConflictException(_) => MeshApiError::Conflict(text),
        AwsError::BadRequestException(_) => MeshApiError::BadRequest(text),
        AwsError::ForbiddenException(_) => MeshApiError::Forbidden(text),
        AwsError::InternalServerErrorException(_) => MeshApiError::Internal(text),
        AwsError::LimitExceededException(_) => MeshApiError::LimitExceeded(text),
        AwsError::ResourceInUseException(_) => MeshApiError::InUse(text),
        AwsError::ServiceUnavailableException(_) => MeshApiError::Unavailable(text),
        AwsError::TooManyRequestsException(_) => MeshApiError::TooManyRequests(text),
        AwsError::TooManyTagsException(_) => MeshApiError::TooManyTags(text),
        // Codes of the AWS front end, common to all services.
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
            MeshApiError::Forbidden(text)
        }
        other => MeshApiError::InvalidResponse(DisplayErrorContext(other).to_string()),
    }
}

/// An idempotency token of 36 characters, the limit: the same intent has the
/// same token.
pub fn client_token(intent: &[&str]) -> String {
    let digest = Sha256::digest(intent.join("\n"));
    digest[..18].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl MeshClient<'_> {
    fn api_error<K: ResourceKind>(
        &self,
        doing: &'static str,
        name: &ResourceName,
    ) -> impl Fn(MeshApiError) -> Error + use<K> {
        let what = format!("the {} {name} in the mesh {}", K::NOUN, self.name);
        move |why| Error::Api { doing, what: what.clone(), why }
    }

    fn check_fence(&self) -> ApiResult<()> {
        if (self.check_fence)() { Ok(()) } else { Err(MeshApiError::Fenced) }
    }

    pub async fn find<K: ResourceKind>(
        &self,
        name: &ResourceName,
    ) -> Result<Option<LiveResource<K::Spec>>, Error> {
        self.rate_limiters.reads.acquire().await.map_err(self.api_error::<K>("read", name))?;
        match K::describe(self, name).await {
            Ok(live) => Ok(Some(live)),
            Err(MeshApiError::NotFound(_)) => Ok(None),
            Err(why) => Err(self.api_error::<K>("read", name)(why)),
        }
    }

    /// `nonce` makes the token differ from that of an earlier creation.
    pub async fn create<K: ResourceKind>(
        &self,
        name: &ResourceName,
        spec: K::Spec,
        tags: Vec<TagRef>,
        nonce: &str,
    ) -> Result<LiveResource<K::Spec>, Error> {
        let token =
            client_token(&["create", &self.name, K::NOUN, &name.to_string(), &format!("{spec:?}"), nonce]);
        let allowed = self.rate_limiters.writes.acquire().await.and_then(|()| self.check_fence());
        allowed.map_err(self.api_error::<K>("create", name))?;
        match K::create(self, name, spec, tags, token).await {
            Ok(live) => self.wait_until_visible::<K>(name, live.version).await,
            Err(why) => Err(self.api_error::<K>("create", name)(why)),
        }
    }

    pub async fn update<K: ResourceKind>(
        &self,
        name: &ResourceName,
        live: &LiveResource<K::Spec>,
        spec: K::Spec,
    ) -> Result<LiveResource<K::Spec>, Error> {
        let version = live.version.to_string();
        let token = client_token(&["update", &live.arn, &live.uid, &version, &format!("{spec:?}")]);
        let allowed = self.rate_limiters.writes.acquire().await.and_then(|()| self.check_fence());
        allowed.map_err(self.api_error::<K>("update", name))?;
        match K::update(self, name, spec, token).await {
            Ok(live) => self.wait_until_visible::<K>(name, live.version).await,
            Err(MeshApiError::NotFound(_)) => {
                Err(Error::Conflict { what: format!("the {} {name}", K::NOUN) })
            }
            Err(why) => Err(self.api_error::<K>("update", name)(why)),
        }
    }

    /// Reads a write back until it shows.
    async fn wait_until_visible<K: ResourceKind>(
        &self,
        name: &ResourceName,
        version: i64,
    ) -> Result<LiveResource<K::Spec>, Error> {
        for wait in READ_BACK_DELAYS_MS {
            sleep(Duration::from_millis(wait)).await;
            match self.find::<K>(name).await? {
                Some(live) if live.version >= version && live.active => return Ok(live),
                _ => {}
            }
        }
        Err(self.api_error::<K>("read back", name)(MeshApiError::NotVisibleYet))
    }

    /// False if other resources still use it.
    pub async fn delete<K: ResourceKind>(&self, name: &ResourceName) -> Result<bool, Error> {
        for wait in DELETE_RETRY_DELAYS_MS {
            sleep(Duration::from_millis(wait)).await;
            let allowed = self.rate_limiters.writes.acquire().await.and_then(|()| self.check_fence());
            allowed.map_err(self.api_error::<K>("delete", name))?;
            match K::delete(self, name).await {
                Ok(()) | Err(MeshApiError::NotFound(_)) => return Ok(true),
                Err(MeshApiError::InUse(_)) => {}
                Err(why) => return Err(self.api_error::<K>("delete", name)(why)),
            }
        }
        Ok(false)
    }

    /// Every route of a router: name, ARN, version and creation time.
    pub async fn routes(&self, router: &str) -> Result<Vec<(String, String, i64, DateTime)>, Error> {
        let (mut routes, mut next) = (Vec::new(), None);
        let failed = self.api_error::<VirtualRouter>("list the routes of", &ResourceName::of(router));
        loop {
            if let Err(why) = self.rate_limiters.reads.acquire().await {
                return Err(failed(why));
            }
            let call = self.client.list_routes().virtual_router_name(router).set_next_token(next);
            let call = call.mesh_name(&self.name).set_mesh_owner(self.owner.clone());
            let page = match call.limit(100).send().await.map_err(to_api_error) {
                Ok(page) => page,
                // Deleted since it was fetched.
                Err(MeshApiError::NotFound(_)) => return Ok(Vec::new()),
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
            let failed = |why| Error::Api { doing: "read the tags of", what: arn.to_owned(), why };
            self.rate_limiters.reads.acquire().await.map_err(failed)?;
            let call = self.client.list_tags_for_resource().resource_arn(arn).set_next_token(next);
            let page = match call.send().await.map_err(to_api_error) {
                Ok(page) => page,
                Err(MeshApiError::NotFound(_)) => return Ok(tags),
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
        let failed = |why| Error::Api { doing: "tag", what: arn.to_owned(), why };
        self.rate_limiters.writes.acquire().await.and_then(|()| self.check_fence()).map_err(failed)?;
        let call = self.client.tag_resource().resource_arn(arn).set_tags(Some(tags));
        call.send().await.map_err(|why| failed(to_api_error(why)))?;
        Ok(())
    }

    pub async fn untag(&self, arn: &str, keys: Vec<String>) -> Result<(), Error> {
        let failed = |why| Error::Api { doing: "untag", what: arn.to_owned(), why };
        self.rate_limiters.writes.acquire().await.and_then(|()| self.check_fence()).map_err(failed)?;
        match self
            .client
            .untag_resource()
            .resource_arn(arn)
            .set_tag_keys(Some(keys))
            .send()
            .await
            .map_err(to_api_error)
        {
            Ok(_) | Err(MeshApiError::NotFound(_)) => Ok(()),
            Err(why) => Err(failed(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_its_own_stable_client_token() {
        let one = client_token(&["update", "arn", "1", "spec"]);
        assert_eq!(one.len(), 36);
        assert_eq!(one, client_token(&["update", "arn", "1", "spec"]));
        assert_ne!(one, client_token(&["update", "arn", "2", "spec"]));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_rate_limited_and_time_out() {
        let (limiter, began) = (RequestRateLimiter::new(8, 5), Instant::now());
        for _ in 0..13 {
            limiter.acquire().await.unwrap();
        }
        assert_eq!(began.elapsed().as_millis(), 1000, "five at once, eight in the second after");
        let waiting = (0..100).map(|_| limiter.acquire());
        let results = futures::future::join_all(waiting).await;
        assert!(matches!(results.last(), Some(Err(MeshApiError::RateLimitTimeout))));
        assert!(began.elapsed() < Duration::from_secs(7));
    }
}
