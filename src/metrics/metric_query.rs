//! From what people wrote to what is asked. Pure: everything that can be known
//! to be wrong without asking is refused here, with what to write instead.

use crate::{
    analysis::measurement::{Arms, SLOW},
    api::{
        AnalysisTemplateSpec, Canary,
        analysis_template::{Counts, MetricProvider, MetricProviderType},
        canary::{Metric, Provider, metric::BUILT_IN},
        judge::JudgeType,
    },
};

use super::{
    Abilities, CountQueries, Form, Part, Query, Window,
    builtin::{self, BuiltIn},
    cloudwatch::{self, Periods, Written, query::BadQueries},
    prometheus, scrape,
    selector::{BadSelector, Selection},
    template::{Arm, TemplateError, Words},
    web,
};

/// One question, and whom to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Whose metric it is. What a source remembers, it remembers by this.
    pub of: MetricOf,
    pub provider: MetricProvider,
    /// The Secret that the provider needs.
    pub secret: Option<SecretName>,
    pub query: Query,
    pub reduce: Option<Reduce>,
    /// How the source divides time, if it tells of whole periods only.
    pub periods: Option<Periods>,
}

/// A metric of a Canary.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetricOf {
    pub namespace: String,
    pub canary: String,
    pub metric: String,
}

/// Where a Secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

/// What becomes of an answer that says more than the judge wants to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduce {
    /// The canary's histogram becomes the duration, in milliseconds, that this
    /// share of its requests stayed within.
    Quantile(f64),
}

/// What a metric is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub canary: &'a Canary,
    /// Who carries the weights: `spec.provider`, or what stands in for it.
    pub mesh: Provider,
    /// The Prometheus that the controller was started with. Without one here
    /// or in the Canary, built-in metrics are read from the pods themselves.
    pub metrics_server: Option<&'a str>,
}

/// A template and where it was found.
#[derive(Clone, Copy, Debug)]
pub struct Template<'a> {
    pub name: &'a str,
    /// Where its Secrets are: its own namespace, or for a
    /// ClusterAnalysisTemplate that of the controller.
    pub namespace: &'a str,
    pub spec: &'a AnalysisTemplateSpec,
}

/// Why a metric cannot be measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(
        "{template}: {field} asks the same of canary and primary; tell them apart with {{{{ target }}}} or {{{{ arm }}}}, or for cloudwatch by spec.cloudwatch.canary and primary"
    )]
    SameForBothArms { template: String, field: &'static str },
    #[error(
        "{template}: provider.type {provider} cannot be asked by this version; use prometheus, cloudwatch, web for whatever answers in JSON, or scrape to read the pods"
    )]
    Provider { template: String, provider: String },
    #[error(
        "{template}: provider.type cloudwatch cannot be asked by this build, which was made without the feature aws; use one with it, or prometheus"
    )]
    WithoutAws { template: String },
    #[error("{template}: {field} {why}")]
    CloudWatch { template: String, field: &'static str, why: BadQueries },
    #[error(
        "{template}: the metric {metric} has no namespace; set it in spec.cloudwatch, such as AWS/ApplicationELB"
    )]
    CloudWatchNamespace { template: String, metric: String },
    #[error(
        "{template}: cloudwatch.builtIn does not know {metric}; call the metric {} or {}, or set cloudwatch.metrics",
        BUILT_IN[0], BUILT_IN[1]
    )]
    CloudWatchBuiltIn { template: String, metric: String },
    #[error("{template}: spec.cloudwatch is for provider.type cloudwatch; remove it, or set the type")]
    NotCloudWatch { template: String },
    #[error(
        "{what} is PromQL and there is no Prometheus to ask; set provider.address of the template, spec.metricsServer of the Canary, or --metrics-server of the controller"
    )]
    NoPrometheus { what: String },
    #[error(
        "{address:?} is no address of a metrics server; write one such as http://prometheus.monitoring:9090"
    )]
    Address { address: String },
    #[error("judge {judge} needs {needs}, which {what} does not give; {instead}")]
    Form { judge: &'static str, needs: &'static str, what: String, instead: &'static str },
    #[error("{metric} is not built in for provider {mesh:?}; measure it with a template")]
    BuiltIn { metric: String, mesh: Provider },
    #[error("{metric} measures nothing; set templateRef, or use a built-in name")]
    Nothing { metric: String },
    #[error(
        "{template}: {field} is a rate, and rates cannot be counted; write the counter itself, such as http_requests_total"
    )]
    Rate { template: String, field: &'static str },
    #[error("{template}: {field}: {why}")]
    Selector { template: String, field: &'static str, why: BadSelector },
}

impl Ask {
    /// How a metric of a Canary is measured for its judge.
    pub fn new(
        subject: &Subject<'_>,
        metric: &Metric,
        template: Option<&Template<'_>>,
        judge: JudgeType,
    ) -> Result<Self, Refusal> {
        let writer = Writer { subject, metric };
        match (template, BuiltIn::named(&metric.name), &metric.query) {
            (Some(template), _, _) => writer.templated(template, judge),
            (None, Some(built_in), _) => writer.built_in(built_in, judge),
            (None, None, Some(query)) => writer.inline(query, judge),
            (None, None, None) => Err(Refusal::Nothing { metric: metric.name.clone() }),
        }
    }

    /// The part of a window that the source can speak of already; empty, and
    /// where the window begins, if there is none. What is left belongs to the
    /// next window.
    pub fn known(&self, window: Window) -> Window {
        self.periods.map_or(window, |periods| periods.complete(window))
    }

    /// Is it answered by reading the pods themselves?
    pub fn reads_pods(&self) -> bool {
        self.provider.type_ == MetricProviderType::Scrape
    }
}

/// What a kind of source can give; nothing for one that cannot be asked.
pub fn abilities(provider: MetricProviderType) -> Option<Abilities> {
    match provider {
        MetricProviderType::Prometheus => Some(prometheus::ABILITIES),
        MetricProviderType::Scrape => Some(scrape::ABILITIES),
        MetricProviderType::Web => Some(web::ABILITIES),
        MetricProviderType::Cloudwatch => cfg!(feature = "aws").then_some(cloudwatch::ABILITIES),
        _ => None,
    }
}

struct Writer<'a> {
    subject: &'a Subject<'a>,
    metric: &'a Metric,
}

impl Writer<'_> {
    fn built_in(&self, built_in: BuiltIn, judge: JudgeType) -> Result<Ask, Refusal> {
        let Subject { canary, mesh, .. } = self.subject;
        let Some(server) = self.server() else {
            let (query, reduce) = match (built_in, judge) {
                (_, JudgeType::MannWhitney) => {
                    return Err(self.lacks(
                        judge,
                        "the scrape source",
                        Form::Samples,
                        "use judge sequential",
                    ));
                }
                (BuiltIn::SuccessRate, _) => (builtin::scraped_requests(), None),
                (BuiltIn::Duration, JudgeType::Sequential) => (builtin::scraped_durations(), None),
                (BuiltIn::Duration, JudgeType::Threshold) => {
                    (builtin::scraped_durations(), Some(Reduce::Quantile(SLOW)))
                }
            };
            return Ok(self.ask(provider(MetricProviderType::Scrape, None), None, query, reduce));
        };
        let words = Words::of(canary, self.metric, &Default::default());
        let table = builtin::Table::of(*mesh, &words)
            .ok_or_else(|| Refusal::BuiltIn { metric: self.metric.name.clone(), mesh: *mesh })?;
        let query = match (built_in, judge) {
            (_, JudgeType::Threshold) => Query::Scalar(table.scalar(built_in, Arm::Canary)),
            (_, JudgeType::MannWhitney) => {
                Query::Samples(Arm::both().map(|arm| table.scalar(built_in, *arm)))
            }
            (BuiltIn::SuccessRate, JudgeType::Sequential) => table.requests(),
            (BuiltIn::Duration, JudgeType::Sequential) => table.durations(),
        };
        Ok(self.ask(provider(MetricProviderType::Prometheus, Some(address(server)?)), None, query, None))
    }

    fn inline(&self, query: &str, judge: JudgeType) -> Result<Ask, Refusal> {
        let what = format!("query of metric {}", self.metric.name);
        let server = self.server().ok_or_else(|| Refusal::NoPrometheus { what: what.clone() })?;
        let words = Words::of(self.subject.canary, self.metric, &Default::default());
        let query = match judge {
            JudgeType::Threshold => Query::Scalar(words.fill(&what, "query", query, Arm::Canary)?),
            JudgeType::MannWhitney => {
                let fill = Fill { template: &what, words: &words, written: None, apart: true };
                Query::Samples(fill.both("query", query)?)
            }
            JudgeType::Sequential => {
                return Err(self.lacks(
                    judge,
                    &what,
                    Form::Counts,
                    "move it to an AnalysisTemplate with counts or histogram, or set thresholdRange",
                ));
            }
        };
        Ok(self.ask(provider(MetricProviderType::Prometheus, Some(address(server)?)), None, query, None))
    }

    fn templated(&self, template: &Template<'_>, judge: JudgeType) -> Result<Ask, Refusal> {
        let spec = template.spec;
        let name = format!("template {}", template.name);
        let type_ = spec.provider.type_;
        let Some(abilities) = abilities(type_) else {
            if type_ == MetricProviderType::Cloudwatch {
                return Err(Refusal::WithoutAws { template: name });
            }
            let provider = format!("{:?}", spec.provider.type_).to_lowercase();
            return Err(Refusal::Provider { template: name, provider });
        };
        let words = Words::of(self.subject.canary, self.metric, &spec.variables);
        let watched = type_ == MetricProviderType::Cloudwatch;
        if spec.cloudwatch.is_some() && !watched {
            return Err(Refusal::NotCloudWatch { template: name });
        }
        let written = Written { template: &name, spec: spec.cloudwatch.as_ref(), words: &words };
        let fill = Fill {
            template: &name,
            words: &words,
            written: watched.then_some(&written),
            apart: type_ != MetricProviderType::Scrape,
        };
        let built_in = match (&spec.query, &spec.counts, &spec.histogram) {
            (None, None, None) if watched => written.built_in(&self.metric.name, judge)?,
            _ => None,
        };
        let (query, reduce) = match built_in {
            Some(query) => (query, None),
            None => self.wanted(spec, &fill, judge)?,
        };
        if !abilities.include(query.form()) {
            let source = format!("provider {:?}", spec.provider.type_).to_lowercase();
            return Err(self.lacks(judge, &source, query.form(), "use another provider, or another judge"));
        }
        if type_ == MetricProviderType::Scrape {
            check_selectors(&name, &query)?;
        }
        let mut periods = None;
        if watched {
            let refused = |(field, why)| Refusal::CloudWatch { template: name.clone(), field, why };
            periods = Some(cloudwatch::periods(&query, spec.cloudwatch.as_ref()).map_err(refused)?);
        }
        let mut asked = spec.provider.clone();
        if asked.type_ == MetricProviderType::Prometheus {
            let server = asked.address.as_deref().or_else(|| self.server());
            asked.address = Some(address(server.ok_or(Refusal::NoPrometheus { what: name })?)?);
        }
        if let (MetricProviderType::Web | MetricProviderType::Cloudwatch, Some(written)) =
            (asked.type_, &asked.address)
        {
            asked.address = Some(address(written)?);
        }
        let secret = spec
            .provider
            .secret_ref
            .as_ref()
            .map(|secret| SecretName { namespace: template.namespace.to_owned(), name: secret.name.clone() });
        Ok(Ask { periods, ..self.ask(asked, secret, query, reduce) })
    }

    /// What a template is asked for its judge.
    fn wanted(
        &self,
        spec: &AnalysisTemplateSpec,
        fill: &Fill<'_>,
        judge: JudgeType,
    ) -> Result<(Query, Option<Reduce>), Refusal> {
        let name = fill.template;
        let counts = |counts: &Counts| count_queries(fill, counts);
        let histogram = |query: &String| -> Result<Query, Refusal> {
            counter(name, "histogram", query)?;
            Ok(Query::Histogram(fill.both("histogram", query)?))
        };
        Ok(match (judge, &spec.query, &spec.counts, &spec.histogram) {
            (JudgeType::Threshold, Some(query), _, _) => {
                (Query::Scalar(fill.one("query", query, Arm::Canary)?), None)
            }
            (JudgeType::Threshold | JudgeType::Sequential, _, Some(counted), _) => (counts(counted)?, None),
            (JudgeType::Sequential, _, None, Some(query)) => (histogram(query)?, None),
            (JudgeType::Threshold, None, None, Some(query)) => {
                (histogram(query)?, Some(Reduce::Quantile(SLOW)))
            }
            (JudgeType::MannWhitney, Some(query), _, _) => (Query::Samples(fill.both("query", query)?), None),
            (JudgeType::Sequential, _, None, None) => {
                let instead = match abilities(spec.provider.type_).is_some_and(|it| it.include(Form::Counts))
                {
                    true => "add counts or histogram to the template, or set thresholdRange",
                    false => "set thresholdRange, or use a provider that counts, such as prometheus",
                };
                return Err(self.lacks(judge, name, Form::Counts, instead));
            }
            (JudgeType::MannWhitney, None, _, _) => {
                return Err(self.lacks(
                    judge,
                    name,
                    Form::Samples,
                    "add query to the template, or use judge sequential",
                ));
            }
            (JudgeType::Threshold, None, None, None) => {
                return Err(Refusal::Nothing { metric: self.metric.name.clone() });
            }
        })
    }

    /// The Prometheus for what names none of its own.
    fn server(&self) -> Option<&str> {
        let own = self.subject.canary.spec.metrics_server.as_deref();
        own.or(self.subject.metrics_server).filter(|server| !server.is_empty())
    }

    fn ask(
        &self,
        provider: MetricProvider,
        secret: Option<SecretName>,
        query: Query,
        reduce: Option<Reduce>,
    ) -> Ask {
        let metadata = &self.subject.canary.metadata;
        let of = MetricOf {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            canary: metadata.name.clone().unwrap_or_default(),
            metric: self.metric.name.clone(),
        };
        Ask { of, provider, secret, query, reduce, periods: None }
    }

    fn lacks(&self, judge: JudgeType, what: &str, form: Form, instead: &'static str) -> Refusal {
        let (judge, needs) = match (judge, form) {
            (JudgeType::Threshold, _) => ("threshold", "a single value"),
            (JudgeType::Sequential, _) => ("sequential", "counts or a histogram of canary and primary"),
            (JudgeType::MannWhitney, _) => ("mannWhitney", "points over time of canary and primary"),
        };
        Refusal::Form { judge, needs, what: what.to_owned(), instead }
    }
}

fn provider(type_: MetricProviderType, address: Option<String>) -> MetricProvider {
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

fn address(text: &str) -> Result<String, Refusal> {
    let refused = || Refusal::Address { address: text.to_owned() };
    let url = reqwest::Url::parse(text).map_err(|_| refused())?;
    if ["http", "https"].contains(&url.scheme()) && url.has_host() {
        Ok(text.to_owned())
    } else {
        Err(refused())
    }
}

/// Makes queries of what a template says.
struct Fill<'a> {
    template: &'a str,
    words: &'a Words,
    /// For queries that are more than text with words in it.
    written: Option<&'a Written<'a>>,
    /// Must the arms be told apart, since the source itself does not?
    apart: bool,
}

impl Fill<'_> {
    fn one(&self, field: &'static str, text: &str, arm: Arm) -> Result<String, Refusal> {
        match self.written {
            Some(written) => written.fill(field, text, arm),
            None => Ok(self.words.fill(self.template, field, text, arm)?),
        }
    }

    fn both(&self, field: &'static str, text: &str) -> Result<Arms<String>, Refusal> {
        let arms = Arms {
            canary: self.one(field, text, Arm::Canary)?,
            primary: self.one(field, text, Arm::Primary)?,
        };
        if self.apart && arms.canary == arms.primary {
            return Err(Refusal::SameForBothArms { template: self.template.to_owned(), field });
        }
        Ok(arms)
    }
}

fn count_queries(fill: &Fill<'_>, counts: &Counts) -> Result<Query, Refusal> {
    let template = fill.template;
    for (field, query) in [
        ("counts.total", Some(&counts.total)),
        ("counts.good", counts.good.as_ref()),
        ("counts.bad", counts.bad.as_ref()),
    ] {
        query.map_or(Ok(()), |query| counter(template, field, query))?;
    }
    let total = fill.both("counts.total", &counts.total)?;
    let (part, good) = match (&counts.good, &counts.bad) {
        (Some(good), _) => (fill.both("counts.good", good)?, true),
        (None, Some(bad)) => (fill.both("counts.bad", bad)?, false),
        (None, None) => return Err(Refusal::Nothing { metric: template.to_owned() }),
    };
    let arm = |part: String, total: String| CountQueries {
        part: if good { Part::Good(part) } else { Part::Bad(part) },
        total,
    };
    Ok(Query::Counts(Arms {
        canary: arm(part.canary, total.canary),
        primary: arm(part.primary, total.primary),
    }))
}

/// What is counted must be counters: of rates nobody can tell how many requests
/// there were.
fn counter(template: &str, field: &'static str, query: &str) -> Result<(), Refusal> {
    let rate = ["rate(", "increase(", "delta("].iter().any(|function| query.contains(function));
    if rate { Err(Refusal::Rate { template: template.to_owned(), field }) } else { Ok(()) }
}

/// What is scraped is asked for by selectors.
fn check_selectors(template: &str, query: &Query) -> Result<(), Refusal> {
    let check = |field, text: &str| match Selection::parse(text) {
        Ok(_) => Ok(()),
        Err(why) => Err(Refusal::Selector { template: template.to_owned(), field, why }),
    };
    match query {
        Query::Scalar(text) => check("query", text),
        Query::Histogram(of) => check("histogram", &of.canary).and(check("histogram", &of.primary)),
        Query::Samples(of) => check("query", &of.canary).and(check("query", &of.primary)),
        Query::Counts(arms) => [&arms.canary, &arms.primary]
            .into_iter()
            .try_for_each(|arm| check("counts", arm.part.query()).and(check("counts.total", &arm.total))),
    }
}

impl BuiltIn {
    pub fn named(name: &str) -> Option<Self> {
        let [success_rate, duration] = BUILT_IN;
        match name {
            _ if name == success_rate => Some(Self::SuccessRate),
            _ if name == duration => Some(Self::Duration),
            _ => None,
        }
    }
}
