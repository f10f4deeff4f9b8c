//! Sees every write, keeps the history of the run, and asks the laws.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use serde_json::Value;
use serin::api::Canary;
use serin::api::canary::status::Outcome;
use serin::clock::Clock;
use serin::engine::Plan;
use serin::local::Write;
use tokio::time::Instant;

use super::flow::{Arm, Flow};
use super::laws::{self, Moment, Verdict};
use super::scene::{Gate, Metrics};
use super::seen::{Labels, Subject, Workload};

/// How long it takes from reading the caches to the last write that follows,
/// while answers are slow or fail.
const TAKES: Duration = Duration::from_secs(8);

/// How long a watch that broke again and again may wait before it tries again.
const LAG: Duration = Duration::from_secs(60);

pub struct Onlooker {
    clock: Clock,
    began: Instant,
    pub subjects: BTreeMap<String, Subject>,
    pods: BTreeMap<String, Pod>,
    pub flow: Flow,
    flowed: Duration,
    pub metrics: BTreeMap<String, Metrics>,
    pub gates: BTreeMap<String, Gate>,
    /// Since when the API server has its troubles, and until when.
    troubled: Option<(Duration, Option<Duration>)>,
    members: BTreeSet<String>,
    /// Versions of workloads and when they were written, by collection.
    written: BTreeMap<String, Vec<(u64, Duration)>>,
    /// How much of that each process of Serin was told.
    told: BTreeMap<(String, String), u64>,
    /// Since when all of Serin runs and nothing stands in its way.
    pub steady_since: Option<Duration>,
    /// Requests of Serin that write, except for Leases.
    pub requests: u64,
    pub history: Vec<String>,
    pub broken: Option<String>,
    pub tally: BTreeMap<String, u64>,
    pub writes: u64,
}

struct Pod {
    address: String,
    labels: Labels,
    image: String,
    ready: bool,
}

impl Onlooker {
    pub fn new(clock: Clock, names: impl Iterator<Item = &'static str>) -> Self {
        let subject =
            |name: &'static str| (name.to_owned(), Subject { name: name.to_owned(), ..Subject::default() });
        Self {
            clock,
            began: Instant::now(),
            subjects: names.map(subject).collect(),
            pods: BTreeMap::new(),
            flow: Flow::default(),
            flowed: Duration::ZERO,
            metrics: BTreeMap::new(),
            gates: BTreeMap::new(),
            troubled: None,
            members: BTreeSet::new(),
            written: BTreeMap::from(
                ["deployments.apps", "daemonsets.apps"].map(|of| (of.to_owned(), Vec::new())),
            ),
            told: BTreeMap::new(),
            steady_since: None,
            requests: 0,
            history: Vec::new(),
            broken: None,
            tally: BTreeMap::new(),
            writes: 0,
        }
    }

    pub fn at(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn tell(&mut self, text: impl AsRef<str>) {
        let at = self.at();
        self.history.push(format!("{:>10.3}  {}", at.as_secs_f64(), text.as_ref()));
    }

    pub fn count(&mut self, what: &str) {
        *self.tally.entry(what.to_owned()).or_default() += 1;
    }

    fn moment(&self) -> Moment {
        let at = self.at();
        let takes = match self.troubled {
            Some((_, Some(until))) if at > until + LAG => Duration::ZERO,
            Some(_) => TAKES,
            None => Duration::ZERO,
        };
        let behind = self.told.keys().filter_map(|(_, of)| Some((of, self.written.get(of)?)));
        let oldest = behind.filter_map(|(of, written)| {
            let least = self
                .told
                .iter()
                .filter(|((_, collection), _)| collection == of)
                .map(|(_, told)| *told)
                .min()?;
            let next = written.partition_point(|(version, _)| *version <= least);
            written.get(next).map(|(_, at)| *at)
        });
        let lag = oldest.min().map_or(Duration::ZERO, |since| at.saturating_sub(since));
        Moment { at, clock: self.clock.now(), lag: lag + takes, takes }
    }

    /// A process of Serin was told of everything in a collection up to this
    /// version, or up to now.
    pub fn told(&mut self, me: &str, collection: &str, version: Option<u64>) {
        let Some(written) = self.written.get(collection) else { return };
        let newest = written.last().map_or(0, |(version, _)| *version);
        let version = version.unwrap_or(newest);
        let known = self.told.entry((me.to_owned(), collection.to_owned())).or_default();
        *known = version.max(*known);
    }

    /// It is gone, or stands still, and what it knows does not matter.
    pub fn forget(&mut self, me: &str) {
        self.told.retain(|(of, _), _| of != me);
    }

    /// Serin runs, or does not: it cannot be expected to react.
    pub fn runs(&mut self, runs: bool) {
        self.steady_since = match self.troubled {
            Some((_, None)) => None,
            _ => runs.then(|| self.at() + LAG),
        };
    }

    pub fn weather_changed(&mut self, calm: bool) {
        let at = self.at();
        self.troubled = match (calm, self.troubled) {
            (true, Some((since, None))) => Some((since, Some(at))),
            (true, troubled) => troubled,
            (false, _) => Some((at, None)),
        };
        self.steady_since = calm.then_some(at + LAG);
    }

    /// A process of Serin is about to write something; one that needs a Lease
    /// must have it.
    pub fn request(&mut self, me: &str, elected: bool, method: &http::Method, path: &str) {
        self.requests += 1;
        if elected && !self.members.iter().any(|member| member.starts_with(&format!("{me}-"))) {
            self.judge(Err(format!("a replica that lost its lease writes: {me} {method} {path}")));
        }
    }

    pub fn judge(&mut self, verdict: Verdict) {
        if let Err(why) = verdict {
            self.tell(format!("!!! {why}"));
            self.broken.get_or_insert(why);
        }
    }

    /// Lets the traffic flow until now.
    pub fn flow(&mut self) {
        let at = self.at();
        let (from, seconds) = (self.flowed, at.saturating_sub(self.flowed).as_secs_f64());
        self.flowed = at;
        if seconds == 0.0 {
            return;
        }
        for subject in self.subjects.values_mut() {
            let pods = |labels: &Labels| -> Vec<(&str, &str)> {
                let selected = |pod: &&Pod| {
                    pod.ready && labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
                };
                self.pods.values().filter(selected).map(|pod| (&*pod.address, &*pod.image)).collect()
            };
            let (mut to_canary, mut void) = (0.0, false);
            for (share, labels, is_canary) in subject.arms() {
                let arm = Arm { share, pods: pods(labels) };
                let arrived = self.flow.arrive(subject.rate * seconds, &arm);
                to_canary += if is_canary { arrived } else { 0.0 };
                if is_canary && share > 0.0 && arm.pods.is_empty() {
                    void = true;
                }
            }
            subject.void_since = void.then(|| subject.void_since.unwrap_or(from));
            if subject.direct > 0.0 {
                let own = Labels::from([("app".to_owned(), subject.name.clone())]);
                let arm = Arm { share: 1.0, pods: pods(&own) };
                to_canary += self.flow.arrive(subject.direct * seconds, &arm);
            }
            subject.counted.all += to_canary;
        }
        let (now, steady) = (self.moment(), self.steady_since);
        let verdicts: Vec<_> = self
            .subjects
            .values()
            .map(|subject| match (subject.void_since, steady) {
                (Some(since), Some(steady)) => {
                    laws::sends_into_the_void(subject, at.saturating_sub(since.max(steady)), now)
                }
                _ => Ok(()),
            })
            .collect();
        verdicts.into_iter().for_each(|verdict| self.judge(verdict));
    }

    /// A pod is read: what is at this address?
    pub fn read(&mut self, address: &str) -> Option<(String, Metrics)> {
        self.flow();
        let pod = self.pods.values().find(|pod| pod.address == address)?;
        let app = pod.labels.get("app").cloned().unwrap_or_default();
        let name = app.trim_end_matches("-primary").trim_end_matches("-previous").to_owned();
        let mode = self.metrics.get(&name).copied().unwrap_or_default();
        if mode == Metrics::There
            && let Some(subject) = self.subjects.get_mut(&app)
        {
            subject.counted.at_reading = subject.counted.all;
        }
        Some((self.flow.exposition(address, mode), mode))
    }

    pub fn see(&mut self, write: &Write<'_>) {
        self.writes += 1;
        let at = self.at();
        if let Some(written) = self.written.get_mut(write.collection) {
            written.push((write.version, at));
        }
        let object = write.after.or(write.before).expect("an object");
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match write.collection {
            "canaries.serin.dev" => self.see_canary(&name, write.after),
            "deployments.apps" | "daemonsets.apps" => self.see_workload(&name, write.after),
            "trafficsplits.split.smi-spec.io" => self.see_split(&name, write.after),
            "services" => self.see_service(&name, write.after),
            "pods" => self.see_pod(&name, write.after),
            "leases.coordination.k8s.io"
                if name.starts_with("replica") && write.before.is_some() != write.after.is_some() =>
            {
                let what = match write.after {
                    Some(_) => self.members.insert(name.clone()).then_some("joins"),
                    None => self.members.remove(&name).then_some("is gone"),
                };
                self.tell(format!("  {name} {}", what.unwrap_or_default()));
            }
            "configmaps" => self.see_config(&name, write),
            "events" if write.before.is_none() && object["involvedObject"]["kind"] == "Canary" => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let of = text(&object["involvedObject"]["name"]);
                self.tell(format!("    {of} says: {}", text(&object["message"])));
            }
            _ => {}
        }
    }

    fn see_canary(&mut self, name: &str, object: Option<&Value>) {
        let now = self.moment();
        let Some(subject) = self.subjects.get_mut(name) else { return };
        let before = subject.canary.take();
        let Some(object) = object else {
            self.tell(format!("  {name}: the Canary is gone"));
            return;
        };
        let after: Canary = serde_json::from_value(object.clone()).expect("a Canary");
        let uid = |canary: &Canary| canary.metadata.uid.clone();
        let same = before.as_ref().is_some_and(|before| uid(before) == uid(&after));
        if !same {
            subject.plans.clear();
            subject.promotions.clear();
            subject.causes = 0;
        }
        subject.reverts = after.spec.revert_on_deletion;
        let generation = after.metadata.generation.unwrap_or(0);
        subject.plans.entry(generation).or_insert_with(|| Plan::try_from(&after).ok());
        let status = after.status.clone().unwrap_or_default();
        let old = before.and_then(|before| before.status).unwrap_or_default();
        let verdict = laws::recorded(subject, &old, &status, now);
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
                self.tell(format!(
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
                    self.tell(format!(
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
        self.judge(verdict);
    }

    fn see_workload(&mut self, name: &str, object: Option<&Value>) {
        let now = self.moment();
        let (of, arm) = match name.rsplit_once('-') {
            Some((of, arm @ ("primary" | "previous"))) => (of.to_owned(), arm),
            _ => (name.to_owned(), "target"),
        };
        let Some(subject) = self.subjects.get_mut(&of) else { return };
        let after = object.map(Workload::of);
        let past = match arm {
            "primary" => &mut subject.primary,
            "previous" => &mut subject.previous,
            _ => &mut subject.target,
        };
        let before = past.now().clone();
        if !past.becomes(after.clone(), now.at) {
            return;
        }
        let image = |workload: &Option<Workload>| workload.as_ref().map(|workload| workload.image.clone());
        let changed = image(&before) != image(&after);
        if arm == "target" && changed && after.is_some() {
            subject.causes += 1;
        }
        let revision = |workload: &Option<Workload>| workload.as_ref().map(|w| w.revision.clone());
        let mut verdict = Ok(());
        if let ("primary", Some(old), Some(_)) = (arm, &before, &after)
            && revision(&before) != revision(&after)
        {
            verdict = laws::primary_changed(subject, old, now);
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
        self.tell(format!("  {name}: {told}"));
        self.judge(verdict);
    }

    fn see_split(&mut self, name: &str, object: Option<&Value>) {
        // What came until now went where it was sent before.
        self.flow();
        let Some(subject) = self.subjects.get_mut(name) else { return };
        subject.split = object.map(|object| {
            let spec = &object["spec"];
            let weight = |of: &str| {
                let backends = spec["backends"].as_array().into_iter().flatten();
                let service = format!("{name}-{of}");
                backends.filter(|b| b["service"] == *service).find_map(|b| b["weight"].as_u64()).unwrap_or(0)
            };
            (weight("canary"), weight("primary"), spec["matches"].as_array().is_some_and(|m| !m.is_empty()))
        });
        self.see_route(&name.to_owned());
    }

    fn see_service(&mut self, name: &str, object: Option<&Value>) {
        self.flow();
        let of = name.trim_end_matches("-primary").trim_end_matches("-canary").to_owned();
        let Some(subject) = self.subjects.get_mut(&of) else { return };
        match object {
            Some(object) => {
                let labels = serde_json::from_value(object["spec"]["selector"].clone()).unwrap_or_default();
                subject.selectors.insert(name.to_owned(), labels);
            }
            None => _ = subject.selectors.remove(name),
        }
        self.see_route(&of);
    }

    fn see_route(&mut self, of: &String) {
        let now = self.moment();
        let Some(subject) = self.subjects.get_mut(of) else { return };
        let route = subject.find_route();
        let verdict = laws::routed(subject, route, now);
        if route == *subject.route.now() {
            return;
        }
        subject.sum_up(now.at);
        subject.route.becomes(route, now.at);
        subject.note_begin();
        self.tell(format!("  {of}: route {route:?}"));
        self.judge(verdict);
    }

    fn see_pod(&mut self, name: &str, object: Option<&Value>) {
        self.flow();
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

    fn see_config(&mut self, name: &str, write: &Write<'_>) {
        let record = name.strip_suffix("-primary-before").and_then(|of| self.subjects.get(of));
        if let (Some(subject), Some(record)) = (record, write.after) {
            let revision = record["data"]["revision"].as_str().unwrap_or_default();
            let verdict = laws::remembers_what_was_before(subject, revision);
            return self.judge(verdict);
        }
        let Some(subject) = name.strip_suffix("-config").and_then(|of| self.subjects.get_mut(of)) else {
            return;
        };
        let data = |object: Option<&Value>| object.map(|object| object["data"].clone());
        if data(write.before) != data(write.after) {
            subject.causes += 1;
        }
    }

    /// The history, for a person.
    pub fn story(&self) -> String {
        self.history.join("\n")
    }

    pub fn person(&mut self, what: impl Debug) {
        self.tell(format!("* {what:?}"));
    }
}
