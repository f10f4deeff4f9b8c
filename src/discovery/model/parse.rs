//! JSON of the API server → [`Object`].

use serde_json::Value;

use super::external::NodeName;
use super::fact::{MeshKind, Mode};
use super::key::{Key, Kind};
use super::object::{
    Body, Labels, Marks, Object, Pod, PodProof, Reach, RouteSpec, ServiceRef, ServiceSpec, WorkloadSpec,
};
use super::owner::workload_of;
use super::rules::{Proof, RULES, config_maps};
use super::service::Port;

impl Object {
    /// None without a name.
    pub fn parse(cluster: &str, kind: Kind, value: &Value) -> Option<Self> {
        let name = text(value, "/metadata/name")?;
        let namespace = text(value, "/metadata/namespace").unwrap_or_default();
        let key = Key::new(cluster, namespace, kind, name);
        let version = text(value, "/metadata/resourceVersion").and_then(|version| version.parse().ok());
        let generation = value.pointer("/metadata/generation").and_then(Value::as_i64);
        // Argo CD: docs/user-guide/resource_tracking.md, `APP:GROUP/KIND:NAMESPACE/NAME`; else
        // the label of its own that docs/faq.md advises, since Helm's charts set the default
        // one (app.kubernetes.io/instance) too.
        let tracking = annotation(value, "argocd.argoproj.io/tracking-id");
        let tracked = tracking.and_then(|id| id.split(':').next());
        let application = tracked.or(label(value, "argocd.argoproj.io/instance")).map(str::to_owned);
        let body = match kind {
            Kind::ServedResource => Body::Presence,
            Kind::Namespace => Body::Namespace(marks(value, "/metadata")),
            Kind::Pod => Body::Pod(Box::new(pod(&key, generation, value))),
            Kind::Deployment | Kind::DaemonSet | Kind::StatefulSet | Kind::Rollout | Kind::KnativeService => {
                Body::Workload(Box::new(workload(kind, value)))
            }
            Kind::Service => Body::Service(service(value)),
            Kind::HttpRoute | Kind::GrpcRoute => Body::Route(gateway_route(&key, value)),
            Kind::VirtualService => Body::Route(virtual_service(&key, value)),
            Kind::TrafficSplit => Body::Route(traffic_split(&key, value)),
            Kind::ServiceProfile => Body::Route(service_profile(&key)),
            Kind::Ingress => Body::Route(ingress(&key, value)),
            Kind::Gateway => Body::Gateway { class: owned(value, "/spec/gatewayClassName") },
            Kind::GatewayClass => Body::GatewayClass {
                controller: owned(value, "/spec/controllerName"),
                accepted: condition(value, "Accepted"),
            },
            Kind::ConfigMap => Body::ConfigMap { trust_domain: trust_domain(name, value) },
            Kind::PeerAuthentication => Body::PeerAuthentication {
                mode: text(value, "/spec/mtls/mode").unwrap_or("UNSET").to_owned(),
                selects_pods: value.pointer("/spec/selector/matchLabels").is_some(),
            },
            Kind::WebhookConfiguration => {
                match (label(value, "istio.io/tag"), label(value, "istio.io/rev")) {
                    (Some(tag), Some(revision)) => {
                        Body::RevisionTag { tag: tag.to_owned(), revision: revision.to_owned() }
                    }
                    _ => Body::Presence,
                }
            }
            Kind::KumaMesh => Body::KumaMesh {
                mtls: text(value, "/spec/mtls/enabledBackend").is_some_and(|b| !b.is_empty()),
            },
            Kind::VirtualNode => virtual_node(&key, value),
            // Not objects of the API server.
            Kind::AppMeshMesh
            | Kind::AppMeshVirtualNode
            | Kind::AppMeshVirtualService
            | Kind::AppMeshVirtualRouter
            | Kind::AppMeshVirtualGateway
            | Kind::AppMeshRoute
            | Kind::CloudMapInstance
            | Kind::ConsulDatacenter
            | Kind::ConsulService => return None,
            Kind::Canary => Body::Canary { target: canary_target(&key, value) },
        };
        let created =
            if kind.is_route() { owned(value, "/metadata/creationTimestamp") } else { String::new() };
        Some(Self { key, version: version.unwrap_or(0), generation, created, application, body })
    }
}

pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer).and_then(Value::as_str)
}

pub(super) fn label<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value["metadata"]["labels"][key].as_str()
}

fn annotation<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value["metadata"]["annotations"][key].as_str()
}

fn owned(value: &Value, pointer: &str) -> String {
    text(value, pointer).unwrap_or_default().to_owned()
}

fn strings(value: &Value, pointer: &str) -> Labels {
    let map = value.pointer(pointer).and_then(Value::as_object);
    let entries = map.into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn list<'v>(value: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn texts(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer).filter_map(Value::as_str).map(str::to_owned).collect()
}

fn count(value: &Value, pointer: &str) -> Option<u32> {
    value.pointer(pointer).and_then(Value::as_u64).and_then(|count| count.try_into().ok())
}

fn condition(value: &Value, kind: &str) -> bool {
    list(value, "/status/conditions").any(|c| c["type"] == kind && c["status"] == "True")
}

/// kubectl's copy of the object is as large as the object.
fn marks(value: &Value, pointer: &str) -> Marks {
    let mut annotations = strings(value, &format!("{pointer}/annotations"));
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    Marks { labels: strings(value, &format!("{pointer}/labels")), annotations }
}

fn pod(key: &Key, generation: Option<i64>, value: &Value) -> Pod {
    let owner = workload_of(key, value);
    let (mut proofs, mut proxies) = (Vec::new(), Vec::new());
    for rule in RULES {
        for proof in rule.proofs {
            let found = match proof {
                Proof::Container(name) => container(value, name).map(|(mode, field, _)| (mode, None, field)),
                Proof::ContainerWithEnv(name, variables) => {
                    container(value, name).and_then(|(mode, field, container)| {
                        let mut names = list(container, "/env").filter_map(|env| env["name"].as_str());
                        let variable = names.find(|name| variables.contains(name))?;
                        Some((mode, None, format!("{field}.env[{variable}]")))
                    })
                }
                Proof::ContainerWithLabel(name, wanted) => {
                    container(value, name).and_then(|(mode, field, _)| {
                        label(value, wanted)?;
                        Some((mode, None, format!("{field} and metadata.labels[{wanted}]")))
                    })
                }
                Proof::Annotation(name, wanted, mode) => annotation(value, name)
                    .filter(|value| wanted.is_none_or(|wanted| wanted == *value))
                    .map(|found| {
                        let equals = wanted.map(|wanted| format!("={wanted}")).unwrap_or_default();
                        (*mode, injected_revision(found), format!("metadata.annotations[{name}]{equals}"))
                    }),
            };
            let proof = |(mode, revision, field)| PodProof { mesh: rule.mesh, mode, revision, field };
            proofs.extend(found.map(proof));
        }
        if proofs.last().is_some_and(|proof: &PodProof| proof.mesh == rule.mesh) {
            let version = rule.proxies.iter().find_map(|name| {
                let (_, _, container) = container(value, name)?;
                image_tag(text(container, "/image")?)
            });
            proxies.extend(version.map(|version| (rule.mesh, version)));
        }
    }
    Pod {
        owner,
        generation,
        ready: condition(value, "Ready"),
        proofs,
        virtual_node: virtual_node_of(value),
        proxies,
        digests: digests(value),
    }
}

/// The virtual node that the proxy of a pod is configured as.
fn virtual_node_of(pod: &Value) -> Option<(NodeName, String)> {
    let (_, field, container) = container(pod, "envoy")?;
    let named = |variable: &str| {
        let env = list(container, "/env").find(|env| env["name"] == variable)?;
        let value = text(env, "/value")?;
        Some((NodeName::parse(value)?, format!("{field}.env[{variable}]={value}")))
    };
    named("APPMESH_RESOURCE_ARN").or_else(|| named("APPMESH_VIRTUAL_NODE_NAME"))
}

/// The name in App Mesh is `NAME_NAMESPACE` unless it is set, and only a selector of
/// labels is read: aws/aws-app-mesh-controller-for-k8s
/// apis/appmesh/v1beta2/virtualnode_types.go.
fn virtual_node(key: &Key, value: &Value) -> Body {
    let selector = strings(value, "/spec/podSelector/matchLabels");
    let expressions = list(value, "/spec/podSelector/matchExpressions").next().is_some();
    Body::VirtualNode {
        mesh: owned(value, "/spec/meshRef/name"),
        aws_name: text(value, "/spec/awsName")
            .map_or_else(|| format!("{}_{}", key.name, key.namespace), str::to_owned),
        selector: (!expressions && !selector.is_empty()).then_some(selector),
    }
}

/// A container, or an init container that is a sidecar: one with `restartPolicy: Always`.
fn container<'v>(pod: &'v Value, name: &str) -> Option<(Mode, String, &'v Value)> {
    let plain = list(pod, "/spec/containers").find(|container| container["name"] == name);
    let native = || {
        let mut containers = list(pod, "/spec/initContainers");
        containers.find(|container| container["name"] == name && container["restartPolicy"] == "Always")
    };
    plain
        .map(|container| (Mode::Sidecar, format!("spec.containers[{name}]"), container))
        .or_else(|| native().map(|c| (Mode::NativeSidecar, format!("spec.initContainers[{name}]"), c)))
}

/// Istio's injector writes the revision into `sidecar.istio.io/status`.
fn injected_revision(status: &str) -> Option<String> {
    let status: Value = serde_json::from_str(status).ok()?;
    Some(status["revision"].as_str()?.to_owned())
}

fn digests(pod: &Value) -> Vec<(String, String)> {
    let statuses = list(pod, "/status/containerStatuses");
    let digest = |status: &Value| {
        let (_, digest) = text(status, "/imageID")?.split_once('@')?;
        Some((text(status, "/name")?.to_owned(), digest.to_owned()))
    };
    statuses.filter_map(digest).collect()
}

/// `1.29.0` of `registry:5000/istio/pilot:1.29.0-distroless@sha256:…` stays whole: `1.29.0-distroless`.
pub(super) fn image_tag(image: &str) -> Option<String> {
    let name = image.split('@').next()?.rsplit('/').next()?;
    name.split_once(':').map(|(_, tag)| tag.to_owned())
}

fn workload(kind: Kind, value: &Value) -> WorkloadSpec {
    let containers = list(value, "/spec/template/spec/containers");
    let images = containers.map(|container| (owned(container, "/name"), owned(container, "/image")));
    let (desired, ready) = match kind {
        Kind::DaemonSet => ("/status/desiredNumberScheduled", "/status/numberReady"),
        _ => ("/spec/replicas", "/status/readyReplicas"),
    };
    let default = u32::from(matches!(kind, Kind::Deployment | Kind::StatefulSet | Kind::Rollout));
    let account = text(value, "/spec/template/spec/serviceAccountName").unwrap_or("default");
    let canary = list(value, "/metadata/ownerReferences")
        .find(|owner| owner["kind"] == "Canary")
        .and_then(|owner| text(owner, "/name"));
    WorkloadSpec {
        labels: strings(value, "/metadata/labels"),
        template: marks(value, "/spec/template/metadata"),
        service_account: account.to_owned(),
        images: images.collect(),
        desired: count(value, desired).unwrap_or(default),
        ready: count(value, ready).unwrap_or(0),
        canary: canary.map(str::to_owned),
    }
}

fn service(value: &Value) -> ServiceSpec {
    let port = |port: &Value| Port {
        name: text(port, "/name").map(str::to_owned),
        port: count(port, "/port").unwrap_or(0),
        protocol: protocol(port),
    };
    let reach = match (text(value, "/spec/type"), text(value, "/spec/clusterIP")) {
        (Some("ExternalName"), _) => Reach::External,
        (_, Some("None")) => Reach::Headless,
        _ => Reach::ClusterIp,
    };
    ServiceSpec {
        ports: list(value, "/spec/ports").map(port).collect(),
        selector: strings(value, "/spec/selector"),
        reach,
        labels: strings(value, "/metadata/labels"),
    }
}

/// `appProtocol`, else the prefix of the name as Istio reads it
/// (istio.io/docs/ops/configuration/traffic-management/protocol-selection), else the
/// transport.
fn protocol(port: &Value) -> String {
    const PREFIXES: [&str; 9] =
        ["http", "http2", "https", "grpc", "grpc-web", "mongo", "mysql", "redis", "tls"];
    let named = text(port, "/name").and_then(|name| {
        let is_prefix = |prefix: &&&str| {
            name.strip_prefix(**prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        PREFIXES.iter().filter(is_prefix).max_by_key(|prefix| prefix.len()).copied()
    });
    let transport = text(port, "/protocol").unwrap_or("TCP");
    text(port, "/appProtocol").or(named).unwrap_or(transport).to_lowercase()
}

fn service_ref(namespace: &str, name: &str) -> ServiceRef {
    ServiceRef { namespace: namespace.to_owned(), name: name.to_owned() }
}

/// A reference of the Gateway API; an empty kind is `default`.
fn reference<'v>(key: &'v Key, value: &'v Value, default: &'v str) -> (&'v str, &'v str, &'v str) {
    let namespace = text(value, "/namespace").unwrap_or(&key.namespace);
    (text(value, "/kind").unwrap_or(default), namespace, text(value, "/name").unwrap_or_default())
}

fn gateway_route(key: &Key, value: &Value) -> RouteSpec {
    let mut route = RouteSpec { hostnames: texts(value, "/spec/hostnames"), ..RouteSpec::default() };
    for parent in list(value, "/spec/parentRefs") {
        match reference(key, parent, "Gateway") {
            ("Service", namespace, name) => route.attached.push(service_ref(namespace, name)),
            ("Gateway", namespace, name) => route.gateways.push(format!("{namespace}/{name}")),
            _ => {}
        }
    }
    for backend in list(value, "/spec/rules").flat_map(|rule| list(rule, "/backendRefs")) {
        if let ("Service", namespace, name) = reference(key, backend, "Service") {
            route.backends.push(service_ref(namespace, name));
        }
    }
    route
}

/// `web`, `web.shop`, `web.shop.svc` and `web.shop.svc.cluster.local`; other names are
/// no Services.
fn host(key: &Key, host: &str) -> Option<ServiceRef> {
    let mut parts = host.split('.');
    let name = parts.next().filter(|name| !name.is_empty() && !name.contains('*'))?;
    let namespace = parts.next().unwrap_or(&key.namespace);
    match parts.next() {
        None | Some("svc") => Some(service_ref(namespace, name)),
        Some(_) => None,
    }
}

fn virtual_service(key: &Key, value: &Value) -> RouteSpec {
    let mut gateways = texts(value, "/spec/gateways");
    let in_mesh = gateways.is_empty() || gateways.iter().any(|gateway| gateway == "mesh");
    gateways.retain(|gateway| gateway != "mesh");
    let hostnames = texts(value, "/spec/hosts");
    let attached = hostnames.iter().filter(|_| in_mesh).filter_map(|name| host(key, name)).collect();
    let routes = ["/spec/http", "/spec/tcp", "/spec/tls"].into_iter().flat_map(|kind| list(value, kind));
    let destinations = routes.flat_map(|route| list(route, "/route"));
    let backends = destinations.filter_map(|to| host(key, text(to, "/destination/host")?)).collect();
    RouteSpec { attached, backends, gateways, hostnames }
}

fn traffic_split(key: &Key, value: &Value) -> RouteSpec {
    let attached = text(value, "/spec/service").and_then(|name| host(key, name));
    let backends = list(value, "/spec/backends").filter_map(|to| host(key, text(to, "/service")?));
    RouteSpec {
        attached: attached.into_iter().collect(),
        backends: backends.collect(),
        ..RouteSpec::default()
    }
}

/// Its name is the Service's: linkerd.io/2/tasks/setting-up-service-profiles.
fn service_profile(key: &Key) -> RouteSpec {
    RouteSpec { attached: host(key, &key.name).into_iter().collect(), ..RouteSpec::default() }
}

fn ingress(key: &Key, value: &Value) -> RouteSpec {
    let rules = || list(value, "/spec/rules");
    let paths = rules().flat_map(|rule| list(rule, "/http/paths")).map(|path| &path["backend"]);
    let backends = paths.chain(value.pointer("/spec/defaultBackend"));
    let backends = backends.filter_map(|to| Some(service_ref(&key.namespace, text(to, "/service/name")?)));
    RouteSpec {
        backends: backends.collect(),
        gateways: vec![format!(
            "ingress class {}",
            text(value, "/spec/ingressClassName").unwrap_or("default")
        )],
        hostnames: rules().filter_map(|rule| text(rule, "/host")).map(str::to_owned).collect(),
        ..RouteSpec::default()
    }
}

fn trust_domain(name: &str, value: &Value) -> Option<String> {
    let rule = config_maps()
        .iter()
        .find(|rule| name == rule.name || name.starts_with(&format!("{}-", rule.name)))?;
    let yaml = value["data"][rule.entry].as_str()?;
    let settings: Value = serde_saphyr::from_str(yaml).ok()?;
    Some(settings[rule.trust_domain].as_str()?.to_owned())
}

fn canary_target(key: &Key, value: &Value) -> Option<Key> {
    let name = text(value, "/spec/targetRef/name")?;
    let kind = match text(value, "/spec/targetRef/kind")? {
        "Deployment" => Kind::Deployment,
        "DaemonSet" => Kind::DaemonSet,
        "StatefulSet" => Kind::StatefulSet,
        "Rollout" => Kind::Rollout,
        "Service" => Kind::Service,
        _ => return None,
    };
    Some(key.sibling(kind, name))
}

/// The mesh of a ConfigMap with a trust domain.
pub(super) fn config_map_mesh(name: &str) -> Option<(MeshKind, String)> {
    config_maps().iter().find_map(|rule| match name.strip_prefix(rule.name)? {
        "" => Some((rule.mesh, "default".to_owned())),
        rest => Some((rule.mesh, rest.strip_prefix('-')?.to_owned())),
    })
}
