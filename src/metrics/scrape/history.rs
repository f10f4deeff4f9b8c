//! What was counted so far, for one metric of one Canary.
//!
//! Each pod's counters are remembered as they were last read, and what they
//! grew by is added to the sums of its arm, which only ever grow. A checkpoint keeps
//! the sums of a moment, so that a window is the difference of two checkpoints, and
//! asking twice about the same window does no harm.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::analysis::measurement::{Arms, Readings};
use crate::metrics::{Endpoint, Window};

use super::pod_sample::{CounterKey, Counters};

/// A window may begin at a checkpoint this much older than itself: between reading
/// the pods and judging what they said some time passes. Older ones would
/// bring traffic into the window that has no place in it.
const MAX_CHECKPOINT_AGE: SignedDuration = SignedDuration::from_secs(30);

/// A pod not heard of for so long is gone.
const POD_TTL: SignedDuration = SignedDuration::from_hours(1);

/// More checkpoints are not kept.
const MAX_CHECKPOINTS: usize = 512;

pub struct CounterHistory {
    pods: HashMap<String, PodState>,
    sums: Arms<Sums>,
    checkpoints: VecDeque<Checkpoint>,
    used: Timestamp,
}

pub type Sums = BTreeMap<CounterKey, u64>;

/// What was added within a window.
#[derive(Debug, PartialEq)]
pub struct Increase {
    pub arms: Arms<Sums>,
    /// How long it took.
    pub seconds: f64,
}

struct PodState {
    /// None if it was there and could not be read: then nobody can tell what it
    /// counted before.
    counters: Option<Counters>,
    listed: Timestamp,
}

struct Checkpoint {
    at: Timestamp,
    sums: Arms<Sums>,
}

impl CounterHistory {
    pub fn new(now: Timestamp) -> Self {
        Self { pods: HashMap::new(), sums: Arms::default(), checkpoints: VecDeque::new(), used: now }
    }

    pub fn last_used(&self) -> Timestamp {
        self.used
    }

    /// Enters what pods said, and that others were there and said nothing.
    pub fn record<'c>(
        &mut self,
        now: Timestamp,
        listed: &Arms<Vec<Endpoint>>,
        said: Arms<Vec<(&'c str, &'c Counters)>>,
    ) {
        let first = self.checkpoints.is_empty();
        let arms = [(&mut self.sums.canary, said.canary), (&mut self.sums.primary, said.primary)];
        for (sums, said) in arms {
            for (pod, counters) in said {
                let known = self.pods.get(pod);
                for (key, readings) in counters {
                    let nothing = Readings::default();
                    let grown = match known.map(|known| &known.counters) {
                        Some(Some(then)) => readings.increase_since(then.get(key).unwrap_or(&nothing)),
                        Some(None) => 0,
                        None if first => 0,
                        None => readings.increase_since(&nothing),
                    };
                    let sum = sums.entry(*key).or_default();
                    *sum = sum.saturating_add(grown);
                }
                self.pods.insert(pod.to_owned(), PodState { counters: Some(counters.clone()), listed: now });
            }
        }
        for endpoint in listed.canary.iter().chain(&listed.primary) {
            let known = self.pods.entry(endpoint.pod.clone());
            known.or_insert(PodState { counters: None, listed: now }).listed = now;
        }
        self.pods.retain(|_, known| now.duration_since(known.listed) < POD_TTL);
        self.checkpoints.retain(|checkpoint| checkpoint.at < now);
        self.checkpoints.push_back(Checkpoint { at: now, sums: self.sums.clone() });
        if self.checkpoints.len() > MAX_CHECKPOINTS {
            self.checkpoints.pop_front();
        }
        self.used = now;
    }

    /// What was added until the last entry, from the checkpoint nearest to where the
    /// window begins. None if there is no such checkpoint. Earlier windows will not
    /// be asked about.
    pub fn increase(&mut self, window: Window) -> Option<Increase> {
        let last = self.checkpoints.back()?.at;
        let off = |at: &usize| self.checkpoints[*at].at.duration_since(window.since).abs();
        let before = self.checkpoints.iter().rposition(|checkpoint| checkpoint.at <= window.since);
        let before = before.filter(|at| off(at) <= MAX_CHECKPOINT_AGE);
        let after = self.checkpoints.iter().position(|checkpoint| checkpoint.at > window.since);
        let from =
            before.into_iter().chain(after).filter(|at| self.checkpoints[*at].at < last).min_by_key(off)?;
        self.checkpoints.drain(..from);
        let then = self.checkpoints.front()?;
        let added = |now: &Sums, then: &Sums| {
            let added =
                |(key, sum): (&CounterKey, &u64)| (*key, sum - then.get(key).copied().unwrap_or(0).min(*sum));
            now.iter().map(added).collect()
        };
        let arms = Arms {
            canary: added(&self.sums.canary, &then.sums.canary),
            primary: added(&self.sums.primary, &then.sums.primary),
        };
        Some(Increase { arms, seconds: last.duration_since(then.at).as_secs_f64() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moment(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn record(history: &mut CounterHistory, second: i64, pods: &[(&str, f64)]) {
        let counters: Vec<(&str, Counters)> = pods
            .iter()
            .map(|(pod, value)| {
                (*pod, Counters::from([(CounterKey::Total, [("hits", *value)].into_iter().collect())]))
            })
            .collect();
        let canary = counters.iter().map(|(pod, counters)| (*pod, counters)).collect();
        history.record(moment(second), &Arms::default(), Arms { canary, primary: Vec::new() });
    }

    fn increase(history: &mut CounterHistory, since: i64) -> Option<u64> {
        let window = Window { since: moment(since), until: moment(since) };
        history
            .increase(window)
            .map(|increase| increase.arms.canary.get(&CounterKey::Total).copied().unwrap_or(0))
    }

    fn history() -> CounterHistory {
        CounterHistory::new(moment(0))
    }

    #[test]
    fn requests_before_the_first_sample_are_not_counted() {
        let mut history = history();
        record(&mut history, 0, &[("a", 1000.0)]);
        assert_eq!(increase(&mut history, 0), None);
        record(&mut history, 10, &[("a", 1010.0), ("b", 3.0)]);
        assert_eq!(increase(&mut history, 0), Some(13));
    }

    #[test]
    fn a_window_begins_at_the_mark_nearest_to_it_and_never_long_before() {
        let mut history = history();
        for (second, value) in [(0, 0.0), (10, 1.0), (20, 3.0), (30, 7.0)] {
            record(&mut history, second, &[("a", value)]);
        }
        assert_eq!(increase(&mut history, 12), Some(6), "from the checkpoint at 10");
        assert_eq!(increase(&mut history, 12), Some(6), "asked again");
        assert_eq!(increase(&mut history, 25), Some(4), "from the checkpoint at 20");
        record(&mut history, 40, &[("a", 15.0)]);
        assert_eq!(increase(&mut history, 29), Some(8), "from the checkpoint at 30, a moment late");
        record(&mut history, 3600, &[("a", 5000.0)]);
        assert_eq!(increase(&mut history, 3590), None, "the checkpoint at 30 is too old");
        record(&mut history, 3610, &[("a", 5005.0)]);
        assert_eq!(increase(&mut history, 3590), Some(5));
    }

    proptest! {
        #[test]
        fn windows_that_touch_count_every_request_once(
            steps in prop::collection::vec((0..3usize, 0..100u32, prop::bool::weighted(0.1)), 1..60),
        ) {
            let mut history = history();
            let mut pods = [("a", 0.0), ("b", 0.0), ("c", 0.0)];
            record(&mut history, 0, &pods);
            let (mut served, mut counted) = (0, 0);
            for (second, (pod, requests, restarts)) in (1i64..).zip(steps) {
                if restarts {
                    pods[pod].1 = 0.0;
                    record(&mut history, second * 10 - 5, &pods);
                }
                pods[pod].1 += f64::from(requests);
                served += u64::from(requests);
                record(&mut history, second * 10, &pods);
                counted += increase(&mut history, (second - 1) * 10).unwrap_or(0);
            }
            prop_assert_eq!(counted, served);
        }
    }
}
