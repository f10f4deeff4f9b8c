//! Counter history of one metric of one Canary.
//!
//! The last sample of each pod's counters is stored, and their increase is added
//! to its monotonic sums in its arm. A checkpoint stores the sums at one time, so
//! that a window is the difference of two checkpoints and may be measured twice.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::analysis::measurement::{self, Arms};
use crate::metrics::{Endpoint, Window};

use super::pod_sample::{CounterKey, Counters, Readings};

/// A window may begin at a checkpoint this much older than itself: some time
/// passes between scraping the pods and judging. Older checkpoints would add
/// traffic from before the window.
const MAX_CHECKPOINT_AGE: SignedDuration = SignedDuration::from_secs(30);

/// A pod not listed for this long is dropped.
const POD_TTL: SignedDuration = SignedDuration::from_hours(1);

const MAX_CHECKPOINTS: usize = 512;

pub struct CounterHistory {
    pods: HashMap<String, PodState>,
    sums: Arms<PodSums>,
    checkpoints: VecDeque<Checkpoint>,
    used: Timestamp,
}

/// Not rounded: counters of seconds or bytes grow by fractions.
pub type Sums = BTreeMap<CounterKey, f64>;

/// Of a sum; differences between larger ones would not be exact.
const MAX_SUM: f64 = 1e15;

/// By pod: its uid in the history, its name in an increase.
pub type PodSums = BTreeMap<String, Sums>;

#[derive(Debug, PartialEq)]
pub struct Increase {
    pub arms: Arms<PodSums>,
    /// Length of the measured time.
    pub seconds: f64,
}

struct PodState {
    /// None if it was listed but not scraped yet: its counts from before are
    /// unknown.
    counters: Option<Counters>,
    name: String,
    listed: Timestamp,
}

struct Checkpoint {
    at: Timestamp,
    sums: Arms<PodSums>,
}

impl CounterHistory {
    pub fn new(now: Timestamp) -> Self {
        Self { pods: HashMap::new(), sums: Arms::default(), checkpoints: VecDeque::new(), used: now }
    }

    pub fn last_used(&self) -> Timestamp {
        self.used
    }

    /// Adds the samples of the scraped pods; `listed` has the unreachable ones too.
    pub fn record<'c>(
        &mut self,
        now: Timestamp,
        listed: &Arms<Vec<Endpoint>>,
        scraped: Arms<Vec<(&'c str, &'c Counters)>>,
    ) {
        let first = self.checkpoints.is_empty();
        let arms = [(&mut self.sums.canary, scraped.canary), (&mut self.sums.primary, scraped.primary)];
        for (sums, scraped) in arms {
            for (pod, counters) in scraped {
                let sums = sums.entry(pod.to_owned()).or_default();
                let previous = self.pods.get(pod);
                for (key, readings) in counters {
                    let empty = Readings::default();
                    let increase = match previous.map(|previous| &previous.counters) {
                        Some(Some(then)) => increase_since(then.get(key).unwrap_or(&empty), readings),
                        Some(None) => 0.0,
                        None if first => 0.0,
                        None => increase_since(&empty, readings),
                    };
                    let sum = sums.entry(*key).or_default();
                    *sum = (*sum + increase).min(MAX_SUM);
                }
                let name = previous.map_or_else(|| pod.to_owned(), |previous| previous.name.clone());
                let state = PodState { counters: Some(counters.clone()), name, listed: now };
                self.pods.insert(pod.to_owned(), state);
            }
        }
        for endpoint in listed.canary.iter().chain(&listed.primary) {
            let pod = self.pods.entry(endpoint.pod.clone());
            let pod = pod.or_insert(PodState { counters: None, name: String::new(), listed: now });
            (pod.listed, pod.name) = (now, endpoint.name.clone());
        }
        self.pods.retain(|_, pod| now.duration_since(pod.listed) < POD_TTL);
        for sums in [&mut self.sums.canary, &mut self.sums.primary] {
            sums.retain(|pod, _| self.pods.contains_key(pod));
        }
        self.checkpoints.retain(|checkpoint| checkpoint.at < now);
        self.checkpoints.push_back(Checkpoint { at: now, sums: self.sums.clone() });
        if self.checkpoints.len() > MAX_CHECKPOINTS {
            self.checkpoints.pop_front();
        }
        self.used = now;
    }

    /// From the checkpoint nearest to the window's start to the last one; none if
    /// there is no such checkpoint. Drops the checkpoints before.
    pub fn increase(&mut self, window: Window) -> Option<Increase> {
        let last = self.checkpoints.back()?.at;
        let distance = |at: &usize| self.checkpoints[*at].at.duration_since(window.since).abs();
        let before = self.checkpoints.iter().rposition(|checkpoint| checkpoint.at <= window.since);
        let before = before.filter(|at| distance(at) <= MAX_CHECKPOINT_AGE);
        let after = self.checkpoints.iter().position(|checkpoint| checkpoint.at > window.since);
        let from = before
            .into_iter()
            .chain(after)
            .filter(|at| self.checkpoints[*at].at < last)
            .min_by_key(distance)?;
        self.checkpoints.drain(..from);
        let then = self.checkpoints.front()?;
        let increase = |now: &PodSums, then: &PodSums| {
            let mut by_name = PodSums::new();
            for (pod, sums) in now {
                let name = self.pods.get(pod).map_or(pod, |state| &state.name);
                let of_name = by_name.entry(name.clone()).or_default();
                for (key, sum) in sums {
                    let before = then.get(pod).and_then(|then| then.get(key)).copied().unwrap_or(0.0);
                    *of_name.entry(*key).or_default() += (sum - before).max(0.0);
                }
            }
            by_name
        };
        let arms = Arms {
            canary: increase(&self.sums.canary, &then.sums.canary),
            primary: increase(&self.sums.primary, &then.sums.primary),
        };
        Some(Increase { arms, seconds: last.duration_since(then.at).as_secs_f64() })
    }
}

/// Of all series. A new one counts from zero; a removed one adds nothing.
fn increase_since(then: &Readings, now: &Readings) -> f64 {
    let increase = |(series, now): (&String, &f64)| {
        measurement::increase([then.get(series).copied().unwrap_or(0.0), *now])
    };
    now.iter().map(increase).sum::<f64>().max(0.0)
}

/// The sums of all pods together.
pub fn sum_of_pods(pods: &PodSums) -> Sums {
    let mut all = Sums::new();
    for (key, sum) in pods.values().flatten() {
        *all.entry(*key).or_default() += sum;
    }
    all
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
                (*pod, Counters::from([(CounterKey::Total, Readings::from([("hits".to_owned(), *value)]))]))
            })
            .collect();
        let canary = counters.iter().map(|(pod, counters)| (*pod, counters)).collect();
        history.record(moment(second), &Arms::default(), Arms { canary, primary: Vec::new() });
    }

    fn increase(history: &mut CounterHistory, since: i64) -> Option<u64> {
        let window = Window { since: moment(since), until: moment(since) };
        history.increase(window).map(|increase| {
            sum_of_pods(&increase.arms.canary).get(&CounterKey::Total).copied().unwrap_or(0.0) as u64
        })
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
    fn a_window_begins_at_the_nearest_checkpoint_that_is_not_too_old() {
        let mut history = history();
        for (second, value) in [(0, 0.0), (10, 1.0), (20, 3.0), (30, 7.0)] {
            record(&mut history, second, &[("a", value)]);
        }
        assert_eq!(increase(&mut history, 12), Some(6), "from the checkpoint at 10");
        assert_eq!(increase(&mut history, 12), Some(6), "measured again");
        assert_eq!(increase(&mut history, 25), Some(4), "from the checkpoint at 20");
        record(&mut history, 40, &[("a", 15.0)]);
        assert_eq!(increase(&mut history, 29), Some(8), "from the checkpoint at 30, one second late");
        record(&mut history, 3600, &[("a", 5000.0)]);
        assert_eq!(increase(&mut history, 3590), None, "the checkpoint at 30 is too old");
        record(&mut history, 3610, &[("a", 5005.0)]);
        assert_eq!(increase(&mut history, 3590), Some(5));
    }

    proptest! {
        #[test]
        fn adjacent_windows_count_every_request_once(
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
