//! How the controller is doing: what it counts as it works, and whether it
//! works at all. Nothing here costs anything while nothing happens and nobody
//! asks; nothing here decides anything.
//!
//! It outlives the controller it is given to.

mod counts;
mod requests;

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

pub use requests::is_watch;

use super::{CanaryName, Row, Shared, lease::Hold};
use crate::{
    analysis::measurement::Measurement,
    api::{
        Canary,
        canary::status::{Outcome, PastRelease},
    },
    engine::observed::Reply,
    notify,
};
pub use counts::{Counts, Distribution, Distributions, Labels, word};

/// How long the loop may take to notice that it was asked.
const PATIENCE: Duration = Duration::from_secs(3);

/// Every request has a timeout, of five minutes at most; when Canaries wait and
/// none was finished for so long, none will be.
const STUCK: Duration = Duration::from_secs(900);

const OUTCOMES: [Outcome; 4] =
    [Outcome::Promoted, Outcome::RolledBack, Outcome::Aborted, Outcome::Superseded];

/// Of work on one Canary, from a millisecond to half a minute.
const RECONCILE_SECONDS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
/// Of a release, from a minute to two days.
const RELEASE_SECONDS: [f64; 10] =
    [60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 172800.0];
/// Of a look, as Prometheus' own libraries choose them.
const LOOK_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug)]
pub struct Vitals {
    /// By result: ok, failed or panicked.
    pub reconciles: Counts<1>,
    pub reconcile_seconds: Distributions<0>,
    /// By outcome.
    pub release_seconds: Distributions<1>,
    /// By verb and result.
    pub requests: Counts<2>,
    /// By source and result.
    pub queries: Counts<2>,
    /// By type and result.
    pub gate_calls: Counts<2>,
    /// Watches that broke and were begun again.
    pub watch_restarts: Counts<0>,
    pub notifications: Arc<notify::Tally>,
    waiting: AtomicUsize,
    running: AtomicUsize,
    canaries: Mutex<HashMap<CanaryName, Tally>>,
    /// Why Canaries could not be asked for, the last time they were.
    unreachable: Mutex<Option<String>>,
    /// When work on any Canary last came to an end.
    finished: Mutex<Instant>,
    asked: watch::Sender<u64>,
    answered: watch::Sender<u64>,
    stage: Mutex<Stage>,
}

/// What was counted for one Canary.
#[derive(Clone, Debug)]
pub struct Tally {
    pub ends: Vec<(End, u64)>,
    /// How long measuring took, look by look.
    pub look_seconds: Distribution,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub outcome: Outcome,
    pub strategy: &'static str,
    /// Promoted without being judged.
    pub skipped: bool,
}

#[derive(Debug)]
enum Stage {
    Starting,
    Working(Weak<Shared>),
    /// What is under way comes to its end.
    Ending,
}

impl Default for Vitals {
    fn default() -> Self {
        let results = ["ok", "failed", "panicked"].map(|result| [result.into()]);
        Self {
            reconciles: Counts::starting_with(results),
            reconcile_seconds: Distributions::within(&RECONCILE_SECONDS, [[]]),
            release_seconds: Distributions::within(&RELEASE_SECONDS, OUTCOMES.map(|end| [word(&end)])),
            requests: Counts::starting_with([]),
            queries: Counts::starting_with([]),
            gate_calls: Counts::starting_with([]),
            watch_restarts: Counts::starting_with([[]]),
            notifications: Arc::default(),
            waiting: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            canaries: Mutex::default(),
            unreachable: Mutex::default(),
            finished: Mutex::new(Instant::now()),
            asked: watch::Sender::new(0),
            answered: watch::Sender::new(0),
            stage: Mutex::new(Stage::Starting),
        }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self { ends: Vec::new(), look_seconds: Distribution::within(&LOOK_SECONDS) }
    }
}

impl Tally {
    pub fn ended(&self, is_meant: impl Fn(&End) -> bool) -> u64 {
        self.ends.iter().filter(|(end, _)| is_meant(end)).map(|(_, count)| count).sum()
    }
}

impl End {
    /// How a release of this Canary is called when it ends so.
    pub fn of(canary: &Canary, outcome: Outcome) -> Self {
        let analysis = &canary.spec.analysis;
        let strategy = match (analysis.iterations.is_some_and(|count| count > 0), analysis.match_.is_empty())
        {
            (true, false) => "ab-testing",
            (true, true) => "blue-green",
            (false, _) => "canary",
        };
        Self { outcome, strategy, skipped: outcome == Outcome::Promoted && canary.spec.skip_analysis }
    }
}

/// For whoever shows it.
impl Vitals {
    /// Canaries that this replica works on, and what was counted for each. One
    /// that cannot be read has no numbers.
    pub fn canaries(&self) -> Vec<(Arc<Row>, Tally)> {
        let Some(shared) = self.working() else { return Vec::new() };
        let named = |canary: Arc<Row>| {
            let name = CanaryName::of(&*canary);
            shared.fence.check(&name).is_ok().then_some((name, canary))
        };
        let canaries: Vec<_> = shared.caches.canaries.everything().into_iter().filter_map(named).collect();
        let tallies = self.canaries.lock();
        let with_tally = |(name, canary)| (canary, tallies.get(&name).cloned().unwrap_or_default());
        canaries.into_iter().map(with_tally).collect()
    }

    /// Shards of the Canaries that this replica holds; alone it holds the one
    /// there is.
    pub fn shards(&self) -> usize {
        let holds = self.working().map(|shared| shared.fence.clone().holds());
        holds.unwrap_or_default().into_iter().filter(|hold| *hold != Hold::None).count()
    }

    /// Canaries that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Canaries that are worked on.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Does the loop still turn? Asks it, and so knows about now.
    pub async fn check_alive(&self) -> Result<(), String> {
        if self.working().is_none() {
            return Ok(());
        }
        let mut asked = 0;
        self.asked.send_modify(|count| {
            *count += 1;
            asked = *count;
        });
        let mut answered = self.answered.subscribe();
        let answer = timeout(PATIENCE, answered.wait_for(|answered| *answered >= asked)).await;
        if answer.is_err() && self.working().is_some() {
            return Err(format!("the controller's loop did not answer within {PATIENCE:?}"));
        }
        let (waiting, since) = (self.waiting(), self.finished.lock().elapsed());
        if waiting > 0 && since > STUCK {
            let running = self.running();
            return Err(format!(
                "{waiting} Canaries wait and work on {running} has not ended for {} s",
                since.as_secs()
            ));
        }
        Ok(())
    }

    /// Can it do its work? Else what is missing, a line each.
    pub fn check_ready(&self) -> Result<(), Vec<String>> {
        let mut missing = Vec::new();
        match &*self.stage.lock() {
            Stage::Starting => missing.push("the controller has not begun yet".to_owned()),
            Stage::Ending => missing.push("the controller ends".to_owned()),
            Stage::Working(shared) => match shared.upgrade() {
                None => missing.push("the controller has ended".to_owned()),
                Some(shared) => missing.extend(shared.caches.on_their_way()),
            },
        }
        if let Some(why) = &*self.unreachable.lock() {
            missing.push(format!("the API server does not answer: {why}"));
        }
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    }

    fn working(&self) -> Option<Arc<Shared>> {
        match &*self.stage.lock() {
            Stage::Working(shared) => shared.upgrade(),
            Stage::Starting | Stage::Ending => None,
        }
    }
}

/// For the controller.
impl Vitals {
    /// It works; hands out what the loop has to answer with [`Self::answer`].
    pub(super) fn begin(&self, shared: &Arc<Shared>) -> watch::Receiver<u64> {
        *self.stage.lock() = Stage::Working(Arc::downgrade(shared));
        *self.finished.lock() = Instant::now();
        let mut asked = self.asked.subscribe();
        // Whoever asked before means this loop too.
        asked.mark_changed();
        asked
    }

    pub(super) fn end(&self) {
        *self.stage.lock() = Stage::Ending;
    }

    pub(super) fn answer(&self, asked: u64) {
        self.answered.send_replace(asked);
    }

    pub(super) fn turned(&self, waiting: usize, running: usize) {
        self.waiting.store(waiting, Ordering::Relaxed);
        self.running.store(running, Ordering::Relaxed);
    }

    pub(super) fn reconciled(&self, result: &'static str, took: Duration) {
        self.reconciles.add([result.into()]);
        self.reconcile_seconds.add([], took.as_secs_f64());
        *self.finished.lock() = Instant::now();
    }

    /// Counts the releases that history has after a decision and had not before.
    pub(super) fn released(&self, canary: &Canary, before: &[PastRelease], after: &[PastRelease]) {
        for past in after.iter().take_while(|past| Some(*past) != before.first()) {
            let took = past.finished_at.0.duration_since(past.started_at.0);
            self.release_seconds.add([word(&past.outcome)], took.as_secs_f64().max(0.0));
            let end = End::of(canary, past.outcome);
            let mut canaries = self.canaries.lock();
            let ends = &mut canaries.entry(CanaryName::of(canary)).or_default().ends;
            match ends.iter_mut().find(|(known, _)| *known == end) {
                Some((_, count)) => *count += 1,
                None => ends.push((end, 1)),
            }
        }
    }

    pub(super) fn looked(&self, canary: &CanaryName, took: Duration) {
        let mut canaries = self.canaries.lock();
        canaries.entry(canary.clone()).or_default().look_seconds.add(took.as_secs_f64());
    }

    pub(super) fn measured(&self, source: &impl serde::Serialize, measured: &Measurement) {
        let result = match measured {
            Measurement::NoData => "no_data",
            Measurement::Unavailable { .. } => "unavailable",
            _ => "ok",
        };
        self.queries.add([word(source), result.into()]);
    }

    pub(super) fn gate_answered(&self, kind: &impl serde::Serialize, reply: &Reply) {
        let result = match reply {
            Reply::Yes { .. } => "yes",
            Reply::No { .. } => "no",
            Reply::Silence { .. } => "silence",
        };
        self.gate_calls.add([word(kind), result.into()]);
    }

    pub(super) fn forget(&self, canary: &CanaryName) {
        self.canaries.lock().remove(canary);
    }
}
