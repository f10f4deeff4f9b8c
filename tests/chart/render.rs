//! The chart as Helm renders it, without a cluster.

use serde_json::{Value, json};

use crate::support::chart::{CHART, Helm};

/// Values that switch everything on, or off, that can be.
const ALL_FEATURES: [&str; 9] = [
    "metrics.serviceMonitor.enabled=true",
    "metrics.flagger=true",
    "image.digest=",
    "gatewayApi=true",
    "istio=true",
    "appMesh=true",
    "meshApis=true",
    "api.enabled=true",
    "api.tlsSecret=serin-api",
];
const NO_FEATURES: [&str; 12] = [
    "replicas=1",
    "configTracking=false",
    "credentials=false",
    "keda=false",
    "smi=false",
    "clusterAnalysisTemplates=false",
    "rbac.people=false",
    "approvals.policy=false",
    "crds.install=false",
    "namespaces={shop,blog}",
    "provider=kubernetes",
    "inventory.watch=never",
];

#[tokio::test]
async fn helm_lint_passes() {
    let helm = Helm::new();
    for set in [&[][..], &ALL_FEATURES, &NO_FEATURES] {
        let mut arguments = vec!["lint", "--strict", CHART];
        arguments.extend(set.iter().flat_map(|set| ["--set", set]));
        let output = helm.run(&arguments).await.ok();
        assert!(!output.contains("[WARNING]") && !output.contains("[ERROR]"), "{output}");
    }
}

#[tokio::test]
async fn an_invalid_value_is_refused_by_name() {
    let helm = Helm::new();
    for (set, named) in [
        ("replica=2", "replica"),
        ("replicas=two", "replicas"),
        ("replicas=17", "replicas"),
        ("image.digest=abc", "digest"),
        ("namespaces={Not_A_Name}", "namespaces"),
        ("namespaces={a,a}", "namespaces"),
        ("metricsServer=prometheus:9090", "metricsServer"),
        ("selectorLabels={app\\,name}", "selectorLabels"),
        ("concurrency=0", "concurrency"),
        ("appMeshApi.meshOwner=12", "meshOwner"),
        ("metrics.serviceMonitor.interval=often", "interval"),
    ] {
        let refused = helm.run(&["template", "serin", CHART, "--set", set]).await.refused();
        assert!(refused.contains(named), "{set}: {refused}");
    }
}

/// A value that only the schema knows would do nothing.
#[test]
fn values_and_their_schema_have_the_same_keys() {
    fn compare(values: &Value, schema: &Value, at: &str) {
        let Some(properties) = schema["properties"].as_object() else { return };
        for (name, schema) in properties.iter().filter(|(name, _)| *name != "global") {
            let value = values.get(name).unwrap_or_else(|| panic!("values.yaml has no {at}{name}"));
            compare(value, schema, &format!("{at}{name}."));
        }
    }
    let read = |file: &str| std::fs::read_to_string(format!("{CHART}/{file}")).expect("a file of the chart");
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).expect("YAML");
    let schema: Value = serde_json::from_str(&read("values.schema.json")).expect("JSON");
    compare(&values, &schema, "");
}

#[tokio::test]
async fn a_package_contains_the_current_crds_and_keeps_them() {
    let helm = Helm::new();
    let into = helm.folder.path().display().to_string();
    helm.run(&["package", CHART, "--destination", &into]).await.ok();
    let version = env!("CARGO_PKG_VERSION");
    let package = format!("{into}/serin-{version}.tgz");
    let rendered = helm.template_of(&package, "serin", &[]).await;
    let mut found: Vec<&Value> = rendered.all("CustomResourceDefinition").collect();
    found.sort_by_key(|definition| definition["metadata"]["name"].to_string());
    let mut wanted: Vec<Value> = serin::api::crds().iter().map(|definition| json!(definition)).collect();
    wanted.sort_by_key(|definition| definition["metadata"]["name"].to_string());
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.into_iter().zip(wanted) {
        assert_eq!(found["spec"], wanted["spec"]);
        assert_eq!(found["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
    let image = &rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(*image, format!("serin:{version}"));
}

#[tokio::test]
async fn disabled_features_render_nothing() {
    let helm = Helm::new();
    let all = helm.template("serin", &ALL_FEATURES).await;
    assert_eq!(all.one("ServiceMonitor")["spec"]["endpoints"][0]["path"], "/metrics");
    assert_eq!(all.one("PodDisruptionBudget")["spec"]["maxUnavailable"], 1);
    let none = helm.template("serin", &NO_FEATURES).await;
    let kinds = |kind: &str| none.all(kind).count();
    // Installing this takes no right beyond three namespaces.
    for kind in [
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "PodDisruptionBudget",
        "ServiceMonitor",
    ] {
        assert_eq!(kinds(kind), 0, "{kind}");
    }
    assert_eq!((kinds("Role"), kinds("RoleBinding")), (3, 3));
    assert!(!none.text.contains("8443") && !none.text.contains("canaries/approve"), "{}", none.text);
    assert!(
        !none.text.contains("secrets") && !none.text.contains("keda.sh") && !none.text.contains("smi-spec")
    );
}

/// Tokens do not go over the network in the clear.
#[tokio::test]
async fn the_command_api_is_exposed_only_with_a_certificate() {
    let helm = Helm::new();
    for (set, arguments, ports) in [
        (&["api.enabled=true"][..], &["--api-listen=127.0.0.1:8443"][..], 1),
        (
            &["api.enabled=true", "api.tlsSecret=serin-api"],
            &[
                "--api-listen=0.0.0.0:8443",
                "--api-certificate=/etc/serin/api/tls.crt",
                "--api-key=/etc/serin/api/tls.key",
            ],
            2,
        ),
    ] {
        let rendered = helm.template("serin", set).await;
        let pod = &rendered.one("Deployment")["spec"]["template"]["spec"];
        let given = pod["containers"][0]["args"].as_array().expect("arguments");
        let given: Vec<&str> =
            given.iter().filter_map(Value::as_str).filter(|given| given.starts_with("--api-")).collect();
        assert_eq!(given, arguments);
        let offered = |ports: &Value| ports.as_array().map(Vec::len);
        assert_eq!(offered(&rendered.one("Service")["spec"]["ports"]), Some(ports));
        assert_eq!(offered(&pod["containers"][0]["ports"]), Some(ports));
        let mounted = &pod["containers"][0]["volumeMounts"][0]["mountPath"];
        let secret = &pod["volumes"][0]["secret"]["secretName"];
        match ports {
            1 => assert_eq!((mounted, secret), (&Value::Null, &Value::Null)),
            _ => assert_eq!((mounted, secret), (&json!("/etc/serin/api"), &json!("serin-api"))),
        }
    }
}
