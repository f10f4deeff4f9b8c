//! Requests that objects of the cluster received, and who exchanged them, from the
//! counters of meshes. Read at a request, never polled.
//!
//! ```text
//!   Istio    istio_requests_total        workloads, pods, namespaces, services; edges
//!   Linkerd  response_total              the same
//!   Serin    envoy_cluster_upstream_rq   services, as the Envoys that call them count
//! ```
//!
//! Counts are exact, as those of the judge are: the increase of raw counters
//! ([`super::increase`]). An object that no mesh counted requests to before the window
//! began is not in the result: that is no zero.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use prometheus_http_query::response::InstantVector;

use super::client::{EvalTime, PrometheusQueryError};
use super::edges::quoted;
use super::increase::{self, SUM_OF, THEN};
use super::{Prometheus, vector};
use crate::metrics::Window;
use crate::metrics::builtin::{IS_GOOD_ENVOY, IS_GOOD_ISTIO, IS_GOOD_LINKERD};

/// Percentiles of [`Traffic::latency`].
pub const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// Kinds of objects that requests are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Namespace,
    Deployment,
    DaemonSet,
    StatefulSet,
    Pod,
    Service,
}

/// Objects of a kind.
#[derive(Clone, Copy, Debug)]
pub struct TrafficOf<'a> {
    pub level: Level,
    /// None: all. Of a namespace it is [`Self::name`].
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
    pub until: Timestamp,
    pub window: Duration,
}

/// Of one object, or one edge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub success: u64,
    /// Responses with a code of 500 or more, or what Linkerd classified as a failure.
    pub failure: u64,
    /// Seconds, at [`QUANTILES`]; none without requests.
    pub latency: [Option<f64>; 3],
}

/// Of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

/// The requests between two workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficEdge {
    pub direction: Direction,
    pub side: Side,
    /// The other workload, and its kind where the metrics have it.
    pub other: ObjectName,
    pub kind: Option<&'static str>,
    pub traffic: Traffic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Requests that the workload received.
    From,
    /// Requests that it sent.
    To,
}

/// Whose proxy counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Client,
    Server,
}

/// The series of a mesh. Durations are in milliseconds.
struct Series {
    counter: &'static str,
    good: &'static str,
    durations: &'static str,
    received: fn(Level) -> Option<View>,
    edges: fn(Level) -> Vec<(Direction, Side, View)>,
}

/// Some of the series: selected by one object, grouped by another.
struct View {
    matchers: &'static str,
    select: Labels,
    group: Labels,
}

/// The labels with the namespace and the name of an object.
#[derive(Clone, Copy)]
struct Labels {
    /// None: it is part of the only name.
    namespace: Option<&'static str>,
    /// And the kind that a label stands for. The first that is not empty counts.
    names: &'static [(&'static str, Option<&'static str>)],
}

/// Labels: istio.io/docs/reference/config/metrics, linkerd.io/2/reference/proxy-metrics, and
/// the names that `xds/config` gives to the statistics of clusters.
const SERIES: [Series; 3] = [
    Series {
        counter: "istio_requests_total",
        good: IS_GOOD_ISTIO,
        durations: "istio_request_duration_milliseconds",
        received: istio::received,
        edges: istio::edges,
    },
    Series {
        counter: "response_total",
        good: IS_GOOD_LINKERD,
        durations: "response_latency_ms",
        received: linkerd::received,
        edges: linkerd::edges,
    },
    Series {
        counter: "envoy_cluster_upstream_rq",
        good: IS_GOOD_ENVOY,
        durations: "envoy_cluster_upstream_rq_time",
        received: envoy::received,
        edges: |_| Vec::new(),
    },
];

/// Labels of results.
const COUNTED: &str = "serin_counted";
const GOOD: &str = "good";
const ALL: &str = "all";
const QUANTILE: &str = "serin_quantile";

impl Labels {
    const fn of(namespace: &'static str, names: &'static [(&'static str, Option<&'static str>)]) -> Self {
        Self { namespace: Some(namespace), names }
    }

    fn all(self) -> impl Iterator<Item = &'static str> {
        self.namespace.into_iter().chain(self.names.iter().map(|(label, _)| *label))
    }
}

mod istio {
    use super::{Direction, Labels, Level, Side, View};

    /// Of a waypoint: it counts for a destination without a sidecar.
    const RECEIVED: &str = r#"reporter=~"destination|waypoint""#;
    const SENT: &str = r#"reporter="source""#;
    const DESTINATION: Labels =
        Labels::of("destination_workload_namespace", &[("destination_workload", None)]);
    const SOURCE: Labels = Labels::of("source_workload_namespace", &[("source_workload", None)]);

    pub fn received(level: Level) -> Option<View> {
        let select = match level {
            Level::Deployment | Level::DaemonSet | Level::StatefulSet => DESTINATION,
            Level::Namespace => Labels { namespace: DESTINATION.namespace, names: &[] },
            Level::Pod => Labels::of("destination_workload_namespace", &[("pod", None)]),
            Level::Service => {
                Labels::of("destination_service_namespace", &[("destination_service_name", None)])
            }
        };
        Some(View { matchers: RECEIVED, select, group: select })
    }

    pub fn edges(level: Level) -> Vec<(Direction, Side, View)> {
        match level {
            Level::Deployment | Level::DaemonSet | Level::StatefulSet => vec![
                (
                    Direction::From,
                    Side::Server,
                    View { matchers: RECEIVED, select: DESTINATION, group: SOURCE },
                ),
                (Direction::To, Side::Client, View { matchers: SENT, select: SOURCE, group: DESTINATION }),
            ],
            Level::Namespace | Level::Pod | Level::Service => Vec::new(),
        }
    }
}

mod linkerd {
    use super::{Direction, Labels, Level, Side, View};

    /// Without requests to the proxy's own port.
    const INBOUND: &str = r#"direction="inbound",srv_port!="4191""#;
    /// Has both ends.
    const OUTBOUND: &str = r#"direction="outbound""#;

    const SOURCE: Labels = Labels::of(
        "namespace",
        &[
            ("deployment", Some("Deployment")),
            ("statefulset", Some("StatefulSet")),
            ("daemonset", Some("DaemonSet")),
        ],
    );
    const DESTINATION: Labels = Labels::of(
        "dst_namespace",
        &[
            ("dst_deployment", Some("Deployment")),
            ("dst_statefulset", Some("StatefulSet")),
            ("dst_daemonset", Some("DaemonSet")),
        ],
    );

    pub fn received(level: Level) -> Option<View> {
        let select = match level {
            Level::Namespace => Labels { namespace: Some("namespace"), names: &[] },
            Level::Deployment => Labels::of("namespace", &[("deployment", None)]),
            Level::DaemonSet => Labels::of("namespace", &[("daemonset", None)]),
            Level::StatefulSet => Labels::of("namespace", &[("statefulset", None)]),
            Level::Pod => Labels::of("namespace", &[("pod", None)]),
            Level::Service => {
                let select = Labels::of("dst_namespace", &[("dst_service", None)]);
                return Some(View { matchers: OUTBOUND, select, group: select });
            }
        };
        Some(View { matchers: INBOUND, select, group: select })
    }

    pub fn edges(level: Level) -> Vec<(Direction, Side, View)> {
        let (source, destination): (Labels, Labels) = match level {
            Level::Deployment => (
                Labels::of("namespace", &[("deployment", None)]),
                Labels::of("dst_namespace", &[("dst_deployment", None)]),
            ),
            Level::StatefulSet => (
                Labels::of("namespace", &[("statefulset", None)]),
                Labels::of("dst_namespace", &[("dst_statefulset", None)]),
            ),
            Level::DaemonSet => (
                Labels::of("namespace", &[("daemonset", None)]),
                Labels::of("dst_namespace", &[("dst_daemonset", None)]),
            ),
            Level::Namespace | Level::Pod | Level::Service => return Vec::new(),
        };
        let view = |select, group| View { matchers: OUTBOUND, select, group };
        vec![
            (Direction::From, Side::Client, view(destination, SOURCE)),
            (Direction::To, Side::Client, view(source, DESTINATION)),
        ]
    }
}

mod envoy {
    use super::{Labels, Level, View};

    /// `shop_web_80`
    pub const CLUSTER: &str = "envoy_cluster_name";

    pub fn received(level: Level) -> Option<View> {
        let select = Labels { namespace: None, names: &[(CLUSTER, None)] };
        (level == Level::Service).then_some(View { matchers: "", select, group: select })
    }
}

impl View {
    fn selector(&self, of: &TrafficOf<'_>, more: &str) -> String {
        let equals = |label: &str, value: &str| format!("{label}={}", quoted(value));
        let mut matchers: Vec<String> = [self.matchers, more]
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| (*text).to_owned())
            .collect();
        let namespace = if of.level == Level::Namespace { of.name } else { of.namespace };
        match (self.select.namespace, self.select.names) {
            (Some(label), names) => {
                // Series without the label are of something else.
                matchers.push(namespace.map_or(format!("{label}!=\"\""), |value| equals(label, value)));
                matchers.extend(names.iter().map(|(label, _)| match of.name {
                    Some(name) => equals(label, name),
                    None => format!("{label}!=\"\""),
                }));
            }
            (None, names) => {
                let any = "[a-z0-9-]+".to_owned();
                let [namespace, name] =
                    [of.namespace, of.name].map(|part| part.map_or(any.clone(), regex::escape));
                let pattern = quoted(&format!("{namespace}_{name}_[0-9]+"));
                matchers.extend(names.iter().map(|(label, _)| format!("{label}=~{pattern}")));
            }
        }
        matchers.join(",")
    }

    fn counts_query(&self, series: &Series, of: &TrafficOf<'_>) -> Option<String> {
        let sum = format!("sum by ({})", self.group.all().collect::<Vec<_>>().join(", "));
        let length = increase::length_ms(of.window())?;
        let counted = |what: &str, more: &str| {
            let selector = format!("{}{{{}}}", series.counter, self.selector(of, more));
            increase::labelled(increase::sums(&selector, &sum, length), COUNTED, what)
        };
        Some([counted(ALL, ""), counted(GOOD, series.good)].concat().join("\nor\n"))
    }

    /// Percentiles do not depend on how far `rate` extrapolates.
    fn latency_query(&self, series: &Series, of: &TrafficOf<'_>) -> String {
        let by: Vec<&str> = self.group.all().chain(["le"]).collect();
        let rates = format!(
            "sum by ({}) (rate({}_bucket{{{}}}[{}ms]))",
            by.join(", "),
            series.durations,
            self.selector(of, ""),
            of.window.as_millis()
        );
        let quantile = |q: f64| {
            let value = format!("histogram_quantile({q}, {rates})");
            increase::labelled(vec![value], QUANTILE, &q.to_string())
        };
        QUANTILES.map(quantile).concat().join("\nor\n")
    }

    /// None if the labels name nothing.
    fn object(&self, series: &InstantVector) -> Option<(ObjectName, Option<&'static str>)> {
        let label = |name: &str| series.metric().get(name).map(String::as_str).unwrap_or_default();
        let name = self.group.names.iter().find(|(name, _)| !label(name).is_empty());
        match (self.group.namespace, name) {
            (Some(namespace), Some((name, kind))) => {
                let [namespace, name] = [namespace, name].map(|name| label(name).to_owned());
                Some((ObjectName { namespace, name }, *kind))
            }
            (Some(namespace), None) if self.group.names.is_empty() => {
                let name = label(namespace).to_owned();
                (!name.is_empty()).then(|| (ObjectName { namespace: String::new(), name }, None))
            }
            (None, Some((name, _))) => {
                let mut parts = label(name).split('_');
                let (namespace, name) = (parts.next()?.to_owned(), parts.next()?.to_owned());
                Some((ObjectName { namespace, name }, None))
            }
            (_, None) => None,
        }
    }
}

impl TrafficOf<'_> {
    fn window(&self) -> Window {
        let length = SignedDuration::try_from(self.window).unwrap_or_default();
        Window { since: self.until.checked_sub(length).unwrap_or(self.until), until: self.until }
    }
}

type ByObject = BTreeMap<(ObjectName, Option<&'static str>), Traffic>;

impl Prometheus {
    /// What each object received. Of an object that several meshes know the first one
    /// counts. The error names the server.
    pub async fn traffic(&self, of: TrafficOf<'_>) -> Result<BTreeMap<ObjectName, Traffic>, String> {
        let mut all = BTreeMap::new();
        for series in &SERIES {
            let Some(view) = (series.received)(of.level) else { continue };
            for ((object, _), traffic) in self.read(series, &view, &of).await? {
                all.entry(object).or_insert(traffic);
            }
        }
        Ok(all)
    }

    /// The edges of one workload.
    pub async fn traffic_edges(&self, of: TrafficOf<'_>) -> Result<Vec<TrafficEdge>, String> {
        let mut all = Vec::new();
        for series in &SERIES {
            for (direction, side, view) in (series.edges)(of.level) {
                let read = self.read(series, &view, &of).await?;
                all.extend(read.into_iter().map(|((other, kind), traffic)| TrafficEdge {
                    direction,
                    side,
                    other,
                    kind,
                    traffic,
                }));
            }
        }
        Ok(all)
    }

    async fn read(&self, series: &Series, view: &View, of: &TrafficOf<'_>) -> Result<ByObject, String> {
        let read = self.try_read(series, view, of).await;
        read.map_err(|error| self.client.describe_failure(&error))
    }

    async fn try_read(
        &self,
        series: &Series,
        view: &View,
        of: &TrafficOf<'_>,
    ) -> Result<ByObject, PrometheusQueryError> {
        let at = EvalTime::At(of.until);
        let Some(counts) = view.counts_query(series, of) else { return Ok(ByObject::new()) };
        let mut traffic = counted(view, vector(&*self.client.query(counts, at).await?)?)?;
        if traffic.is_empty() {
            return Ok(traffic);
        }
        let latencies = self.client.query(view.latency_query(series, of), at).await?;
        for one in vector(&latencies)? {
            let quantile = one.metric().get(QUANTILE).and_then(|text| text.parse::<f64>().ok());
            let index = QUANTILES.iter().position(|known| Some(*known) == quantile);
            let Some((index, key)) = index.zip(view.object(one)) else { continue };
            if let Some(traffic) = traffic.get_mut(&key)
                && one.sample().value().is_finite()
            {
                traffic.latency[index] = Some(one.sample().value() / 1000.0);
            }
        }
        Ok(traffic)
    }
}

fn counted(view: &View, result: &[InstantVector]) -> Result<ByObject, PrometheusQueryError> {
    let mut sums: BTreeMap<_, [f64; 2]> = BTreeMap::new();
    let mut known = false;
    for one in result {
        let label = |name: &str| one.metric().get(name).map(String::as_str).unwrap_or_default();
        let Some(key) = view.object(one) else { continue };
        let value = one.sample().value();
        if !value.is_finite() {
            return Err(PrometheusQueryError::NotACount(value.to_string()));
        }
        let sum = &mut sums.entry(key).or_default()[usize::from(label(COUNTED) == GOOD)];
        if label(SUM_OF) == THEN {
            known = true;
            *sum -= value;
        } else {
            *sum += value;
        }
    }
    // Without anything from before the window the server was not scraping.
    if !known {
        return Ok(ByObject::new());
    }
    let traffic = sums.into_iter().map(|(key, [all, good])| {
        let (all, success) = (all.round() as u64, good.round() as u64);
        (key, Traffic { success, failure: all.saturating_sub(success), latency: [None; 3] })
    });
    Ok(traffic.collect())
}
