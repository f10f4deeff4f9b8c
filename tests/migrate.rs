//! `serin migrate` on every manifest that Flagger and Argo Rollouts ship: what comes out is
//! accepted by the definitions, and what could not be carried over is named.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use regex::Regex;
use serde_json::Value;
use serin::lint::{Code, Finding, Linter, Options, Severity, Source};
use serin::migrate::migrate;
use support::{Folder, Part};

const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");

/// A manifest in a file, as a user would save it.
struct Manifest {
    name: String,
    text: String,
}

/// Each file of YAML, each block of YAML in a page, and each text that a script applies, if it
/// has an object of `group`.
fn manifests(folder: &Path, group: &str) -> Vec<Manifest> {
    let fenced = Regex::new(r"(?ms)^( *)```ya?ml[^\n]*\n(.*?)^ *```").expect("a pattern");
    let applied = Regex::new(r"(?ms)<<-?\s*'?EOF'?[^\n]*\n(.*?)^\s*EOF$").expect("a pattern");
    let mut manifests = Vec::new();
    for path in files(folder) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let blocks: Vec<String> = match path.extension().and_then(|end| end.to_str()) {
            Some("yaml" | "yml") => vec![text],
            Some("md") => fenced
                .captures_iter(&text)
                .map(|block| {
                    block[2]
                        .lines()
                        .map(|line| line.strip_prefix(&block[1]).unwrap_or(line))
                        .collect::<Vec<_>>()
                        .join("\n")
                })
                .collect(),
            Some("sh") => applied.captures_iter(&text).map(|block| block[1].to_owned()).collect(),
            _ => Vec::new(),
        };
        let path = path.strip_prefix(folder).expect("below the folder").display().to_string();
        let of_group = format!("apiVersion: {group}/");
        let blocks = blocks.into_iter().enumerate().filter(|(_, block)| block.contains(&of_group));
        manifests.extend(blocks.map(|(at, text)| Manifest { name: format!("{path}#{at}"), text }));
    }
    manifests
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    for entry in entries {
        match entry.is_dir() {
            true => files.extend(self::files(&entry)),
            false => files.push(entry),
        }
    }
    files
}

#[derive(Default)]
struct Migrated {
    sources: Vec<Source>,
    objects: usize,
    notes: Vec<String>,
    /// Not YAML: templates of Helm, excerpts.
    unreadable: Vec<String>,
}

fn migrate_all(folder: &Path, group: &str) -> Migrated {
    let mut all = Migrated::default();
    for Manifest { name, text } in manifests(folder, group) {
        match migrate(&text) {
            Ok(migrated) => {
                all.objects += migrated.converted;
                all.notes.extend(migrated.notes);
                all.sources.push(Source { name, text: migrated.text });
            }
            Err(_) => all.unreadable.push(name),
        }
    }
    all
}

/// Whether the original is no whole object: pages show excerpts, and some manifests are
/// templates whose placeholders no API server accepts.
fn is_excerpt(finding: &Finding) -> bool {
    const SIGNS: [&str; 5] = [
        "Required value",
        "some validation rules were not checked",
        "an AnalysisTemplate measures nothing",
        "a lowercase RFC 1123 subdomain",
        "it has no",
    ];
    let is_refused = matches!(finding.code, Code::NotYaml | Code::Refused);
    finding.code == Code::NotYaml || (is_refused && SIGNS.iter().any(|sign| finding.message.contains(sign)))
}

/// One by one, as they are applied: pages use the same names for different objects.
async fn lint(sources: &[Source]) -> Vec<Finding> {
    let options = Options { namespace: "default".to_owned(), ..Options::default() };
    let linter = Linter::new().await.expect("the definitions");
    let mut found = Vec::new();
    for source in sources {
        found.extend(linter.lint(std::slice::from_ref(source), &options).await.expect("a working linter"));
    }
    found
}

/// The findings that matter, and how many manifests are excerpts.
async fn errors(sources: &[Source]) -> (Vec<Finding>, Vec<Finding>, usize) {
    let found = lint(sources).await;
    let excerpts: BTreeSet<String> =
        found.iter().filter(|finding| is_excerpt(finding)).map(|finding| finding.file.clone()).collect();
    let errors: Vec<Finding> = found
        .iter()
        .filter(|finding| finding.code.severity() == Severity::Error && !excerpts.contains(&finding.file))
        .cloned()
        .collect();
    (found, errors, excerpts.len())
}

/// What neither this version nor the original could release, by a part of the message.
const UNCARRIED: [&str; 13] = [
    // Routers and workloads that this version does not have; a comment names each.
    "is not supported",
    "has no router",
    "cannot",
    "which Serin does not release",
    "no Prometheus is configured",
    // Mistakes of the originals.
    "and the containers of Deployment",
    "is released by Canary",
    "selects its pods by no label value",
    "is longer than",
    "does not have",
    "no metrics server",
    "spec.service.",
    "have different",
];

fn unexpected(errors: &[Finding]) -> Vec<String> {
    let is_known = |finding: &&Finding| {
        finding.file.contains("expectedfailures")
            || finding.code != Code::Refused && UNCARRIED.iter().any(|part| finding.message.contains(part))
    };
    errors.iter().filter(|finding| !is_known(finding)).map(ToString::to_string).collect()
}

/// The reasons of notes and refusals, each with how often it occurs, as a table of a page.
fn counts(lines: impl IntoIterator<Item = String>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    lines.into_iter().for_each(|line| *counts.entry(line).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(line, count)| (std::cmp::Reverse(*count), line.clone()));
    counts
}

/// A note without the names of the object that it is about.
fn reason(note: &str) -> String {
    let (_, text) = note.split_once(": ").unwrap_or(("", note));
    let text = Regex::new(r"\bmetric \S+").expect("a pattern").replace_all(text, "a metric").into_owned();
    let text = Regex::new(r"\(.*\)").expect("a pattern").replace_all(&text, "(…)").into_owned();
    let text = Regex::new(r"(Service|Template|argument|args\.) ?[A-Za-z0-9-]+")
        .expect("a pattern")
        .replace_all(&text, "$1 …")
        .into_owned();
    text.split([';', ':']).next().unwrap_or_default().trim().replace('|', "\\|")
}

/// What `docs/migrating-from-….md` has after its mark.
fn table(migrated: &Migrated, errors: &[Finding], excerpts: usize) -> String {
    let mut page = format!(
        "{} objects in {} manifests are converted. {} blocks are no whole manifest (templates of Helm, excerpts), \
         and {} hold an object without a name.\n\n| comment of `serin migrate` | times |\n|---|---|\n",
        migrated.objects,
        migrated.sources.len(),
        migrated.unreadable.len(),
        excerpts
    );
    for (reason, times) in counts(migrated.notes.iter().map(|note| reason(note))) {
        page.push_str(&format!("| {reason} | {times} |\n"));
    }
    page.push_str("\n| refused by `serin lint` | times |\n|---|---|\n");
    let refusal = |finding: &Finding| {
        format!("[{0}](lint.md#{1}) {2}", finding.code, anchor(finding.code), finding.code.title())
    };
    for (refusal, times) in counts(errors.iter().map(refusal)) {
        page.push_str(&format!("| {refusal} | {times} |\n"));
    }
    page
}

fn anchor(code: Code) -> String {
    let title: String =
        code.title().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-')).collect();
    format!("{}-{}", code.as_str().to_lowercase(), title.replace(' ', "-").to_lowercase())
}

/// The page has this table; `UPDATE_DOCS=1` writes it.
fn check_page(page: &str, mark: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(&path).expect("the page");
    let (before, _) = text.split_once(mark).expect("the mark");
    let expected = format!("{before}{mark}\n\n{}\n", table.trim_end());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("the page");
    }
    assert!(
        text == expected || std::env::var_os("UPDATE_DOCS").is_some(),
        "{page} should end with:\n{table}"
    );
}

/// Each object as the real API server reads it, by a dry run.
async fn accepted_by_the_api_server(sources: &[Source], findings: &[Finding]) -> Vec<String> {
    let cluster = support::real().await;
    let client = cluster.client().await;
    support::definitions::install(&client, support::definitions::ours()).await;
    let namespace = cluster.namespace("migrate").await;
    let mut refused = Vec::new();
    for source in sources {
        // What the linter refuses, the server refuses as well.
        let is_refused = |finding: &&Finding| finding.file == source.name && is_refusal(finding);
        if findings.iter().any(|finding| is_refused(&finding)) {
            continue;
        }
        let documents: Vec<Value> = serde_saphyr::from_multiple(&source.text).expect("YAML");
        let items = documents.into_iter().flat_map(|one| match one["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![one],
        });
        for mut object in items.filter(|one| one["apiVersion"] == "serin.dev/v1alpha1") {
            let kind = object["kind"].as_str().expect("a kind").to_owned();
            let is_shared = kind.starts_with("Cluster");
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("namespace");
            }
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("serin.dev", "v1alpha1", &kind));
            let object: DynamicObject = serde_json::from_value(object).expect("an object");
            let api: Api<DynamicObject> = match is_shared {
                true => Api::all_with(client.clone(), &resource),
                false => Api::namespaced_with(client.clone(), &namespace, &resource),
            };
            let dry_run = PostParams { dry_run: true, ..PostParams::default() };
            if let Err(error) = api.create(&dry_run, &object).await {
                refused.push(format!("{}: {kind}: {error}", source.name));
            }
        }
    }
    refused
}

/// By the definitions, as opposed to the plan and the router.
fn is_refusal(finding: &Finding) -> bool {
    matches!(finding.code, Code::NotYaml | Code::Refused | Code::UnknownKind)
}

/// Converts every manifest below a folder, and compares the page that counts them.
async fn check(part: Part, group: &str, least: usize, (page, mark): (&str, &str)) {
    let migrated = migrate_all(&part.folder(), group);
    assert!(migrated.objects > least, "{} objects", migrated.objects);
    let (found, errors, excerpts) = errors(&migrated.sources).await;
    assert_eq!(unexpected(&errors), Vec::<String>::new());
    let whole = 100 * excerpts < 25 * migrated.sources.len();
    assert!(whole, "{excerpts} of {} manifests are taken for excerpts", migrated.sources.len());
    assert_eq!(accepted_by_the_api_server(&migrated.sources, &found).await, Vec::<String>::new());
    check_page(page, mark, &table(&migrated, &errors, excerpts));
}

#[tokio::test]
async fn manifests_of_flagger_are_accepted() {
    let page = ("migrating-from-flagger.md", "<!-- counts:flagger -->");
    check(Part::FlaggerManifests, "flagger.app", 80, page).await;
}

#[tokio::test]
async fn manifests_of_argo_rollouts_are_accepted() {
    let page = ("migrating-from-argo-rollouts.md", "<!-- counts:argo -->");
    check(Part::ArgoManifests, "argoproj.io", 250, page).await;
}

const ROLLOUT: &str = r#"apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: shop, namespace: prod, annotations: {rollout.argoproj.io/revision: "3"}}
spec:
  replicas: 4
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - {name: shop, image: "shop:v1", ports: [{name: http, containerPort: 8080}]}
  strategy:
    canary:
      canaryService: shop-canary
      stableService: shop
      scaleDownDelaySeconds: 60
      trafficRouting: {istio: {virtualService: {name: shop}}}
      analysis:
        templates: [{templateName: success}]
        args: [{name: service, value: shop}]
      steps:
      - setWeight: 5
      - pause: {duration: 10m}
      - setHeaderRoute: {name: staff, match: [{headerName: X-Staff, headerValue: {exact: "yes"}}]}
      - setWeight: 50
      - pause: {}
      - experiment: {templates: []}
---
apiVersion: argoproj.io/v1alpha1
kind: AnalysisTemplate
metadata: {name: success, namespace: prod}
spec:
  args: [{name: service}]
  metrics:
  - name: success
    interval: 1m
    failureLimit: 2
    successCondition: result[0] >= 0.95
    provider:
      prometheus:
        address: http://prometheus:9090
        query: sum(rate(ok{service="{{args.service}}"}[5m])) / sum(rate(all{service="{{args.service}}"}[5m]))
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: prod}
spec: {selector: {app: shop}, ports: [{port: 80, targetPort: http}]}
"#;

#[tokio::test]
async fn a_rollout_becomes_a_deployment_and_a_canary_that_can_be_released() {
    let migrated = migrate(ROLLOUT).expect("YAML");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&migrated.text).expect("YAML");
    let kinds: Vec<&str> = documents.iter().filter_map(|one| one["kind"].as_str()).collect();
    assert_eq!(kinds, ["Deployment", "Canary", "AnalysisTemplate", "Service"]);
    assert_eq!(documents[0]["metadata"]["annotations"], serde_json::json!({}));
    assert_eq!(documents[0]["spec"]["replicas"], 4);
    let expected: Value = serde_json::json!({
        "provider": "istio",
        "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "shop" },
        "service": { "name": "shop", "port": 80, "targetPort": "http" },
        "rollback": { "keepWarmSeconds": 60 },
        "analysis": {
            "interval": "1m",
            "threshold": 1,
            "steps": [
                { "weight": 5 },
                { "pause": { "duration": "10m" } },
                { "match": [{ "headers": { "x-staff": { "exact": "yes" } } }] },
                { "weight": 50 },
                { "pause": {} },
            ],
            "metrics": [{
                "name": "success", "interval": "1m",
                "templateRef": { "name": "success" }, "templateVariables": { "service": "shop" },
            }],
        },
    });
    assert_eq!(documents[1]["spec"], expected);
    assert_eq!(documents[2]["spec"]["thresholdRange"], serde_json::json!({ "min": 0.95 }));
    assert_eq!(
        documents[2]["spec"]["failureLimit"], 3,
        "Argo's limit is what may fail, ours what rolls back"
    );
    let notes: Vec<_> = migrated.notes.iter().map(|note| note.chars().take(44).collect::<String>()).collect();
    let expected =
        ["Rollout shop: istio: Serin adopts the Virtua", "Rollout shop: a step experiment has no equal"];
    assert_eq!(notes, expected);

    let source = Source { name: "a.yaml".to_owned(), text: migrated.text };
    let options = Options { namespace: "default".to_owned(), ..Options::default() };
    let found = Linter::new()
        .await
        .expect("the definitions")
        .lint(&[source], &options)
        .await
        .expect("a working linter");
    assert_eq!(found, [], "it can be released as it is");
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("migrate").args(arguments).output().expect("the program")
}

#[test]
fn the_command_writes_files_and_names_what_is_left() {
    let folder = Folder::new("migrate");
    let path = folder.path().join("rollout.yaml");
    std::fs::write(&path, ROLLOUT).expect("a file");
    let (path, out) = (path.display().to_string(), folder.path().join("out"));
    let output = run(&[&path, "--dir", &out.display().to_string()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Rollout shop: a step experiment has no equal"), "{said}");
    assert!(said.ends_with("3 objects converted, 2 notes; check them with serin lint\n"), "{said}");
    let written = std::fs::read_to_string(out.join("rollout.yaml")).expect("a file");
    assert!(written.contains("# serin migrate: a step experiment has no equal"), "{written}");
    let same = run(&[&path, "--dir", &folder.path().display().to_string()]);
    assert!(String::from_utf8_lossy(&same.stderr).contains("would be overwritten"), "{same:?}");
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), ROLLOUT);
}
