//! Invariants about conditions that last, checked whenever time has passed: each
//! grants the controller some time in which nothing hinders it.

use std::time::Duration;

use http::Method;

use super::model::CanaryModel;
use super::recorder::Recorder;
use super::refusals::{Hinders, PlannedRefusal, RefusedSeries, owner};
use super::scenario::{Event, Gate, Metrics};

/// The longest backoff of a reconcile that failed, and some seconds.
const MAX_RETRY: Duration = Duration::from_secs(40);

/// Refused requests further apart than this are two errors.
const MAX_GAP: Duration = Duration::from_secs(45);

/// Status text of a next deadline that is a check.
const NEXT_CHECK: &str = "the next check";

impl Recorder {
    /// How long the pods of an image that dies under traffic live with traffic.
    pub const LIFE_UNDER_TRAFFIC: Duration = Duration::from_secs(7);

    pub fn plan_death(&mut self, canary: &str, at: Duration) {
        let index = self.canaries[canary].index;
        let is_death = |event: &Event| matches!(event, Event::DieUnderTraffic { on } if *on == index);
        if !self.agenda.has_planned(is_death) {
            self.agenda.add(at + Self::LIFE_UNDER_TRAFFIC, Event::DieUnderTraffic { on: index });
        }
    }

    /// The refusal that applies to a request.
    pub fn find_refusal(&self, method: &Method, path: &str) -> Option<PlannedRefusal> {
        let active = self.refusals.iter().filter(|active| active.ended.is_none());
        active.map(|active| &active.planned).find(|planned| planned.refusal.concerns(method, path)).cloned()
    }

    /// A request for this object was refused; without an object it is one of a watch.
    pub fn record_refusal(&mut self, planned: &PlannedRefusal, object: &str) {
        let (at, name) = (self.lag.at(), owner(object));
        self.log(format!("      {} {object}: refused by {}", planned.refusal.path_ends_with, planned.token));
        self.count(&format!("refused: {}", planned.refusal.code));
        let able_since = self.able_since(name, &[Hinders::Status]);
        let (Some(able_since), Some(canary)) = (able_since, self.canaries.get(name)) else { return };
        let key = (name.to_owned(), planned.number);
        let release = canary.status().map_or(0, |status| status.releases);
        let series = self.refused.entry(key).or_insert(RefusedSeries {
            release,
            first: at,
            last: at,
            hidden_since: None,
        });
        if at.saturating_sub(series.last) > MAX_GAP || series.release != release {
            *series = RefusedSeries { release, first: at, last: at, hidden_since: None };
        }
        series.last = at;
        if planned.hinders != Hinders::Status {
            let result = self.invariants.check_lasting_error(canary, &planned.token, series, able_since);
            self.report(result);
        }
    }

    /// Ends the refusal of this number, or all.
    pub fn end_refusals(&mut self, number: Option<u32>) {
        let at = self.lag.at();
        for active in &mut self.refusals {
            if number.is_none_or(|number| number == active.planned.number) {
                active.ended.get_or_insert(at);
            }
        }
    }

    /// Metrics, gates or templates of this Canary changed.
    pub fn note_own_trouble(&mut self, canary: &str) {
        let at = self.lag.at();
        if let Some(canary) = self.canaries.get_mut(canary) {
            canary.own_trouble_at = at;
        }
    }

    /// Checks what lasts. To be called before any change of the state.
    pub fn check_standing(&mut self) {
        let (at, now) = (self.lag.at(), self.lag.write_time());
        let Some(stable) = self.lag.stable_since else { return };
        let names: Vec<String> = self.canaries.keys().cloned().collect();
        for name in &names {
            let route = self.able_since(name, &[Hinders::Route]);
            let status = self.able_since(name, &[Hinders::Route, Hinders::Status]);
            let delayed = self.delay_of(name);
            let Some(mut canary) = self.canaries.remove(name) else { continue };
            if let Some(since) = canary.unserved_since.filter(|_| route.is_some()) {
                let length = at.saturating_sub(since.max(stable));
                let result = self.invariants.check_unserved_traffic(&canary, length, now);
                self.report(result);
            }
            if let Some(able) = route {
                let result = self.invariants.check_aborts(&mut canary, able, at);
                let result = result.and(self.invariants.check_shares(&mut canary, able, at));
                let result = result.and(self.invariants.check_outage(&canary, able, at));
                self.report(result);
            }
            if let Some(able) = status {
                let result = self.invariants.check_ready(&mut canary, able, at);
                self.report(result);
            }
            if let Some((due, calm, elsewhere)) = delayed {
                let result = self.invariants.check_delay(&canary, due, calm, (at, elsewhere));
                self.report(result);
            }
            self.canaries.insert(name.clone(), canary);
        }
    }

    /// Since when neither the API server nor a refusal of this work hinders the
    /// controller; none while one does.
    fn able_since(&self, name: &str, work: &[Hinders]) -> Option<Duration> {
        let mut since = self.lag.stable_since?;
        let index = self.canaries.get(name).map(|canary| canary.index);
        let concerned = self.refusals.iter().filter(|active| {
            active.planned.on.is_none_or(|on| Some(on) == index) && work.contains(&active.planned.hinders)
        });
        for active in concerned {
            since = since.max(active.ended? + MAX_RETRY);
        }
        Some(since)
    }

    /// The time of the next check, since when the Canary has no trouble of its own,
    /// and whether another has.
    fn delay_of(&self, name: &str) -> Option<(Duration, Duration, bool)> {
        let canary = self.canaries.get(name)?;
        let deadline = canary.status()?.next_deadline.as_ref().filter(|next| next.reason == NEXT_CHECK)?;
        let until = deadline.at.0.duration_since(self.lag.write_time().clock);
        let due = match Duration::try_from(until) {
            Ok(left) => self.lag.at() + left,
            Err(_) => self.lag.at().saturating_sub(until.unsigned_abs()),
        };
        let every = [Hinders::Route, Hinders::Status, Hinders::Other];
        let able = self.able_since(name, &every).filter(|_| !self.has_trouble(canary))?;
        let calm = able.max(canary.own_trouble_at + MAX_RETRY);
        let elsewhere = self.canaries.values().any(|other| other.name != name && self.has_trouble(other));
        Some((due, calm, elsewhere))
    }

    /// Metrics or gates do not respond, or a template may be missing.
    fn has_trouble(&self, canary: &CanaryModel) -> bool {
        let metrics = self.traffic.metrics.get(&canary.name).copied().unwrap_or_default();
        let prefix = format!("http://gates/{}/", canary.name);
        let gated = self.gates.iter().any(|(url, mode)| url.starts_with(&prefix) && *mode != Gate::Yes);
        let refused = self
            .refusals
            .iter()
            .any(|active| active.ended.is_none() && active.planned.on.is_none_or(|on| on == canary.index));
        metrics != Metrics::Available || gated || refused || canary.template_lost
    }
}
