//! The stable names of findings, and what each one means.

use std::fmt;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The API server or the controller refuses the object.
    Error,
    /// It works, and is probably not what was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

macro_rules! codes {
    ($($name:ident $code:literal $severity:ident $title:literal $text:literal)*) => {
        /// A kind of finding. Its name never gets another meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $($name),* }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// `SER101`
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code),* }
            }

            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),* }
            }

            /// In a few words.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }

            /// Why it is a finding, and what to do.
            pub fn explanation(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

codes! {
    NotYaml "SER001" Error "not readable"
        "The file is not YAML, or a document in it is no Kubernetes object: it lacks apiVersion, kind or metadata.name."
    Refused "SER002" Error "refused by the definition"
        "The API server refuses the object: an unknown or missing field, a wrong type, a value out of bounds, or a rule of the definition. The message is the server's own."
    OtherTool "SER003" Warning "written for another tool"
        "The object is of Flagger. Serin reads it once its apiVersion is serin.dev/v1alpha1, and a MetricTemplate's kind AnalysisTemplate."
    UnknownKind "SER004" Error "no kind of Serin"
        "serin.dev has no such kind or version. `serin crds` prints all definitions."
    InvalidPlan "SER101" Error "cannot be released"
        "The fields are valid one by one, and contradict each other or say too little. The controller would refuse the Canary with this sentence, in its condition Stalled."
    UnknownRouter "SER102" Error "no router for the provider"
        "spec.provider names a mesh that this version does not route. The message lists those that it does."
    RouterCannot "SER103" Error "the router cannot do that"
        "The provider's route cannot carry a field of the Canary: finer weights, header conditions, mirroring, cookies, or a field of spec.service. Serin refuses such a field and never ignores it."
    NoProvider "SER104" Warning "no provider"
        "spec.provider is left out, so the controller decides by the mesh of the pods, or by its flag --provider. Pass --provider to check the rest for one."
    TargetMissing "SER201" Warning "target not among the files"
        "spec.targetRef names an object that is in none of the files. It may be in the cluster; until it is, the Canary waits."
    ReferenceMissing "SER202" Warning "reference not among the files"
        "A template or an alert provider is in none of the files, so the metrics that use it were not checked. A Canary waits until it exists."
    NoSuchPort "SER203" Error "no such port"
        "spec.service.targetPort names a port that no container of the target declares. Traffic would go nowhere, and the controller refuses the Canary."
    UndeclaredPort "SER204" Warning "port not declared"
        "No container of the target declares the port that requests would go to. Containers may listen on ports that they do not declare; more often targetPort is missing."
    SharedTarget "SER205" Error "two Canaries, one target"
        "Two Canaries release the same workload. The second is refused."
    InvalidQuery "SER301" Error "metric cannot be measured"
        "The template has no query for the judge, its variables are unknown, or no metrics server is configured. The controller would refuse the Canary with this sentence."
    InvalidPromQl "SER302" Error "not PromQL"
        "Prometheus would refuse the query at the first check, hours after it was written. The text shown is the query with its variables filled in."
    FractionForPercent "SER401" Warning "a fraction where percent are meant"
        "request-success-rate is in percent, 0 to 100. A minimum of 0.99 passes canaries that fail 99 % of their requests; write 99."
    SecondsForMilliseconds "SER402" Warning "seconds where milliseconds are meant"
        "request-duration is in milliseconds. A maximum of 0.5 fails every canary; write 500."
    ShortWindow "SER403" Warning "window shorter than two scrapes"
        "A rate needs two samples. At the usual scrape interval of 15 s a window below 30 s has one now and then, and its rate is nothing: the check is without data."
    TooLittleTraffic "SER404" Warning "too little traffic to judge"
        "At the given --rps a step has fewer requests on the canary in one interval than a judge needs (minRequests), so checks are inconclusive and the step holds. Raise the weight or the interval."
    NeverOpen "SER405" Warning "no release may ever start"
        "The release windows freeze all of the time that they allow, so no release starts."
    NoMetrics "SER406" Warning "nothing is judged"
        "The Canary has no metrics, no gate and no approval: every revision is promoted whose pods become ready."
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
