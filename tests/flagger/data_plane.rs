//! A data plane that follows VirtualServices, HTTPRoutes, Services and EndpointSlices, as
//! the proxies of Istio, of a Gateway and of Linkerd would, and counts what it sends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::{reflector, watcher};
use kube::{Api, Client, ResourceExt as _};
use kube_local::node::Node;
use regex::Regex;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::counts::Counts;

/// Clones are the same data plane. Its watches end with the runtime.
#[derive(Clone)]
pub struct DataPlane(Arc<State>);

struct State {
    node: Node,
    virtual_services: Option<reflector::Store<DynamicObject>>,
    http_routes: Option<reflector::Store<DynamicObject>>,
    services: reflector::Store<Service>,
    slices: reflector::Store<EndpointSlice>,
    counts: Counts,
}

/// Through which proxy a request enters.
#[derive(Clone, Debug)]
pub enum Entry {
    Gateway,
    /// A Service and its port.
    Service(Backend),
}

#[derive(Clone, Debug)]
pub struct Backend {
    pub namespace: String,
    pub name: String,
    /// None: the only one.
    pub port: Option<i32>,
}

/// Where a route sends a request, and the headers that its response gets.
struct Chosen {
    backend: Backend,
    headers: Vec<(String, String)>,
}

/// A reason why no pod answered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(String);

impl DataPlane {
    /// Of the kinds of routes that the cluster serves.
    pub fn start(client: &Client, node: Node, served: &[ApiResource]) -> DataPlane {
        let routes = |kind: &str| {
            let resource = served.iter().find(|resource| resource.kind == kind)?;
            Some(follow(Api::all_with(client.clone(), resource), resource.clone()))
        };
        DataPlane(Arc::new(State {
            node,
            virtual_services: routes("VirtualService"),
            http_routes: routes("HTTPRoute"),
            services: follow(Api::all(client.clone()), ()),
            slices: follow(Api::all(client.clone()), ()),
            counts: Counts::default(),
        }))
    }

    /// The counters of all proxies.
    pub fn metrics(&self) -> String {
        self.0.counts.page()
    }

    pub async fn send(&self, entry: Entry, request: Request<Body>) -> Result<Response<Body>, Unreachable> {
        let chosen = match (self.0.route(&entry, &request), entry) {
            (Some(chosen), _) => chosen,
            (None, Entry::Service(backend)) => Chosen { backend, headers: Vec::new() },
            (None, Entry::Gateway) => return Err(Unreachable("the gateway has no route".to_owned())),
        };
        let (address, workload) = self.0.endpoint(&chosen.backend)?;
        let began = Instant::now();
        let answer = self.0.node.call(address, request).await;
        let mut response = answer.map_err(|error| Unreachable(error.to_string()))?;
        let status = response.status().as_u16();
        self.0.counts.add(&chosen.backend.namespace, &workload, status, began.elapsed());
        for (name, value) in chosen.headers {
            let name = HeaderName::try_from(name).expect("a header of a route");
            response.headers_mut().append(name, HeaderValue::try_from(value).expect("a value of a route"));
        }
        Ok(response)
    }

    /// Whether a pod of the Service listens at this port.
    pub async fn connects(&self, backend: &Backend) -> bool {
        let Ok((address, _)) = self.0.endpoint(backend) else { return false };
        tokio::net::TcpStream::connect(address).await.is_ok()
    }

    /// The gateway as an HTTP server.
    pub async fn answer(&self, request: Request<Body>) -> Response<Body> {
        self.send(Entry::Gateway, request).await.unwrap_or_else(|error| {
            let mut response = Response::new(Body::from(error.to_string()));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        })
    }
}

/// A store that a watch keeps.
fn follow<K>(api: Api<K>, resource: K::DynamicType) -> reflector::Store<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Clone + Eq + std::hash::Hash + Send + Sync,
{
    let writer = reflector::store::Writer::new(resource);
    let store = writer.as_reader();
    let events = reflector::reflector(writer, watcher(api, watcher::Config::default()));
    tokio::spawn(events.for_each(|_| std::future::ready(())));
    store
}

impl State {
    fn route(&self, entry: &Entry, request: &Request<Body>) -> Option<Chosen> {
        let host = request.headers().get(http::header::HOST).and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default().split(':').next().unwrap_or_default();
        self.by_virtual_service(entry, host, request).or_else(|| self.by_http_route(entry, host, request))
    }

    fn by_virtual_service(&self, entry: &Entry, host: &str, request: &Request<Body>) -> Option<Chosen> {
        let routes = self.virtual_services.as_ref()?.state();
        let serves = |route: &Arc<DynamicObject>| {
            let spec = &route.data["spec"];
            let mut gateways = texts(&spec["gateways"]).peekable();
            let within_mesh = gateways.peek().is_none() || gateways.clone().any(|gateway| gateway == "mesh");
            let mut hosts = texts(&spec["hosts"]);
            match entry {
                Entry::Gateway => {
                    gateways.any(|gateway| gateway != "mesh")
                        && hosts.any(|served| served == "*" || served == host)
                }
                Entry::Service(service) => within_mesh && hosts.any(|served| service.is(served, route)),
            }
        };
        let mut route = routes.iter().find(|route| serves(route))?.clone();
        loop {
            let entries = route.data["spec"]["http"].as_array()?;
            let matches = |entry: &&Value| match entry["match"].as_array() {
                Some(conditions) => conditions.iter().any(|condition| istio_matches(condition, request)),
                None => true,
            };
            let found = entries.iter().find(matches)?;
            if let Some(name) = found["delegate"]["name"].as_str() {
                let namespace = found["delegate"]["namespace"].as_str().map(str::to_owned);
                let namespace = namespace.or_else(|| route.namespace());
                let is_it =
                    |route: &&Arc<DynamicObject>| route.name_any() == name && route.namespace() == namespace;
                route = routes.iter().find(is_it)?.clone();
                continue;
            }
            let destination = weighted(&found["route"], 100)?;
            let host = destination["destination"]["host"].as_str()?;
            let mut names = host.split('.');
            let backend = Backend {
                name: names.next()?.to_owned(),
                namespace: names.next().map(str::to_owned).or_else(|| route.namespace())?,
                port: destination["destination"]["port"]["number"].as_i64().map(|port| port as i32),
            };
            let mut headers = Vec::new();
            for of in [&found["headers"]["response"], &destination["headers"]["response"]] {
                for added in [&of["add"], &of["set"]].into_iter().filter_map(Value::as_object) {
                    headers.extend(added.iter().map(|(name, value)| (name.clone(), text(value).to_owned())));
                }
            }
            return Some(Chosen { backend, headers });
        }
    }

    fn by_http_route(&self, entry: &Entry, host: &str, request: &Request<Body>) -> Option<Chosen> {
        let routes = self.http_routes.as_ref()?.state();
        let serves = |route: &&Arc<DynamicObject>| {
            let spec = &route.data["spec"];
            let parent_of = |parent: &Value| match entry {
                Entry::Gateway => {
                    let mut hosts = texts(&spec["hostnames"]).peekable();
                    parent["kind"] != "Service"
                        && (hosts.peek().is_none() || hosts.any(|served| served == host))
                }
                Entry::Service(service) => {
                    let namespace = parent["namespace"].as_str().map(str::to_owned);
                    parent["kind"] == "Service"
                        && parent["name"] == service.name.as_str()
                        && namespace.or_else(|| route.namespace()).as_ref() == Some(&service.namespace)
                }
            };
            list(&spec["parentRefs"]).any(parent_of)
        };
        let route = routes.iter().find(serves)?;
        // The rule with the most conditions, and of such the first.
        let mut best: Option<(usize, &Value)> = None;
        for rule in list(&route.data["spec"]["rules"]) {
            let found = match rule["matches"].as_array() {
                Some(matches) => {
                    let fitting = matches.iter().filter(|found| gateway_matches(found, request));
                    fitting.map(|found| list(&found["headers"]).count()).max()
                }
                None => Some(0),
            };
            if found.is_some_and(|found| best.is_none_or(|(most, _)| found > most)) {
                best = found.map(|found| (found, rule));
            }
        }
        let (_, rule) = best?;
        let backend = weighted(&rule["backendRefs"], 1)?;
        let namespace = backend["namespace"].as_str().map(str::to_owned).or_else(|| route.namespace())?;
        let mut headers = Vec::new();
        for filter in list(&rule["filters"]).chain(list(&backend["filters"])) {
            let modifier = &filter["responseHeaderModifier"];
            for header in list(&modifier["add"]).chain(list(&modifier["set"])) {
                headers.push((text(&header["name"]).to_owned(), text(&header["value"]).to_owned()));
            }
        }
        let port = backend["port"].as_i64().map(|port| port as i32);
        Some(Chosen {
            backend: Backend { namespace, name: text(&backend["name"]).to_owned(), port },
            headers,
        })
    }

    /// A ready pod of a Service, and the name of its workload.
    fn endpoint(&self, backend: &Backend) -> Result<(std::net::SocketAddr, String), Unreachable> {
        let Backend { namespace, name, port } = backend;
        let absent = |what: &str| Unreachable(format!("{name}.{namespace}: {what}"));
        let service = self.services.get(&reflector::ObjectRef::new(name).within(namespace));
        let service = service.ok_or_else(|| absent("no such Service"))?;
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let of_service = ports.into_iter().find(|offered| port.is_none_or(|port| offered.port == port));
        let port_name = &of_service.ok_or_else(|| absent(&format!("no port {port:?}")))?.name;
        let mut ready = Vec::new();
        for slice in self.slices.state() {
            let of = slice.labels().get("kubernetes.io/service-name");
            if of != Some(name) || slice.namespace().as_ref() != Some(namespace) {
                continue;
            }
            let mut ports = slice.ports.iter().flatten();
            let found = ports.find(|offered| {
                offered.name.as_deref().unwrap_or_default() == port_name.as_deref().unwrap_or_default()
            });
            let Some(port) = found.and_then(|offered| u16::try_from(offered.port?).ok()) else { continue };
            for endpoint in &slice.endpoints {
                let serves = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
                let pod = endpoint.target_ref.as_ref().and_then(|pod| pod.name.clone());
                if let (true, Some(ip), Some(pod)) =
                    (serves.unwrap_or(true), endpoint.addresses[0].parse().ok(), pod)
                {
                    ready.push((std::net::SocketAddr::new(ip, port), workload_of(&pod)));
                }
            }
        }
        fastrand::choice(ready).ok_or_else(|| absent("no ready pod"))
    }
}

impl Backend {
    /// Whether a host of a VirtualService is this Service.
    fn is(&self, host: &str, route: &DynamicObject) -> bool {
        let mut names = host.split('.');
        names.next() == Some(&self.name)
            && names.next().map(str::to_owned).or_else(|| route.namespace()).as_ref() == Some(&self.namespace)
    }
}

/// `web` of `web-6d4cf56db6-x7k2p`. Pods of a DaemonSet have one part more to keep, which
/// no script here asks for.
fn workload_of(pod: &str) -> String {
    let mut parts = pod.rsplitn(3, '-');
    parts.nth(2).unwrap_or(pod).to_owned()
}

fn weighted(backends: &Value, default: u64) -> Option<&Value> {
    let weight = |backend: &Value| backend["weight"].as_u64().unwrap_or(default);
    let total: u64 = list(backends).map(weight).sum();
    let mut remaining = (total > 0).then(|| fastrand::u64(..total))?;
    list(backends).find(|backend| {
        let falls_here = remaining < weight(backend);
        remaining = remaining.saturating_sub(weight(backend));
        falls_here
    })
}

fn istio_matches(condition: &Value, request: &Request<Body>) -> bool {
    let header = |(name, wanted): (&String, &Value)| {
        header(request.headers(), name).is_some_and(|value| string_matches(wanted, &value))
    };
    let path = &condition["uri"];
    (path.is_null() || string_matches(path, request.uri().path()))
        && condition["headers"].as_object().into_iter().flatten().all(header)
}

/// Istio's StringMatch.
fn string_matches(wanted: &Value, value: &str) -> bool {
    let wanted: HashMap<&str, &str> = wanted
        .as_object()
        .into_iter()
        .flatten()
        .map(|(kind, wanted)| (kind.as_str(), text(wanted)))
        .collect();
    let test = |(kind, wanted): (&str, &str)| match kind {
        "exact" => value == wanted,
        "prefix" => value.starts_with(wanted),
        "regex" => is_whole(wanted, value),
        other => panic!("the data plane has no match of the kind {other}"),
    };
    wanted.into_iter().all(test)
}

fn gateway_matches(condition: &Value, request: &Request<Body>) -> bool {
    let header = |wanted: &Value| {
        let (name, expected) = (text(&wanted["name"]), text(&wanted["value"]));
        header(request.headers(), name).is_some_and(|value| match wanted["type"].as_str() {
            Some("RegularExpression") => is_whole(expected, &value),
            _ => value == expected,
        })
    };
    let path = condition["path"]["value"].as_str().unwrap_or("/");
    request.uri().path().starts_with(path) && list(&condition["headers"]).all(header)
}

/// As Envoy does it: the pattern is for the whole value.
fn is_whole(pattern: &str, value: &str) -> bool {
    Regex::new(&format!("^(?:{pattern})$")).is_ok_and(|pattern| pattern.is_match(value))
}

/// Several of one name are one, joined.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!values.is_empty()).then(|| values.join("; "))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn texts(value: &Value) -> impl Iterator<Item = &str> + Clone {
    value.as_array().into_iter().flatten().map(text)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
