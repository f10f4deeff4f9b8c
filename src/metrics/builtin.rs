//! The built-in metrics: for each mesh, its counters of requests and durations
//! and the labels that distinguish the arms.
//!
//! Names and labels are those of the meshes and of Flagger's queries.

use crate::{
    analysis::measurement::{Arms, SLOW_QUANTILE},
    api::canary::{Provider, TargetKind},
};

use super::{
    CountQueries, CountedPart, Query, Unit,
    template::{Arm, TemplateVars},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    /// Requests without a server error, in percent.
    SuccessRate,
    /// 99th percentile of durations, in milliseconds.
    Duration,
}

/// The series of one mesh, for one Canary.
#[derive(Clone, Debug)]
pub struct BuiltinQueries {
    series: Series,
    /// Matchers of each arm.
    labels: Arms<String>,
    interval: String,
}

#[derive(Clone, Copy, Debug)]
struct Series {
    /// Counter of requests.
    requests: &'static str,
    /// Matches requests without a server error.
    good: &'static str,
    /// The histogram of durations, without `_bucket`.
    durations: &'static str,
    unit: Unit,
    /// Additional matchers of the histogram.
    duration_filter: &'static str,
    /// Duration as a single value.
    latency_summary: LatencySummary,
}

#[derive(Clone, Copy, Debug)]
enum LatencySummary {
    Quantile,
    /// As Flagger has it for this mesh.
    Mean,
}

/// Matchers of requests without a server error.
pub const IS_GOOD_ISTIO: &str = r#"response_code!~"5.*""#;
pub const IS_GOOD_LINKERD: &str = r#"classification!="failure""#;
pub const IS_GOOD_ENVOY: &str = r#"envoy_response_code!~"5.*""#;

const ISTIO: Series = Series {
    requests: "istio_requests_total",
    good: IS_GOOD_ISTIO,
    durations: "istio_request_duration_milliseconds",
    unit: Unit::Milliseconds,
    duration_filter: "",
    latency_summary: LatencySummary::Quantile,
};
const LINKERD: Series =
    Series { requests: "response_total", good: IS_GOOD_LINKERD, durations: "response_latency_ms", ..ISTIO };
const OSM: Series = Series { requests: "osm_request_total", durations: "osm_request_duration_ms", ..ISTIO };
const ENVOY: Series = Series {
    requests: "envoy_cluster_upstream_rq",
    good: IS_GOOD_ENVOY,
    durations: "envoy_cluster_upstream_rq_time",
    ..ISTIO
};
const NGINX: Series = Series {
    requests: "nginx_ingress_controller_requests",
    good: r#"status!~"5.*""#,
    durations: "nginx_ingress_controller_response_duration_seconds",
    unit: Unit::Seconds,
    latency_summary: LatencySummary::Mean,
    ..ISTIO
};
/// Exported by the application.
const HTTP: Series = Series {
    requests: "http_request_duration_seconds_count",
    good: r#"status!~"5.*""#,
    durations: "http_request_duration_seconds",
    unit: Unit::Seconds,
    ..ISTIO
};
const TRAEFIK: Series = Series {
    requests: "traefik_service_request_duration_seconds_count",
    good: r#"code!~"5..""#,
    durations: "traefik_service_request_duration_seconds",
    unit: Unit::Seconds,
    ..ISTIO
};
const SKIPPER: Series = Series {
    requests: "skipper_response_duration_seconds_count",
    good: r#"code!~"5..""#,
    durations: "skipper_serve_route_duration_seconds",
    unit: Unit::Seconds,
    latency_summary: LatencySummary::Mean,
    ..ISTIO
};
const APISIX: Series = Series {
    requests: "apisix_http_status",
    good: r#"code!~"5..""#,
    durations: "apisix_http_latency",
    duration_filter: r#"type="request""#,
    ..ISTIO
};

impl BuiltinQueries {
    /// None for a mesh without built-in metrics.
    pub fn of(mesh: Provider, vars: &TemplateVars) -> Option<Self> {
        let TemplateVars { namespace, target, service, ingress, route, interval, .. } = vars;
        let workload = Arm::both().map(|arm| vars.workload(*arm));
        let (target, route) = (escape_regex(target), escape_regex(route));
        let named = |labels: &dyn Fn(&str) -> String| Arm::both().map(|arm| labels(arm.name()));
        let pods = || workload.map(|workload| pod_matchers(namespace, workload, vars.kind));
        let (kind, label) = match vars.kind {
            TargetKind::DaemonSet => ("DaemonSet", "daemonset"),
            TargetKind::Deployment | TargetKind::Service | TargetKind::EndpointGroup => {
                ("Deployment", "deployment")
            }
        };
        let (series, labels) = match mesh {
            Provider::Istio => {
                let labels = workload.map(|workload| {
                    format!(r#"reporter="destination",destination_workload_namespace="{namespace}",destination_workload="{workload}""#)
                });
                (ISTIO, labels)
            }
            Provider::Linkerd => {
                // Excludes probes and requests to the proxy's admin port.
                let labels = workload.map(|workload| {
                    format!(r#"namespace="{namespace}",{label}="{workload}",direction="inbound",route_name!="probe",srv_port!="4191""#)
                });
                (LINKERD, labels)
            }
            Provider::Osm => {
                let labels = workload.map(|workload| {
                    format!(r#"destination_namespace="{namespace}",destination_kind="{kind}",destination_name="{workload}""#)
                });
                (OSM, labels)
            }
            // Excludes outbound requests, which each Envoy counts too.
            Provider::AppMesh | Provider::AppMeshV1Beta2 | Provider::AppMeshAws => {
                (ENVOY, pods().map(|pods| join_matchers(pods, r#"envoy_cluster_name=~"cds_ingress_.+""#)))
            }
            Provider::Kubernetes
            | Provider::SmiV1Alpha1
            | Provider::SmiV1Alpha2
            | Provider::SmiV1Alpha3
            | Provider::SmiV1Alpha4
            | Provider::GatewayApiV1
            | Provider::GatewayApiV1Beta1 => (HTTP, pods()),
            Provider::Nginx => {
                let labels =
                    |canary| format!(r#"namespace="{namespace}",ingress="{ingress}",canary{canary}"""#);
                (NGINX, Arms { canary: labels("!="), primary: labels("=") })
            }
            Provider::Contour => {
                let service = escape_regex(service);
                (
                    ENVOY,
                    named(&|arm| {
                        format!(r#"envoy_cluster_name=~"{namespace}_{service}-{arm}_[0-9a-zA-Z-]+""#)
                    }),
                )
            }
            // As the callers' proxies count them, in the cluster of each version.
            Provider::Xds if vars.kind == TargetKind::EndpointGroup => {
                let unknown = || Arms { primary: "unknown".to_owned(), canary: "unknown".to_owned() };
                let versions = vars.versions.clone().unwrap_or_else(unknown);
                // As the control plane names the statistics of a cluster.
                let cluster = |version: &String| {
                    let [target, version] = [&vars.target, version].map(|name| name.replace('.', "_"));
                    format!(r#"envoy_cluster_name=~"{namespace}_{target}@{version}_[0-9]+""#)
                };
                (ENVOY, versions.map(cluster))
            }
            // The same, in the cluster of each Service.
            Provider::Xds => {
                let service = escape_regex(service);
                (ENVOY, named(&|arm| format!(r#"envoy_cluster_name=~"{namespace}_{service}-{arm}_[0-9]+""#)))
            }
            Provider::Gloo => (
                ENVOY,
                named(&|arm| {
                    format!(
                        r#"envoy_cluster_name=~"{namespace}-{target}-{arm}upstream-[0-9a-zA-Z-]+_[0-9a-zA-Z-]+""#
                    )
                }),
            ),
            Provider::Kuma => {
                (ENVOY, named(&|arm| format!(r#"service=~"{target}-{arm}_{namespace}_svc_[0-9a-zA-Z-]+""#)))
            }
            Provider::Traefik => (
                TRAEFIK,
                named(&|arm| format!(r#"service=~"{namespace}-{target}-{arm}-[0-9a-zA-Z-]+@kubernetescrd""#)),
            ),
            Provider::Apisix => {
                (APISIX, named(&|arm| format!(r#"route=~"{namespace}_{route}-{target}-{arm}_.+""#)))
            }
            Provider::Skipper => {
                let [namespace, ingress, service] = [namespace, ingress, service].map(|name| sanitize(name));
                let labels = |ingress: &str, arm| {
                    format!(r#"route=~"kube(ew)?_{namespace}__{ingress}__.*__{service}_{arm}(_[0-9]+)?""#)
                };
                let canary = labels(&format!("{ingress}_canary"), "canary");
                (SKIPPER, Arms { canary, primary: labels(&ingress, "primary") })
            }
            // Revision names are generated by Knative and known only to the router.
            Provider::Knative => return None,
        };
        Some(Self { series, labels, interval: interval.clone() })
    }

    /// One number about one arm.
    pub fn scalar(&self, metric: BuiltIn, arm: Arm) -> String {
        let Self { series, interval, .. } = self;
        let Series { requests, good, durations, duration_filter, latency_summary, unit } = series;
        let labels = match arm {
            Arm::Canary => &self.labels.canary,
            Arm::Primary => &self.labels.primary,
        };
        let rate = |name: &str, labels: &str| format!("sum(rate({name}{{{labels}}}[{interval}]))");
        let milliseconds = match unit {
            Unit::Seconds => " * 1000",
            Unit::Milliseconds => "",
        };
        match (metric, latency_summary) {
            (BuiltIn::SuccessRate, _) => {
                let (good, all) = (rate(requests, &join_matchers(labels, good)), rate(requests, labels));
                // Without any good request there is no series of them.
                format!("({good} or 0 * {all}) / {all} * 100")
            }
            (BuiltIn::Duration, LatencySummary::Quantile) => format!(
                "histogram_quantile({SLOW_QUANTILE}, sum by (le) (rate({durations}_bucket{{{}}}[{interval}]))){milliseconds}",
                join_matchers(labels, duration_filter)
            ),
            (BuiltIn::Duration, LatencySummary::Mean) => {
                let [sum, count] = ["sum", "count"].map(|part| rate(&format!("{durations}_{part}"), labels));
                format!("{sum} / {count}{milliseconds}")
            }
        }
    }

    /// Requests of both arms, as counters.
    pub fn requests(&self) -> Query {
        let Series { requests, good, .. } = self.series;
        Query::Counts(self.labels.map(|labels| CountQueries {
            part: CountedPart::Good(format!("{requests}{{{}}}", join_matchers(labels, good))),
            total: format!("{requests}{{{labels}}}"),
        }))
    }

    /// Durations of both arms, as counters.
    pub fn durations(&self) -> Query {
        let Series { durations, duration_filter, .. } = self.series;
        Query::Histogram(
            self.labels
                .map(|labels| format!("{durations}_bucket{{{}}}", join_matchers(labels, duration_filter))),
        )
    }
}

/// Requests as counted by pods or their sidecars: the first series present.
pub fn scraped_requests() -> Query {
    let either = r#"code!~"5..",status!~"5..""#;
    let candidates = [
        ("istio_requests_total", r#"reporter="destination""#, ISTIO.good),
        ("response_total", r#"direction="inbound""#, LINKERD.good),
        ("http_requests_total", "", either),
        ("http_request_duration_seconds_count", "", either),
        ("envoy_cluster_upstream_rq", "", ENVOY.good),
    ];
    let any = |good: bool| {
        let selectors = candidates.map(|(name, labels, filter)| {
            format!("{name}{{{}}}", join_matchers(labels, if good { filter } else { "" }))
        });
        selectors.join(" or ")
    };
    let queries = CountQueries { part: CountedPart::Good(any(true)), total: any(false) };
    Query::Counts(Arms { canary: queries.clone(), primary: queries })
}

/// Durations, likewise.
pub fn scraped_durations() -> Query {
    let candidates = [
        r#"istio_request_duration_milliseconds_bucket{reporter="destination"}"#,
        r#"response_latency_ms_bucket{direction="inbound"}"#,
        "http_request_duration_seconds_bucket",
        "envoy_cluster_upstream_rq_time_bucket",
    ];
    let any = candidates.join(" or ");
    Query::Histogram(Arms { canary: any.clone(), primary: any })
}

/// Matches the pods of a workload by Kubernetes' naming scheme.
fn pod_matchers(namespace: &str, workload: &str, kind: TargetKind) -> String {
    let workload = escape_regex(workload);
    let suffix = match kind {
        TargetKind::DaemonSet => "[0-9a-zA-Z]+",
        TargetKind::Deployment | TargetKind::Service | TargetKind::EndpointGroup => {
            "[0-9a-zA-Z]+-[0-9a-zA-Z]+"
        }
    };
    format!(r#"kubernetes_namespace="{namespace}",kubernetes_pod_name=~"{workload}-{suffix}""#)
}

/// The dot is the only special character in names.
fn escape_regex(name: &str) -> String {
    name.replace('.', "[.]")
}

/// Skipper's form of names.
fn sanitize(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_")
}

fn join_matchers(labels: &str, more: &str) -> String {
    [labels, more].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
}
