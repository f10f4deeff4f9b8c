//! The state that the invariants are about, derived only from the API server's
//! writes, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use serin::api::canary::Phase;
use serin::api::{Canary, CanaryStatus};
use serin::engine::Plan;

use super::checks::abort::PendingAborts;
use super::traffic::code_of;

pub type Labels = BTreeMap<String, String>;

/// A Deployment or DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    pub image: String,
    /// Its image, with the value of the config that its template names.
    pub code: String,
    /// Of the primary and the previous copy; the target has none.
    pub revision: String,
    pub desired: u64,
    pub existing: u64,
    pub updated: u64,
    pub available: u64,
    /// The status is of the current generation.
    pub current: bool,
}

impl Workload {
    pub fn of(object: &Value, configs: &BTreeMap<String, String>) -> Self {
        let (spec, status) = (&object["spec"], &object["status"]);
        let template = &spec["template"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let daemon = object["kind"] == "DaemonSet";
        let nowhere = !template["spec"]["nodeSelector"]["serin.dev/scale-to-zero"].is_null();
        let current = number(&status["observedGeneration"]) >= number(&object["metadata"]["generation"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            image: text(&template["spec"]["containers"][0]["image"]),
            code: code_of(template, configs),
            revision: text(&template["metadata"]["annotations"]["serin.dev/revision"]),
            desired: match daemon {
                true if nowhere => 0,
                true => number(&status["desiredNumberScheduled"]).max(1),
                false => spec["replicas"].as_u64().unwrap_or(1),
            },
            existing: match daemon {
                true => number(&status["currentNumberScheduled"]) + number(&status["numberMisscheduled"]),
                false => number(&status["replicas"]),
            },
            updated: number(&status[if daemon { "updatedNumberScheduled" } else { "updatedReplicas" }]),
            available: number(&status[if daemon { "numberAvailable" } else { "availableReplicas" }]),
            current,
        }
    }

    /// All its pods run the current template, and this share of them is ready.
    pub fn is_ready(&self, percent: u32) -> bool {
        let enough = self.available * 100 >= self.desired * u64::from(percent);
        let replaced = self.current && self.updated >= self.desired && self.existing <= self.updated;
        replaced && enough && (self.available > 0 || self.desired == 0)
    }
}

/// Where requests to the apex Service go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// To the target's pods, in hundredths of a percent.
    pub canary: u64,
    /// Requests that match the conditions go to the target's pods.
    pub chosen: bool,
    pub stable: StableTarget,
}

impl Route {
    pub fn reaches_canary(&self) -> bool {
        self.canary > 0 || self.chosen
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StableTarget {
    #[default]
    Nobody,
    Target,
    Primary,
    Previous,
}

/// Everything about one Canary.
#[derive(Default)]
pub struct CanaryModel {
    /// In the scenario.
    pub index: usize,
    pub name: String,
    pub canary: Option<Canary>,
    /// By generation; none if the spec is refused.
    pub plans: BTreeMap<i64, Option<Plan>>,
    pub target: Timeline<Option<Workload>>,
    pub primary: Timeline<Option<Workload>>,
    pub previous: Timeline<Option<Workload>>,
    pub split: Option<(u64, u64, bool)>,
    pub selectors: BTreeMap<String, Labels>,
    pub route: Timeline<Route>,
    /// The controller's route while somebody else's write is in force.
    pub overwritten: Option<Route>,
    /// Requests a second to the apex Service, and to the canary alone.
    pub rate: f64,
    pub direct_rate: f64,
    pub request_counts: RequestCounts,
    /// Since when requests go to a canary without a ready pod.
    pub unserved_since: Option<Duration>,
    /// Events that may start a release, and the revisions promoted by each release.
    pub release_causes: u64,
    pub promotions: BTreeMap<u64, Vec<String>>,
    /// The code that ran as the canary of a revision while it was checked.
    pub analysed: BTreeMap<String, Vec<String>>,
    /// The code that the target may have had when a revision began to be released.
    pub released_code: BTreeMap<String, BTreeSet<String>>,
    /// The shares of the requests that reach the target's pods, by code, and since
    /// when one of them is not judged for it.
    pub reached: BTreeMap<String, f64>,
    pub unjudged_since: Option<Duration>,
    /// Since when the primary's share of the requests reaches no pod.
    pub primary_unserved_since: Option<Duration>,
    pub aborts: PendingAborts,
    /// Since when `Ready` is not true.
    pub lie_since: Option<Duration>,
    /// The last trace of a decision: a status, a scrape, a call of a hook.
    pub decided_at: Duration,
    pub template_lost: bool,
    /// When the metrics, gates or templates of this Canary last changed.
    pub own_trouble_at: Duration,
    /// The release that a user last promoted by command.
    pub promoted_by_command: Option<u64>,
    /// Deletion restores the target and its Service.
    pub reverts_on_deletion: bool,
    /// A user scaled the target between releases.
    pub scaled_by_user: bool,
    /// A hook refused the current release, or a rollback gate opened.
    pub has_negative_evidence: bool,
}

/// Requests to the canary.
#[derive(Clone, Debug, Default)]
pub struct RequestCounts {
    /// Since the beginning.
    pub total: f64,
    /// At the last scrape of one of its pods.
    pub at_last_scrape: f64,
    /// At the start of the current route.
    pub at_route_start: f64,
    /// By release and route, before the current one: how long it was in force,
    /// and how many requests of that time were scraped. A route that is restored
    /// after an unrecorded change continues its sums.
    pub earlier_routes: BTreeMap<(u64, u64, bool), (Duration, f64)>,
    /// Likewise, the generation recorded at its first start.
    pub start_generations: BTreeMap<(u64, u64, bool), i64>,
}

/// A value and its history.
#[derive(Default)]
pub struct Timeline<T> {
    now: T,
    /// Earlier values, with the end of each.
    before: Vec<(Duration, T)>,
    since: Duration,
}

impl<T: Clone + PartialEq + Default> Timeline<T> {
    pub fn now(&self) -> &T {
        &self.now
    }

    pub fn since(&self) -> Duration {
        self.since
    }

    /// True if the value changed.
    pub fn set(&mut self, value: T, at: Duration) -> bool {
        if value == self.now {
            return false;
        }
        let before = std::mem::replace(&mut self.now, value);
        self.before.push((at, before));
        self.since = at;
        true
    }

    /// Since when the condition has held without a gap; none if it does not hold now.
    pub fn held_without_gap(&self, condition: impl Fn(&T) -> bool) -> Option<Duration> {
        let gap = self.before.iter().rev().find(|(_, value)| !condition(value));
        condition(&self.now).then(|| gap.map_or(Duration::ZERO, |(end, _)| *end))
    }

    /// The values at any moment since then, latest first.
    pub fn values_since(&self, from: Duration) -> impl Iterator<Item = &T> {
        let before = self.before.iter().rev().take_while(move |(until, _)| *until >= from);
        std::iter::once(&self.now).chain(before.map(|(_, value)| value))
    }

    /// Did the condition hold at any moment since then?
    pub fn held_since(&self, from: Duration, condition: impl Fn(&T) -> bool) -> bool {
        self.values_since(from).any(condition)
    }
}

impl CanaryModel {
    /// Was the primary deleted since it last had this revision?
    pub fn lost_primary_since_revision(&self, revision: &str) -> bool {
        let had = |primary: &&Option<Workload>| primary.as_ref().is_some_and(|p| p.revision == revision);
        let mut earlier = self.primary.values_since(Duration::ZERO).skip_while(had);
        earlier.by_ref().take_while(|primary| !had(primary)).any(Option::is_none) && earlier.next().is_some()
    }

    pub fn status(&self) -> Option<&CanaryStatus> {
        self.canary.as_ref()?.status.as_ref()
    }

    /// The plans that a decision could rest on: that of the last recorded status,
    /// and all since.
    pub fn possible_plans(&self) -> Vec<&Plan> {
        self.plans.range(self.generation()..).filter_map(|(_, plan)| plan.as_ref()).collect()
    }

    /// A status is recorded: keeps the evidence of the release it belongs to.
    /// `running` is the code of the target's ready pods.
    pub fn record_analysis(&mut self, before: &CanaryStatus, after: &CanaryStatus, running: Vec<String>) {
        if after.releases > before.releases {
            self.has_negative_evidence = false;
        }
        let checks = |status: &CanaryStatus| status.step.as_ref().map(|step| step.checks);
        // A check that was aborted is counted too, and judged nothing.
        let has_begun = after.step.as_ref().is_some_and(|step| step.check_started_at.is_some());
        if let Some(release) = &after.release
            && has_begun
            && checks(after) != checks(before)
            && let Some(target) = self.target.now()
        {
            let analysed = self.analysed.entry(release.revision.clone()).or_default();
            for code in running.into_iter().filter(|_| target.is_ready(1)) {
                if !analysed.contains(&code) {
                    analysed.push(code);
                }
            }
        }
    }

    /// A status with this release is recorded.
    pub fn record_released_code(&mut self, revision: &str, cutoff: Duration) {
        if !self.released_code.contains_key(revision) {
            let code = |target: &Option<Workload>| target.as_ref().map(|target| target.code.clone());
            let known = self.target.values_since(cutoff).filter_map(code).collect();
            self.released_code.insert(revision.to_owned(), known);
        }
    }

    /// The target's image dies under traffic, and has some.
    pub fn dies_under_traffic(&self) -> bool {
        let dies = |target: &Workload| target.image.contains("dies");
        self.target.now().as_ref().is_some_and(dies) && self.route.now().reaches_canary()
    }

    /// The current route ends.
    pub fn close_route(&mut self, at: Duration) {
        let route = *self.route.now();
        let release = self.status().map_or(0, |status| status.releases);
        let lasted = at.saturating_sub(self.route.since());
        let counted = &mut self.request_counts;
        let read = (counted.at_last_scrape - counted.at_route_start).max(0.0);
        let sum = counted.earlier_routes.entry((release, route.canary, route.chosen)).or_default();
        (sum.0, sum.1) = (sum.0 + lasted, sum.1 + read);
        counted.at_route_start = counted.total;
    }

    /// Another route begins.
    pub fn record_route_start(&mut self) {
        let (route, generation) = (*self.route.now(), self.generation());
        let release = self.status().map_or(0, |status| status.releases);
        self.request_counts
            .start_generations
            .entry((release, route.canary, route.chosen))
            .or_insert(generation);
    }

    /// The generation that was recorded when a route first began in this
    /// release.
    pub fn generation_at_route_start(&self, route: Route) -> i64 {
        let release = self.status().map_or(0, |status| status.releases);
        let begun = self.request_counts.start_generations.get(&(release, route.canary, route.chosen));
        begun.copied().unwrap_or_else(|| self.generation())
    }

    /// After a promotion the canary keeps shares of the way back to the primary, which are
    /// no steps of the plan. Is this one of them that was in force already, and not
    /// more than is recorded?
    pub fn restores_way_back(&self, route: Route) -> bool {
        self.status().is_some_and(|status| {
            status.phase == Phase::Finalising
                && route.canary <= u64::from(status.canary_weight.hundredths())
                && self.request_counts.start_generations.contains_key(&(
                    status.releases,
                    route.canary,
                    route.chosen,
                ))
        })
    }

    fn generation(&self) -> i64 {
        self.status().and_then(|status| status.observed_generation).unwrap_or(0)
    }

    /// How long a route was in force in this release, and how many requests to
    /// the canary were counted meanwhile.
    pub fn route_observation(&self, route: Route, at: Duration) -> (Duration, f64) {
        let release = self.status().map_or(0, |status| status.releases);
        let key = (release, route.canary, route.chosen);
        let (lasted, read) = self.request_counts.earlier_routes.get(&key).copied().unwrap_or_default();
        if route != *self.route.now() {
            return (lasted, read);
        }
        let now = (self.request_counts.at_last_scrape - self.request_counts.at_route_start).max(0.0);
        (lasted + at.saturating_sub(self.route.since()), read + now)
    }

    /// The route by the objects as they are now.
    pub fn find_route(&self) -> Route {
        let side = |service: &str| match self.selectors.get(service).and_then(|labels| labels.get("app")) {
            None => StableTarget::Nobody,
            Some(app) if *app == self.name => StableTarget::Target,
            Some(app) if app.ends_with("-previous") => StableTarget::Previous,
            Some(_) => StableTarget::Primary,
        };
        match self.split {
            Some((_, _, true)) => Route { canary: 0, chosen: true, stable: side(&self.name) },
            Some((canary, rest, false)) => {
                let canary = (canary * 10_000).checked_div(canary + rest).unwrap_or(0);
                Route { canary, chosen: false, stable: side(&format!("{}-primary", self.name)) }
            }
            None => match side(&self.name) {
                StableTarget::Target => Route { canary: 10_000, chosen: false, stable: StableTarget::Target },
                stable => Route { canary: 0, chosen: false, stable },
            },
        }
    }

    /// Labels of the pods that each part of the traffic goes to.
    pub fn traffic_shares(&self) -> Vec<(f64, &Labels, bool)> {
        let of = |service: &str| self.selectors.get(service);
        let (apex, primary, canary) =
            (of(&self.name), of(&format!("{}-primary", self.name)), of(&format!("{}-canary", self.name)));
        let parts = match self.split {
            Some((_, _, true)) => {
                [(super::traffic::MATCHED_SHARE, canary), (1.0 - super::traffic::MATCHED_SHARE, apex)]
            }
            Some((part, rest, false)) => {
                let share = part as f64 / (part + rest).max(1) as f64;
                [(share, canary), (1.0 - share, primary)]
            }
            None => [(1.0, apex), (0.0, None)],
        };
        let is_canary = |labels: &Labels| labels.get("app") == Some(&self.name);
        parts.into_iter().filter_map(|(share, labels)| Some((share, labels?, is_canary(labels?)))).collect()
    }
}
