//! App Mesh, listed region by region, and Cloud Map (`cloud_map`).
//!
//! A listing is complete or an error: nothing of a half listing is reported. App Mesh
//! has no watch, so it is polled; `version` of the lists avoids most Describes. Tags of
//! meshes are read each time, tags of a virtual node with its next version.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_appmesh::error::{DisplayErrorContext, ProvideErrorMetadata};
use aws_sdk_appmesh::types::{
    HttpRouteAction, MeshRef, RouteSpec, ServiceDiscovery, VirtualServiceProvider, WeightedTarget,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Reporter;
use super::credentials::AwsCredentials;
use super::registry::{Instance, Service};
use crate::api::mesh_api::{AppMeshApi, DEFAULT_POLL_INTERVAL, MIN_POLL_INTERVAL};
use crate::aws::{Account, Accounts, Keys};
use crate::discovery::model::{External, Key, Kind, Object, aws_scope};

/// Of one region. A request has its own, shorter limit (`aws.rs`).
const LISTING_TIMEOUT: Duration = Duration::from_secs(300);

/// Of one region; more is an error, not a part.
const MAX_OBJECTS: usize = 50_000;

const MAX_PAGES: usize = 1_000;

/// Requests per second of one set of credentials: a quarter of what Amazon's controller
/// takes for reads.
const REQUESTS_PER_SECOND: u32 = 10;

/// From a change of what EndpointGroups name to the next listing.
const WANTED_DELAY: Duration = Duration::from_secs(2);

/// Failures double the interval up to this many times.
const MAX_BACKOFF_DOUBLINGS: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} in {region}: {why}")]
    Call { doing: &'static str, region: String, why: String },
    #[error("list App Mesh in {region}: it has more than {MAX_OBJECTS} objects or {MAX_PAGES} pages")]
    TooLarge { region: String },
    #[error("list App Mesh in {region}: not complete after {LISTING_TIMEOUT:?}")]
    Timeout { region: String },
    #[error(transparent)]
    Region(#[from] crate::aws::NoRegion),
}

/// Evenly spaced requests.
pub struct Pace {
    next: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }
}

impl Pace {
    async fn turn(&self) {
        let at = {
            let mut next = self.next.lock();
            let at = (*next).max(Instant::now());
            *next = at + Duration::from_secs(1) / REQUESTS_PER_SECOND;
            at
        };
        sleep_until(at).await;
    }
}

/// One pace for all regions and MeshApis with the same credentials.
#[derive(Clone, Default)]
pub struct Paces(Arc<Mutex<HashMap<Account, Arc<Pace>>>>);

impl Paces {
    fn of(&self, account: &Account) -> Arc<Pace> {
        let whole = Account { region: None, ..account.clone() };
        Arc::clone(self.0.lock().entry(whole).or_default())
    }
}

pub fn account(api: &AppMeshApi, credentials: Option<&AwsCredentials>, region: &str) -> Account {
    let AwsCredentials { keys, role_arn, external_id } = credentials.cloned().unwrap_or_default();
    let keys = keys.map(|(access_key_id, secret_access_key, session_token)| Keys {
        access_key_id,
        secret_access_key,
        session_token,
    });
    Account {
        region: Some(region.to_owned()),
        endpoint: api.endpoint.clone(),
        sts_endpoint: api.endpoint.clone().filter(|_| role_arn.is_some()),
        role_arn,
        external_id,
        keys,
    }
}

/// Polls all regions until it is dropped. One that hangs does not delay another.
pub async fn poll(
    api: &AppMeshApi,
    credentials: Option<AwsCredentials>,
    (accounts, paces): (Accounts, Paces),
    reporter: Reporter,
) {
    let regions = api.regions.iter().map(|region| {
        let account = account(api, credentials.as_ref(), region);
        let pace = paces.of(&account);
        poll_region(api, account, (&accounts, pace), region, reporter.clone())
    });
    futures::future::join_all(regions).await;
}

async fn poll_region(
    api: &AppMeshApi,
    account: Account,
    (accounts, pace): (&Accounts, Arc<Pace>),
    region: &str,
    mut reporter: Reporter,
) {
    let mut schedule = PollSchedule { interval: poll_interval(api), failures: 0 };
    let mut listing = None;
    loop {
        let listed = async {
            let listing = match &mut listing {
                Some(listing) => listing,
                none => none.insert(Listing::new(accounts, &account, api.owner.clone(), &pace).await?),
            };
            let limited = timeout(LISTING_TIMEOUT, listing.list(&reporter.wanted())).await;
            limited.unwrap_or_else(|_| Err(Error::Timeout { region: region.to_owned() }))
        };
        let listed = listed.await;
        let complete = listed.is_ok();
        match listed {
            Ok(Listed { objects, registered }) => {
                reporter.listed(region, objects).await;
                for (service, instances) in registered {
                    reporter.found(region, &service, instances).await;
                }
            }
            Err(error) => reporter.failed(region, error.to_string()).await,
        }
        let wanted = async {
            reporter.wanted_changed().await;
            sleep(WANTED_DELAY).await;
        };
        tokio::select! {
            () = schedule.wait(complete) => {}
            // After a failure the interval is what protects the API.
            () = wanted, if complete => {}
        }
    }
}

fn poll_interval(api: &AppMeshApi) -> Duration {
    api.poll_interval.unwrap_or(DEFAULT_POLL_INTERVAL).max(MIN_POLL_INTERVAL).get()
}

/// When a region is listed again. Failures in a row double the interval: a failed listing
/// is most often a throttled one.
struct PollSchedule {
    interval: Duration,
    failures: u32,
}

impl PollSchedule {
    /// After a listing that was complete, or not.
    async fn wait(&mut self, complete: bool) {
        self.failures = if complete { 0 } else { self.failures + 1 };
        let doubled = self.interval * 2_u32.pow(self.failures.min(MAX_BACKOFF_DOUBLINGS));
        sleep(doubled + doubled.mul_f64(jitter() / 10.0)).await;
    }
}

/// From 0 to 1, so that many controllers do not poll at the same moment.
fn jitter() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    (RandomState::new().hash_one(0_u8) % 1024) as f64 / 1024.0
}

/// What a Describe returned, for the version of the list that it was read at.
#[derive(Clone)]
struct Described {
    version: i64,
    content: External,
    cloud_map: Option<(String, String)>,
}

pub struct Listing {
    mesh: aws_sdk_appmesh::Client,
    cloud_map: aws_sdk_servicediscovery::Client,
    region: String,
    owner: Option<String>,
    pace: Arc<Pace>,
    /// By ARN.
    described: BTreeMap<String, Described>,
}

/// The content of a region.
pub struct Listed {
    pub objects: Vec<Object>,
    /// Services of Cloud Map that EndpointGroups name.
    pub registered: Vec<(Service, Vec<Instance>)>,
}

/// All pages of a list.
macro_rules! pages {
    ($self:ident, $doing:literal, $limit:ident, $call:expr, |$page:ident| $items:expr) => {{
        let (mut all, mut next) = (Vec::new(), None::<String>);
        let mut complete = false;
        for _ in 0..MAX_PAGES {
            $self.pace.turn().await;
            let $page = match $call.$limit(100).set_next_token(next.take()).send().await {
                Ok(page) => page,
                Err(error) => return Err($self.failed($doing, &error)),
            };
            next = $page.next_token.clone().filter(|token| !token.is_empty());
            all.extend($items);
            complete = next.is_none();
            if complete || all.len() > MAX_OBJECTS {
                break;
            }
        }
        if !complete {
            return Err(Error::TooLarge { region: $self.region.clone() });
        }
        all
    }};
}

/// A Describe, from the memory if the version is known; none if it was deleted meanwhile.
macro_rules! describe {
    ($self:ident, $doing:literal, $item:expr, $call:expr, |$answer:ident| $content:expr) => {{
        match $self.described.get(&$item.arn).filter(|known| known.version == $item.version) {
            Some(known) => Some(known.clone()),
            None => {
                $self.pace.turn().await;
                match $call.send().await {
                    Ok($answer) => {
                        let (content, cloud_map) = $content;
                        Some(Described { version: $item.version, content, cloud_map })
                    }
                    Err(error) if error.code() == Some("NotFoundException") => None,
                    Err(error) => return Err($self.failed($doing, &error)),
                }
            }
        }
    }};
}

mod cloud_map;

impl Listing {
    pub async fn new(
        accounts: &Accounts,
        account: &Account,
        owner: Option<String>,
        pace: &Arc<Pace>,
    ) -> Result<Self, Error> {
        let config = accounts.config(account).await?;
        Ok(Self {
            mesh: aws_sdk_appmesh::Client::new(&config),
            cloud_map: aws_sdk_servicediscovery::Client::new(&config),
            region: account.region.clone().unwrap_or_default(),
            owner,
            pace: Arc::clone(pace),
            described: BTreeMap::new(),
        })
    }

    fn failed<E>(&self, doing: &'static str, error: &E) -> Error
    where
        E: ProvideErrorMetadata + std::error::Error,
    {
        let why = match (error.code(), error.message()) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(code), None) => code.to_owned(),
            (None, _) => DisplayErrorContext(error).to_string(),
        };
        Error::Call { doing, region: self.region.clone(), why }
    }

    pub async fn meshes(&self) -> Result<Vec<MeshRef>, Error> {
        let mut meshes = pages!(self, "list meshes", limit, self.mesh.list_meshes(), |page| page.meshes);
        meshes.retain(|mesh| self.owner.as_ref().is_none_or(|owner| mesh.mesh_owner == *owner));
        Ok(meshes)
    }

    /// Everything in the region, and the instances of these services.
    pub async fn list(&mut self, registered: &BTreeSet<Service>) -> Result<Listed, Error> {
        let (mut objects, mut described) = (Vec::new(), BTreeMap::new());
        let mut wanted = BTreeSet::new();
        for mesh in self.meshes().await? {
            self.list_mesh(&mesh, &mut objects, &mut described).await?;
            if objects.len() > MAX_OBJECTS {
                return Err(Error::TooLarge { region: self.region.clone() });
            }
        }
        wanted.extend(described.values().filter_map(|known| known.cloud_map.clone()));
        let Listed { objects: instances, registered } = self.instances(&wanted, registered).await?;
        objects.extend(instances);
        self.described = described;
        Ok(Listed { objects, registered })
    }

    async fn list_mesh(
        &self,
        mesh: &MeshRef,
        objects: &mut Vec<Object>,
        described: &mut BTreeMap<String, Described>,
    ) -> Result<(), Error> {
        let (name, owner) = (&mesh.mesh_name, &mesh.mesh_owner);
        let scope = aws_scope(owner, &self.region);
        let key = |kind: Kind, of: &str| Key::new(&scope, name, kind, of);
        let client = &self.mesh;
        let tags = self.tags(&mesh.arn).await?;
        let mesh_key = Key::new(&scope, "", Kind::AppMeshMesh, name);
        objects.push(Object::external(mesh_key, Some(mesh.version), External::AppMesh { tags }));
        let mut keep = |kind: Kind, of: &str, arn: String, known: Option<Described>| {
            let Some(known) = known else { return };
            objects.push(Object::external(key(kind, of), Some(known.version), known.content.clone()));
            described.insert(arn, known);
        };
        for node in pages!(
            self,
            "list virtual nodes",
            limit,
            client.list_virtual_nodes().mesh_name(name).mesh_owner(owner),
            |page| page.virtual_nodes
        ) {
            let of = &node.virtual_node_name;
            let call = client.describe_virtual_node().mesh_name(name).mesh_owner(owner).virtual_node_name(of);
            let known = describe!(self, "describe a virtual node", node, call, |answer| {
                let spec = answer.virtual_node.and_then(|node| node.spec);
                let cloud_map = match spec.and_then(|spec| spec.service_discovery) {
                    Some(ServiceDiscovery::AwsCloudMap(map)) => Some((map.namespace_name, map.service_name)),
                    _ => None,
                };
                (External::VirtualNode { tags: self.tags(&node.arn).await? }, cloud_map)
            });
            keep(Kind::AppMeshVirtualNode, of, node.arn.clone(), known);
        }
        for service in pages!(
            self,
            "list virtual services",
            limit,
            client.list_virtual_services().mesh_name(name).mesh_owner(owner),
            |page| page.virtual_services
        ) {
            let of = &service.virtual_service_name;
            let call =
                client.describe_virtual_service().mesh_name(name).mesh_owner(owner).virtual_service_name(of);
            let known = describe!(self, "describe a virtual service", service, call, |answer| {
                let spec = answer.virtual_service.and_then(|service| service.spec);
                let provider = match spec.and_then(|spec| spec.provider) {
                    Some(VirtualServiceProvider::VirtualNode(node)) => {
                        Some(format!("virtualNode/{}", node.virtual_node_name))
                    }
                    Some(VirtualServiceProvider::VirtualRouter(router)) => {
                        Some(format!("virtualRouter/{}", router.virtual_router_name))
                    }
                    _ => None,
                };
                (External::VirtualService { provider }, None)
            });
            keep(Kind::AppMeshVirtualService, of, service.arn.clone(), known);
        }
        let listed = |version: i64| Some(Described { version, content: External::Listed, cloud_map: None });
        for router in pages!(
            self,
            "list virtual routers",
            limit,
            client.list_virtual_routers().mesh_name(name).mesh_owner(owner),
            |page| page.virtual_routers
        ) {
            let of = &router.virtual_router_name;
            keep(Kind::AppMeshVirtualRouter, of, router.arn.clone(), listed(router.version));
            for route in pages!(
                self,
                "list routes",
                limit,
                client.list_routes().mesh_name(name).mesh_owner(owner).virtual_router_name(of),
                |page| page.routes
            ) {
                let call = client.describe_route().mesh_name(name).mesh_owner(owner);
                let call = call.virtual_router_name(of).route_name(&route.route_name);
                let known = describe!(self, "describe a route", route, call, |answer| {
                    let spec = answer.route.and_then(|route| route.spec);
                    let priority = spec.as_ref().and_then(|spec| spec.priority);
                    let targets = spec.as_ref().map(targets).unwrap_or_default();
                    (External::Route { targets, priority }, None)
                });
                let path = format!("{of}/{}", route.route_name);
                keep(Kind::AppMeshRoute, &path, route.arn.clone(), known);
            }
        }
        for gateway in pages!(
            self,
            "list virtual gateways",
            limit,
            client.list_virtual_gateways().mesh_name(name).mesh_owner(owner),
            |page| page.virtual_gateways
        ) {
            let of = &gateway.virtual_gateway_name;
            keep(Kind::AppMeshVirtualGateway, of, gateway.arn.clone(), listed(gateway.version));
        }
        Ok(())
    }

    async fn tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
        let call = || self.mesh.list_tags_for_resource().resource_arn(arn);
        let tags = pages!(self, "list tags", limit, call(), |page| page.tags);
        Ok(tags.into_iter().map(|tag| (tag.key, tag.value)).collect())
    }
}

fn targets(spec: &RouteSpec) -> Vec<String> {
    let http = |action: Option<&HttpRouteAction>| action.map(|action| action.weighted_targets.clone());
    let targets: Vec<WeightedTarget> = [
        http(spec.http_route.as_ref().and_then(|route| route.action.as_ref())),
        http(spec.http2_route.as_ref().and_then(|route| route.action.as_ref())),
        spec.grpc_route.as_ref().and_then(|route| route.action.as_ref()).map(|a| a.weighted_targets.clone()),
        spec.tcp_route.as_ref().and_then(|route| route.action.as_ref()).map(|a| a.weighted_targets.clone()),
    ]
    .into_iter()
    .flatten()
    .flatten()
    .collect();
    targets.iter().map(|target| format!("virtualNode/{}={}", target.virtual_node, target.weight)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds after listings that end like this.
    async fn gaps(interval: Duration, ends: &[bool]) -> Vec<f64> {
        let (mut schedule, mut gaps) = (PollSchedule { interval, failures: 0 }, Vec::new());
        for complete in ends {
            let began = Instant::now();
            schedule.wait(*complete).await;
            gaps.push(began.elapsed().as_secs_f64());
        }
        gaps
    }

    #[tokio::test(start_paused = true)]
    async fn listings_are_an_interval_apart_and_not_at_the_same_moment_everywhere() {
        let interval = poll_interval(&api(None));
        let gaps = gaps(interval, &[true; 40]).await;
        let least = interval.as_secs_f64();
        assert!(gaps.iter().all(|gap| (least..=least * 1.1 + 0.01).contains(gap)), "{gaps:?}");
        let spread =
            gaps.iter().copied().fold(f64::MIN, f64::max) - gaps.iter().copied().fold(f64::MAX, f64::min);
        assert!(spread > least / 100.0, "{gaps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_listings_are_repeated_later_and_later_until_one_is_complete() {
        let ends = [true, false, false, false, false, false, true, true];
        let gaps = gaps(Duration::from_secs(30), &ends).await;
        let expected = [30.0, 60.0, 120.0, 240.0, 240.0, 240.0, 30.0, 30.0];
        assert_eq!(gaps.len(), expected.len());
        for (gap, least) in gaps.iter().zip(expected) {
            assert!((least..=least * 1.1 + 0.01).contains(gap), "{gaps:?}");
        }
    }

    /// An older definition may have admitted less.
    #[test]
    fn an_interval_is_at_least_half_a_minute() {
        assert_eq!(poll_interval(&api(Some("1s"))), Duration::from_secs(30));
        assert_eq!(poll_interval(&api(Some("5m"))), Duration::from_secs(300));
    }

    fn api(poll_interval: Option<&str>) -> AppMeshApi {
        let spec = serde_json::json!({"regions": ["eu-west-1"], "pollInterval": poll_interval});
        serde_json::from_value(spec).expect("a spec")
    }
}
