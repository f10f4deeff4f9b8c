//! A Canary as the controller resolves it: plan, workload, router and queries, with what
//! the files hold in place of the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use promql_parser::parser::parse as parse_promql;

use super::{Code, Document, Finding, Options, advice};
use crate::api::analysis_template::{AnalysisTemplateSpec, MetricProviderType};
use crate::api::canary::{Canary, Metric, Provider, TargetKind};
use crate::api::judge::JudgeType;
use crate::api::reference::{TemplateKind, TemplateRef};
use crate::api::{AnalysisTemplate, ClusterAnalysisTemplate};
use crate::engine::Plan;
use crate::engine::plan::metrics::Judge;
use crate::metrics::{MetricQuery, Query, QueryContext, Template};
use crate::routing::{RouterSelectionError, ServedKinds, select};
use crate::workload::{self, CachedWorkload, Workload};

/// Kinds that routers write. A file does not tell what a cluster serves, so all are.
const ROUTE_KINDS: [(&str, &str, &str, &str); 14] = [
    ("split.smi-spec.io", "v1alpha1", "TrafficSplit", "trafficsplits"),
    ("split.smi-spec.io", "v1alpha2", "TrafficSplit", "trafficsplits"),
    ("split.smi-spec.io", "v1alpha3", "TrafficSplit", "trafficsplits"),
    ("split.smi-spec.io", "v1alpha4", "TrafficSplit", "trafficsplits"),
    ("specs.smi-spec.io", "v1alpha4", "HTTPRouteGroup", "httproutegroups"),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
    ("gateway.networking.k8s.io", "v1", "GRPCRoute", "grpcroutes"),
    ("networking.istio.io", "v1", "VirtualService", "virtualservices"),
    ("networking.istio.io", "v1", "DestinationRule", "destinationrules"),
    ("appmesh.k8s.aws", "v1beta2", "VirtualRouter", "virtualrouters"),
    ("appmesh.k8s.aws", "v1beta2", "VirtualNode", "virtualnodes"),
    ("appmesh.k8s.aws", "v1beta2", "VirtualService", "virtualservices"),
    ("gateway.networking.k8s.io", "v1beta1", "HTTPRoute", "httproutes"),
    ("serin.dev", "v1alpha1", "MeshRoute", "meshroutes"),
];

/// Appends the findings about all Canaries and templates.
pub fn check(documents: &[Document], options: &Options, findings: &mut Vec<Finding>) {
    let served: ServedKinds = ROUTE_KINDS
        .iter()
        .map(|(group, version, kind, plural)| {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
        })
        .collect();
    let mut targets: BTreeMap<(String, TargetKindName, String), String> = BTreeMap::new();
    for document in of_kind(documents, "Canary") {
        let canary: Canary = match serde_json::from_value(document.value.clone()) {
            Ok(canary) => canary,
            Err(error) => {
                findings.push(document.finding(Code::Refused, "spec", error.to_string()));
                continue;
            }
        };
        let target = &canary.spec.target_ref;
        let key = (document.namespace().to_owned(), format!("{:?}", target.kind), target.name.clone());
        let other = targets.insert(key, document.name().to_owned());
        // The same Canary in two files is one of which somebody applies either.
        if let Some(other) = other.filter(|other| other != document.name()) {
            let message = format!(
                "spec.targetRef: {:?} {} is released by Canary {other} already; remove one of them",
                target.kind, target.name
            );
            findings.push(document.finding(Code::SharedTarget, "spec.targetRef", message));
        }
        let mut check = CanaryCheck { document, canary, documents, options, served: &served, findings };
        check.run();
    }
}

type TargetKindName = String;

fn of_kind<'d>(documents: &'d [Document], kind: &'d str) -> impl Iterator<Item = &'d Document> {
    documents.iter().filter(move |one| one.group() == crate::api::GROUP && one.kind() == kind)
}

struct CanaryCheck<'a> {
    document: &'a Document,
    canary: Canary,
    documents: &'a [Document],
    options: &'a Options,
    served: &'a ServedKinds,
    findings: &'a mut Vec<Finding>,
}

impl CanaryCheck<'_> {
    fn run(&mut self) {
        self.check_references();
        let templates = self.templates();
        if self.canary.spec.target_ref.kind == TargetKind::EndpointGroup {
            // As the controller assumes.
            self.canary.spec.provider.get_or_insert(Provider::Xds);
        }
        let provider = self.canary.spec.provider.or(self.options.provider);
        if provider.is_none() {
            self.find(
                Code::NoProvider,
                "spec",
                "spec.provider is left out, so the mesh of the pods decides; the route was not checked",
            );
        }
        self.check_target();
        advice::metrics(self.document, &self.canary, self.findings);
        // Metrics without their template are left out: they cannot be planned.
        let mut known = self.canary.clone();
        known.spec.analysis.metrics.retain(|metric| {
            metric
                .template_ref
                .as_ref()
                .is_none_or(|reference| templates.contains_key(&template_key(reference, &self.canary)))
        });
        let names: Vec<String> =
            known.spec.analysis.metrics.iter().map(|metric| metric.name.clone()).collect();
        let removed = |name: &String| {
            !names.contains(name)
                && self.canary.spec.analysis.metrics.iter().any(|metric| metric.name == *name)
        };
        for step in known.spec.analysis.steps.iter_mut().filter_map(|step| step.analysis.as_mut()) {
            let named_any = !step.metrics.is_empty();
            step.metrics.retain(|name| !removed(name));
            // An empty list stands for all metrics.
            step.skip |= named_any && step.metrics.is_empty();
        }
        let find = |reference: &TemplateRef| {
            templates.get(&template_key(reference, &self.canary)).map(|found| &found.spec)
        };
        let plan = match Plan::new(&known.spec, find) {
            Ok(plan) => plan,
            Err(why) => {
                self.find(Code::InvalidPlan, &field_in(&why.to_string()), why.to_string());
                return;
            }
        };
        if let Some(provider) = provider {
            self.check_route(provider, &plan);
        }
        self.check_queries(&known, &plan, &templates, provider.unwrap_or(Provider::Kubernetes));
        advice::steps(self.document, &self.canary, &plan, self.options, self.findings);
    }

    fn find(&mut self, code: Code, path: &str, message: impl Into<String>) {
        self.findings.push(self.document.finding(code, path, message));
    }

    fn namespace(&self) -> &str {
        self.document.namespace()
    }

    fn has(&self, kind: &str, namespace: Option<&str>, name: &str) -> bool {
        of_kind(self.documents, kind)
            .any(|one| one.name() == name && namespace.is_none_or(|namespace| one.namespace() == namespace))
    }

    fn check_references(&mut self) {
        let analysis = self.canary.spec.analysis.clone();
        for (at, metric) in analysis.metrics.iter().enumerate() {
            let Some(reference) = &metric.template_ref else { continue };
            let own = self.namespace().to_owned();
            let (kind, namespace) = match reference.kind.unwrap_or_default() {
                TemplateKind::AnalysisTemplate => {
                    ("AnalysisTemplate", Some(reference.namespace.clone().unwrap_or(own)))
                }
                TemplateKind::ClusterAnalysisTemplate => ("ClusterAnalysisTemplate", None),
            };
            if !self.has(kind, namespace.as_deref(), &reference.name) {
                let path = format!("spec.analysis.metrics[{at}].templateRef");
                let message = format!(
                    "{path}: {kind} {} is not among the files, so metric {} was not checked",
                    reference.name, metric.name
                );
                self.find(Code::ReferenceMissing, &path, message);
            }
        }
        for (at, alert) in analysis.alerts.iter().enumerate() {
            let reference = &alert.provider_ref;
            let namespace = reference.namespace.clone().unwrap_or_else(|| self.namespace().to_owned());
            if !self.has("AlertProvider", Some(&namespace), &reference.name) {
                let path = format!("spec.analysis.alerts[{at}].providerRef");
                let message =
                    format!("{path}: AlertProvider {namespace}/{} is not among the files", reference.name);
                self.find(Code::ReferenceMissing, &path, message);
            }
        }
    }

    fn templates(&self) -> BTreeMap<(TemplateName, String), FoundTemplate> {
        let own = of_kind(self.documents, "AnalysisTemplate").filter_map(|one| {
            let template: AnalysisTemplate = serde_json::from_value(one.value.clone()).ok()?;
            let key = (TemplateName::Of(one.namespace().to_owned()), one.name().to_owned());
            Some((key, FoundTemplate { namespace: one.namespace().to_owned(), spec: template.spec }))
        });
        let shared = of_kind(self.documents, "ClusterAnalysisTemplate").filter_map(|one| {
            let template: ClusterAnalysisTemplate = serde_json::from_value(one.value.clone()).ok()?;
            let found = FoundTemplate { namespace: self.options.namespace.clone(), spec: template.spec.0 };
            Some(((TemplateName::Cluster, one.name().to_owned()), found))
        });
        own.chain(shared).collect()
    }

    /// Ports, labels and ownership of the target, if a file has it.
    fn check_target(&mut self) {
        let target = self.canary.spec.target_ref.clone();
        let kind = format!("{:?}", target.kind);
        let found = self.documents.iter().find(|one| {
            one.kind() == kind
                && one.name() == target.name
                && one.namespace() == self.namespace()
                && one.api_version() == target.api_version
        });
        let workload = match Workload::new(&self.canary, &Arc::new(workload::Options::default())) {
            Ok(workload) => workload,
            Err(why) => return self.find(Code::InvalidPlan, "spec.targetRef", why.to_string()),
        };
        let Some(found) = found else {
            let message = format!("spec.targetRef: {kind} {} is not among the files", target.name);
            return self.find(Code::TargetMissing, "spec.targetRef", message);
        };
        let object = serde_json::from_value::<DynamicObject>(found.value.clone());
        let Some(cached) = object.ok().and_then(|object| CachedWorkload::try_from(object).ok()) else {
            let message = format!("{kind} {} cannot be read as {}", target.name, target.api_version);
            return self.findings.push(found.finding(Code::Refused, "spec", message));
        };
        if let Err(why) = workload.check_target_port(&cached) {
            let code = match why {
                workload::UnsupportedTarget::ImpliedPort { .. } => Code::UndeclaredPort,
                _ => Code::NoSuchPort,
            };
            self.find(code, "spec.service.targetPort", why.to_string());
        }
        let labels = workload.check_target_labels(&cached, None);
        if let Err(why) = labels.and_then(|()| workload.check_target_owner(&cached)) {
            self.find(Code::InvalidPlan, "spec.targetRef", why.to_string());
        }
    }

    fn check_route(&mut self, provider: Provider, plan: &Plan) {
        let app_mesh = crate::routing::app_mesh(&Default::default(), Arc::new(|_, _| false));
        let selected = match select(Some(provider), None, self.served, app_mesh.as_ref()) {
            Ok(selected) => selected,
            Err(why @ RouterSelectionError::NotServed { .. }) => {
                return self.find(Code::NoProvider, "spec.provider", why.to_string());
            }
            Err(why) => return self.find(Code::UnknownRouter, "spec.provider", why.to_string()),
        };
        if let Err(why) = selected.router.check(&self.canary, plan) {
            self.find(Code::RouterCannot, &field_in(&why.to_string()), why.to_string());
        }
    }

    fn check_queries(
        &mut self,
        known: &Canary,
        plan: &Plan,
        templates: &BTreeMap<(TemplateName, String), FoundTemplate>,
        mesh: Provider,
    ) {
        let context = QueryContext {
            canary: known,
            mesh,
            metrics_server: self.options.metrics_server.as_deref(),
            versions: None,
        };
        for (metric, planned) in known.spec.analysis.metrics.iter().zip(&plan.metrics) {
            let path = self.path_of(metric);
            let found = metric
                .template_ref
                .as_ref()
                .and_then(|reference| Some((reference, templates.get(&template_key(reference, known))?)));
            let template = found.map(|(reference, found)| Template {
                name: &reference.name,
                namespace: &found.namespace,
                spec: &found.spec,
            });
            let judge = match planned.policy.judge {
                Judge::Threshold(_) => JudgeType::Threshold,
                Judge::Sequential(_) => JudgeType::Sequential,
                Judge::MannWhitney(_) => JudgeType::MannWhitney,
            };
            let query = match MetricQuery::new(&context, metric, template.as_ref(), judge) {
                Ok(query) => query,
                Err(why) => {
                    self.find(Code::InvalidQuery, &path, format!("{path}: {why}"));
                    continue;
                }
            };
            if query.provider.type_ != MetricProviderType::Prometheus {
                continue;
            }
            for text in texts(&query.query) {
                if let Err(why) = parse_promql(text) {
                    let why = why.to_string();
                    let why = why.lines().next().unwrap_or_default();
                    self.find(
                        Code::InvalidPromQl,
                        &path,
                        format!("{path} ({}): {why} in: {text}", metric.name),
                    );
                }
            }
        }
    }

    /// In the document, which may have more metrics than are planned.
    fn path_of(&self, metric: &Metric) -> String {
        let at = self.canary.spec.analysis.metrics.iter().position(|one| one.name == metric.name);
        format!("spec.analysis.metrics[{}]", at.unwrap_or_default())
    }
}

struct FoundTemplate {
    namespace: String,
    spec: AnalysisTemplateSpec,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TemplateName {
    Cluster,
    Of(String),
}

fn template_key(reference: &TemplateRef, canary: &Canary) -> (TemplateName, String) {
    let own = canary.metadata.namespace.clone().unwrap_or_default();
    let scope = match reference.kind.unwrap_or_default() {
        TemplateKind::AnalysisTemplate => TemplateName::Of(reference.namespace.clone().unwrap_or(own)),
        TemplateKind::ClusterAnalysisTemplate => TemplateName::Cluster,
    };
    (scope, reference.name.clone())
}

/// The rendered queries of both arms.
fn texts(query: &Query) -> Vec<&str> {
    match query {
        Query::Scalar(text) => vec![text],
        Query::Counts(arms) => [&arms.canary, &arms.primary]
            .into_iter()
            .flat_map(|arm| [arm.part.query(), arm.total.as_str()])
            .collect(),
        Query::Values(arms) => [&arms.canary, &arms.primary]
            .into_iter()
            .flat_map(|arm| [Some(arm.histogram.as_str()), arm.total.as_deref()])
            .flatten()
            .collect(),
        Query::Histogram(arms) | Query::Samples(arms) => vec![&arms.canary, &arms.primary],
    }
}

/// The field that a refusal names.
fn field_in(message: &str) -> String {
    let word = message.split_whitespace().find(|word| word.starts_with("spec."));
    word.unwrap_or("spec").trim_end_matches([':', ';', ',']).to_owned()
}
