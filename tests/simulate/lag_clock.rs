//! How old the controller's knowledge may be when it writes: by watch events
//! that were not delivered yet, and by the time since it decided.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serin::clock::Clock;
use serin::engine::Plan;
use tokio::time::Instant;

/// The longest time from reading the caches to the last write of that reconcile,
/// while responses are slow or fail.
const MAX_WRITE_DELAY: Duration = Duration::from_secs(8);

/// The longest backoff of a watch that failed repeatedly.
const MAX_WATCH_LAG: Duration = Duration::from_secs(60);

pub struct LagClock {
    clock: Clock,
    began: Instant,
    faults: Faults,
    /// resourceVersions of workloads and when they were written, by collection.
    write_times: BTreeMap<String, Vec<(u64, Duration)>>,
    /// The newest resourceVersion delivered, by process and collection.
    delivered_versions: BTreeMap<(String, String), u64>,
    /// Since when every process runs without faults and has current caches.
    pub stable_since: Option<Duration>,
}

/// Those that the API server injects.
#[derive(Clone, Copy)]
enum Faults {
    Never,
    Active,
    EndedAt(Duration),
}

/// The moment of a write.
#[derive(Clone, Copy)]
pub struct WriteTime {
    /// Since the beginning.
    pub at: Duration,
    pub clock: Timestamp,
    /// The greatest age of the controller's knowledge.
    lag: Duration,
    /// The longest time since its decision.
    decision_delay: Duration,
}

impl WriteTime {
    /// The decision may rest on any state since then.
    pub fn knowledge_cutoff(&self) -> Duration {
        self.at.saturating_sub(self.lag)
    }

    /// The release window was closed now and at the decision.
    pub fn is_frozen(&self, plan: &Plan) -> bool {
        let before = self.clock.saturating_sub(self.decision_delay).unwrap_or(self.clock);
        plan.windows.check(self.clock).is_err() && plan.windows.check(before).is_err()
    }
}

impl LagClock {
    pub fn new(clock: Clock) -> Self {
        let collections = ["deployments.apps", "daemonsets.apps"];
        Self {
            clock,
            began: Instant::now(),
            faults: Faults::Never,
            write_times: collections.map(|collection| (collection.to_owned(), Vec::new())).into(),
            delivered_versions: BTreeMap::new(),
            stable_since: None,
        }
    }

    /// Time since the beginning.
    pub fn at(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn write_time(&self) -> WriteTime {
        let at = self.at();
        let decision_delay = match self.faults {
            Faults::EndedAt(end) if at > end + MAX_WATCH_LAG => Duration::ZERO,
            Faults::Active | Faults::EndedAt(_) => MAX_WRITE_DELAY,
            Faults::Never => Duration::ZERO,
        };
        let first_undelivered = self.write_times.iter().filter_map(|(collection, written)| {
            let of_collection = self.delivered_versions.iter().filter(|((_, of), _)| of == collection);
            let delivered = of_collection.map(|(_, version)| *version).min()?;
            let next = written.partition_point(|(version, _)| *version <= delivered);
            written.get(next).map(|(_, at)| *at)
        });
        let lag = first_undelivered.min().map_or(Duration::ZERO, |since| at.saturating_sub(since));
        WriteTime { at, clock: self.clock.now(), lag: lag + decision_delay, decision_delay }
    }

    pub fn record_write(&mut self, collection: &str, version: u64) {
        let at = self.at();
        if let Some(written) = self.write_times.get_mut(collection) {
            written.push((version, at));
        }
    }

    /// A process received a collection up to this resourceVersion, or as it is now.
    pub fn record_delivery(&mut self, process: &str, collection: &str, version: Option<u64>) {
        let Some(written) = self.write_times.get(collection) else { return };
        let newest = written.last().map_or(0, |(version, _)| *version);
        let key = (process.to_owned(), collection.to_owned());
        let delivered = self.delivered_versions.entry(key).or_default();
        *delivered = version.unwrap_or(newest).max(*delivered);
    }

    /// A process ended or is frozen: its caches no longer count.
    pub fn remove_process(&mut self, process: &str) {
        self.delivered_versions.retain(|(of, _), _| of != process);
    }

    /// All processes run, or not all.
    pub fn set_running(&mut self, all: bool) {
        self.stable_since = match self.faults {
            Faults::Active => None,
            Faults::Never | Faults::EndedAt(_) => all.then(|| self.at() + MAX_WATCH_LAG),
        };
    }

    pub fn set_faults(&mut self, active: bool) {
        let at = self.at();
        self.faults = match (active, self.faults) {
            (true, _) => Faults::Active,
            (false, Faults::Active) => Faults::EndedAt(at),
            (false, before) => before,
        };
        self.stable_since = (!active).then_some(at + MAX_WATCH_LAG);
    }
}
