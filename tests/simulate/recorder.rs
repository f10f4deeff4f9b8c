//! Records every write, keeps the history of the run, and has the invariants
//! checked.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kube_local::Write;
use serde_json::Value;
use serin::api::canary::status::Outcome;
use serin::api::{Canary, CanaryStatus};
use serin::clock::Clock;
use serin::engine::Plan;

use super::agenda::Agenda;
use super::checks::{InvariantChecker, LawResult, check_backup};
use super::invariant::Violation;
use super::lag_clock::LagClock;
use super::manifests::template_spec;
use super::model::{CanaryModel, Workload};
use super::refusals::{ActiveRefusal, RefusedSeries};
use super::scenario::{Gate, Metrics};
use super::traffic::TrafficModel;

/// An annotation that changes with each write of a route by somebody else.
pub const FOREIGN_WRITE: &str = "gitops.example.com/applied";

pub struct Recorder {
    pub canaries: BTreeMap<String, CanaryModel>,
    pub traffic: TrafficModel,
    pub lag: LagClock,
    pub invariants: InvariantChecker,
    /// Modes of webhook receivers, by URL.
    pub gates: BTreeMap<String, Gate>,
    pub agenda: Agenda,
    pub refusals: Vec<ActiveRefusal>,
    /// By Canary and number of the refusal.
    pub refused: BTreeMap<(String, u32), RefusedSeries>,
    history: Vec<String>,
    /// Print the history as it happens.
    pub prints: bool,
    pub counts: BTreeMap<String, u64>,
    /// Writing requests of the controller, except for Leases and Events.
    pub requests: u64,
    pub writes: u64,
    /// The first violation.
    pub violation: Option<Violation>,
}

impl Recorder {
    pub fn new(clock: Clock, names: impl Iterator<Item = &'static str>) -> Self {
        let model = |(index, name): (usize, &'static str)| {
            (name.to_owned(), CanaryModel { index, name: name.to_owned(), ..CanaryModel::default() })
        };
        Self {
            canaries: names.enumerate().map(model).collect(),
            traffic: TrafficModel::default(),
            lag: LagClock::new(clock),
            invariants: InvariantChecker::default(),
            gates: BTreeMap::new(),
            agenda: Agenda::default(),
            refusals: Vec::new(),
            refused: BTreeMap::new(),
            history: Vec::new(),
            prints: false,
            counts: BTreeMap::new(),
            requests: 0,
            writes: 0,
            violation: None,
        }
    }

    pub fn log(&mut self, text: impl AsRef<str>) {
        let at = self.lag.at();
        let line = format!("{:>10.3}  {}", at.as_secs_f64(), text.as_ref());
        if self.prints {
            println!("{line}");
        }
        self.history.push(line);
    }

    pub fn log_event(&mut self, event: impl Debug) {
        self.log(format!("* {event:?}"));
    }

    pub fn history_text(&self) -> String {
        self.history.join("\n")
    }

    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    pub fn report(&mut self, result: LawResult) {
        if let Err(violation) = result {
            self.log(format!("!!! {violation}"));
            self.violation.get_or_insert(violation);
        }
    }

    /// A process ended or is frozen.
    pub fn remove_process(&mut self, process: &str) {
        self.invariants.interrupted = true;
        self.refused.clear();
        self.lag.remove_process(process);
    }

    /// A process is about to write.
    pub fn record_request(&mut self, process: &str, elected: bool, method: &http::Method, path: &str) {
        self.requests += 1;
        let result = self.invariants.check_request(process, elected, || format!("{method} {path}"));
        self.report(result);
    }

    /// Advances the traffic to now. To be called before any change of the route.
    pub fn advance_traffic(&mut self) {
        let at = self.lag.at();
        if !self.traffic.advance(&mut self.canaries, at) {
            return;
        }
        self.check_standing();
    }

    /// The metrics page of the pod at this address.
    pub fn scrape(&mut self, address: &str) -> Option<(String, Metrics)> {
        self.advance_traffic();
        let at = self.lag.at();
        if let Some(canary) = self.traffic.canary_of(address).and_then(|name| self.canaries.get_mut(&name)) {
            canary.decided_at = at;
        }
        self.traffic.scrape(&mut self.canaries, address)
    }

    pub fn record_write(&mut self, write: &Write<'_>) {
        self.writes += 1;
        self.lag.record_write(write.collection, write.version);
        let object = write.after.or(write.before).expect("an object");
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match write.collection {
            "canaries.serin.dev" => self.record_canary(&name, write.after),
            "deployments.apps" | "daemonsets.apps" => self.record_workload(&name, write.after),
            "trafficsplits.split.smi-spec.io" => self.record_split(&name, write),
            "services" => self.record_service(&name, write.after),
            "pods" => {
                self.advance_traffic();
                self.traffic.set_pod(&name, write.after);
            }
            "leases.coordination.k8s.io"
                if name.starts_with("replica") && write.before.is_some() != write.after.is_some() =>
            {
                let members = &mut self.invariants.members;
                let what = match write.after {
                    Some(_) => members.insert(name.clone()).then_some("joins"),
                    None => members.remove(&name).then_some("is gone"),
                };
                self.log(format!("  {name} {}", what.unwrap_or_default()));
            }
            "configmaps" => self.record_config(&name, write),
            "events" if write.before.is_none() && object["involvedObject"]["kind"] == "Canary" => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let of = text(&object["involvedObject"]["name"]);
                self.log(format!("    event of {of}: {}", text(&object["message"])));
            }
            _ => {}
        }
    }

    fn record_canary(&mut self, name: &str, object: Option<&Value>) {
        let now = self.lag.write_time();
        let Some(canary) = self.canaries.get_mut(name) else { return };
        let before = canary.canary.take();
        let Some(object) = object else {
            self.log(format!("  {name}: the Canary is gone"));
            return;
        };
        let after: Canary = serde_json::from_value(object.clone()).expect("a Canary");
        let uid = |canary: &Canary| canary.metadata.uid.clone();
        let same = before.as_ref().is_some_and(|before| uid(before) == uid(&after));
        if !same {
            canary.plans.clear();
            canary.promotions.clear();
            canary.release_causes = 0;
            canary.aborts.clear();
            self.refused.retain(|(of, _), _| of != name);
        }
        canary.reverts_on_deletion = after.spec.reverts_on_deletion();
        let generation = after.metadata.generation.unwrap_or(0);
        let plan = || {
            let template = serde_json::from_value(template_spec()).expect("a template");
            Plan::new(&after.spec, |_| Some(&template)).ok()
        };
        canary.plans.entry(generation).or_insert_with(plan);
        let status = after.status.clone().unwrap_or_default();
        let old = before.and_then(|before| before.status).unwrap_or_default();
        let mut result = self.invariants.check_status(canary, &old, &status, now);
        canary.record_analysis(&old, &status, self.traffic.running_code(name));
        if let Some(release) = &status.release {
            canary.record_released_code(&release.revision, now.knowledge_cutoff());
        }
        if let Some(command) = &status.last_command {
            let has_traffic = canary.route.now().reaches_canary();
            canary.aborts.record_answer(&command.id, command.accepted, has_traffic);
        }
        if old != status {
            canary.decided_at = now.at;
        }
        self.agenda.record_phase(name, status.phase, now.at);
        if let Some(past) = status.history.first()
            && old.history.first() != Some(past)
        {
            result = result.and(self.invariants.check_past_release(canary, past));
        }
        canary.canary = Some(after);
        if old != status {
            self.log_status(name, &old, &status);
        }
        self.report(result);
    }

    fn log_status(&mut self, name: &str, old: &CanaryStatus, status: &CanaryStatus) {
        let step = |status: &CanaryStatus| status.step.as_ref().map(|step| step.index);
        let shown = |status: &CanaryStatus| {
            (
                (status.phase, status.canary_weight, step(status)),
                (status.iterations, status.failed_checks, status.releases),
            )
        };
        if shown(old) != shown(status) || old.message != status.message {
            self.log(format!(
                "  {name}: status {:?} {} % step {:?} passed {} failed {} release {} | {}",
                status.phase,
                status.canary_weight,
                step(status),
                status.iterations,
                status.failed_checks,
                status.releases,
                status.message.as_deref().unwrap_or_default()
            ));
        }
        for metric in &status.metrics {
            let known = old.metrics.iter().find(|known| known.name == metric.name);
            if known.map(|known| &known.at) != Some(&metric.at) {
                self.log(format!("      {name}: {} {:?}: {}", metric.name, metric.verdict, metric.reason));
            }
        }
        let replaced = status.history.first() != old.history.first() && !status.history.is_empty();
        let ended = status.history.len().saturating_sub(old.history.len()).max(usize::from(replaced));
        for past in status.history.iter().take(ended) {
            self.count(match past.outcome {
                Outcome::Promoted => "promoted",
                Outcome::RolledBack => "rolled back",
                Outcome::Aborted => "aborted",
                Outcome::Superseded => "superseded",
            });
        }
    }

    fn record_workload(&mut self, name: &str, object: Option<&Value>) {
        let now = self.lag.write_time();
        let (of, arm) = match name.rsplit_once('-') {
            Some((of, arm @ ("primary" | "previous"))) => (of.to_owned(), arm),
            _ => (name.to_owned(), "target"),
        };
        let Some(canary) = self.canaries.get_mut(&of) else { return };
        let after = object.map(|object| Workload::of(object, &self.traffic.configs));
        let timeline = match arm {
            "primary" => &mut canary.primary,
            "previous" => &mut canary.previous,
            _ => &mut canary.target,
        };
        let before = timeline.now().clone();
        if !timeline.set(after.clone(), now.at) {
            return;
        }
        let image = |workload: &Option<Workload>| workload.as_ref().map(|workload| workload.image.clone());
        let pushed = image(&before) != image(&after) && after.is_some();
        if arm == "target" && pushed {
            canary.release_causes += 1;
        }
        let revision = |workload: &Option<Workload>| workload.as_ref().map(|w| w.revision.clone());
        let mut result = Ok(());
        if let ("primary", Some(old), Some(_)) = (arm, &before, &after)
            && revision(&before) != revision(&after)
        {
            result = self.invariants.check_primary_change(canary, old, now);
        }
        let description = match &after {
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
        self.log(format!("  {name}: {description}"));
        self.report(result);
    }

    fn record_split(&mut self, name: &str, write: &Write<'_>) {
        self.advance_traffic();
        let foreign = |object: Option<&Value>| {
            object.map(|object| object["metadata"]["annotations"][FOREIGN_WRITE].clone()).unwrap_or_default()
        };
        let is_foreign = foreign(write.before) != foreign(write.after);
        let object = write.after;
        let Some(canary) = self.canaries.get_mut(name) else { return };
        canary.split = object.map(|object| {
            let spec = &object["spec"];
            let weight = |of: &str| {
                let backends = spec["backends"].as_array().into_iter().flatten();
                let service = format!("{name}-{of}");
                backends.filter(|b| b["service"] == *service).find_map(|b| b["weight"].as_u64()).unwrap_or(0)
            };
            (weight("canary"), weight("primary"), spec["matches"].as_array().is_some_and(|m| !m.is_empty()))
        });
        self.record_route(&name.to_owned(), is_foreign);
    }

    fn record_service(&mut self, name: &str, object: Option<&Value>) {
        self.advance_traffic();
        let of = name.trim_end_matches("-primary").trim_end_matches("-canary").to_owned();
        let Some(canary) = self.canaries.get_mut(&of) else { return };
        match object {
            Some(object) => {
                let labels = serde_json::from_value(object["spec"]["selector"].clone()).unwrap_or_default();
                canary.selectors.insert(name.to_owned(), labels);
            }
            None => _ = canary.selectors.remove(name),
        }
        self.record_route(&of, false);
    }

    fn record_route(&mut self, of: &String, is_foreign: bool) {
        let now = self.lag.write_time();
        let Some(canary) = self.canaries.get_mut(of) else { return };
        let route = canary.find_route();
        let result = if is_foreign { Ok(()) } else { self.invariants.check_route(canary, route, now) };
        if route == *canary.route.now() {
            return;
        }
        canary.overwritten = is_foreign.then(|| canary.overwritten.unwrap_or(*canary.route.now()));
        canary.close_route(now.at);
        canary.route.set(route, now.at);
        canary.record_route_start();
        self.invariants.record_return(canary);
        if canary.dies_under_traffic() {
            self.plan_death(of, now.at);
        }
        self.log(format!("  {of}: route {route:?}"));
        self.report(result);
    }

    fn record_config(&mut self, name: &str, write: &Write<'_>) {
        if let Some(value) = write.after.and_then(|object| object["data"]["value"].as_str()) {
            self.traffic.configs.insert(name.to_owned(), value.to_owned());
        }
        let backup = name.strip_suffix("-primary-before").and_then(|of| self.canaries.get(of));
        if let (Some(canary), Some(object)) = (backup, write.after) {
            let revision = object["data"]["revision"].as_str().unwrap_or_default();
            let result = check_backup(canary, revision);
            return self.report(result);
        }
        let at = self.lag.at();
        let Some(canary) = name.strip_suffix("-config").and_then(|of| self.canaries.get_mut(of)) else {
            return;
        };
        let data = |object: Option<&Value>| object.map(|object| object["data"].clone());
        if data(write.before) != data(write.after) {
            canary.release_causes += 1;
        }
        let value = self.traffic.configs.get(name).cloned().unwrap_or_default();
        if let Some(mut target) = canary.target.now().clone() {
            target.code = format!("{}@{value}", target.image);
            canary.target.set(Some(target), at);
        }
    }
}
