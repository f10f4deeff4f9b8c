//! The columns of `kubectl get` for each built-in kind.

use jiff::Timestamp;
use serde_json::Value;

use super::pod_columns;
use crate::kinds::{Cell, Column};
use crate::kubectl::since;

type CellFn = fn(&Value, Timestamp) -> Value;

pub(super) fn column(name: &str, kind: &str, priority: i32, description: &str, cell: CellFn) -> Column {
    Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: if name == "Name" { "name".to_owned() } else { String::new() },
        description: description.to_owned(),
        priority,
        cell: Cell::Function(cell),
    }
}

fn text_column(name: &str, description: &str, cell: CellFn) -> Column {
    column(name, "string", 0, description, cell)
}

fn number_column(name: &str, description: &str, cell: CellFn) -> Column {
    column(name, "integer", 0, description, cell)
}

fn wide_column(name: &str, description: &str, cell: CellFn) -> Column {
    column(name, "string", 1, description, cell)
}

pub(super) fn name() -> Column {
    text_column("Name", "Name of the object, unique within its namespace.", |o, _| {
        text(o, "/metadata/name").into()
    })
}

pub(super) fn age() -> Column {
    text_column("Age", "How long ago the object was created.", |o, now| {
        age_of(o, "/metadata/creationTimestamp", now)
    })
}

fn age_of(object: &Value, path: &str, now: Timestamp) -> Value {
    since(object.pointer(path).and_then(Value::as_str), now).into()
}

pub(super) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn count(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or_default()
}

pub(super) fn list<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// A number or text, bare.
fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn joined(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// `a,b,c + 2 more...`
fn first_few(items: Vec<String>, most: usize, separator: &str) -> String {
    match items.len().checked_sub(most) {
        Some(more) if more > 0 => format!("{} + {more} more...", items[..most].join(separator)),
        _ => items.join(separator),
    }
}

fn labels(labels: Option<&Value>) -> String {
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let text = joined(labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())));
    or(&text, "<none>").to_owned()
}

/// A label selector on one line: `app=web,tier in (a,b)`.
fn selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector else { return "<none>".to_owned() };
    let mut terms = Vec::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        terms.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in list(selector, "/matchExpressions") {
        let key = text(expression, "/key");
        let mut values: Vec<_> = list(expression, "/values").map(scalar).collect();
        values.sort();
        let values = values.join(",");
        terms.push(match text(expression, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    or(&terms.join(","), "<none>").to_owned()
}

fn containers() -> [Column; 2] {
    fn all(object: &Value, field: &str) -> Value {
        joined(list(object, "/spec/template/spec/containers").map(|c| text(c, field).to_owned())).into()
    }
    [
        wide_column("Containers", "Names of the containers in the template.", |o, _| all(o, "/name")),
        wide_column("Images", "Images of the containers in the template.", |o, _| all(o, "/image")),
    ]
}

fn template_selector() -> Column {
    wide_column("Selector", "Which pods belong to this.", |o, _| selector(o.pointer("/spec/selector")).into())
}

pub(super) fn name_and_age() -> Vec<Column> {
    vec![name(), age()]
}

pub(super) fn namespace() -> Vec<Column> {
    let status = text_column("Status", "Active, or on its way out.", |o, _| text(o, "/status/phase").into());
    vec![name(), status, age()]
}

pub(super) fn config_map() -> Vec<Column> {
    vec![name(), text_column("Data", "How many entries it has.", |o, _| entries(o).into()), age()]
}

fn entries(object: &Value) -> usize {
    let of = |field: &str| object.get(field).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    of("data") + of("binaryData")
}

pub(super) fn secret() -> Vec<Column> {
    let kind = text_column("Type", "What the secret is for.", |o, _| text(o, "/type").into());
    vec![name(), kind, text_column("Data", "How many entries it has.", |o, _| entries(o).into()), age()]
}

pub(super) fn pod() -> Vec<Column> {
    pod_columns::all()
}

pub(super) fn service() -> Vec<Column> {
    vec![
        name(),
        text_column("Type", "How the service is exposed.", |o, _| text(o, "/spec/type").into()),
        text_column("Cluster-IP", "Its address within the cluster.", |o, _| {
            or(text(o, "/spec/clusterIPs/0"), "<none>").into()
        }),
        text_column("External-IP", "Its addresses outside of the cluster.", |o, _| {
            external_address(o).into()
        }),
        text_column("Port(s)", "The ports it serves.", |o, _| {
            let ports = joined(list(o, "/spec/ports").map(|port| {
                let protocol = text(port, "/protocol");
                match (count(port, "/port"), count(port, "/nodePort")) {
                    (port, 0) => format!("{port}/{protocol}"),
                    (port, node_port) => format!("{port}:{node_port}/{protocol}"),
                }
            }));
            or(&ports, "<none>").into()
        }),
        age(),
        wide_column("Selector", "Which pods it routes to.", |o, _| {
            labels(o.pointer("/spec/selector")).into()
        }),
    ]
}

fn external_address(service: &Value) -> String {
    let own = list(service, "/spec/externalIPs").map(scalar);
    match text(service, "/spec/type") {
        "ClusterIP" | "NodePort" => or(&joined(own), "<none>").to_owned(),
        "LoadBalancer" => {
            or(&joined(load_balancer_addresses(service).into_iter().chain(own)), "<pending>").to_owned()
        }
        "ExternalName" => text(service, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn load_balancer_addresses(object: &Value) -> Vec<String> {
    let points = list(object, "/status/loadBalancer/ingress");
    let mut addresses: Vec<_> =
        points.map(|point| or(text(point, "/ip"), text(point, "/hostname")).to_owned()).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

pub(super) fn endpoints() -> Vec<Column> {
    fn addresses(object: &Value) -> String {
        let mut all = Vec::new();
        for subset in list(object, "/subsets") {
            let addresses: Vec<_> = list(subset, "/addresses").map(|address| text(address, "/ip")).collect();
            let mut ports = list(subset, "/ports").peekable();
            if ports.peek().is_none() {
                all.extend(addresses.iter().map(|address| (*address).to_owned()));
            }
            for port in ports {
                all.extend(addresses.iter().map(|address| format!("{address}:{}", count(port, "/port"))));
            }
        }
        if all.is_empty() && list(object, "/subsets").next().is_none() {
            return "<none>".to_owned();
        }
        first_few(all, 3, ",")
    }
    vec![name(), text_column("Endpoints", "Addresses and ports.", |o, _| addresses(o).into()), age()]
}

pub(super) fn endpoint_slice() -> Vec<Column> {
    fn few(items: Vec<String>) -> Value {
        if items.is_empty() { "<unset>".into() } else { first_few(items, 3, ",").into() }
    }
    vec![
        name(),
        text_column("AddressType", "IPv4, IPv6 or FQDN.", |o, _| text(o, "/addressType").into()),
        text_column("Ports", "The ports of every endpoint.", |o, _| {
            let ports = list(o, "/ports").map(|port| match port.get("port") {
                Some(number) => number.to_string(),
                None => or(text(port, "/name"), "*").to_owned(),
            });
            few(ports.collect())
        }),
        text_column("Endpoints", "The addresses.", |o, _| {
            few(list(o, "/endpoints").flat_map(|endpoint| list(endpoint, "/addresses")).map(scalar).collect())
        }),
        age(),
    ]
}

pub(super) fn lease() -> Vec<Column> {
    let holder = text_column("Holder", "Who holds the lease.", |o, _| text(o, "/spec/holderIdentity").into());
    vec![name(), holder, age()]
}

pub(super) fn deployment() -> Vec<Column> {
    let mut columns = vec![
        name(),
        text_column("Ready", "Pods ready, of those wanted.", |o, _| {
            format!("{}/{}", count(o, "/status/readyReplicas"), count(o, "/spec/replicas")).into()
        }),
        text_column("Up-to-date", "Pods of the newest template.", |o, _| {
            count(o, "/status/updatedReplicas").into()
        }),
        text_column("Available", "Pods ready for long enough.", |o, _| {
            count(o, "/status/availableReplicas").into()
        }),
        age(),
    ];
    columns.extend(containers());
    columns.push(template_selector());
    columns
}

pub(super) fn replica_set() -> Vec<Column> {
    let mut columns = vec![
        name(),
        number_column("Desired", "Pods wanted.", |o, _| count(o, "/spec/replicas").into()),
        number_column("Current", "Pods there are.", |o, _| count(o, "/status/replicas").into()),
        number_column("Ready", "Pods ready.", |o, _| count(o, "/status/readyReplicas").into()),
        age(),
    ];
    columns.extend(containers());
    columns.push(template_selector());
    columns
}

pub(super) fn daemon_set() -> Vec<Column> {
    let mut columns = vec![
        name(),
        number_column("Desired", "Nodes that should run it.", |o, _| {
            count(o, "/status/desiredNumberScheduled").into()
        }),
        number_column("Current", "Nodes that run it.", |o, _| {
            count(o, "/status/currentNumberScheduled").into()
        }),
        number_column("Ready", "Nodes where it is ready.", |o, _| count(o, "/status/numberReady").into()),
        number_column("Up-to-date", "Nodes with the newest template.", |o, _| {
            count(o, "/status/updatedNumberScheduled").into()
        }),
        number_column("Available", "Nodes where it was ready for long enough.", |o, _| {
            count(o, "/status/numberAvailable").into()
        }),
        text_column("Node Selector", "Which nodes it runs on.", |o, _| {
            labels(o.pointer("/spec/template/spec/nodeSelector")).into()
        }),
        age(),
    ];
    columns.extend(containers());
    columns.push(template_selector());
    columns
}

pub(super) fn stateful_set() -> Vec<Column> {
    let mut columns = vec![
        name(),
        text_column("Ready", "Pods ready, of those wanted.", |o, _| {
            format!("{}/{}", count(o, "/status/readyReplicas"), count(o, "/spec/replicas")).into()
        }),
        age(),
    ];
    columns.extend(containers());
    columns
}

pub(super) fn autoscaler() -> Vec<Column> {
    vec![
        name(),
        text_column("Reference", "What it scales.", |o, _| {
            format!("{}/{}", text(o, "/spec/scaleTargetRef/kind"), text(o, "/spec/scaleTargetRef/name"))
                .into()
        }),
        text_column("Targets", "Each metric: where it is and where it should be.", |o, _| targets(o).into()),
        text_column("MinPods", "The fewest pods.", |o, _| match o.pointer("/spec/minReplicas") {
            Some(least) => least.to_string().into(),
            None => "<unset>".into(),
        }),
        text_column("MaxPods", "The most pods.", |o, _| count(o, "/spec/maxReplicas").into()),
        text_column("Replicas", "Pods there are.", |o, _| count(o, "/status/currentReplicas").into()),
        age(),
    ]
}

fn targets(autoscaler: &Value) -> String {
    let mut shown = Vec::new();
    for (i, metric) in list(autoscaler, "/spec/metrics").enumerate() {
        let (field, named) = match text(metric, "/type") {
            "External" => ("external", false),
            "Pods" => ("pods", false),
            "Object" => ("object", false),
            "Resource" => ("resource", true),
            "ContainerResource" => ("containerResource", true),
            _ => {
                shown.push("<unknown type>".to_owned());
                continue;
            }
        };
        let current = |value: &str, unit: &str| {
            let path = format!("/status/currentMetrics/{i}/{field}/current/{value}");
            autoscaler
                .pointer(&path)
                .map_or("<unknown>".to_owned(), |value| format!("{}{unit}", scalar(value)))
        };
        let target = |value: &str| metric.pointer(&format!("/{field}/target/{value}"));
        let name =
            if named { format!("{}: ", text(metric, &format!("/{field}/name"))) } else { String::new() };
        shown.push(match (target("averageValue"), target("averageUtilization"), target("value")) {
            (Some(average), _, _) => {
                let note = if named || field == "pods" { "" } else { " (avg)" };
                format!("{name}{}/{}{note}", current("averageValue", ""), scalar(average))
            }
            (None, Some(percent), _) => format!("{name}{}/{percent}%", current("averageUtilization", "%")),
            (None, None, Some(value)) => format!("{name}{}/{}", current("value", ""), scalar(value)),
            (None, None, None) => format!("{name}{}/<auto>", current("averageUtilization", "%")),
        });
    }
    if shown.is_empty() { "<none>".to_owned() } else { first_few(shown, 2, ", ") }
}

pub(super) fn ingress() -> Vec<Column> {
    vec![
        name(),
        text_column("Class", "Which ingress class serves it.", |o, _| {
            or(text(o, "/spec/ingressClassName"), "<none>").into()
        }),
        text_column("Hosts", "Hosts that it matches.", |o, _| {
            let hosts: Vec<_> = list(o, "/spec/rules").map(|rule| text(rule, "/host").to_owned()).collect();
            let hosts: Vec<_> = hosts.into_iter().filter(|host| !host.is_empty()).collect();
            if hosts.is_empty() { "*".into() } else { first_few(hosts, 3, ",").into() }
        }),
        text_column("Address", "Where it can be reached.", |o, _| {
            joined(load_balancer_addresses(o).into_iter()).into()
        }),
        text_column("Ports", "80, and 443 with TLS.", |o, _| {
            if list(o, "/spec/tls").next().is_some() { "80, 443".into() } else { "80".into() }
        }),
        age(),
    ]
}

pub(super) fn disruption_budget() -> Vec<Column> {
    fn limit(object: &Value, path: &str) -> Value {
        object.pointer(path).map_or("N/A".into(), |limit| scalar(limit).into())
    }
    vec![
        name(),
        text_column("Min Available", "The fewest pods that must stay.", |o, _| {
            limit(o, "/spec/minAvailable")
        }),
        text_column("Max Unavailable", "The most pods that may be missing.", |o, _| {
            limit(o, "/spec/maxUnavailable")
        }),
        number_column("Allowed Disruptions", "How many pods may go now.", |o, _| {
            count(o, "/status/disruptionsAllowed").into()
        }),
        age(),
    ]
}

pub(super) fn definition() -> Vec<Column> {
    let created = column("Created At", "date", 0, "When the object was created.", |o, _| {
        text(o, "/metadata/creationTimestamp").into()
    });
    vec![name(), created]
}

pub(super) fn node() -> Vec<Column> {
    fn address(node: &Value, kind: &str) -> Value {
        let found = list(node, "/status/addresses").find(|address| text(address, "/type") == kind);
        found.map_or("<none>".into(), |address| text(address, "/address").into())
    }
    fn info(node: &Value, field: &str) -> String {
        or(text(node, &format!("/status/nodeInfo/{field}")), "<unknown>").to_owned()
    }
    vec![
        name(),
        text_column("Status", "Whether it is ready.", |o, _| {
            let ready = list(o, "/status/conditions").find(|condition| text(condition, "/type") == "Ready");
            let mut status = match ready.map(|ready| text(ready, "/status")) {
                Some("True") => "Ready".to_owned(),
                Some(_) => "NotReady".to_owned(),
                None => "Unknown".to_owned(),
            };
            if o.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
                status.push_str(",SchedulingDisabled");
            }
            status.into()
        }),
        text_column("Roles", "What it is for.", |o, _| {
            let labels = o.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
            let roles = labels.filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"));
            or(&joined(roles.map(str::to_owned)), "<none>").into()
        }),
        age(),
        text_column("Version", "The kubelet's version.", |o, _| {
            text(o, "/status/nodeInfo/kubeletVersion").into()
        }),
        wide_column("Internal-IP", "Its address within the cluster.", |o, _| address(o, "InternalIP")),
        wide_column("External-IP", "Its address outside of the cluster.", |o, _| address(o, "ExternalIP")),
        wide_column("OS-Image", "The operating system.", |o, _| info(o, "osImage").into()),
        wide_column("Kernel-Version", "The kernel.", |o, _| match text(o, "/status/nodeInfo/architecture") {
            "" => info(o, "kernelVersion").into(),
            architecture => format!("{} ({architecture})", info(o, "kernelVersion")).into(),
        }),
        wide_column("Container-Runtime", "What runs its containers.", |o, _| {
            info(o, "containerRuntimeVersion").into()
        }),
    ]
}

/// Columns of both event versions: core/v1 and events.k8s.io/v1.
pub(super) fn event() -> Vec<Column> {
    fn either<'a>(object: &'a Value, one: &str, other: &str) -> &'a str {
        or(text(object, one), text(object, other))
    }
    fn first_seen(event: &Value, now: Timestamp) -> Value {
        let first = either(event, "/firstTimestamp", "/deprecatedFirstTimestamp");
        since(Some(or(first, text(event, "/eventTime"))), now).into()
    }
    vec![
        text_column("Last Seen", "When it happened last.", |o, now| {
            match or(
                text(o, "/series/lastObservedTime"),
                either(o, "/lastTimestamp", "/deprecatedLastTimestamp"),
            ) {
                "" => first_seen(o, now),
                last => since(Some(last), now).into(),
            }
        }),
        text_column("Type", "Normal or Warning.", |o, _| text(o, "/type").into()),
        text_column("Reason", "Why it was reported, in one word.", |o, _| text(o, "/reason").into()),
        text_column("Object", "What it is about.", |o, _| {
            let kind = either(o, "/involvedObject/kind", "/regarding/kind").to_lowercase();
            match either(o, "/involvedObject/name", "/regarding/name") {
                "" => kind.into(),
                name => format!("{kind}/{name}").into(),
            }
        }),
        wide_column("Subobject", "Which part of the object.", |o, _| {
            either(o, "/involvedObject/fieldPath", "/regarding/fieldPath").into()
        }),
        wide_column("Source", "Who reported it.", |o, _| {
            let component = or(
                either(o, "/source/component", "/deprecatedSource/component"),
                either(o, "/reportingComponent", "/reportingController"),
            );
            match or(either(o, "/source/host", "/deprecatedSource/host"), text(o, "/reportingInstance")) {
                "" => component.into(),
                host => format!("{component}, {host}").into(),
            }
        }),
        text_column("Message", "What happened.", |o, _| either(o, "/message", "/note").trim().into()),
        wide_column("First Seen", "When it happened first.", first_seen),
        wide_column("Count", "How often it happened.", |o, _| {
            let counts = ["/series/count", "/count", "/deprecatedCount"].map(|path| count(o, path));
            counts.into_iter().find(|count| *count != 0).unwrap_or(1).into()
        }),
        Column { priority: 1, ..name() },
    ]
}
