//! Sees every write, keeps the history of the run, and asks the laws.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use kube_local::Write;
use serde_json::Value;
use serin::api::Canary;
use serin::api::canary::status::Outcome;
use serin::clock::Clock;
use serin::engine::Plan;
use tokio::time::Instant;

use super::laws::{self, LawResult, WriteTime};
use super::model::{CanaryModel, Labels, Workload};
use super::scenario::{Gate, Metrics};
use super::traffic::{TrafficModel, TrafficShare};

/// How long it takes from reading the caches to the last write that follows,
/// while answers are slow or fail.
const MAX_WRITE_DELAY: Duration = Duration::from_secs(8);

/// How long a watch that broke again and again may wait before it tries again.
const MAX_WATCH_LAG: Duration = Duration::from_secs(60);

pub struct Recorder {
    clock: Clock,
    began: Instant,
    pub canaries: BTreeMap<String, CanaryModel>,
    pods: BTreeMap<String, Pod>,
    pub traffic: TrafficModel,
    traffic_advanced_to: Duration,
    pub metrics: BTreeMap<String, Metrics>,
    pub gates: BTreeMap<String, Gate>,
    /// Since when the API server has its troubles, and until when.
    faults_active: Option<(Duration, Option<Duration>)>,
    members: BTreeSet<String>,
    /// Versions of workloads and when they were written, by collection.
    write_times: BTreeMap<String, Vec<(u64, Duration)>>,
    /// How much of that each process of Serin was told.
    delivered_versions: BTreeMap<(String, String), u64>,
    /// Since when all of Serin runs and nothing stands in its way.
    pub stable_since: Option<Duration>,
    /// Requests of Serin that write, except for Leases.
    pub requests: u64,
    pub history: Vec<String>,
    pub broken: Option<String>,
    pub counts: BTreeMap<String, u64>,
    pub writes: u64,
}

struct Pod {
    address: String,
    labels: Labels,
    image: String,
    ready: bool,
}

impl Recorder {
    pub fn new(clock: Clock, names: impl Iterator<Item = &'static str>) -> Self {
        let subject = |name: &'static str| {
            (name.to_owned(), CanaryModel { name: name.to_owned(), ..CanaryModel::default() })
        };
        Self {
            clock,
            began: Instant::now(),
            canaries: names.map(subject).collect(),
            pods: BTreeMap::new(),
            traffic: TrafficModel::default(),
            traffic_advanced_to: Duration::ZERO,
            metrics: BTreeMap::new(),
            gates: BTreeMap::new(),
            faults_active: None,
            members: BTreeSet::new(),
            write_times: BTreeMap::from(
                ["deployments.apps", "daemonsets.apps"].map(|of| (of.to_owned(), Vec::new())),
            ),
            delivered_versions: BTreeMap::new(),
            stable_since: None,
            requests: 0,
            history: Vec::new(),
            broken: None,
            counts: BTreeMap::new(),
            writes: 0,
        }
    }

    pub fn at(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn log(&mut self, text: impl AsRef<str>) {
        let at = self.at();
        self.history.push(format!("{:>10.3}  {}", at.as_secs_f64(), text.as_ref()));
    }

    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn write_time(&self) -> WriteTime {
        let at = self.at();
        let takes = match self.faults_active {
            Some((_, Some(until))) if at > until + MAX_WATCH_LAG => Duration::ZERO,
            Some(_) => MAX_WRITE_DELAY,
            None => Duration::ZERO,
        };
        let behind =
            self.delivered_versions.keys().filter_map(|(_, of)| Some((of, self.write_times.get(of)?)));
        let oldest = behind.filter_map(|(of, written)| {
            let least = self
                .delivered_versions
                .iter()
                .filter(|((_, collection), _)| collection == of)
                .map(|(_, told)| *told)
                .min()?;
            let next = written.partition_point(|(version, _)| *version <= least);
            written.get(next).map(|(_, at)| *at)
        });
        let lag = oldest.min().map_or(Duration::ZERO, |since| at.saturating_sub(since));
        WriteTime { at, clock: self.clock.now(), lag: lag + takes, decision_delay: takes }
    }

    /// A process of Serin was told of everything in a collection up to this
    /// version, or up to now.
    pub fn record_delivery(&mut self, me: &str, collection: &str, version: Option<u64>) {
        let Some(written) = self.write_times.get(collection) else { return };
        let newest = written.last().map_or(0, |(version, _)| *version);
        let version = version.unwrap_or(newest);
        let known = self.delivered_versions.entry((me.to_owned(), collection.to_owned())).or_default();
        *known = version.max(*known);
    }

    /// It is gone, or stands still, and what it knows does not matter.
    pub fn remove_process(&mut self, me: &str) {
        self.delivered_versions.retain(|(of, _), _| of != me);
    }

    /// Serin runs, or does not: it cannot be expected to react.
    pub fn set_running(&mut self, runs: bool) {
        self.stable_since = match self.faults_active {
            Some((_, None)) => None,
            _ => runs.then(|| self.at() + MAX_WATCH_LAG),
        };
    }

    pub fn faults_changed(&mut self, calm: bool) {
        let at = self.at();
        self.faults_active = match (calm, self.faults_active) {
            (true, Some((since, None))) => Some((since, Some(at))),
            (true, troubled) => troubled,
            (false, _) => Some((at, None)),
        };
        self.stable_since = calm.then_some(at + MAX_WATCH_LAG);
    }

    /// A process of Serin is about to write something; one that needs a Lease
    /// must have it.
    pub fn record_request(&mut self, me: &str, elected: bool, method: &http::Method, path: &str) {
        self.requests += 1;
        if elected && !self.members.iter().any(|member| member.starts_with(&format!("{me}-"))) {
            self.check(Err(format!("a replica that lost its lease writes: {me} {method} {path}")));
        }
    }

    pub fn check(&mut self, verdict: LawResult) {
        if let Err(why) = verdict {
            self.log(format!("!!! {why}"));
            self.broken.get_or_insert(why);
        }
    }

    /// Lets the traffic flow until now.
    pub fn advance_traffic(&mut self) {
        let at = self.at();
        let (from, seconds) =
            (self.traffic_advanced_to, at.saturating_sub(self.traffic_advanced_to).as_secs_f64());
        self.traffic_advanced_to = at;
        if seconds == 0.0 {
            return;
        }
        for subject in self.canaries.values_mut() {
            let pods = |labels: &Labels| -> Vec<(&str, &str)> {
                let selected = |pod: &&Pod| {
                    pod.ready && labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
                };
                self.pods.values().filter(selected).map(|pod| (&*pod.address, &*pod.image)).collect()
            };
            let (mut to_canary, mut void) = (0.0, false);
            for (share, labels, is_canary) in subject.traffic_shares() {
                let arm = TrafficShare { share, pods: pods(labels) };
                let arrived = self.traffic.add_requests(subject.rate * seconds, &arm);
                to_canary += if is_canary { arrived } else { 0.0 };
                if is_canary && share > 0.0 && arm.pods.is_empty() {
                    void = true;
                }
            }
            subject.unserved_since = void.then(|| subject.unserved_since.unwrap_or(from));
            if subject.direct_rate > 0.0 {
                let own = Labels::from([("app".to_owned(), subject.name.clone())]);
                let arm = TrafficShare { share: 1.0, pods: pods(&own) };
                to_canary += self.traffic.add_requests(subject.direct_rate * seconds, &arm);
            }
            subject.request_counts.total += to_canary;
        }
        let (now, steady) = (self.write_time(), self.stable_since);
        let verdicts: Vec<_> = self
            .canaries
            .values()
            .map(|subject| match (subject.unserved_since, steady) {
                (Some(since), Some(steady)) => {
                    laws::check_unserved_traffic(subject, at.saturating_sub(since.max(steady)), now)
                }
                _ => Ok(()),
            })
            .collect();
        verdicts.into_iter().for_each(|verdict| self.check(verdict));
    }

    /// A pod is read: what is at this address?
    pub fn read_pod(&mut self, address: &str) -> Option<(String, Metrics)> {
        self.advance_traffic();
        let pod = self.pods.values().find(|pod| pod.address == address)?;
        let app = pod.labels.get("app").cloned().unwrap_or_default();
        let name = app.trim_end_matches("-primary").trim_end_matches("-previous").to_owned();
        let mode = self.metrics.get(&name).copied().unwrap_or_default();
        if mode == Metrics::Available
            && let Some(subject) = self.canaries.get_mut(&app)
        {
            subject.request_counts.at_last_scrape = subject.request_counts.total;
        }
        Some((self.traffic.exposition(address, mode), mode))
    }

    pub fn record_write(&mut self, write: &Write<'_>) {
        self.writes += 1;
        let at = self.at();
        if let Some(written) = self.write_times.get_mut(write.collection) {
            written.push((write.version, at));
        }
        let object = write.after.or(write.before).expect("an object");
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match write.collection {
            "canaries.serin.dev" => self.record_canary(&name, write.after),
            "deployments.apps" | "daemonsets.apps" => self.record_workload(&name, write.after),
            "trafficsplits.split.smi-spec.io" => self.record_split(&name, write.after),
            "services" => self.record_service(&name, write.after),
            "pods" => self.record_pod(&name, write.after),
            "leases.coordination.k8s.io"
                if name.starts_with("replica") && write.before.is_some() != write.after.is_some() =>
            {
                let what = match write.after {
                    Some(_) => self.members.insert(name.clone()).then_some("joins"),
                    None => self.members.remove(&name).then_some("is gone"),
                };
                self.log(format!("  {name} {}", what.unwrap_or_default()));
            }
            "configmaps" => self.record_config(&name, write),
            "events" if write.before.is_none() && object["involvedObject"]["kind"] == "Canary" => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let of = text(&object["involvedObject"]["name"]);
                self.log(format!("    {of} says: {}", text(&object["message"])));
            }
            _ => {}
        }
    }

    fn record_canary(&mut self, name: &str, object: Option<&Value>) {
        let now = self.write_time();
        let Some(subject) = self.canaries.get_mut(name) else { return };
        let before = subject.canary.take();
        let Some(object) = object else {
            self.log(format!("  {name}: the Canary is gone"));
            return;
        };
        let after: Canary = serde_json::from_value(object.clone()).expect("a Canary");
        let uid = |canary: &Canary| canary.metadata.uid.clone();
        let same = before.as_ref().is_some_and(|before| uid(before) == uid(&after));
        if !same {
            subject.plans.clear();
            subject.promotions.clear();
            subject.release_causes = 0;
        }
        subject.reverts_on_deletion = after.spec.revert_on_deletion;
        let generation = after.metadata.generation.unwrap_or(0);
        subject.plans.entry(generation).or_insert_with(|| Plan::try_from(&after).ok());
        let status = after.status.clone().unwrap_or_default();
        let old = before.and_then(|before| before.status).unwrap_or_default();
        let verdict = laws::check_status(subject, &old, &status, now);
        subject.canary = Some(after);
        if old != status {
            let step = |status: &serin::api::CanaryStatus| status.step.as_ref().map(|step| step.index);
            let shown = |status: &serin::api::CanaryStatus| {
                (
                    status.phase,
                    status.canary_weight,
                    step(status),
                    status.iterations,
                    status.failed_checks,
                    status.releases,
                )
            };
            if shown(&old) != shown(&status) || old.message != status.message {
                self.log(format!(
                    "  {name}: status {:?} {} % step {:?} passed {} failed {} release {} | {}",
                    status.phase,
                    status.canary_weight,
                    step(&status),
                    status.iterations,
                    status.failed_checks,
                    status.releases,
                    status.message.as_deref().unwrap_or_default()
                ));
            }
            for metric in &status.metrics {
                let known = old.metrics.iter().find(|known| known.name == metric.name);
                if known.map(|known| &known.at) != Some(&metric.at) {
                    self.log(format!(
                        "      {name}: {} {:?}: {}",
                        metric.name, metric.verdict, metric.reason
                    ));
                }
            }
            let ended = status.history.len().saturating_sub(old.history.len()).max(usize::from(
                status.history.first() != old.history.first() && !status.history.is_empty(),
            ));
            for past in status.history.iter().take(ended) {
                let outcome = match past.outcome {
                    Outcome::Promoted => "promoted",
                    Outcome::RolledBack => "rolled back",
                    Outcome::Aborted => "aborted",
                    Outcome::Superseded => "superseded",
                };
                self.count(outcome);
            }
        }
        self.check(verdict);
    }

    fn record_workload(&mut self, name: &str, object: Option<&Value>) {
        let now = self.write_time();
        let (of, arm) = match name.rsplit_once('-') {
            Some((of, arm @ ("primary" | "previous"))) => (of.to_owned(), arm),
            _ => (name.to_owned(), "target"),
        };
        let Some(subject) = self.canaries.get_mut(&of) else { return };
        let after = object.map(Workload::of);
        let past = match arm {
            "primary" => &mut subject.primary,
            "previous" => &mut subject.previous,
            _ => &mut subject.target,
        };
        let before = past.now().clone();
        if !past.set(after.clone(), now.at) {
            return;
        }
        let image = |workload: &Option<Workload>| workload.as_ref().map(|workload| workload.image.clone());
        let changed = image(&before) != image(&after);
        if arm == "target" && changed && after.is_some() {
            subject.release_causes += 1;
        }
        let revision = |workload: &Option<Workload>| workload.as_ref().map(|w| w.revision.clone());
        let mut verdict = Ok(());
        if let ("primary", Some(old), Some(_)) = (arm, &before, &after)
            && revision(&before) != revision(&after)
        {
            verdict = laws::check_primary_change(subject, old, now);
        }
        let told = match &after {
            None => "gone".to_owned(),
            Some(w) => format!(
                "{} {} wanted {}, {} there, {} new, {} ready{}",
                w.image,
                w.revision,
                w.desired,
                w.existing,
                w.updated,
                w.available,
                if w.current { "" } else { " (not yet seen)" }
            ),
        };
        self.log(format!("  {name}: {told}"));
        self.check(verdict);
    }

    fn record_split(&mut self, name: &str, object: Option<&Value>) {
        // What came until now went where it was sent before.
        self.advance_traffic();
        let Some(subject) = self.canaries.get_mut(name) else { return };
        subject.split = object.map(|object| {
            let spec = &object["spec"];
            let weight = |of: &str| {
                let backends = spec["backends"].as_array().into_iter().flatten();
                let service = format!("{name}-{of}");
                backends.filter(|b| b["service"] == *service).find_map(|b| b["weight"].as_u64()).unwrap_or(0)
            };
            (weight("canary"), weight("primary"), spec["matches"].as_array().is_some_and(|m| !m.is_empty()))
        });
        self.record_route(&name.to_owned());
    }

    fn record_service(&mut self, name: &str, object: Option<&Value>) {
        self.advance_traffic();
        let of = name.trim_end_matches("-primary").trim_end_matches("-canary").to_owned();
        let Some(subject) = self.canaries.get_mut(&of) else { return };
        match object {
            Some(object) => {
                let labels = serde_json::from_value(object["spec"]["selector"].clone()).unwrap_or_default();
                subject.selectors.insert(name.to_owned(), labels);
            }
            None => _ = subject.selectors.remove(name),
        }
        self.record_route(&of);
    }

    fn record_route(&mut self, of: &String) {
        let now = self.write_time();
        let Some(subject) = self.canaries.get_mut(of) else { return };
        let route = subject.find_route();
        let verdict = laws::check_route(subject, route, now);
        if route == *subject.route.now() {
            return;
        }
        subject.close_route(now.at);
        subject.route.set(route, now.at);
        subject.record_route_start();
        self.log(format!("  {of}: route {route:?}"));
        self.check(verdict);
    }

    fn record_pod(&mut self, name: &str, object: Option<&Value>) {
        self.advance_traffic();
        let Some(object) = object else {
            self.pods.remove(name);
            return;
        };
        let going = !object["metadata"]["deletionTimestamp"].is_null();
        let conditions = object["status"]["conditions"].as_array();
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pod = Pod {
            address: text(&object["status"]["podIP"]),
            labels: serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default(),
            image: text(&object["spec"]["containers"][0]["image"]),
            ready: !going && conditions.is_some_and(|all| all.iter().any(is_ready)),
        };
        self.pods.insert(name.to_owned(), pod);
    }

    fn record_config(&mut self, name: &str, write: &Write<'_>) {
        let record = name.strip_suffix("-primary-before").and_then(|of| self.canaries.get(of));
        if let (Some(subject), Some(record)) = (record, write.after) {
            let revision = record["data"]["revision"].as_str().unwrap_or_default();
            let verdict = laws::check_backup(subject, revision);
            return self.check(verdict);
        }
        let Some(subject) = name.strip_suffix("-config").and_then(|of| self.canaries.get_mut(of)) else {
            return;
        };
        let data = |object: Option<&Value>| object.map(|object| object["data"].clone());
        if data(write.before) != data(write.after) {
            subject.release_causes += 1;
        }
    }

    /// The history, for a person.
    pub fn history_text(&self) -> String {
        self.history.join("\n")
    }

    pub fn log_event(&mut self, what: impl Debug) {
        self.log(format!("* {what:?}"));
    }
}
