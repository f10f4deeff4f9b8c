//! `serin lint`: what a cluster or the controller would refuse is found in the files, with
//! the same sentences; and what people run prints it.

mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
use serin::lint::{Code, Finding, Linter, Options, Severity, Source, report};
use support::{Folder, Part};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");

fn options() -> Options {
    Options { namespace: "default".to_owned(), ..Options::default() }
}

/// Loading it takes most of the time of a run, so there is one, on a runtime that outlives
/// those of the tests.
async fn linter() -> &'static Linter {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
    static LINTER: OnceCell<Linter> = OnceCell::const_new();
    let load = || async {
        let linter = RUNTIME.spawn(async { Linter::new().await.expect("the definitions") });
        linter.await.expect("a linter")
    };
    LINTER.get_or_init(load).await
}

async fn findings(text: &str, options: &Options) -> Vec<Finding> {
    let source = Source { name: "a.yaml".to_owned(), text: text.to_owned() };
    linter().await.lint(&[source], options).await.expect("a working linter")
}

fn codes(findings: &[Finding]) -> Vec<(usize, &'static str)> {
    findings.iter().map(|finding| (finding.line, finding.code.as_str())).collect()
}

/// A case of `tests/crds/refused.yaml`.
#[derive(Deserialize)]
struct Refused {
    write: Value,
    says: String,
}

#[tokio::test]
async fn the_rules_of_the_definitions_are_found_in_their_own_words() {
    let good: Vec<Value> = serde_saphyr::from_multiple(include_str!("crds/good.yaml")).expect("YAML");
    let refused: BTreeMap<String, Vec<Refused>> =
        serde_saphyr::from_str(include_str!("crds/refused.yaml")).expect("cases");
    let mut sources = Vec::new();
    let mut said = Vec::new();
    for (kind, cases) in refused {
        for case in cases {
            let mut manifest =
                good.iter().find(|good| good["kind"] == kind.as_str()).expect("a kind").clone();
            json_patch::merge(&mut manifest["spec"], &case.write);
            let name = format!("{kind}-{}.yaml", sources.len());
            said.push((name.clone(), case.says));
            sources.push(Source { name, text: serde_saphyr::to_string(&manifest).expect("YAML") });
        }
    }
    assert!(sources.len() > 100, "{} cases", sources.len());
    let found = linter().await.lint(&sources, &options()).await.expect("a working linter");
    for (name, says) in said {
        let of_it: Vec<_> =
            found.iter().filter(|one| one.file == name && one.code == Code::Refused).collect();
        // The server joins field and reason with a colon.
        let says = says.rsplit(": ").next().unwrap_or_default();
        assert!(of_it.iter().any(|one| one.message.contains(says)), "{name}: {says}: {of_it:#?}");
    }
}

#[tokio::test]
async fn examples_of_flagger_and_our_own_templates_have_no_errors() {
    let examples = Part::Flagger.folder().join("artifacts/examples");
    let mut sources = vec![];
    for file in yaml_files(&examples) {
        let text = std::fs::read_to_string(&file).expect("an example");
        let text = text
            .replace("flagger.app/v1beta1", "serin.dev/v1alpha1")
            .replace("MetricTemplate", "AnalysisTemplate");
        sources.push(Source { name: file.display().to_string(), text });
    }
    for file in yaml_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("analysis-templates")) {
        let text = std::fs::read_to_string(&file).expect("a template");
        sources.push(Source { name: file.display().to_string(), text });
    }
    assert!(sources.len() > 10, "{} files", sources.len());
    let found = linter().await.lint(&sources, &options()).await.expect("a working linter");
    let errors: Vec<_> = found.iter().filter(|one| one.code.severity() == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(found.iter().any(|one| one.code == Code::TargetMissing), "the examples have no Deployments");
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    files.sort();
    files
}

/// Line 20 is the first of the second document.
const SHOP: &str = r#"apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: shop}
spec:
  provider: istio
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: shop}
  service: {port: 80, targetPort: http}
  analysis:
    interval: 10s
    stepWeights: [1, 20]
    metrics:
    - name: request-success-rate
    - name: latency
      templateRef: {name: latency}
      thresholdRange: {max: 500}
    alerts:
    - name: people
      providerRef: {name: chat}
---
apiVersion: serin.dev/v1alpha1
kind: AnalysisTemplate
metadata: {name: latency}
spec:
  provider: {type: prometheus, address: "http://prometheus:9090"}
  query: 'sum(rate(seconds_sum{deployment="{{ target }}"}[{{ interval }}]))'
---
apiVersion: serin.dev/v1alpha1
kind: AlertProvider
metadata: {name: chat}
spec: {type: slack, address: "https://hooks.example.com/x"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - {name: app, image: "shop:v1", ports: [{name: http, containerPort: 8080}]}
"#;

#[tokio::test]
async fn each_mistake_is_found_at_its_line_and_nothing_else() {
    assert_eq!(codes(&findings(SHOP, &options()).await), [], "nothing is wrong");
    type Found = &'static [(usize, &'static str)];
    let cases: [(&str, &str, Found); 14] = [
        ("targetPort: http", "targetPort: web", &[(7, "SER203")]),
        (", targetPort: http", "", &[(7, "SER204")]),
        ("provider: istio", "provider: nginx", &[(5, "SER102")]),
        ("  provider: istio\n", "", &[(4, "SER104")]),
        ("provider: istio", "provider: smi:v1alpha4\n  analysisx: 1", &[(6, "SER002")]),
        ("name: latency}\n      threshold", "name: speed}\n      threshold", &[(14, "SER202")]),
        ("providerRef: {name: chat}", "providerRef: {name: pager}", &[(18, "SER202")]),
        ("[{{ interval }}]))", "[{{ interval }}])", &[(13, "SER302")]),
        ("{{ target }}", "{{ tarket }}", &[(13, "SER301")]),
        (
            "- name: request-success-rate",
            "- name: request-success-rate\n      thresholdRange: {min: 0.99}",
            &[(12, "SER401")],
        ),
        (
            "- name: request-success-rate",
            "- name: request-duration\n      thresholdRange: {max: 0.5}",
            &[(12, "SER402")],
        ),
        (
            "- name: request-success-rate",
            "- name: request-success-rate\n      interval: 15s",
            &[(13, "SER403")],
        ),
        ("name: shop}\n  service", "name: shop2}\n  service", &[(6, "SER201")]),
        (
            "apiVersion: serin.dev/v1alpha1\nkind: Canary",
            "apiVersion: serin.dev/v1\nkind: Canary",
            &[(2, "SER004")],
        ),
    ];
    for (right, wrong, expected) in cases {
        assert!(SHOP.contains(right), "{right}");
        let found = findings(&SHOP.replacen(right, wrong, 1), &options()).await;
        assert_eq!(codes(&found), expected, "{wrong}: {found:#?}");
    }
    let windows = SHOP.replace(
        "  provider: istio",
        "  releaseWindows: [{kind: freeze, cron: \"0 0 * * *\", duration: 24h}]\n  provider: istio",
    );
    assert_eq!(codes(&findings(&windows, &options()).await), [(5, "SER405")]);
    let twice = format!(
        "{SHOP}---\n{}",
        SHOP.split("---").next().unwrap().replace("{name: shop}\nspec", "{name: shop2}\nspec")
    );
    assert_eq!(codes(&findings(&twice, &options()).await), [(48, "SER205")]);
    let old = SHOP.replacen("serin.dev/v1alpha1", "flagger.app/v1beta1", 1);
    assert_eq!(codes(&findings(&old, &options()).await), [(1, "SER003")]);
    let unjudged = SHOP.replace("    metrics:\n    - name: request-success-rate\n    - name: latency\n      templateRef: {name: latency}\n      thresholdRange: {max: 500}\n", "");
    assert_eq!(codes(&findings(&unjudged, &options()).await), [(8, "SER406")]);
}

#[tokio::test]
async fn too_little_traffic_is_found_for_the_rate_that_is_given() {
    let at = async |rate: f64| {
        let options = Options { requests_per_second: Some(rate), ..options() };
        findings(SHOP, &options).await.into_iter().map(|one| one.message).collect::<Vec<_>>()
    };
    assert_eq!(at(1000.0).await, Vec::<String>::new());
    let few = at(20.0).await;
    assert_eq!(few.len(), 1, "1 % of 20 a second are 2 in 10 s; 20 % are 40: {few:?}");
    assert!(
        few[0].starts_with("step 1 of 2: 1 % of 20 requests a second are 2 in an interval of 10 s"),
        "{few:?}"
    );
}

fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(PROGRAM)
        .arg("lint")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("input is read");
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn the_command_prints_findings_by_object_and_fails_on_errors() {
    let broken = SHOP.replace("targetPort: http", "targetPort: web").replace("min: 99", "min: 0.99");
    let output = run(&["-"], &broken);
    assert_eq!(output.status.code(), Some(1));
    let expected = "\
-  Canary default/shop
     7  error    SER203  spec.service.targetPort names \"web\", and the containers of Deployment shop declare http (8080); name one of their ports, or write a number
1 error, 0 warnings
";
    assert_eq!(text(&output.stdout), expected);
    assert_eq!(text(&output.stderr), "");

    let output = run(&["-"], SHOP);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "No findings.\n"));

    let warned = SHOP.replacen("  provider: istio\n", "", 1);
    assert_eq!(run(&["-"], &warned).status.code(), Some(0));
    assert_eq!(run(&["-", "--strict"], &warned).status.code(), Some(1));
    assert_eq!(run(&["-", "--strict", "--provider", "istio"], &warned).status.code(), Some(0));

    let github = run(&["-", "-o", "github"], &broken);
    assert!(
        text(&github.stdout).starts_with("::error file=-,line=7,title=SER203 no such port::Canary"),
        "{github:?}"
    );
    let sarif: Value = serde_json::from_slice(&run(&["-", "-o", "sarif"], &broken).stdout).expect("JSON");
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "SER203");
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 7);
    assert_eq!(sarif["runs"][0]["tool"]["driver"]["rules"][0]["id"], "SER203");
}

#[test]
fn folders_are_searched_and_missing_files_are_no_finding() {
    let folder = Folder::new("lint");
    std::fs::create_dir_all(folder.path().join("base")).expect("a folder");
    std::fs::write(folder.path().join("base/shop.yml"), SHOP).expect("a file");
    std::fs::write(folder.path().join("notes.txt"), "a: [").expect("a file");
    let path = folder.path().display().to_string();
    let output = run(&[&path], "");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "No findings.\n"));
    let missing = run(&[&format!("{path}/nowhere.yaml")], "");
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("nowhere.yaml: No such file"), "{missing:?}");
    let explained = run(&["--explain", "ser401"], "");
    assert!(text(&explained.stdout).starts_with("SER401 (warning): "), "{explained:?}");
    let unknown = run(&["--explain", "SER999"], "");
    assert!(text(&unknown.stderr).contains("the codes are SER001, "), "{unknown:?}");
}

#[test]
fn a_reader_that_is_gone_ends_the_command_without_a_panic() {
    let mut child = Command::new(PROGRAM)
        .args(["lint", "--codes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(141));
}

#[test]
fn the_page_of_codes_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lint.md");
    let kept = std::fs::read_to_string(page).unwrap_or_default();
    assert!(kept == report::codes_page(), "docs/lint.md: run `cargo run -- lint --codes > docs/lint.md`");
}

#[tokio::test]
async fn objects_of_other_groups_are_left_to_others() {
    let text =
        "apiVersion: example.com/v1\nkind: Shop\nmetadata: {name: a}\nspec: {anything: [1, {goes: true}]}\n";
    assert_eq!(codes(&findings(text, &options()).await), []);
}

/// A folder of manifests and the same objects in a cluster have the same findings.
#[tokio::test]
async fn a_cluster_is_checked_as_its_manifests_are() {
    let cluster = support::local().await;
    let client = cluster.client().await;
    support::definitions::install(&client, support::definitions::ours()).await;
    let namespace = cluster.namespace("lint").await;
    let canary = serde_json::json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
        "metadata": { "name": "shop", "namespace": namespace },
        "spec": {
            "provider": "linkerd",
            "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "shop" },
            "service": { "port": 80, "targetPort": "nosuchport" },
            "analysis": {
                "stepWeight": 10,
                "metrics": [{ "name": "request-success-rate", "thresholdRange": { "min": 0.99 } }],
            },
        },
    });
    let deployment = serde_json::json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "shop", "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": "shop" } },
            "template": {
                "metadata": { "labels": { "app": "shop" } },
                "spec": { "containers": [{ "name": "shop", "image": "shop:v1", "ports": [{ "name": "http", "containerPort": 8080 }] }] },
            },
        },
    });
    for object in [&canary, &deployment] {
        let object: kube::api::DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        let types = object.types.clone().expect("types");
        let kind = kube::api::GroupVersionKind::try_from(&types).expect("a kind");
        let resource = kube::api::ApiResource::from_gvk(&kind);
        let api: kube::Api<kube::api::DynamicObject> =
            kube::Api::namespaced_with(client.clone(), &namespace, &resource);
        api.create(&Default::default(), &object).await.expect("a new object");
    }
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let output = run(&["-A", "-o", "json", "--kubeconfig", &kubeconfig], "");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr));
    });
    let in_cluster = |finding: &&Value| finding["file"] == format!("Canary {namespace}/shop");
    let list = found.as_array().expect("findings");
    let mut codes: Vec<&str> =
        list.iter().filter(in_cluster).filter_map(|finding| finding["code"].as_str()).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["SER203", "SER401"], "{found:#}");
    assert_eq!(output.status.code(), Some(1));
}
