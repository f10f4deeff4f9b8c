//! The chart as Helm renders it, without a cluster.

use serde_json::{Value, json};

use crate::support::chart::{CHART, Helm};

/// Values that switch everything on, or off, that can be.
const ALL_FEATURES: [&str; 36] = [
    "metrics.serviceMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "smi=true",
    "logFormat=json",
    "shards=32",
    "extraArgs={--appmesh-external-id=id}",
    "extraEnv[0].name=SSL_CERT_FILE,extraEnv[0].value=/ca/bundle.pem",
    "extraVolumes[0].name=ca,extraVolumes[0].configMap.name=ca",
    "extraVolumeMounts[0].name=ca,extraVolumeMounts[0].mountPath=/ca",
    "tenants.denyCidrs={10.0.0.0/8,fd00::/8}",
    "metrics.flagger=true",
    "image.digest=",
    "gatewayApi=true",
    "istio=true",
    "appMesh=true",
    "meshApis=true",
    "flagger.adopt=true",
    "api.enabled=true",
    "api.tlsSecret=serin-api",
    "replacePods=true",
    "xds.enabled=true",
    "xds.tlsSecret=serin-xds",
    "xds.crl=true",
    "metricsServer=http://prometheus:9090",
    "smiMetrics.enabled=true",
    "smiMetrics.tlsSecret=serin-smi",
    "smiMetrics.caBundle=Y2E=",
    "metrics.grafanaDashboard.enabled=true",
    "chat.dashboardUrl=https://serin.example.com",
    "chat.secret=serin-chat",
    "chat.slackButtons=true",
    "chat.links=true",
    "api.oidc.issuerUrl=https://login.example.com,api.oidc.clientId=serin",
    "api.oidc.secret=serin-oidc",
    "api.oidc.groupsClaim=groups,api.oidc.groupsPrefix=oidc:,api.oidc.usernamePrefix=-",
    "api.oidc.scopes={email,groups}",
];
const NO_FEATURES: [&str; 13] = [
    "networkPolicy.enabled=false",
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
        ("replicas=17", "raise shards, so that each replica has one"),
        ("image.repository=", "/image/repository"),
        ("provider=nginx", "provider nginx has no router and no rights in this chart: use one of kubernetes"),
        ("provider=xds", "set xds.enabled"),
        ("xds.enabled=true", "xds.enabled needs xds.tlsSecret"),
        ("xds.defaultAccess=closing", "defaultAccess"),
        ("smiMetrics.enabled=true", "smiMetrics.enabled needs smiMetrics.tlsSecret"),
        ("smiMetrics.enabled=true,smiMetrics.tlsSecret=smi", "smiMetrics.enabled needs smiMetrics.caBundle"),
        ("smiMetrics.enabled=true,smiMetrics.tlsSecret=smi,smiMetrics.caBundle=Y2E=", "needs metricsServer"),
        ("smiMetrics.window=0", "window"),
        ("logFormat=xml", "logFormat"),
        ("extraArgs={verbose}", "extraArgs"),
        ("tenants.denyCidrs={10.0.0.1}", "denyCidrs"),
        ("image.digest=abc", "digest"),
        ("namespaces={Not_A_Name}", "namespaces"),
        ("namespaces={a,a}", "namespaces"),
        ("metricsServer=prometheus:9090", "metricsServer"),
        ("selectorLabels={app\\,name}", "selectorLabels"),
        ("concurrency=0", "concurrency"),
        ("appMeshApi.meshOwner=12", "meshOwner"),
        ("metrics.serviceMonitor.interval=often", "interval"),
        (
            "api.oidc.issuerUrl=https://login.example.com",
            "api.oidc.issuerUrl needs api.enabled, api.oidc.clientId",
        ),
        ("api.oidc.issuerUrl=http://login.example.com", "issuerUrl"),
        ("api.oidc.clientId=serin", "set api.oidc.issuerUrl"),
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
        "PrometheusRule",
        "NetworkPolicy",
    ] {
        assert_eq!(kinds(kind), 0, "{kind}");
    }
    assert_eq!((kinds("Role"), kinds("RoleBinding")), (3, 3));
    assert!(!none.text.contains("8443") && !none.text.contains("canaries/approve"), "{}", none.text);
    assert!(
        !none.text.contains("secrets") && !none.text.contains("keda.sh") && !none.text.contains("smi-spec")
    );
}

#[tokio::test]
async fn pods_are_deleted_only_where_they_may_be_replaced() {
    let deletes_pods = async |set: &[&str]| {
        let manifests = Helm::new().template("serin", set).await;
        let mut rules =
            manifests.all("ClusterRole").flat_map(|role| role["rules"].as_array().into_iter().flatten());
        let has = |rule: &Value, field: &str, what: &str| {
            rule[field].as_array().is_some_and(|all| all.iter().any(|one| one == what))
        };
        rules.any(|rule| has(rule, "resources", "pods") && has(rule, "verbs", "delete"))
    };
    assert!(!deletes_pods(&["rbac.people=false"]).await);
    assert!(deletes_pods(&["rbac.people=false", "replacePods=true"]).await);
}

/// Tokens do not go over the network in the clear.
#[tokio::test]
async fn the_command_api_is_exposed_only_with_a_certificate() {
    let helm = Helm::new();
    for (set, arguments, ports) in [
        (&["api.enabled=true"][..], &["--api-listen=127.0.0.1:8443"][..], 1usize),
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
        assert_eq!(offered(&pod["containers"][0]["ports"]), Some(ports + 1), "and that of the probes");
        assert_eq!(offered(&rendered.one("NetworkPolicy")["spec"]["ingress"]), Some(ports));
        let mounted = &pod["containers"][0]["volumeMounts"][0]["mountPath"];
        let secret = &pod["volumes"][0]["secret"]["secretName"];
        match ports {
            1 => assert_eq!((mounted, secret), (&Value::Null, &Value::Null)),
            _ => assert_eq!((mounted, secret), (&json!("/etc/serin/api"), &json!("serin-api"))),
        }
    }
}

/// The groups whose routes the controller may write; the inventory reads all of them.
async fn granted(set: &[&str]) -> Vec<&'static str> {
    let rendered = Helm::new().template("serin", set).await;
    let role = rendered.all("ClusterRole").find(|role| role["metadata"]["name"] == "serin");
    let rules = role.expect("the controller's role")["rules"].as_array().expect("rules").clone();
    let has = |list: &Value, word: &str| list.as_array().is_some_and(|all| all.iter().any(|one| one == word));
    ["networking.istio.io", "split.smi-spec.io", "gateway.networking.k8s.io", "appmesh.k8s.aws"]
        .into_iter()
        .filter(|group| {
            rules.iter().any(|rule| has(&rule["apiGroups"], group) && has(&rule["verbs"], "patch"))
        })
        .collect()
}

#[tokio::test]
async fn a_provider_brings_its_rights() {
    for (provider, expected) in [
        ("", &[] as &[&str]),
        ("kubernetes", &[]),
        ("appmesh:aws", &[]),
        ("istio", &["networking.istio.io"]),
        ("linkerd", &["gateway.networking.k8s.io"]),
        ("gatewayapi:v1", &["gateway.networking.k8s.io"]),
        ("smi:v1alpha4", &["split.smi-spec.io"]),
        ("osm", &["split.smi-spec.io"]),
        ("appmesh", &["appmesh.k8s.aws"]),
    ] {
        assert_eq!(granted(&[&format!("provider={provider}")]).await, expected, "{provider}");
    }
    assert_eq!(granted(&["provider=istio", "smi=true"]).await, ["networking.istio.io", "split.smi-spec.io"]);
}

#[tokio::test]
async fn tenants_are_kept_apart_unless_the_values_say_otherwise() {
    let arguments = async |set: &[&str]| {
        let rendered = Helm::new().template("serin", set).await;
        rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    assert!(arguments(&[]).await.contains("--no-cross-namespace-refs"));
    let opened = arguments(&[
        "tenants.crossNamespaceRefs=true",
        "tenants.allowCidrs={169.254.20.10/32}",
        "tenants.awsRoles={arn:aws:iam::123456789012:role/metrics}",
    ])
    .await;
    assert!(!opened.contains("--no-cross-namespace-refs"), "{opened}");
    assert!(opened.contains("--allow-cidr=169.254.20.10/32"), "{opened}");
    assert!(opened.contains("--allow-aws-role=arn:aws:iam::123456789012:role/metrics"), "{opened}");
}

/// Proxies are verified by the Secret, and served without one only where the values say so.
#[tokio::test]
async fn the_control_plane_for_envoys_has_a_service_and_its_certificates() {
    let rendered = Helm::new().template("serin", &ALL_FEATURES).await;
    let pod = &rendered.one("Deployment")["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].to_string();
    for flag in [
        "--xds-listen=0.0.0.0:18000",
        "--xds-client-ca=/etc/serin/xds/ca.crt",
        "--xds-crl=/etc/serin/xds/ca.crl",
    ] {
        assert!(arguments.contains(flag), "{flag} in {arguments}");
    }
    assert!(!arguments.contains("--xds-insecure"), "{arguments}");
    assert_eq!(pod["volumes"][1], json!({"name": "xds", "secret": {"secretName": "serin-xds"}}));
    let service = rendered.all("Service").find(|service| service["metadata"]["name"] == "serin-xds");
    let ports = &service.expect("a Service for proxies")["spec"]["ports"];
    assert_eq!(*ports, json!([{"name": "grpc-xds", "port": 18000, "targetPort": "xds"}]));
    let ingress = rendered.one("NetworkPolicy")["spec"]["ingress"].clone();
    assert!(ingress.as_array().expect("rules").contains(&json!({"ports": [{"port": "xds"}]})), "{ingress}");
    let rendered = Helm::new().template("serin", &["xds.enabled=true", "xds.insecure=true"]).await;
    let arguments =
        rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--xds-insecure"), "{arguments}");
    let rendered = Helm::new().template("serin", &[]).await;
    assert_eq!(rendered.all("Service").count(), 1);
}

/// Only the kubelet reaches the probes, which clients of the other ports cannot keep busy.
#[tokio::test]
async fn probes_have_a_port_that_no_pod_reaches() {
    let rendered = Helm::new().template("serin", &[]).await;
    let container = &rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0];
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "probes");
    }
    let policy = &rendered.one("NetworkPolicy")["spec"];
    assert_eq!(policy["ingress"], json!([{"ports": [{"port": "http"}]}]));
    let some = r#"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring"#;
    let rendered = Helm::new().template("serin", &[some]).await;
    let from = &rendered.one("NetworkPolicy")["spec"]["ingress"][0]["from"];
    assert_eq!(*from, json!([{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]));
}

#[tokio::test]
async fn settings_beyond_those_of_the_chart_can_be_added() {
    let rendered = Helm::new().template("serin", &ALL_FEATURES).await;
    let pod = &rendered.one("Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let arguments = container["args"].to_string();
    assert!(
        arguments.contains("--appmesh-external-id=id") && arguments.contains("--shards=32"),
        "{arguments}"
    );
    let env = container["env"].as_array().expect("variables");
    assert!(env.contains(&json!({"name": "SSL_CERT_FILE", "value": "/ca/bundle.pem"})));
    assert!(env.contains(&json!({"name": "SERIN_LOG_FORMAT", "value": "json"})));
    let (volumes, mounts) = (&pod["volumes"], &container["volumeMounts"]);
    let has = |list: &Value, one: Value| list.as_array().is_some_and(|all| all.contains(&one));
    assert!(has(volumes, json!({"name": "ca", "configMap": {"name": "ca"}})), "{volumes}");
    assert!(has(mounts, json!({"name": "ca", "mountPath": "/ca"})), "{mounts}");
}

/// A rule without its series would never fire.
#[tokio::test]
async fn the_alerting_rules_are_valid_and_about_our_series() {
    let rendered = Helm::new().template("serin", &ALL_FEATURES).await;
    assert_eq!(rendered.one("ServiceMonitor")["spec"]["endpoints"][0]["honorLabels"], true);
    let prometheus = crate::support::prometheus::Prometheus::start("").await;
    let sources = ["src/server/series.rs"].map(|file| std::fs::read_to_string(file).expect("a source"));
    let groups = rendered.one("PrometheusRule")["spec"]["groups"].as_array().expect("groups");
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")) {
        let query = rule["expr"].as_str().expect("a query");
        let url = format!("{}/api/v1/query", prometheus.url());
        let answer =
            reqwest::Client::new().get(url).query(&[("query", query)]).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{query}: {answer:?}");
        for word in query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let family = word.trim_end_matches("_total").trim_end_matches("_bucket");
            let known = sources.iter().any(|source| source.contains(&format!("\"{family}\"")));
            assert!(!word.starts_with("serin_") || known, "{word}");
        }
    }
}

/// `approve-only` grants no edit of a Canary, and with it of its gates.
#[tokio::test]
async fn one_role_approves_and_edits_nothing() {
    let rendered = Helm::new().template("serin", &[]).await;
    let role = rendered.all("ClusterRole").find(|role| role["metadata"]["name"] == "serin-approve-only");
    let rules = role.expect("the role")["rules"].as_array().expect("rules");
    let verbs = |resource: &str| {
        let of = rules.iter().find(|rule| rule["resources"] == json!([resource]));
        of.map(|rule| rule["verbs"].clone())
    };
    assert_eq!(verbs("canaries/approve"), Some(json!(["update"])));
    assert_eq!(verbs("canaries"), Some(json!(["get", "list", "watch"])));
    assert_eq!(rules.len(), 2);
}
