//! Who calls whom, how often and how well, from the request counters of Istio and
//! Linkerd. Read when somebody asks, never polled.
//!
//! ```text
//!   Istio    istio_requests_total            source_workload → destination_workload
//!   Linkerd  response_total (outbound)       deployment → dst_deployment
//! ```
//!
//! Both proxies of a call may count it. An edge has the numbers of the caller's, which
//! has seen the failures that never arrived; else those of the waypoint, else those of
//! the callee's.

use std::collections::BTreeMap;

use prometheus_http_query::response::InstantVector;
use serde::Serialize;

use super::client::{EvalTime, PrometheusQueryError};
use super::{Prometheus, vector};
use crate::metrics::builtin::{IS_GOOD_ISTIO, IS_GOOD_LINKERD};

/// Of the rates. A series that ended longer ago is no request series.
pub const EDGE_WINDOW: &str = "5m";

/// Of one answer, those with the most requests.
pub const MAX_EDGES: usize = 500;

/// A workload, as metrics name it. The fields are empty where they do not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Caller {
    pub namespace: String,
    pub workload: String,
}

/// The proxy that counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountedBy {
    Source,
    Waypoint,
    Destination,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Edge {
    pub mesh: &'static str,
    pub source: Caller,
    pub destination: Caller,
    /// The Service that was called; empty if the metrics do not name it.
    pub service: String,
    pub requests_per_second: f64,
    /// Of 1; none without requests in the window.
    pub success: Option<f64>,
    pub counted_by: CountedBy,
}

/// The edges that are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeFilter<'a> {
    /// Of the callee or the caller; none for all.
    pub namespace: Option<&'a str>,
    /// A workload or a Service, at either end.
    pub name: Option<&'a str>,
}

/// The labels of a mesh's counter.
struct EdgeSeries {
    mesh: &'static str,
    counter: &'static str,
    /// Matches requests without a server error.
    good: &'static str,
    /// Matchers of all series.
    matchers: &'static str,
    source_namespace: &'static str,
    source: &'static [&'static str],
    destination_namespace: &'static str,
    destination: &'static [&'static str],
    service: &'static str,
    /// The label with the proxy that counted; none if it is always the source's.
    reporter: Option<&'static str>,
}

/// Istio: istio.io/docs/reference/config/metrics. Linkerd:
/// linkerd.io/2/reference/proxy-metrics, with the labels that its Prometheus gives to
/// pods.
const SERIES: [EdgeSeries; 2] = [
    EdgeSeries {
        mesh: "istio",
        counter: "istio_requests_total",
        good: IS_GOOD_ISTIO,
        matchers: "",
        source_namespace: "source_workload_namespace",
        source: &["source_workload"],
        destination_namespace: "destination_workload_namespace",
        destination: &["destination_workload"],
        service: "destination_service_name",
        reporter: Some("reporter"),
    },
    EdgeSeries {
        mesh: "linkerd",
        counter: "response_total",
        good: IS_GOOD_LINKERD,
        matchers: r#"direction="outbound""#,
        source_namespace: "namespace",
        source: &["deployment", "statefulset", "daemonset"],
        destination_namespace: "dst_namespace",
        destination: &["dst_deployment", "dst_statefulset", "dst_daemonset"],
        service: "dst_service",
        reporter: None,
    },
];

/// Label of the result: whether it counts all requests or the good ones.
const COUNTED: &str = "serin_counted";

impl EdgeSeries {
    fn labels(&self) -> Vec<&'static str> {
        let names = [self.source_namespace, self.destination_namespace, self.service];
        let all = names.into_iter().chain(self.source.iter().chain(self.destination).copied());
        all.chain(self.reporter).collect()
    }

    /// One matcher list per end that the filter may be about: a query has no `or` within
    /// a selector.
    fn selectors(&self, filter: EdgeFilter<'_>) -> Vec<String> {
        let equals = |label: &str, value: &str| format!("{label}={}", quoted(value));
        let ends = [(self.source_namespace, self.source), (self.destination_namespace, self.destination)];
        let mut selectors = Vec::new();
        for (namespace_label, workload_labels) in ends {
            let namespace = filter.namespace.map(|namespace| equals(namespace_label, namespace));
            match filter.name {
                None => selectors.push(namespace.into_iter().collect::<Vec<_>>()),
                Some(name) => {
                    let is_destination = namespace_label == self.destination_namespace;
                    let service = is_destination.then_some(self.service);
                    let labels = workload_labels.iter().copied().chain(service);
                    let with_namespace = |label: &str| -> Vec<String> {
                        namespace.clone().into_iter().chain([equals(label, name)]).collect()
                    };
                    selectors.extend(labels.map(with_namespace));
                }
            }
        }
        let complete = |matchers: Vec<String>| {
            let fixed = (!self.matchers.is_empty()).then(|| self.matchers.to_owned());
            fixed.into_iter().chain(matchers).collect::<Vec<_>>().join(",")
        };
        let mut selectors: Vec<String> = selectors.into_iter().map(complete).collect();
        selectors.dedup();
        selectors
    }

    fn query(&self, filter: EdgeFilter<'_>) -> String {
        let by = self.labels().join(", ");
        let sum = |counted: &str, more: &str| {
            let rates: Vec<String> = self
                .selectors(filter)
                .into_iter()
                .map(|selector| {
                    let matchers: Vec<&str> =
                        [selector.as_str(), more].into_iter().filter(|text| !text.is_empty()).collect();
                    format!("rate({}{{{}}}[{EDGE_WINDOW}])", self.counter, matchers.join(","))
                })
                .collect();
            let sum = format!("sum by ({by}) ({})", rates.join(" or "));
            format!(r#"label_replace(topk({MAX_EDGES}, {sum}), "{COUNTED}", "{counted}", "", "")"#)
        };
        format!("{} or {}", sum("all", ""), sum("good", self.good))
    }

    fn edges(&self, series: &[InstantVector]) -> Vec<Edge> {
        type Ends = (Caller, Caller, String);
        let mut rates: BTreeMap<(Ends, CountedBy), (f64, f64)> = BTreeMap::new();
        for one in series {
            let label = |name: &str| one.metric().get(name).map(String::as_str).unwrap_or_default();
            let first = |names: &[&str]| {
                names.iter().map(|name| label(name)).find(|value| !value.is_empty()).unwrap_or_default()
            };
            let end = |namespace: &str, names: &[&str]| Caller {
                namespace: label(namespace).to_owned(),
                workload: first(names).to_owned(),
            };
            let ends = (
                end(self.source_namespace, self.source),
                end(self.destination_namespace, self.destination),
                label(self.service).to_owned(),
            );
            let counted_by = match self.reporter.map(label) {
                None | Some("source") => CountedBy::Source,
                Some("waypoint") => CountedBy::Waypoint,
                Some(_) => CountedBy::Destination,
            };
            let rate = rates.entry((ends, counted_by)).or_default();
            match label(COUNTED) {
                "good" => rate.1 += one.sample().value(),
                _ => rate.0 += one.sample().value(),
            }
        }
        let mut edges: Vec<Edge> = Vec::new();
        for (((source, destination, service), counted_by), (all, good)) in rates {
            // Ordered by the proxy that counted, so the preferred one comes first.
            let is_same = |edge: &Edge| {
                (&edge.source, &edge.destination, &edge.service) == (&source, &destination, &service)
            };
            if edges.last().is_some_and(is_same) {
                continue;
            }
            edges.push(Edge {
                mesh: self.mesh,
                source,
                destination,
                service,
                requests_per_second: all,
                success: (all > 0.0).then(|| (good / all).clamp(0.0, 1.0)),
                counted_by,
            });
        }
        edges
    }
}

/// A string of PromQL.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

impl Prometheus {
    /// The edges of the last five minutes, those with the most requests first. The error
    /// names the server.
    pub async fn edges(&self, filter: EdgeFilter<'_>) -> Result<Vec<Edge>, String> {
        let mut edges = Vec::new();
        for series in &SERIES {
            let found = self.read_edges(series, filter).await;
            edges.extend(found.map_err(|error| self.client.describe_failure(&error))?);
        }
        edges.sort_by(|a, b| b.requests_per_second.total_cmp(&a.requests_per_second));
        edges.truncate(MAX_EDGES);
        Ok(edges)
    }

    async fn read_edges(
        &self,
        series: &EdgeSeries,
        filter: EdgeFilter<'_>,
    ) -> Result<Vec<Edge>, PrometheusQueryError> {
        let data = self.client.query(series.query(filter), EvalTime::Now).await?;
        Ok(series.edges(vector(&data)?))
    }

    /// Whether a mesh counted requests to a workload within five minutes, the series of
    /// its own proxy included; none for a mesh without such a counter.
    pub async fn has_requests(
        &self,
        mesh: &str,
        namespace: &str,
        workload: &str,
    ) -> Result<Option<bool>, String> {
        let (namespace, workload) = (quoted(namespace), quoted(workload));
        let query = match mesh {
            "istio" => format!(
                "count(rate(istio_requests_total{{destination_workload_namespace={namespace},destination_workload={workload}}}[{EDGE_WINDOW}]))"
            ),
            "linkerd" => {
                let kinds = ["deployment", "statefulset", "daemonset"].map(|kind| {
                    format!(
                        "rate(response_total{{direction=\"inbound\",namespace={namespace},{kind}={workload}}}[{EDGE_WINDOW}])"
                    )
                });
                format!("count({})", kinds.join(" or "))
            }
            _ => return Ok(None),
        };
        let data = self.client.query(query, EvalTime::Now).await;
        let data = data.map_err(|error| self.client.describe_failure(&error))?;
        let series = vector(&data).map_err(|error| self.client.describe_failure(&error))?;
        Ok(Some(!series.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_quotes() {
        let filter = EdgeFilter { namespace: Some("a\"} or up{x=\"\\"), name: None };
        let query = SERIES[0].query(filter);
        assert!(query.contains(r#"source_workload_namespace="a\"} or up{x=\"\\""#), "{query}");
    }
}
