//! Every file in analysis-templates/: applied with kubectl to the real API
//! server, its PromQL read by a parser of its own, and evaluated by a real
//! Prometheus that holds a recording of the system that the file is for.
//!
//! The recordings are in `recordings/`, by the names of the files. Beside both
//! arms they hold what a query must leave out, in numbers that would show.

#[path = "../support/mod.rs"]
mod support;

mod expected_values;
mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kube::Api;
use kube::api::ListParams;
use promql_parser::parser::{Expr, parse};
use serde_json::json;
use serin::analysis::measurement::{Arms, Counts, Histogram, Measurement, Values};
use serin::api::analysis_template::MetricProviderType;
use serin::api::canary::{Metric, Provider};
use serin::api::judge::JudgeType;
use serin::api::{AnalysisTemplate, AnalysisTemplateSpec, Canary};
use serin::metrics::scrape::HttpFetch;
use serin::metrics::{MeasureContext, MetricQuery, Query, QueryContext, Sources, Template, Window};
use support::prometheus::Prometheus;
use support::{Part, definitions, program};

use expected_values::{EXPECTED, ExpectedCounts, ExpectedValues};
use recording::Recording;

/// Templates for other sources than Prometheus, by name. The tests of those
/// sources cover them.
const TESTED_WITH_CLOUDWATCH: [&str; 2] = ["app-mesh-cloudwatch-latency", "app-mesh-cloudwatch-success-rate"];

#[tokio::test(flavor = "multi_thread")]
async fn every_template_can_be_applied_and_measures_the_recorded_values() {
    let written = documented_templates();
    let applied = applied().await;
    let names = |of: &mut dyn Iterator<Item = &String>| of.cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&mut written.keys()), names(&mut applied.keys()), "written, and applied");
    let known = EXPECTED.iter().map(|figures| figures.template).chain(TESTED_WITH_CLOUDWATCH);
    let known: BTreeSet<String> = known.map(str::to_owned).collect();
    assert_eq!(names(&mut written.keys()), known, "written, and known to this test");
    for (name, spec) in &applied {
        let elsewhere = TESTED_WITH_CLOUDWATCH.contains(&name.as_str());
        assert_eq!(spec.provider.type_ != MetricProviderType::Prometheus, elsewhere, "{name}");
    }

    let systems: BTreeSet<&str> = EXPECTED.iter().map(|figures| system(&written[figures.template])).collect();
    let recordings: BTreeMap<&str, Recording> =
        systems.into_iter().map(|system| (system, Recording::read(system))).collect();
    let prometheus = Prometheus::start("").await;
    let until = recording::play(&prometheus, recordings.values()).await;
    let oracle = PrometheusServer {
        sources: Sources::new(Arc::new(HttpFetch::new().expect("an HTTP client"))),
        window: Window { since: until - recording::WINDOW, until },
        address: prometheus.url(),
    };
    let mut wrong = Vec::new();
    for figures in EXPECTED {
        let recording = &recordings[system(&written[figures.template])];
        let template = TemplateCase {
            expected: figures,
            source: QuerySource::Template(&applied[figures.template]),
            server: &oracle,
        };
        wrong.extend(template.check(recording).await);
        if let Some((mesh, name)) = built_in(figures.template) {
            let built_in =
                TemplateCase { expected: figures, source: QuerySource::BuiltIn(mesh, name), server: &oracle };
            wrong.extend(built_in.check(recording).await);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The built-in metric that equals a template.
fn built_in(template: &str) -> Option<(Provider, &'static str)> {
    let (mesh, name) = match template.strip_suffix("-success-rate") {
        Some(mesh) => (mesh, "request-success-rate"),
        None => (template.strip_suffix("-latency")?, "request-duration"),
    };
    let mesh = match mesh {
        "istio" => Provider::Istio,
        "linkerd" => Provider::Linkerd,
        "app-mesh" => Provider::AppMesh,
        "contour" => Provider::Contour,
        _ => return None,
    };
    Some((mesh, name))
}

/// Every template in the folder and the file that it is in.
fn documented_templates() -> BTreeMap<String, PathBuf> {
    let mut written = BTreeMap::new();
    for entry in std::fs::read_dir(folder()).expect("analysis-templates/") {
        let path = entry.expect("a file").path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") => {}
            Some("md") => continue,
            _ => panic!("{} is no template", path.display()),
        }
        let text = std::fs::read_to_string(&path).expect("a file that can be read");
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
        for line_start in ["# Reads", "# Takes", "#       templateRef: {name: "] {
            let has_line = header.iter().any(|line| line.starts_with(line_start));
            assert!(has_line, "{} lacks {line_start:?} in its header", path.display());
        }
        let documents: Vec<AnalysisTemplate> = serde_saphyr::from_multiple(&text).expect("templates");
        for template in documents {
            let name = template.metadata.name.expect("a template has a name");
            let twice = written.insert(name.clone(), path.clone());
            assert!(twice.is_none(), "{name} is written twice");
        }
    }
    written
}

/// The specs of all templates as the API server keeps them after
/// `kubectl apply -f analysis-templates/`.
async fn applied() -> BTreeMap<String, AnalysisTemplateSpec> {
    let cluster = support::real().await;
    let client = cluster.client().await;
    definitions::install(&client, definitions::ours()).await;
    let namespace = cluster.namespace("templates").await;
    let kubectl = program(Part::Kubernetes, "kubectl").unwrap_or_else(|error| panic!("{error}"));
    let mut apply = Command::new(kubectl);
    apply.arg("--kubeconfig").arg(cluster.kubeconfig()).args(["--namespace", &namespace, "apply", "-f"]);
    let output = apply.arg(folder()).output().expect("kubectl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let templates = Api::<AnalysisTemplate>::namespaced(client, &namespace);
    let list = templates.list(&ListParams::default()).await.expect("what was applied");
    list.into_iter().map(|template| (template.metadata.name.expect("a name"), template.spec)).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("analysis-templates")
}

/// The system of a file.
fn system(file: &Path) -> &str {
    file.file_stem().and_then(|stem| stem.to_str()).expect("a file has a name")
}

/// The Prometheus of the recordings.
struct PrometheusServer {
    sources: Sources,
    window: Window,
    address: String,
}

/// One metric, and its expected result.
struct TemplateCase<'a> {
    expected: &'a ExpectedValues,
    source: QuerySource<'a>,
    server: &'a PrometheusServer,
}

/// Where its queries are from.
enum QuerySource<'a> {
    Template(&'a AnalysisTemplateSpec),
    BuiltIn(Provider, &'static str),
}

impl TemplateCase<'_> {
    /// The differences from the expected result.
    async fn check(&self, recording: &Recording) -> Vec<String> {
        let ExpectedValues { of, zero, variables, values, expected_counts: counted, .. } = self.expected;
        let mut wrong = Vec::new();
        for (variable, value) in self.values(values) {
            let variables = [*variables, variable.as_slice()].concat();
            let measured = self.measure(of, &variables, JudgeType::Threshold).await;
            // Rates of floats: the last digits are noise.
            let right =
                matches!(measured, Measurement::Scalar(is) if (is - value).abs() < 1e-6 * value.max(1.0));
            if !right {
                wrong.push(self.describe_mismatch(&format!("{variable:?}"), &value, &measured));
            }
        }
        let expected = match counted {
            ExpectedCounts::Uncounted => None,
            ExpectedCounts::Requests { canary, primary } => {
                let counts = |(bad, total): (u64, u64)| Counts::of_bad(bad, total);
                Some(Measurement::Counts(Arms { canary: counts(*canary), primary: counts(*primary) }))
            }
            ExpectedCounts::Durations => {
                let arm = |section: &str| Histogram::cumulative(recording.buckets(section)).expect("buckets");
                Some(Measurement::Histogram(Arms { canary: arm("canary"), primary: arm("primary") }))
            }
            ExpectedCounts::Values(requests) => {
                let arm = |section: &str, requests: Option<u64>| Values {
                    histogram: Histogram::cumulative(recording.buckets(section)).expect("buckets"),
                    requests,
                };
                let (canary, primary) = requests.unzip();
                Some(Measurement::Values(Arms {
                    canary: arm("canary", canary),
                    primary: arm("primary", primary),
                }))
            }
        };
        if let QuerySource::Template(spec) = self.source {
            let counted = spec.counts.is_some() || spec.histogram.is_some() || spec.values.is_some();
            assert_eq!(expected.is_some(), counted);
        }
        if let Some(expected) = expected {
            let measured = self.measure(of, variables, JudgeType::Sequential).await;
            if measured != expected {
                wrong.push(self.describe_mismatch("counted", &expected, &measured));
            }
        }
        if let Some(zero) = zero {
            let measured = self.measure(zero, variables, JudgeType::Threshold).await;
            if measured != Measurement::Scalar(0.0) {
                wrong.push(self.describe_mismatch(zero, &0.0, &measured));
            }
        }
        wrong
    }

    /// A metric that is built in takes no variables.
    fn values<T>(
        &self,
        values: &'static [(Option<T>, f64)],
    ) -> impl Iterator<Item = &'static (Option<T>, f64)> {
        let takes_variables = matches!(self.source, QuerySource::Template(_));
        values.iter().filter(move |(variable, _)| takes_variables || variable.is_none())
    }

    async fn measure(&self, of: &str, variables: &[(&str, &str)], judge: JudgeType) -> Measurement {
        let template = self.expected.template;
        let (name, spec, mesh) = match self.source {
            QuerySource::Template(spec) => (template, Some(spec), Provider::Kubernetes),
            QuerySource::BuiltIn(mesh, name) => (name, None, mesh),
        };
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        let metric = json!({
            "name": name, "interval": "5m", "templateVariables": variables,
            "templateRef": spec.map(|_| json!({"name": template})),
        });
        let metric: Metric = serde_json::from_value(metric).expect("a metric");
        let canary: Canary = serde_json::from_value(json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
            "metadata": {"name": of, "namespace": "shop"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": of},
                "service": {"port": 80}, "analysis": {},
            },
        }))
        .expect("a Canary");
        let subject = QueryContext {
            versions: None,
            canary: &canary,
            mesh,
            metrics_server: Some(&self.server.address),
        };
        let spec = spec.map(|spec| Template { name: template, namespace: "shop", spec });
        let ask = MetricQuery::new(&subject, &metric, spec.as_ref(), judge)
            .unwrap_or_else(|refusal| panic!("{refusal}"));
        for (text, raw) in texts(&ask.query) {
            let parsed = parse(text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
            let selector = matches!(parsed, Expr::VectorSelector(_));
            // Of anything else growth is only followed every few seconds.
            assert!(!raw || selector, "{name} counts what is no selector: {text}");
        }
        let pods = Arms::default();
        let view = MeasureContext { window: self.server.window, pods: &pods };
        self.server.sources.measure(&ask, None, &view).await.summed()
    }

    fn describe_mismatch(
        &self,
        what: &str,
        expected: &dyn std::fmt::Debug,
        measured: &Measurement,
    ) -> String {
        let by = match self.source {
            QuerySource::Template(_) => "",
            QuerySource::BuiltIn(..) => "what is built in like ",
        };
        format!("{by}{} {what}: {expected:?} was recorded, {measured:?} measured", self.expected.template)
    }
}

/// The texts of a query, and whether they are to be raw counters.
fn texts(query: &Query) -> Vec<(&str, bool)> {
    match query {
        Query::Scalar(text) => vec![(text, false)],
        Query::Samples(of) => vec![(&of.canary, false), (&of.primary, false)],
        Query::Histogram(of) => vec![(&of.canary, true), (&of.primary, true)],
        Query::Values(arms) => [&arms.canary, &arms.primary]
            .into_iter()
            .flat_map(|arm| [Some(arm.histogram.as_str()), arm.total.as_deref()])
            .flatten()
            .map(|text| (text, true))
            .collect(),
        Query::Counts(arms) => [&arms.canary, &arms.primary]
            .into_iter()
            .flat_map(|arm| [(arm.part.query(), true), (arm.total.as_str(), true)])
            .collect(),
    }
}
