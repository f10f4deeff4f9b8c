//! Maintains the EndpointSlices of Services: the selected pods, their ports, and
//! whether they are ready.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::{Selector, SelectorExt};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, ResourceExt};

use super::pods;
use super::runtime::{
    self, Attempt, Context, RequeueResult, controller_reference, ignore_not_found, trigger_with, watch,
    watch_with_store,
};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// As in a real cluster.
const ENDPOINTS_PER_SLICE: usize = 100;

pub async fn run(context: Arc<Context>) {
    let controller = runtime::controller(Api::<Service>::all(context.client.clone()));
    let services = controller.store();
    let (slices, changes) = watch_with_store(Api::<EndpointSlice>::all(context.client.clone()));
    let by_slice = trigger_with(changes, services.clone(), |slice: &EndpointSlice, _| service_of(slice));
    let by_pod = trigger_with(
        watch(Api::<Pod>::all(context.client.clone())).boxed(),
        services,
        move |pod: &Pod, services| services_selecting(pod, services, &slices),
    );
    runtime::run(controller.reconcile_on(by_slice).reconcile_on(by_pod), context, reconcile).await;
}

fn service_of(slice: &EndpointSlice) -> Option<ObjectRef<Service>> {
    Some(ObjectRef::new(slice.labels().get(SERVICE_NAME)?).within(&slice.namespace()?))
}

/// The Services that select the pod, and those that did before its labels changed.
fn services_selecting(
    pod: &Pod,
    services: &Store<Service>,
    slices: &Store<EndpointSlice>,
) -> Vec<ObjectRef<Service>> {
    let selecting = services.state_filter(|service| {
        service.namespace() == pod.namespace()
            && selector_of(service).is_some_and(|selector| selector.matches(pod.labels()))
    });
    let listed = slices.state_filter(|slice| {
        slice.namespace() == pod.namespace()
            && slice
                .endpoints
                .iter()
                .filter_map(|endpoint| endpoint.target_ref.as_ref())
                .any(|to| to.uid == pod.uid())
    });
    let selecting = selecting.iter().map(|service| ObjectRef::from_obj(&**service));
    selecting.chain(listed.iter().filter_map(|slice| service_of(slice))).collect()
}

/// `None` for a Service without a selector, whose endpoints are managed elsewhere.
fn selector_of(service: &Service) -> Option<Selector> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
    let labels = spec.selector.clone().filter(|labels| !labels.is_empty())?;
    Some(labels.into_iter().collect())
}

async fn reconcile(service: Arc<Service>, context: Arc<Context>) -> RequeueResult {
    let Some(selector) = selector_of(&service).filter(|_| service.metadata.deletion_timestamp.is_none())
    else {
        return Ok(None);
    };
    let namespace = service.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let pods =
        api.list(&ListParams::default().labels_from(&selector)).await.trying_to("list a service's pods")?;
    let api: Api<EndpointSlice> = Api::namespaced(context.client.clone(), &namespace);
    let ours = format!("{SERVICE_NAME}={},{MANAGED_BY}={CONTROLLER}", service.name_any());
    let slices = api.list(&ListParams::default().labels(&ours)).await.trying_to("list a service's slices")?;

    let plan = plan(&service, &pods.items, &slices.items);
    for slice in &plan.update {
        ignore_not_found(api.replace(&slice.name_any(), &PostParams::default(), slice).await)
            .trying_to("update an endpoint slice")?;
    }
    for slice in &plan.create {
        api.create(&PostParams::default(), slice).await.trying_to("create an endpoint slice")?;
    }
    for slice in &plan.delete {
        let this_one = Preconditions { uid: slice.uid(), resource_version: None };
        ignore_not_found(
            api.delete(&slice.name_any(), &DeleteParams::default().preconditions(this_one)).await,
        )
        .trying_to("delete an endpoint slice")?;
    }
    Ok(None)
}

#[derive(Debug, Default)]
struct Plan {
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<EndpointSlice>,
}

/// One slice for each hundred pods that resolve the Service's ports alike; one
/// empty slice if there are none. Existing slices are reused.
fn plan(service: &Service, pods: &[Pod], slices: &[EndpointSlice]) -> Plan {
    let spec = service.spec.clone().unwrap_or_default();
    let mut groups: BTreeMap<Vec<PortKey>, (Vec<EndpointPort>, Vec<Endpoint>)> = BTreeMap::new();
    let mut reachable: Vec<&Pod> = pods.iter().filter(|pod| !pods::is_finished(pod)).collect();
    reachable.sort_by_cached_key(|pod| pod.name_any());
    for pod in reachable {
        let Some(endpoint) = endpoint(service, &spec, pod) else {
            continue;
        };
        let ports = ports(&spec, pod);
        let key = ports.iter().map(port_key).collect();
        groups.entry(key).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
    }
    let mut desired: Vec<(Vec<EndpointPort>, Vec<Endpoint>)> = groups
        .into_values()
        .flat_map(|(ports, endpoints)| {
            let chunks: Vec<_> = endpoints.chunks(ENDPOINTS_PER_SLICE).map(<[Endpoint]>::to_vec).collect();
            chunks.into_iter().map(move |endpoints| (ports.clone(), endpoints))
        })
        .collect();
    if desired.is_empty() {
        desired.push((Vec::new(), Vec::new()));
    }

    let mut free: Vec<&EndpointSlice> =
        slices.iter().filter(|slice| slice.metadata.deletion_timestamp.is_none()).collect();
    free.sort_by_cached_key(|slice| slice.name_any());
    let mut plan = Plan::default();
    for (ports, endpoints) in desired {
        let fitting = free.iter().position(|slice| slice.ports.as_deref().unwrap_or_default() == ports);
        let existing = fitting.or((!free.is_empty()).then_some(0)).map(|index| free.remove(index));
        let slice = slice(service, &spec, existing, ports, endpoints);
        match existing {
            None => plan.create.push(slice),
            Some(existing) if !is_same_slice(existing, &slice) => plan.update.push(slice),
            Some(_) => {}
        }
    }
    plan.delete = free.into_iter().cloned().collect();
    plan
}

fn is_same_slice(one: &EndpointSlice, other: &EndpointSlice) -> bool {
    let ports = |slice: &EndpointSlice| slice.ports.clone().unwrap_or_default();
    one.endpoints == other.endpoints && ports(one) == ports(other) && one.labels() == other.labels()
}

fn slice(
    service: &Service,
    spec: &ServiceSpec,
    existing: Option<&EndpointSlice>,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let mut labels = service.labels().clone();
    if spec.cluster_ip.as_deref() == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME.to_owned(), service.name_any());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    let metadata = existing.map(|slice| slice.metadata.clone()).unwrap_or_else(|| ObjectMeta {
        generate_name: Some(format!("{}-", service.name_any())),
        namespace: service.namespace(),
        owner_references: Some(vec![controller_reference(service)]),
        ..ObjectMeta::default()
    });
    EndpointSlice {
        metadata: ObjectMeta { labels: Some(labels), ..metadata },
        address_type: "IPv4".to_owned(),
        endpoints,
        ports: Some(ports),
    }
}

/// `None` while the pod has no address.
fn endpoint(service: &Service, spec: &ServiceSpec, pod: &Pod) -> Option<Endpoint> {
    let address = pod.status.as_ref()?.pod_ip.clone().filter(|address| !address.is_empty())?;
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let serving = pods::is_ready(pod);
    let ready = spec.publish_not_ready_addresses == Some(true) || (serving && !terminating);
    let pod_spec = pod.spec.clone().unwrap_or_default();
    let named_here = pod_spec.subdomain.as_deref() == Some(service.name_any().as_str());
    Some(Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: pod_spec.hostname.filter(|_| named_here),
        node_name: pod_spec.node_name,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.namespace(),
            name: pod.metadata.name.clone(),
            uid: pod.uid(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}

type PortKey = (Option<String>, Option<i32>, Option<String>);

fn port_key(port: &EndpointPort) -> PortKey {
    (port.name.clone(), port.port, port.protocol.clone())
}

/// The Service's ports as this pod resolves them. An unknown port name is left out.
fn ports(spec: &ServiceSpec, pod: &Pod) -> Vec<EndpointPort> {
    let resolve = |port: &ServicePort| {
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(target_port(port, pod)?),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
            app_protocol: port.app_protocol.clone(),
        })
    };
    spec.ports.iter().flatten().filter_map(resolve).collect()
}

fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            containers
                .flat_map(|container| container.ports.iter().flatten())
                .find(|port| {
                    port.name.as_deref() == Some(name.as_str())
                        && port.protocol.as_deref().unwrap_or("TCP") == protocol
                })
                .map(|port| port.container_port)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(target_port: Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "s"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": target_port}]},
        }))
        .unwrap()
    }

    fn pod(name: &str, ready: bool) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
            "status": {"podIP": "127.64.0.1", "phase": "Running", "conditions": [
                {"type": "Ready", "status": if ready { "True" } else { "False" }}
            ]},
        }))
        .unwrap()
    }

    fn only(plan: &Plan) -> &EndpointSlice {
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (1, 0, 0));
        &plan.create[0]
    }

    #[test]
    fn a_named_target_port_is_the_pods_own() {
        let plan = plan(&service(json!("web")), &[pod("a", true)], &[]);
        let port = &only(&plan).ports.as_ref().unwrap()[0];
        assert_eq!(
            (port.name.as_deref(), port.port, port.protocol.as_deref()),
            (Some("http"), Some(8080), Some("TCP"))
        );
    }

    #[test]
    fn a_pod_that_is_not_ready_is_listed_as_such() {
        let plan = plan(&service(json!(8080)), &[pod("a", true), pod("b", false)], &[]);
        let ready: Vec<_> = only(&plan)
            .endpoints
            .iter()
            .map(|endpoint| endpoint.conditions.as_ref().unwrap().ready)
            .collect();
        assert_eq!(ready, [Some(true), Some(false)]);
    }

    #[test]
    fn a_terminating_pod_may_still_serve_but_is_not_ready() {
        let mut leaving = pod("a", true);
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let plan = plan(&service(json!(8080)), &[leaving], &[]);
        let conditions = only(&plan).endpoints[0].conditions.clone().unwrap();
        assert_eq!(
            (conditions.ready, conditions.serving, conditions.terminating),
            (Some(false), Some(true), Some(true))
        );
    }

    #[test]
    fn a_service_without_pods_has_one_empty_slice() {
        assert!(only(&plan(&service(json!(8080)), &[], &[])).endpoints.is_empty());
    }

    #[test]
    fn a_slice_that_is_in_sync_is_not_written() {
        let service = service(json!(8080));
        let mut existing = plan(&service, &[pod("a", true)], &[]).create;
        existing[0].metadata.name = Some("web-x".to_owned());
        let again = plan(&service, &[pod("a", true)], &existing);
        assert!(again.create.is_empty() && again.update.is_empty() && again.delete.is_empty());
        let changed = plan(&service, &[pod("a", false)], &existing);
        assert_eq!((changed.create.len(), changed.update.len()), (0, 1));
        assert_eq!(changed.update[0].name_any(), "web-x");
    }

    #[test]
    fn pods_with_other_ports_get_a_slice_of_their_own() {
        let mut other = pod("b", true);
        other.spec.as_mut().unwrap().containers[0].ports.as_mut().unwrap()[0].container_port = 9090;
        let plan = plan(&service(json!("web")), &[pod("a", true), other], &[]);
        assert_eq!(plan.create.len(), 2);
    }

    #[test]
    fn more_than_a_hundred_pods_need_a_second_slice() {
        let pods: Vec<_> = (0..150).map(|index| pod(&format!("p{index:03}"), true)).collect();
        let sizes: Vec<_> =
            plan(&service(json!(80)), &pods, &[]).create.iter().map(|slice| slice.endpoints.len()).collect();
        assert_eq!(sizes, [100, 50]);
    }
}
