//! Builds queries from the metrics of a Canary and their templates. Pure: errors
//! that need no request to be detected are refused here, with what to write instead.

use std::collections::BTreeMap;

use crate::{
    analysis::measurement::{Arms, SLOW_QUANTILE},
    api::{
        AnalysisTemplateSpec, Canary,
        analysis_template::{CountsSpec, MetricProvider, MetricProviderType, ValuesSpec},
        canary::{Metric, Provider, TargetKind, metric::BUILT_IN},
        judge::JudgeType,
    },
};

use super::{
    CountQueries, CountedPart, MeasurementKind, Query, SupportedForms, ValueQueries, Window,
    builtin::{self, BuiltIn},
    cloudwatch::{self, Periods, TemplateCompiler, query::QuerySetError},
    prometheus, scrape,
    selector::{SelectorAlternatives, SelectorError},
    template::{Arm, TemplateError, TemplateVars},
    web,
};

/// A query and its provider.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricQuery {
    /// Sources key their state by this.
    pub key: MetricKey,
    pub provider: MetricProvider,
    /// The Secret that the provider needs.
    pub secret: Option<SecretName>,
    pub query: Query,
    pub reduce: Option<Reduce>,
    /// For sources that aggregate by period.
    pub periods: Option<Periods>,
}

/// A metric of a Canary.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetricKey {
    pub namespace: String,
    pub canary: String,
    pub metric: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

/// Conversion of a measurement to the form that the judge needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduce {
    /// This quantile of the canary's histogram, in milliseconds.
    Quantile(f64),
}

/// The Canary and the controller's defaults.
#[derive(Clone, Debug)]
pub struct QueryContext<'a> {
    /// Versions of the arms, if the target is an EndpointGroup and they are known.
    pub versions: Option<Arms<String>>,
    pub canary: &'a Canary,
    /// `spec.provider`, or the controller's default.
    pub mesh: Provider,
    /// `--metrics-server`. Without one here or in the Canary, built-in metrics are
    /// scraped from the pods.
    pub metrics_server: Option<&'a str>,
}

#[derive(Clone, Copy, Debug)]
pub struct Template<'a> {
    pub name: &'a str,
    /// Of its Secrets: its own namespace, or for a ClusterAnalysisTemplate that of
    /// the controller.
    pub namespace: &'a str,
    pub spec: &'a AnalysisTemplateSpec,
}

/// Why a metric cannot be measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(
        "{template}: {field} is the same for canary and primary; distinguish them with {{{{ target }}}} or {{{{ arm }}}}, or for cloudwatch by spec.cloudwatch.canary and primary"
    )]
    SameForBothArms { template: String, field: &'static str },
    #[error(
        "{template}: provider.type {provider} is not supported by this version; use prometheus, cloudwatch, web for any JSON API, or scrape to read the pods"
    )]
    Provider { template: String, provider: String },
    #[error(
        "{template}: provider.type cloudwatch is not supported by this build, which lacks the feature aws; use one with it, or prometheus"
    )]
    WithoutAws { template: String },
    #[error("{template}: {field} {why}")]
    CloudWatch { template: String, field: &'static str, why: QuerySetError },
    #[error(
        "{template}: the metric {metric} has no namespace; set it in spec.cloudwatch, such as AWS/ApplicationELB"
    )]
    CloudWatchNamespace { template: String, metric: String },
    #[error(
        "{template}: cloudwatch.builtIn has no {metric}; name the metric {} or {}, or set cloudwatch.metrics",
        BUILT_IN[0], BUILT_IN[1]
    )]
    CloudWatchBuiltIn { template: String, metric: String },
    #[error(
        "{template}: provider.{field} would be used with the controller's AWS identity; set provider.secretRef, or move it to a ClusterAnalysisTemplate{instead}"
    )]
    ControllerIdentity { template: String, field: &'static str, instead: &'static str },
    #[error("{template}: spec.cloudwatch is for provider.type cloudwatch; remove it, or set the type")]
    NotCloudWatch { template: String },
    #[error(
        "{what} is PromQL and no Prometheus is configured; set provider.address of the template, spec.metricsServer of the Canary, or --metrics-server of the controller"
    )]
    NoPrometheus { what: String },
    #[error(
        "{template} has credentials, which are not sent to spec.metricsServer of a Canary; set provider.address of the template, or --metrics-server of the controller"
    )]
    CredentialsWithoutAddress { template: String },
    #[error(
        "{address:?} is no address of a metrics server; write one such as http://prometheus.monitoring:9090"
    )]
    Address { address: String },
    #[error("judge {judge} needs {needs}, which {what} does not provide; {instead}")]
    UnsupportedForm { judge: &'static str, needs: &'static str, what: String, instead: &'static str },
    #[error("{metric} is not built in for provider {mesh:?}; measure it with a template")]
    BuiltIn { metric: String, mesh: Provider },
    #[error("{metric} measures nothing; set templateRef, or use a built-in name")]
    NoQuery { metric: String },
    #[error(
        "{template}: {field} is a rate, and rates cannot be counted; write the counter itself, such as http_requests_total"
    )]
    Rate { template: String, field: &'static str },
    #[error(
        "{metric} is read from pods, and an EndpointGroup has none; set spec.metricsServer or start Serin with --metrics-server, the URL of a Prometheus that scrapes the Envoys of the callers"
    )]
    NoPods { metric: String },
    #[error("{template}: {field}: {why}")]
    Selector { template: String, field: &'static str, why: SelectorError },
}

impl MetricQuery {
    /// For the form of measurement that the judge needs.
    pub fn new(
        context: &QueryContext<'_>,
        metric: &Metric,
        template: Option<&Template<'_>>,
        judge: JudgeType,
    ) -> Result<Self, QueryError> {
        let builder = QueryBuilder { context, metric };
        match (template, BuiltIn::from_name(&metric.name), &metric.query) {
            (Some(template), _, _) => builder.templated(template, judge),
            (None, Some(built_in), _) => builder.built_in(built_in, judge),
            (None, None, Some(query)) => builder.inline(query, judge),
            (None, None, None) => Err(QueryError::NoQuery { metric: metric.name.clone() }),
        }
    }

    /// The part of a window with complete data; empty, at the window's start, if
    /// there is none. The rest belongs to the next window.
    pub fn available_window(&self, window: Window) -> Window {
        self.periods.map_or(window, |periods| periods.complete(window))
    }

    pub fn reads_pods(&self) -> bool {
        self.provider.type_ == MetricProviderType::Scrape
    }
}

/// The controller's own Prometheus and how it is queried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAccess {
    pub address: Option<String>,
    pub secret: Option<SecretName>,
    pub headers: BTreeMap<String, Vec<String>>,
}

impl ServerAccess {
    /// A query to this server, and to no other, gets its credentials, unless its template
    /// has settings of its own that they could be abused with.
    pub fn apply(&self, query: &mut MetricQuery) {
        let MetricProvider { type_, address, headers, insecure_skip_verify, .. } = &mut query.provider;
        let is_plain = query.secret.is_none() && headers.is_empty() && !*insecure_skip_verify;
        if *type_ == MetricProviderType::Prometheus && is_plain && *address == self.address {
            headers.clone_from(&self.headers);
            query.secret.clone_from(&self.secret);
        }
    }
}

/// None for a provider that this build does not support.
pub fn supported_forms(provider: MetricProviderType) -> Option<SupportedForms> {
    match provider {
        MetricProviderType::Prometheus => Some(prometheus::SUPPORTED_FORMS),
        MetricProviderType::Scrape => Some(scrape::SUPPORTED_FORMS),
        MetricProviderType::Web => Some(web::SUPPORTED_FORMS),
        MetricProviderType::Cloudwatch => cfg!(feature = "aws").then_some(cloudwatch::SUPPORTED_FORMS),
        _ => None,
    }
}

/// A template that tenants write, without credentials of its own, is queried with the
/// controller's AWS identity: at AWS, and in no role but the allowed ones.
pub fn check_tenant_aws(
    template: &str,
    provider: &MetricProvider,
    allowed_roles: &[String],
) -> Result<(), QueryError> {
    if provider.type_ != MetricProviderType::Cloudwatch || provider.secret_ref.is_some() {
        return Ok(());
    }
    let refused = |field, instead| {
        Err(QueryError::ControllerIdentity { template: format!("template {template}"), field, instead })
    };
    match &provider.role {
        _ if provider.address.is_some() => refused("address", ""),
        Some(role) if role.endpoint.is_some() => refused("role.endpoint", ""),
        Some(role) if !allowed_roles.contains(&role.role_arn) => {
            refused("role", ", or have the role allowed with --allow-aws-role")
        }
        _ => Ok(()),
    }
}

struct QueryBuilder<'a> {
    context: &'a QueryContext<'a>,
    metric: &'a Metric,
}

impl QueryBuilder<'_> {
    fn check_has_pods(&self) -> Result<(), QueryError> {
        match self.context.canary.spec.target_ref.kind {
            TargetKind::EndpointGroup => Err(QueryError::NoPods { metric: self.metric.name.clone() }),
            TargetKind::Deployment | TargetKind::DaemonSet | TargetKind::Service => Ok(()),
        }
    }

    fn built_in(&self, built_in: BuiltIn, judge: JudgeType) -> Result<MetricQuery, QueryError> {
        let QueryContext { canary, mesh, .. } = self.context;
        let Some(server) = self.server() else {
            self.check_has_pods()?;
            let (query, reduce) = match (built_in, judge) {
                (_, JudgeType::MannWhitney) => {
                    return Err(self.unsupported_form(
                        judge,
                        "the scrape source",
                        MeasurementKind::Samples,
                        "use judge sequential",
                    ));
                }
                (BuiltIn::SuccessRate, _) => (builtin::scraped_requests(), None),
                (BuiltIn::Duration, JudgeType::Sequential) => (builtin::scraped_durations(), None),
                (BuiltIn::Duration, JudgeType::Threshold) => {
                    (builtin::scraped_durations(), Some(Reduce::Quantile(SLOW_QUANTILE)))
                }
            };
            return Ok(self.build(provider(MetricProviderType::Scrape, None), None, query, reduce));
        };
        let mut vars = TemplateVars::of(canary, self.metric, &Default::default());
        vars.versions.clone_from(&self.context.versions);
        let builtin_queries = builtin::BuiltinQueries::of(*mesh, &vars)
            .ok_or_else(|| QueryError::BuiltIn { metric: self.metric.name.clone(), mesh: *mesh })?;
        let query = match (built_in, judge) {
            (_, JudgeType::Threshold) => Query::Scalar(builtin_queries.scalar(built_in, Arm::Canary)),
            (_, JudgeType::MannWhitney) => {
                Query::Samples(Arm::both().map(|arm| builtin_queries.scalar(built_in, *arm)))
            }
            (BuiltIn::SuccessRate, JudgeType::Sequential) => builtin_queries.requests(),
            (BuiltIn::Duration, JudgeType::Sequential) => builtin_queries.durations(),
        };
        Ok(self.build(provider(MetricProviderType::Prometheus, Some(address(server)?)), None, query, None))
    }

    fn inline(&self, query: &str, judge: JudgeType) -> Result<MetricQuery, QueryError> {
        let what = format!("query of metric {}", self.metric.name);
        let server = self.server().ok_or_else(|| QueryError::NoPrometheus { what: what.clone() })?;
        let vars = TemplateVars::of(self.context.canary, self.metric, &Default::default());
        let query = match judge {
            JudgeType::Threshold => Query::Scalar(vars.render(&what, "query", query, Arm::Canary)?),
            JudgeType::MannWhitney => {
                let filler =
                    TemplateFiller { template: &what, vars: &vars, compiler: None, arms_must_differ: true };
                Query::Samples(filler.render_both("query", query)?)
            }
            JudgeType::Sequential => {
                return Err(self.unsupported_form(
                    judge,
                    &what,
                    MeasurementKind::Counts,
                    "move it to an AnalysisTemplate with counts or histogram, or set thresholdRange",
                ));
            }
        };
        Ok(self.build(provider(MetricProviderType::Prometheus, Some(address(server)?)), None, query, None))
    }

    fn templated(&self, template: &Template<'_>, judge: JudgeType) -> Result<MetricQuery, QueryError> {
        let spec = template.spec;
        let name = format!("template {}", template.name);
        let type_ = spec.provider.type_;
        let Some(supported_forms) = supported_forms(type_) else {
            if type_ == MetricProviderType::Cloudwatch {
                return Err(QueryError::WithoutAws { template: name });
            }
            let provider = format!("{:?}", spec.provider.type_).to_lowercase();
            return Err(QueryError::Provider { template: name, provider });
        };
        let vars = TemplateVars::of(self.context.canary, self.metric, &spec.variables);
        let is_cloudwatch = type_ == MetricProviderType::Cloudwatch;
        if spec.cloudwatch.is_some() && !is_cloudwatch {
            return Err(QueryError::NotCloudWatch { template: name });
        }
        let compiler = TemplateCompiler { template: &name, spec: spec.cloudwatch.as_ref(), vars: &vars };
        let filler = TemplateFiller {
            template: &name,
            vars: &vars,
            compiler: is_cloudwatch.then_some(&compiler),
            arms_must_differ: type_ != MetricProviderType::Scrape,
        };
        let built_in = match (&spec.query, &spec.counts, &spec.histogram, &spec.values) {
            (None, None, None, None) if is_cloudwatch => {
                compiler.compile_built_in(&self.metric.name, judge)?
            }
            _ => None,
        };
        let (query, reduce) = match built_in {
            Some(query) => (query, None),
            None => self.query_for_judge(spec, &filler, judge)?,
        };
        if !supported_forms.include(query.form()) {
            let source = format!("provider {:?}", spec.provider.type_).to_lowercase();
            return Err(self.unsupported_form(
                judge,
                &source,
                query.form(),
                "use another provider, or another judge",
            ));
        }
        if type_ == MetricProviderType::Scrape {
            self.check_has_pods()?;
            check_selectors(&name, &query)?;
        }
        let mut periods = None;
        if is_cloudwatch {
            let refused = |(field, why)| QueryError::CloudWatch { template: name.clone(), field, why };
            periods = Some(cloudwatch::periods(&query, spec.cloudwatch.as_ref()).map_err(refused)?);
        }
        let mut provider = spec.provider.clone();
        if provider.type_ == MetricProviderType::Prometheus {
            provider.address = Some(address(self.template_server(&name, &provider)?)?);
        }
        if let (MetricProviderType::Web | MetricProviderType::Cloudwatch, Some(url)) =
            (provider.type_, &provider.address)
        {
            provider.address = Some(address(url)?);
        }
        let secret = spec
            .provider
            .secret_ref
            .as_ref()
            .map(|secret| SecretName { namespace: template.namespace.to_owned(), name: secret.name.clone() });
        Ok(MetricQuery { periods, ..self.build(provider, secret, query, reduce) })
    }

    fn query_for_judge(
        &self,
        spec: &AnalysisTemplateSpec,
        filler: &TemplateFiller<'_>,
        judge: JudgeType,
    ) -> Result<(Query, Option<Reduce>), QueryError> {
        let name = filler.template;
        let counts = |counts: &CountsSpec| count_queries(filler, counts);
        let histogram = |query: &String| -> Result<Query, QueryError> {
            check_is_counter(name, "histogram", query)?;
            Ok(Query::Histogram(filler.render_both("histogram", query)?))
        };
        if let (JudgeType::Sequential, None, None, Some(values)) =
            (judge, &spec.counts, &spec.histogram, &spec.values)
        {
            return Ok((value_queries(filler, values)?, None));
        }
        Ok(match (judge, &spec.query, &spec.counts, &spec.histogram) {
            (JudgeType::Threshold, Some(query), _, _) => {
                (Query::Scalar(filler.render("query", query, Arm::Canary)?), None)
            }
            (JudgeType::Threshold | JudgeType::Sequential, _, Some(spec), _) => (counts(spec)?, None),
            (JudgeType::Sequential, _, None, Some(query)) => (histogram(query)?, None),
            (JudgeType::Threshold, None, None, Some(query)) => {
                (histogram(query)?, Some(Reduce::Quantile(SLOW_QUANTILE)))
            }
            (JudgeType::MannWhitney, Some(query), _, _) => {
                (Query::Samples(filler.render_both("query", query)?), None)
            }
            (JudgeType::Sequential, _, None, None) => {
                let instead = match supported_forms(spec.provider.type_)
                    .is_some_and(|forms| forms.include(MeasurementKind::Counts))
                {
                    true => "add counts or histogram to the template, or set thresholdRange",
                    false => "set thresholdRange, or use a provider that counts, such as prometheus",
                };
                return Err(self.unsupported_form(judge, name, MeasurementKind::Counts, instead));
            }
            (JudgeType::MannWhitney, None, _, _) => {
                return Err(self.unsupported_form(
                    judge,
                    name,
                    MeasurementKind::Samples,
                    "add query to the template, or use judge sequential",
                ));
            }
            (JudgeType::Threshold, None, None, None) if spec.values.is_some() => {
                let instead = "add query to the template, or use judge sequential";
                return Err(self.unsupported_form(judge, name, MeasurementKind::Scalar, instead));
            }
            (JudgeType::Threshold, None, None, None) => {
                return Err(QueryError::NoQuery { metric: self.metric.name.clone() });
            }
        })
    }

    /// The template's own Prometheus, else that of the Canary or the controller. Credentials
    /// of a template never go to a server that the author of a Canary chose.
    fn template_server<'p>(
        &'p self,
        template: &str,
        provider: &'p MetricProvider,
    ) -> Result<&'p str, QueryError> {
        let has_credentials = provider.secret_ref.is_some() || !provider.headers.is_empty();
        let template = || template.to_owned();
        match (&provider.address, has_credentials) {
            (Some(address), _) => Ok(address),
            (None, false) => self.server().ok_or_else(|| QueryError::NoPrometheus { what: template() }),
            (None, true) => {
                let own = self.context.metrics_server.filter(|server| !server.is_empty());
                own.ok_or_else(|| QueryError::CredentialsWithoutAddress { template: template() })
            }
        }
    }

    /// The Prometheus of the Canary, else of the controller.
    fn server(&self) -> Option<&str> {
        let own = self.context.canary.spec.metrics_server.as_deref();
        own.or(self.context.metrics_server).filter(|server| !server.is_empty())
    }

    fn build(
        &self,
        provider: MetricProvider,
        secret: Option<SecretName>,
        query: Query,
        reduce: Option<Reduce>,
    ) -> MetricQuery {
        let metadata = &self.context.canary.metadata;
        let key = MetricKey {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            canary: metadata.name.clone().unwrap_or_default(),
            metric: self.metric.name.clone(),
        };
        MetricQuery { key, provider, secret, query, reduce, periods: None }
    }

    fn unsupported_form(
        &self,
        judge: JudgeType,
        what: &str,
        form: MeasurementKind,
        instead: &'static str,
    ) -> QueryError {
        let (judge, needs) = match (judge, form) {
            (JudgeType::Threshold, _) => ("threshold", "a single value"),
            (JudgeType::Sequential, _) => ("sequential", "counts or a histogram of canary and primary"),
            (JudgeType::MannWhitney, _) => ("mannWhitney", "points over time of canary and primary"),
        };
        QueryError::UnsupportedForm { judge, needs, what: what.to_owned(), instead }
    }
}

pub(super) fn provider(type_: MetricProviderType, address: Option<String>) -> MetricProvider {
    MetricProvider {
        type_,
        address,
        headers: Default::default(),
        secret_ref: None,
        region: None,
        role: None,
        insecure_skip_verify: false,
        web: None,
        scrape: None,
    }
}

fn address(text: &str) -> Result<String, QueryError> {
    let refused = || QueryError::Address { address: text.to_owned() };
    let url = reqwest::Url::parse(text).map_err(|_| refused())?;
    if ["http", "https"].contains(&url.scheme()) && url.has_host() {
        Ok(text.to_owned())
    } else {
        Err(refused())
    }
}

/// Renders the queries of a template.
struct TemplateFiller<'a> {
    template: &'a str,
    vars: &'a TemplateVars,
    /// For CloudWatch.
    compiler: Option<&'a TemplateCompiler<'a>>,
    /// Except for scrape, which reads each arm's pods.
    arms_must_differ: bool,
}

impl TemplateFiller<'_> {
    fn render(&self, field: &'static str, text: &str, arm: Arm) -> Result<String, QueryError> {
        match self.compiler {
            Some(compiler) => compiler.compile(field, text, arm),
            None => Ok(self.vars.render(self.template, field, text, arm)?),
        }
    }

    fn render_both(&self, field: &'static str, text: &str) -> Result<Arms<String>, QueryError> {
        let arms = Arms {
            canary: self.render(field, text, Arm::Canary)?,
            primary: self.render(field, text, Arm::Primary)?,
        };
        if self.arms_must_differ && arms.canary == arms.primary {
            return Err(QueryError::SameForBothArms { template: self.template.to_owned(), field });
        }
        Ok(arms)
    }
}

fn count_queries(filler: &TemplateFiller<'_>, counts: &CountsSpec) -> Result<Query, QueryError> {
    let template = filler.template;
    for (field, query) in [
        ("counts.total", Some(&counts.total)),
        ("counts.good", counts.good.as_ref()),
        ("counts.bad", counts.bad.as_ref()),
    ] {
        query.map_or(Ok(()), |query| check_is_counter(template, field, query))?;
    }
    let total = filler.render_both("counts.total", &counts.total)?;
    let (part, good) = match (&counts.good, &counts.bad) {
        (Some(good), _) => (filler.render_both("counts.good", good)?, true),
        (None, Some(bad)) => (filler.render_both("counts.bad", bad)?, false),
        (None, None) => return Err(QueryError::NoQuery { metric: template.to_owned() }),
    };
    let arm = |part: String, total: String| CountQueries {
        part: if good { CountedPart::Good(part) } else { CountedPart::Bad(part) },
        total,
    };
    Ok(Query::Counts(Arms {
        canary: arm(part.canary, total.canary),
        primary: arm(part.primary, total.primary),
    }))
}

fn value_queries(filler: &TemplateFiller<'_>, values: &ValuesSpec) -> Result<Query, QueryError> {
    let both = |field, query: &String| {
        check_is_counter(filler.template, field, query)?;
        filler.render_both(field, query)
    };
    let histogram = both("values.histogram", &values.histogram)?;
    let total = values.total.as_ref().map(|total| both("values.total", total)).transpose()?;
    let (canary, primary) = match total {
        Some(Arms { canary, primary }) => (Some(canary), Some(primary)),
        None => (None, None),
    };
    Ok(Query::Values(Arms {
        canary: ValueQueries { histogram: histogram.canary, total: canary },
        primary: ValueQueries { histogram: histogram.primary, total: primary },
    }))
}

/// Counts need raw counters: a rate does not give the number of requests.
fn check_is_counter(template: &str, field: &'static str, query: &str) -> Result<(), QueryError> {
    let rate = ["rate(", "increase(", "delta("].iter().any(|function| query.contains(function));
    if rate { Err(QueryError::Rate { template: template.to_owned(), field }) } else { Ok(()) }
}

/// Scrape queries are series selectors.
fn check_selectors(template: &str, query: &Query) -> Result<(), QueryError> {
    let check = |field, text: &str| match SelectorAlternatives::parse(text) {
        Ok(_) => Ok(()),
        Err(why) => Err(QueryError::Selector { template: template.to_owned(), field, why }),
    };
    match query {
        Query::Scalar(text) => check("query", text),
        Query::Histogram(arms) => check("histogram", &arms.canary).and(check("histogram", &arms.primary)),
        Query::Values(arms) => [&arms.canary, &arms.primary].into_iter().try_for_each(|arm| {
            let total = arm.total.as_ref().map_or(Ok(()), |total| check("values.total", total));
            check("values.histogram", &arm.histogram).and(total)
        }),
        Query::Samples(arms) => check("query", &arms.canary).and(check("query", &arms.primary)),
        Query::Counts(arms) => [&arms.canary, &arms.primary]
            .into_iter()
            .try_for_each(|arm| check("counts", arm.part.query()).and(check("counts.total", &arm.total))),
    }
}

impl BuiltIn {
    pub fn from_name(name: &str) -> Option<Self> {
        let [success_rate, duration] = BUILT_IN;
        match name {
            _ if name == success_rate => Some(Self::SuccessRate),
            _ if name == duration => Some(Self::Duration),
            _ => None,
        }
    }
}
