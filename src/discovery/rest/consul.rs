//! Consul's catalogue, by blocking queries.
//!
//! A query with the last index is answered when the catalogue changes or after
//! [`WAIT`], so an idle catalogue costs one request a minute. An index that is not
//! greater than zero, or goes backwards, starts again from zero:
//! developer.hashicorp.com/consul/api-docs/features/blocking.
//!
//! A service that an EndpointGroup names has a blocking query of its own, for instances with
//! their health: the catalogue's index does not change with it.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::{Client, Response, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::Reporter;
use super::registry::{self, Service};
use crate::api::endpoint_group::EndpointHealth;
use crate::api::mesh_api::ConsulApi;
use crate::discovery::model::{External, Key, Kind, Object, consul_scope};

/// Of a blocking query. Consul adds up to a sixteenth.
const WAIT: Duration = Duration::from_secs(60);

/// Of a blocking query that is not answered; other requests have [`REQUEST_TIMEOUT`].
const WAIT_TIMEOUT: Duration = Duration::from_secs(75);

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Of one answer.
const MAX_BODY_BYTES: usize = 8 << 20;

const MAX_SERVICES: usize = 5_000;

/// Between two listings, however often the catalogue changes.
const MIN_INTERVAL: Duration = Duration::from_secs(2);

/// Between two answers for a service, however often it changes.
const MIN_SERVICE_INTERVAL: Duration = Duration::from_millis(200);

const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

/// The one scope of a MeshApi for Consul.
pub const SCOPE: &str = "catalogue";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("spec.consul.address is no URL")]
    Address,
    #[error("ask Consul for {path}: {why}")]
    Request { path: String, why: String },
    #[error("Consul answered {path} with {status}: {words}")]
    Refused { path: String, status: u16, words: String },
    #[error("Consul's answer to {path} is larger than {MAX_BODY_BYTES} bytes")]
    TooLarge { path: String },
    #[error("Consul's answer to {path} cannot be read: {why}")]
    Unreadable { path: String, why: String },
    #[error("the catalogue has more than {MAX_SERVICES} services")]
    TooManyServices,
}

#[derive(Clone)]
pub struct Catalogue {
    http: Client,
    address: Url,
    token: Option<String>,
    datacenter: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    datacenter: String,
    #[serde(default)]
    service_kind: String,
    #[serde(default)]
    service_proxy: Option<Proxy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Proxy {
    #[serde(default)]
    destination_service_name: String,
}

/// An entry of `/v1/health/service/NAME`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    node: Node,
    service: Registered,
    #[serde(default)]
    checks: Vec<Check>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    #[serde(default)]
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Registered {
    /// Empty: the node's.
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    meta: Option<BTreeMap<String, String>>,
    #[serde(default)]
    weights: Option<Weights>,
    #[serde(default)]
    locality: Option<Locality>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Weights {
    passing: u32,
    warning: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Locality {
    #[serde(default)]
    zone: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Check {
    #[serde(default, rename = "CheckID")]
    id: String,
    status: String,
}

/// Checks of an instance in maintenance: `consul maint`.
const MAINTENANCE: [&str; 2] = ["_node_maintenance", "_service_maintenance"];

impl Entry {
    fn instance(self) -> registry::Instance {
        let Self { node, service, checks } = self;
        let is = |status: &str| checks.iter().any(|check| check.status == status);
        let maintained = checks.iter().any(|check| MAINTENANCE.iter().any(|id| check.id.starts_with(id)));
        let health = match (maintained, is("critical")) {
            (true, _) => EndpointHealth::Draining,
            (false, true) => EndpointHealth::Unhealthy,
            (false, false) => EndpointHealth::Healthy,
        };
        let weights = service.weights.unwrap_or(Weights { passing: 1, warning: 1 });
        registry::Instance {
            address: if service.address.is_empty() { node.address } else { service.address },
            port: Some(service.port),
            attributes: service.meta.unwrap_or_default(),
            zone: service.locality.map(|locality| locality.zone),
            weight: Some(if is("warning") { weights.warning } else { weights.passing }),
            health,
        }
    }
}

/// Runs until it is dropped.
pub async fn follow(catalogue: Catalogue, reporter: Reporter) {
    tokio::join!(follow_services(&catalogue, reporter.clone()), follow_catalogue(&catalogue, &reporter));
}

/// Those that EndpointGroups name, each in a task of its own.
async fn follow_services(catalogue: &Catalogue, mut reporter: Reporter) {
    let mut followed = BTreeMap::<Service, AbortOnDropHandle<()>>::new();
    loop {
        let mut wanted = reporter.wanted();
        wanted.retain(|service| service.namespace.is_none());
        followed.retain(|service, _| wanted.contains(service));
        for service in wanted {
            followed.entry(service.clone()).or_insert_with(|| {
                let following = follow_service(catalogue.clone(), service, reporter.clone());
                AbortOnDropHandle::new(tokio::spawn(following))
            });
        }
        reporter.wanted_changed().await;
    }
}

async fn follow_service(catalogue: Catalogue, service: Service, reporter: Reporter) {
    let (mut index, mut delay) = (0, MIN_RETRY_DELAY);
    loop {
        match catalogue.instances(&service.name, index).await {
            Ok((new, instances)) => {
                if new != index || index == 0 {
                    reporter.found(SCOPE, &service, instances).await;
                }
                index = if new < index { 0 } else { new };
                delay = MIN_RETRY_DELAY;
                sleep(if index == 0 { MIN_INTERVAL } else { MIN_SERVICE_INTERVAL }).await;
            }
            Err(error) => {
                index = 0;
                delay = retry_later(&reporter, &error, delay).await;
            }
        }
    }
}

async fn follow_catalogue(catalogue: &Catalogue, reporter: &Reporter) {
    let (mut index, mut delay) = (0, MIN_RETRY_DELAY);
    loop {
        match catalogue.next(index).await {
            // The wait ended without a change.
            Ok((same, _)) if same == index && index > 0 => reporter.alive(SCOPE).await,
            Ok((new, names)) => match catalogue.list(&names).await {
                Ok(objects) => {
                    reporter.listed(SCOPE, objects).await;
                    index = if new < index { 0 } else { new };
                    delay = MIN_RETRY_DELAY;
                    sleep(MIN_INTERVAL).await;
                }
                Err(error) => delay = retry_later(reporter, &error, delay).await,
            },
            Err(error) => {
                index = 0;
                delay = retry_later(reporter, &error, delay).await;
            }
        }
    }
}

async fn retry_later(reporter: &Reporter, error: &Error, delay: Duration) -> Duration {
    reporter.failed(SCOPE, error.to_string()).await;
    sleep(delay).await;
    (delay * 2).min(MAX_RETRY_DELAY)
}

impl Catalogue {
    pub fn new(api: &ConsulApi, token: Option<String>) -> Result<Self, Error> {
        let address = Url::parse(&api.address).map_err(|_| Error::Address)?;
        // A redirect would carry the token elsewhere.
        let http = Client::builder().redirect(redirect::Policy::none()).connect_timeout(CONNECT_TIMEOUT);
        let http = http.build().map_err(|_| Error::Address)?;
        Ok(Self { http, address, token, datacenter: api.datacenter.clone() })
    }

    /// The names of all services, once the catalogue is beyond `index`.
    pub async fn next(&self, index: u64) -> Result<(u64, Vec<String>), Error> {
        let path = ["v1", "catalog", "services"];
        let (new, services) = self.beyond::<BTreeMap<String, Vec<String>>>(&path, index).await?;
        Ok((new, services.into_keys().collect()))
    }

    /// The instances of a service, once it is beyond `index`.
    async fn instances(&self, name: &str, index: u64) -> Result<(u64, Vec<registry::Instance>), Error> {
        let path = ["v1", "health", "service", name];
        let (new, entries) = self.beyond::<Vec<Entry>>(&path, index).await?;
        Ok((new, entries.into_iter().map(Entry::instance).collect()))
    }

    /// A blocking query; at index 0 one that does not wait.
    async fn beyond<T: DeserializeOwned>(&self, path: &[&str], index: u64) -> Result<(u64, T), Error> {
        let wait = format!("{}s", WAIT.as_secs());
        let index = index.to_string();
        let query: &[(&str, &str)] = match index.as_str() {
            "0" => &[],
            index => &[("index", index), ("wait", &wait)],
        };
        let limit = if query.is_empty() { REQUEST_TIMEOUT } else { WAIT_TIMEOUT };
        let (headers, value) = self.get(path, query, limit).await?;
        let new = headers.get("x-consul-index").and_then(|value| value.to_str().ok()?.parse().ok());
        Ok((new.unwrap_or(0), value))
    }

    async fn list(&self, names: &[String]) -> Result<Vec<Object>, Error> {
        if names.len() > MAX_SERVICES {
            return Err(Error::TooManyServices);
        }
        let mut services = Vec::new();
        for name in names {
            let path = ["v1", "catalog", "service", name];
            let (_, instances) = self.get::<Vec<Instance>>(&path, &[], REQUEST_TIMEOUT).await?;
            services.push((name, instances));
        }
        let is_proxy = |instance: &&Instance| instance.service_kind == "connect-proxy";
        let proxies: Vec<&str> = services
            .iter()
            .flat_map(|(_, instances)| instances.iter().filter(is_proxy))
            .filter_map(|instance| Some(instance.service_proxy.as_ref()?.destination_service_name.as_str()))
            .collect();
        let answered = services.iter().flat_map(|(_, instances)| instances).next();
        let Some(datacenter) =
            answered.map(|instance| instance.datacenter.clone()).or(self.datacenter.clone())
        else {
            return Ok(Vec::new());
        };
        let scope = consul_scope(&datacenter);
        let mut objects = Vec::new();
        let mut proxied_services = 0;
        for (name, instances) in &services {
            if instances.iter().any(|instance| is_proxy(&instance)) {
                continue;
            }
            let proxied = proxies.iter().filter(|of| *of == name).count().min(instances.len());
            proxied_services += usize::from(proxied > 0);
            let content = External::ConsulService { instances: instances.len(), proxied };
            objects.push(Object::external(Key::new(&scope, "", Kind::ConsulService, name), None, content));
        }
        let key = Key::new(&scope, "", Kind::ConsulDatacenter, &datacenter);
        objects.push(Object::external(key, None, External::ConsulDatacenter { proxied_services }));
        Ok(objects)
    }

    async fn get<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        query: &[(&str, &str)],
        limit: Duration,
    ) -> Result<(reqwest::header::HeaderMap, T), Error> {
        let path = format!("/{}", segments.join("/"));
        let mut url = self.address.clone();
        url.path_segments_mut().map_err(|()| Error::Address)?.pop_if_empty().extend(segments);
        let mut request = self.http.get(url).timeout(limit).query(query);
        if let Some(datacenter) = &self.datacenter {
            request = request.query(&[("dc", datacenter)]);
        }
        if let Some(token) = &self.token {
            request = request.header("X-Consul-Token", token);
        }
        let failed = |error: reqwest::Error| Error::Request {
            path: path.clone(),
            why: crate::error_chain::error_chain(&error.without_url()),
        };
        let response = request.send().await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read(response, &path).await?;
        if !status.is_success() {
            let words: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            return Err(Error::Refused { path, status: status.as_u16(), words: words.trim().to_owned() });
        }
        let value = serde_json::from_slice(&body)
            .map_err(|error| Error::Unreadable { path, why: error.to_string() })?;
        Ok((headers, value))
    }
}

async fn read(mut response: Response, path: &str) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    loop {
        let chunk = response.chunk().await.map_err(|error| Error::Request {
            path: path.to_owned(),
            why: crate::error_chain::error_chain(&error.without_url()),
        })?;
        let Some(chunk) = chunk else { return Ok(body) };
        if body.len() + chunk.len() > MAX_BODY_BYTES {
            return Err(Error::TooLarge { path: path.to_owned() });
        }
        body.extend_from_slice(&chunk);
    }
}
