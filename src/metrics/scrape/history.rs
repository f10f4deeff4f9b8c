//! What was counted so far, for one metric of one Canary.
//!
//! Each pod's counters are remembered as they were last read, and what they
//! grew by is added to the sums of its arm, which only ever grow. A mark keeps
//! the sums of a moment, so that a window is the difference of two marks, and
//! asking twice about the same window does no harm.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::analysis::measurement::{Arms, Readings};
use crate::metrics::{Endpoint, Window};

use super::reading::{Counters, Slot};

/// A window may begin at a mark this much older than itself: between reading
/// the pods and judging what they said some time passes. Older ones would
/// bring traffic into the window that has no place in it.
const SLACK: SignedDuration = SignedDuration::from_secs(30);

/// A pod not heard of for so long is gone.
const GONE: SignedDuration = SignedDuration::from_hours(1);

/// More marks are not kept.
const MARKS: usize = 512;

pub struct Ledger {
    pods: HashMap<String, Known>,
    sums: Arms<Sums>,
    marks: VecDeque<Mark>,
    used: Timestamp,
}

pub type Sums = BTreeMap<Slot, u64>;

/// What was added within a window.
#[derive(Debug, PartialEq)]
pub struct Growth {
    pub arms: Arms<Sums>,
    /// How long it took.
    pub seconds: f64,
}

struct Known {
    /// None if it was there and could not be read: then nobody can tell what it
    /// counted before.
    counters: Option<Counters>,
    listed: Timestamp,
}

struct Mark {
    at: Timestamp,
    sums: Arms<Sums>,
}

impl Ledger {
    pub fn new(now: Timestamp) -> Self {
        Self { pods: HashMap::new(), sums: Arms::default(), marks: VecDeque::new(), used: now }
    }

    pub fn last_used(&self) -> Timestamp {
        self.used
    }

    /// Enters what pods said, and that others were there and said nothing.
    pub fn enter<'c>(
        &mut self,
        now: Timestamp,
        listed: &Arms<Vec<Endpoint>>,
        said: Arms<Vec<(&'c str, &'c Counters)>>,
    ) {
        let first = self.marks.is_empty();
        let arms = [(&mut self.sums.canary, said.canary), (&mut self.sums.primary, said.primary)];
        for (sums, said) in arms {
            for (pod, counters) in said {
                let known = self.pods.get(pod);
                for (slot, readings) in counters {
                    let nothing = Readings::default();
                    let grown = match known.map(|known| &known.counters) {
                        Some(Some(then)) => readings.since(then.get(slot).unwrap_or(&nothing)),
                        Some(None) => 0,
                        None if first => 0,
                        None => readings.since(&nothing),
                    };
                    let sum = sums.entry(*slot).or_default();
                    *sum = sum.saturating_add(grown);
                }
                self.pods.insert(pod.to_owned(), Known { counters: Some(counters.clone()), listed: now });
            }
        }
        for endpoint in listed.canary.iter().chain(&listed.primary) {
            let known = self.pods.entry(endpoint.pod.clone());
            known.or_insert(Known { counters: None, listed: now }).listed = now;
        }
        self.pods.retain(|_, known| now.duration_since(known.listed) < GONE);
        self.marks.retain(|mark| mark.at < now);
        self.marks.push_back(Mark { at: now, sums: self.sums.clone() });
        if self.marks.len() > MARKS {
            self.marks.pop_front();
        }
        self.used = now;
    }

    /// What was added until the last entry, from the mark nearest to where the
    /// window begins. None if there is no such mark. Earlier windows will not
    /// be asked about.
    pub fn growth(&mut self, window: Window) -> Option<Growth> {
        let last = self.marks.back()?.at;
        let off = |at: &usize| self.marks[*at].at.duration_since(window.since).abs();
        let before = self.marks.iter().rposition(|mark| mark.at <= window.since);
        let before = before.filter(|at| off(at) <= SLACK);
        let after = self.marks.iter().position(|mark| mark.at > window.since);
        let from = before.into_iter().chain(after).filter(|at| self.marks[*at].at < last).min_by_key(off)?;
        self.marks.drain(..from);
        let then = self.marks.front()?;
        let added = |now: &Sums, then: &Sums| {
            let added =
                |(slot, sum): (&Slot, &u64)| (*slot, sum - then.get(slot).copied().unwrap_or(0).min(*sum));
            now.iter().map(added).collect()
        };
        let arms = Arms {
            canary: added(&self.sums.canary, &then.sums.canary),
            primary: added(&self.sums.primary, &then.sums.primary),
        };
        Some(Growth { arms, seconds: last.duration_since(then.at).as_secs_f64() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moment(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn enter(ledger: &mut Ledger, second: i64, pods: &[(&str, f64)]) {
        let counters: Vec<(&str, Counters)> = pods
            .iter()
            .map(|(pod, value)| {
                (*pod, Counters::from([(Slot::Total, [("hits", *value)].into_iter().collect())]))
            })
            .collect();
        let canary = counters.iter().map(|(pod, counters)| (*pod, counters)).collect();
        ledger.enter(moment(second), &Arms::default(), Arms { canary, primary: Vec::new() });
    }

    fn grown(ledger: &mut Ledger, since: i64) -> Option<u64> {
        let window = Window { since: moment(since), until: moment(since) };
        ledger.growth(window).map(|growth| growth.arms.canary.get(&Slot::Total).copied().unwrap_or(0))
    }

    fn ledger() -> Ledger {
        Ledger::new(moment(0))
    }

    #[test]
    fn what_was_counted_before_the_first_reading_is_not_ours() {
        let mut ledger = ledger();
        enter(&mut ledger, 0, &[("a", 1000.0)]);
        assert_eq!(grown(&mut ledger, 0), None);
        enter(&mut ledger, 10, &[("a", 1010.0), ("b", 3.0)]);
        assert_eq!(grown(&mut ledger, 0), Some(13));
    }

    #[test]
    fn a_window_begins_at_the_mark_nearest_to_it_and_never_long_before() {
        let mut ledger = ledger();
        for (second, value) in [(0, 0.0), (10, 1.0), (20, 3.0), (30, 7.0)] {
            enter(&mut ledger, second, &[("a", value)]);
        }
        assert_eq!(grown(&mut ledger, 12), Some(6), "from the mark at 10");
        assert_eq!(grown(&mut ledger, 12), Some(6), "asked again");
        assert_eq!(grown(&mut ledger, 25), Some(4), "from the mark at 20");
        enter(&mut ledger, 40, &[("a", 15.0)]);
        assert_eq!(grown(&mut ledger, 29), Some(8), "from the mark at 30, a moment late");
        enter(&mut ledger, 3600, &[("a", 5000.0)]);
        assert_eq!(grown(&mut ledger, 3590), None, "the mark at 30 is too old");
        enter(&mut ledger, 3610, &[("a", 5005.0)]);
        assert_eq!(grown(&mut ledger, 3590), Some(5));
    }

    proptest! {
        #[test]
        fn windows_that_touch_count_every_request_once(
            steps in prop::collection::vec((0..3usize, 0..100u32, prop::bool::weighted(0.1)), 1..60),
        ) {
            let mut ledger = ledger();
            let mut pods = [("a", 0.0), ("b", 0.0), ("c", 0.0)];
            enter(&mut ledger, 0, &pods);
            let (mut served, mut counted) = (0, 0);
            for (second, (pod, requests, restarts)) in (1i64..).zip(steps) {
                if restarts {
                    pods[pod].1 = 0.0;
                    enter(&mut ledger, second * 10 - 5, &pods);
                }
                pods[pod].1 += f64::from(requests);
                served += u64::from(requests);
                enter(&mut ledger, second * 10, &pods);
                counted += grown(&mut ledger, (second - 1) * 10).unwrap_or(0);
            }
            prop_assert_eq!(counted, served);
        }
    }
}
