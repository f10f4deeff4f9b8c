//! The real kubectl, as users run it.
//!
//! Each law runs against `serin local`, the binary, and against the real
//! kube-apiserver with our node as its kubelet: `cargo test --test kubectl
//! local::`, or `real::`.

mod support;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kube_local::node::address::Network;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::sync::OnceCell;

use support::{Child, Folder, Part};

/// Enough for a machine that also compiles.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes two tests of each law named.
macro_rules! laws {
    ($($law:ident)*) => {
        laws!(@on local $($law)*);
        laws!(@on real $($law)*);
    };
    (@on $server:ident $($law:ident)*) => {
        mod $server {
            $(
                #[tokio::test]
                async fn $law() {
                    super::$law(super::Kubectl::new(super::$server().await, stringify!($law)).await).await
                }
            )*
        }
    };
}

laws! {
    a_deployment_is_applied_and_its_pods_become_ready
    a_list_is_applied
    a_rollout_is_followed_and_undone
    scaling_is_waited_for
    get_watch_follows_changes
    describe_shows_state_and_events
    all_three_patch_types_work
    kubectl_edit_works
    a_dropped_field_disappears_from_the_next_apply
    a_conflict_is_reported_and_forced
    finalizers_delay_a_deletion
    an_unknown_field_is_refused
    the_definitions_are_applied_explained_and_enforced
    built_in_kinds_are_explained
    labels_and_selectors_work
    resources_and_version_are_listed
    a_namespace_is_deleted_with_all_in_it
}

async fn a_deployment_is_applied_and_its_pods_become_ready(k: Kubectl) {
    let made = k.apply(&web(2)).await;
    assert_eq!(made, "deployment.apps/web created\nservice/web created\n");
    assert_eq!(k.apply(&web(2)).await, "deployment.apps/web unchanged\nservice/web unchanged\n");
    k.ok("wait --for=condition=Available deployment/web --timeout=60s").await;
    let waited = k.ok("wait --for=condition=Ready pod -l app=web --timeout=60s").await;
    assert_eq!(waited.lines().filter(|line| line.ends_with("condition met")).count(), 2);
    let rollout = k.ok("rollout status deployment/web --timeout=60s").await;
    assert!(rollout.ends_with("deployment \"web\" successfully rolled out\n"), "{rollout}");

    let table = k.ok("get deployment web").await;
    assert_eq!(words(&table, 0), ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]);
    assert_eq!(words(&table, 1)[..4], ["web", "2/2", "2", "2"]);
    let table = k.ok("get pods").await;
    assert_eq!(words(&table, 0), ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(words(&table, 1)[1..4], ["1/1", "Running", "0"]);
    let wide = k.ok("get pods -o wide").await;
    let row = words(&wide, 1);
    assert!(row[5].parse::<std::net::IpAddr>().is_ok(), "an address: {wide}");
    assert!(!row[6].starts_with('<'), "a node: {wide}");
    let table = k.ok("get service web").await;
    assert_eq!(words(&table, 1)[1], "ClusterIP");
    assert_eq!(words(&table, 1)[4], "80/TCP");
    let lists_them = |answer: &KubectlOutput| answer.code == 0 && words(&answer.stdout, 1)[2] == "8080";
    let slices = k.until("get endpointslices -l kubernetes.io/service-name=web", lists_them).await.ok();
    assert_eq!(words(&slices, 1)[3].split(',').count(), 2, "an address each: {slices}");
    let all = k.ok("get all -o name").await;
    for name in ["deployment.apps/web", "service/web", "replicaset.apps/web-", "pod/web-"] {
        assert!(all.lines().any(|line| line.starts_with(name)), "{name} in {all}");
    }
    let images = k.ok("get pods -o jsonpath={.items[*].spec.containers[0].image}").await;
    assert_eq!(images, "web:v1 web:v1");
}

/// Only the local server's pods answer here: on the real one our node has no kubelet API.
#[tokio::test]
async fn logs_and_port_forward_reach_the_pods_of_the_local_server() {
    let k = Kubectl::new(local().await, "logs_and_port_forward").await;
    k.apply(&web(1)).await;
    k.ok("rollout status deployment/web --timeout=60s").await;
    let mut forward = k.start("port-forward deployment/web :8080").await;
    let address = loop {
        let line = forward.line().await;
        if let Some(rest) = line.strip_prefix("Forwarding from 127.0.0.1:") {
            break format!("127.0.0.1:{}", rest.split(' ').next().expect("a port"));
        }
    };
    serin::tls::install_crypto_provider();
    // Two connections in a row, and two at once.
    let get = async |path: &str| {
        let answer = reqwest::get(format!("http://{address}{path}")).await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("text"))
    };
    assert!(get("/hello").await.1.contains("\"version\":\"v1\""));
    let (one, two) = tokio::join!(get("/status/418"), get("/metrics"));
    assert_eq!((one.0, two.0), (418, 200));
    assert!(two.1.contains("http_requests_total"));
    let log = k.ok("logs deployment/web").await;
    assert!(log.starts_with("starting web v1\n") && log.contains("GET /hello 200 "), "{log}");
    assert_eq!(k.ok("logs deployment/web --tail=1").await.lines().count(), 1);
    let mut follow = k.start("logs -f deployment/web --tail=0").await;
    k.settle().await;
    get("/later").await;
    while !follow.line().await.starts_with("GET /later 200 ") {}
    let refused = k.refused("logs deployment/web -c other").await;
    assert!(refused.contains("container other is not valid for pod web-"), "{refused}");
}

async fn a_list_is_applied(k: Kubectl) {
    let items = [config_map("a", json!({})), config_map("b", json!({}))];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    assert_eq!(k.apply(&[list]).await, "configmap/a created\nconfigmap/b created\n");
}

async fn a_rollout_is_followed_and_undone(k: Kubectl) {
    k.apply(&web(1)).await;
    k.ok("rollout status deployment/web --timeout=60s").await;
    assert_eq!(k.ok("set image deployment/web main=web:v2").await, "deployment.apps/web image updated\n");
    let status = k.ok("rollout status deployment/web --timeout=60s").await;
    assert!(status.ends_with("deployment \"web\" successfully rolled out\n"), "{status}");
    let image = "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}";
    assert_eq!(k.ok(image).await, "web:v2");
    let history = k.ok("rollout history deployment/web").await;
    let revisions: Vec<&str> =
        history.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(revisions, ["1", "2"]);
    k.ok("rollout undo deployment/web").await;
    k.ok("rollout status deployment/web --timeout=60s").await;
    assert_eq!(k.ok(image).await, "web:v1");
    k.ok("rollout restart deployment/web").await;
    k.ok("rollout status deployment/web --timeout=60s").await;
}

async fn scaling_is_waited_for(k: Kubectl) {
    k.apply(&web(1)).await;
    k.ok("rollout status deployment/web --timeout=60s").await;
    assert_eq!(k.ok("scale deployment/web --replicas=3").await, "deployment.apps/web scaled\n");
    k.ok("wait --for=jsonpath={.status.readyReplicas}=3 deployment/web --timeout=60s").await;
    let refused = k.refused("scale deployment/web --current-replicas=9 --replicas=1").await;
    assert!(refused.contains("Expected replicas to be 9, was 3"), "{refused}");
    k.ok("scale deployment/web --replicas=0").await;
    k.ok("wait --for=delete pod -l app=web --timeout=60s").await;
}

async fn get_watch_follows_changes(k: Kubectl) {
    let mut watch = k.start("get configmaps --watch-only --output-watch-events").await;
    k.settle().await;
    k.apply(&[config_map("a", json!({"k": "1"}))]).await;
    k.ok("label configmap a colour=red").await;
    k.ok("delete configmap a").await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let line = watch.line().await;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.get(1) == Some(&"a") {
            seen.push(words[0].to_owned());
        }
    }
    assert_eq!(seen, ["ADDED", "MODIFIED", "DELETED"]);

    let mut pods = k.start("get pods -w").await;
    k.settle().await;
    k.apply(&web(1)).await;
    loop {
        let line = pods.line().await;
        if line.starts_with("web-") && line.contains("1/1") && line.contains("Running") {
            break;
        }
    }
}

async fn describe_shows_state_and_events(k: Kubectl) {
    k.apply(&web(1)).await;
    k.ok("rollout status deployment/web --timeout=60s").await;
    for (what, parts) in [
        (
            "deployment web",
            vec![
                "Name: web",
                "Selector: app=web",
                "1 desired | 1 updated | 1 total | 1 available | 0 unavailable",
                "StrategyType: RollingUpdate",
                "Image: web:v1",
                "Available True MinimumReplicasAvailable",
                "NewReplicaSet: web-",
            ],
        ),
        ("pods", vec!["Status: Running", "Controlled By: ReplicaSet/web-", "Ready True", "Image: web:v1"]),
        ("service web", vec!["Selector: app=web", "TargetPort: 8080/TCP", "Type: ClusterIP"]),
    ] {
        let description = k.ok(&format!("describe {what}")).await;
        let squeezed = description.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(squeezed.contains(part), "{part} in {description}");
        }
    }
    k.apply(&[config_map("a", json!({"key": "value"}))]).await;
    let description = k.ok("describe configmap a").await;
    assert!(description.contains("key:\n----\nvalue"), "{description}");
}

async fn all_three_patch_types_work(k: Kubectl) {
    k.apply(&web(0)).await;
    let patched = "deployment.apps/web patched\n";
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:v1"}]}}}}"#;
    assert_eq!(k.run(&["patch", "deployment", "web", "-p", strategic], &[]).await.ok(), patched);
    let merge = r#"{"metadata":{"annotations":{"note":"merged"}}}"#;
    assert_eq!(k.run(&["patch", "deployment", "web", "--type=merge", "-p", merge], &[]).await.ok(), patched);
    let json = r#"[{"op":"replace","path":"/spec/revisionHistoryLimit","value":3}]"#;
    assert_eq!(k.run(&["patch", "deployment", "web", "--type=json", "-p", json], &[]).await.ok(), patched);
    let object = k.json("get deployment web").await;
    let containers = object["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
    assert_eq!(containers.len(), 2);
    assert_eq!(object["metadata"]["annotations"]["note"], "merged");
    assert_eq!(object["spec"]["revisionHistoryLimit"], 3);
    let again = k.run(&["patch", "deployment", "web", "--type=merge", "-p", merge], &[]).await.ok();
    assert_eq!(again, "deployment.apps/web patched (no change)\n");
    let status = r#"{"status":{"collisionCount":2}}"#;
    k.run(&["patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", status], &[])
        .await
        .ok();
}

async fn kubectl_edit_works(k: Kubectl) {
    k.apply(&[config_map("a", json!({"k": "before"}))]).await;
    let edited = k.with("KUBE_EDITOR", "sed -i s/before/after/").ok("edit configmap a").await;
    assert_eq!(edited, "configmap/a edited\n");
    assert_eq!(k.ok("get configmap a -o jsonpath={.data.k}").await, "after");
    let cancelled = k.with("KUBE_EDITOR", "true").run(&["edit", "configmap", "a"], &[]).await;
    assert!(cancelled.stderr.contains("Edit cancelled, no changes made."), "{cancelled:?}");
}

async fn a_dropped_field_disappears_from_the_next_apply(k: Kubectl) {
    let with = |data: Value| config_map("a", data);
    assert_eq!(k.apply(&[with(json!({"k": "1", "l": "1"}))]).await, "configmap/a created\n");
    k.run(&["patch", "configmap", "a", "--type=merge", "-p", r#"{"data":{"mine":"yes"}}"#], &[]).await.ok();
    let difference = k.run(&["diff", "-f", "-"], &[with(json!({"l": "2"}))]).await;
    assert_eq!(difference.code, 1, "{difference:?}");
    assert!(
        difference.stdout.contains("-  k: \"1\"") && difference.stdout.contains("+  l: \"2\""),
        "{difference:?}"
    );
    assert_eq!(k.apply(&[with(json!({"l": "2"}))]).await, "configmap/a configured\n");
    let data = k.json("get configmap a").await["data"].clone();
    assert_eq!(data, json!({"l": "2", "mine": "yes"}));
}

async fn a_conflict_is_reported_and_forced(k: Kubectl) {
    let with = |value: &str| config_map("a", json!({"k": value}));
    let apply = |manager: &str, more: &str| {
        format!("apply --server-side --field-manager={manager} -f - {more}").trim().to_owned()
    };
    let made = k.piped(&apply("one", ""), &[with("1")]).await.ok();
    assert_eq!(made, "configmap/a serverside-applied\n");
    let refused = k.piped(&apply("two", ""), &[with("2")]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    let expected = "Apply failed with 1 conflict: conflict with \"one\": .data.k";
    assert!(refused.stderr.contains(expected), "{refused:?}");
    k.piped(&apply("two", "--force-conflicts"), &[with("2")]).await.ok();
    assert_eq!(k.ok("get configmap a -o jsonpath={.data.k}").await, "2");
    let shown = k.json("get configmap a --show-managed-fields").await;
    assert_eq!(
        shown["metadata"]["managedFields"].as_array().map(Vec::len),
        Some(1),
        "one owns nothing now: {shown}"
    );
}

async fn finalizers_delay_a_deletion(k: Kubectl) {
    let held = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": ["example.dev/hold"]}});
    k.apply(&[held]).await;
    k.ok("delete configmap a --wait=false").await;
    let still = k.json("get configmap a").await;
    assert!(still["metadata"]["deletionTimestamp"].is_string());
    let late = k.run(&["wait", "--for=delete", "configmap/a", "--timeout=1s"], &[]).await;
    assert!(late.stderr.contains("timed out waiting for the condition on configmaps/a"), "{late:?}");
    let mut waiting = k.start("delete configmap a").await;
    k.settle().await;
    k.run(
        &[
            "patch",
            "configmap",
            "a",
            "--type=json",
            "-p",
            r#"[{"op":"remove","path":"/metadata/finalizers"}]"#,
        ],
        &[],
    )
    .await
    .ok();
    assert!(waiting.line().await.starts_with("configmap \"a\" deleted"));
    assert!(waiting.ended().await, "it waits no longer");
    let gone = k.refused("get configmap a").await;
    assert_eq!(gone, "Error from server (NotFound): configmaps \"a\" not found\n");
}

async fn an_unknown_field_is_refused(k: Kubectl) {
    let [mut body, _] = web(1);
    body["spec"]["replica"] = 2.into();
    let refused = k.piped("apply -f -", std::slice::from_ref(&body)).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("strict decoding error: unknown field \"spec.replica\""), "{refused:?}");
    let warned = k.piped("apply --validate=warn -f -", &[body]).await;
    assert!(warned.stderr.contains("Warning: unknown field \"spec.replica\""), "{warned:?}");
    warned.ok();
}

async fn the_definitions_are_applied_explained_and_enforced(k: Kubectl) {
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
    k.run(&["apply", "--server-side", "-f", crds], &[]).await.ok();
    k.ok(
        "wait --for=condition=Established crd/canaries.serin.dev crd/alertproviders.serin.dev --timeout=60s",
    )
    .await;
    k.until("get canaries", |answer| answer.code == 0).await;

    let good = include_str!("crds/good.yaml");
    let canary: Value =
        serde_saphyr::from_str(good.split("\n---").next().expect("a first document")).expect("YAML");
    assert_eq!(k.apply(std::slice::from_ref(&canary)).await, "canary.serin.dev/podinfo created\n");
    let table = k.ok("get canary").await;
    assert_eq!(words(&table, 0)[0], "NAME");
    assert_eq!(words(&table, 1)[0], "podinfo");
    let short = k.json("get crd canaries.serin.dev").await["spec"]["names"]["shortNames"][0].clone();
    let by_short_name = k.ok(&format!("get {} -o wide", short.as_str().expect("a short name"))).await;
    assert!(words(&by_short_name, 0).len() > words(&table, 0).len(), "wide shows more: {by_short_name}");
    let description = k.ok("describe canary podinfo").await;
    assert!(
        description.contains("Kind:         Canary") && description.contains("Step Weight:"),
        "{description}"
    );

    let explained = k.until("explain canary.spec.analysis", |answer| answer.code == 0).await.ok();
    assert!(explained.contains("KIND:       Canary"), "{explained}");
    assert!(explained.contains("VERSION:    v1alpha1"), "{explained}");
    for field in ["interval", "threshold", "stepWeight", "metrics"] {
        assert!(explained.contains(&format!("  {field}\t<")), "{field} in {explained}");
    }

    let mut bad = canary.clone();
    bad["metadata"]["name"] = "bad".into();
    bad["spec"]["analysis"]["threshold"] = (-1).into();
    let refused = k.piped("apply -f -", &[bad]).await;
    assert!(refused.stderr.contains("The Canary \"bad\" is invalid: "), "{refused:?}");
    assert!(refused.stderr.contains("spec.analysis.threshold"), "{refused:?}");
    k.ok("patch canary podinfo --type=merge -p {\"spec\":{\"analysis\":{\"threshold\":7}}}").await;
    assert_eq!(k.ok("get canary podinfo -o jsonpath={.spec.analysis.threshold}").await, "7");
    assert_eq!(
        k.ok("delete canary podinfo")
            .await
            .lines()
            .next()
            .map(|line| line.starts_with("canary.serin.dev \"podinfo\" deleted")),
        Some(true)
    );
}

async fn built_in_kinds_are_explained(k: Kubectl) {
    let explained = k.ok("explain deployment.spec.strategy.rollingUpdate").await;
    assert!(explained.contains("GROUP:      apps"), "{explained}");
    assert!(explained.contains("  maxSurge\t<IntOrString>"), "{explained}");
    let tree = k.ok("explain service.spec --recursive").await;
    assert!(tree.contains("    targetPort\t<IntOrString>"), "{tree}");
}

async fn labels_and_selectors_work(k: Kubectl) {
    for (name, colour) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        k.apply(&[config_map(name, json!({}))]).await;
        assert_eq!(
            k.ok(&format!("label configmap {name} colour={colour}")).await,
            format!("configmap/{name} labeled\n")
        );
    }
    assert_eq!(k.ok("get configmaps -l colour=red -o name").await, "configmap/a\nconfigmap/c\n");
    let table = k.ok("get configmaps -L colour --field-selector metadata.name=b").await;
    assert_eq!(words(&table, 0).last(), Some(&"COLOUR"));
    assert_eq!(words(&table, 1).last(), Some(&"blue"));
    assert_eq!(k.ok("annotate configmap a note=hello").await, "configmap/a annotated\n");
    k.ok("label configmap a colour-").await;
    assert_eq!(k.ok("get configmaps -l colour=red -o name").await, "configmap/c\n");
    let sorted = k.ok("get configmaps --sort-by=.metadata.name -o name -l colour").await;
    assert_eq!(sorted, "configmap/b\nconfigmap/c\n");
    k.ok("delete configmaps -l colour=red").await;
    assert_eq!(k.ok("get configmaps -l colour -o name").await, "configmap/b\n");
    let page = k.ok("get configmaps -l colour --chunk-size=1 -o name").await;
    assert_eq!(page, "configmap/b\n");
    let dry = k.piped("apply --dry-run=server -o name -f -", &[config_map("dry", json!({}))]).await.ok();
    assert_eq!(
        dry,
        "configmap/dry
"
    );
    k.refused("get configmap dry").await;
}

async fn resources_and_version_are_listed(k: Kubectl) {
    let version = k.json("version").await;
    assert_eq!(version["serverVersion"]["major"], "1");
    let resources = k.ok("api-resources --no-headers").await;
    for (name, kind) in [
        ("pods", "Pod"),
        ("deployments", "Deployment"),
        ("customresourcedefinitions", "CustomResourceDefinition"),
    ] {
        let row = resources.lines().find(|line| line.split_whitespace().next() == Some(name));
        assert!(row.is_some_and(|row| row.ends_with(kind)), "{name} in {resources}");
    }
    let resources = k.ok("api-resources --api-group=apps -o name --verbs=list,watch").await;
    assert!(resources.lines().any(|line| line == "deployments.apps"), "{resources}");
    assert!(k.ok("get --raw /readyz").await.starts_with("ok"));
    let unknown = k.refused("get nonsense").await;
    assert_eq!(unknown, "error: the server doesn't have a resource type \"nonsense\"\n");
}

async fn a_namespace_is_deleted_with_all_in_it(k: Kubectl) {
    k.apply(&web(1)).await;
    k.ok("rollout status deployment/web --timeout=60s").await;
    let ns = k.namespace.clone();
    k.ok(&format!("delete namespace {ns}")).await;
    let gone = k.refused(&format!("get namespace {ns}")).await;
    assert_eq!(gone, format!("Error from server (NotFound): namespaces \"{ns}\" not found\n"));
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// A Deployment and its Service.
fn web(replicas: u32) -> [Value; 2] {
    let container = json!({"name": "main", "image": "web:v1", "ports": [{"containerPort": 8080}]});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    [deployment, service]
}

/// The words of a line of output.
fn words(table: &str, line: usize) -> Vec<&str> {
    table
        .lines()
        .nth(line)
        .unwrap_or_else(|| panic!("no line {line} in {table}"))
        .split_whitespace()
        .collect()
}

/// The server and the folders of kubectl.
struct Server {
    kubeconfig: PathBuf,
    /// HOME, where kubectl keeps its caches.
    home: Folder,
    _serin: Option<Child>,
}

/// `serin local`, as a person starts it.
async fn local() -> &'static Server {
    static LOCAL: OnceCell<Server> = OnceCell::const_new();
    LOCAL
        .get_or_init(|| async {
            let home = Folder::new("kubectl");
            let program = PathBuf::from(env!("CARGO_BIN_EXE_serin"));
            let kubeconfig = home.join("kubeconfig");
            let arguments = ["local".as_ref(), "--kubeconfig".as_ref(), kubeconfig.as_os_str()];
            let mut serin = Child::start(home.path(), &program, arguments);
            let began = Instant::now();
            loop {
                let output = serin.tail();
                let export = output.lines().find_map(|line| line.strip_prefix("export KUBECONFIG="));
                if let Some(path) = export {
                    return Server { kubeconfig: path.into(), home, _serin: Some(serin) };
                }
                assert!(
                    !serin.has_ended() && began.elapsed() < TIMEOUT,
                    "serin local did not start; {output}"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
}

/// The real servers, with our node.
async fn real() -> &'static Server {
    static REAL: OnceCell<Server> = OnceCell::const_new();
    REAL.get_or_init(|| async {
        let cluster = support::real().await;
        support::node::run(cluster, Network::Private);
        Server { kubeconfig: cluster.kubeconfig(), home: Folder::new("kubectl"), _serin: None }
    })
    .await
}

/// kubectl in a namespace of its own.
struct Kubectl {
    server: &'static Server,
    namespace: String,
    environment: Vec<(String, String)>,
}

impl Kubectl {
    async fn new(server: &'static Server, law: &str) -> Kubectl {
        let kubectl = Kubectl { server, namespace: law.replace('_', "-"), environment: Vec::new() };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kubectl.namespace}});
        kubectl.apply(&[namespace]).await;
        kubectl
    }

    fn with(&self, variable: &str, value: &str) -> Kubectl {
        let mut environment = self.environment.clone();
        environment.push((variable.to_owned(), value.to_owned()));
        Kubectl { server: self.server, namespace: self.namespace.clone(), environment }
    }

    /// Arguments are separated by blanks; standard output of a success.
    #[track_caller]
    fn ok(&self, arguments: &str) -> impl Future<Output = String> {
        let run = self.piped(arguments, &[]);
        async { run.await.ok() }
    }

    /// The object that `-o json` prints.
    async fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("{arguments} -o json")).await).expect("JSON")
    }

    /// Standard error of a failure.
    async fn refused(&self, arguments: &str) -> String {
        let answer = self.piped(arguments, &[]).await;
        assert_ne!(answer.code, 0, "kubectl {arguments} went through: {answer:?}");
        answer.stderr
    }

    async fn apply(&self, objects: &[Value]) -> String {
        self.piped("apply -f -", objects).await.ok()
    }

    async fn piped(&self, arguments: &str, input: &[Value]) -> KubectlOutput {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        self.run(&arguments, input).await
    }

    async fn run(&self, arguments: &[&str], input: &[Value]) -> KubectlOutput {
        let mut child = self.command(arguments).spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("a pipe to kubectl");
        for document in input {
            stdin.write_all(format!("{document}\n").as_bytes()).await.expect("kubectl reads");
        }
        drop(stdin);
        let what = format!("kubectl {}", arguments.join(" "));
        let output = tokio::time::timeout(2 * TIMEOUT, child.wait_with_output())
            .await
            .unwrap_or_else(|_| panic!("{what} does not end"))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        KubectlOutput { command: what, code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Retries until the output satisfies the test: discovery lists new kinds
    /// after a moment.
    async fn until(&self, arguments: &str, test: impl Fn(&KubectlOutput) -> bool) -> KubectlOutput {
        let began = Instant::now();
        loop {
            let answer = self.piped(arguments, &[]).await;
            if test(&answer) {
                return answer;
            }
            assert!(began.elapsed() < TIMEOUT, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// A command that goes on.
    async fn start(&self, arguments: &str) -> Running {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let mut child = self.command(&arguments).stderr(Stdio::null()).spawn().expect("kubectl starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe from kubectl"));
        Running { child, stdout }
    }

    /// Time for a command just started to have made its requests.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(3)).await;
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let program = support::program(Part::Kubernetes, "kubectl").unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(program);
        command
            .args(["--namespace", &self.namespace])
            .args(arguments)
            .env("KUBECONFIG", &self.server.kubeconfig)
            .env("HOME", self.server.home.path())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

#[derive(Debug)]
struct KubectlOutput {
    command: String,
    code: i32,
    stdout: String,
    stderr: String,
}

impl KubectlOutput {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}: {}{}", self.command, self.stdout, self.stderr);
        self.stdout
    }
}

struct Running {
    child: tokio::process::Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// The next line it prints.
    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(TIMEOUT, self.stdout.read_line(&mut line)).await;
        let length = read.expect("kubectl prints something").expect("kubectl prints text");
        assert_ne!(length, 0, "kubectl ended");
        line
    }

    /// Whether it ends well.
    async fn ended(&mut self) -> bool {
        let status = tokio::time::timeout(TIMEOUT, self.child.wait()).await;
        status.is_ok_and(|status| status.is_ok_and(|status| status.success()))
    }
}
