//! What was counted so far, for one metric of one Canary.
//!
//! Each pod's counters are remembered as they were last read, and what they
//! grew by is added to the sums of its arm, which only ever grow. A mark keeps
//! the sums of a moment, so that a window is the difference of two marks, and
//! asking twice about the same window does no harm.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::analysis::measurement::{Arms, Readings};
use crate::metrics::{Endpoint, Query, Window};

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
    about: Query,
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
    pub fn new(about: Query, now: Timestamp) -> Self {
        Self { about, pods: HashMap::new(), sums: Arms::default(), marks: VecDeque::new(), used: now }
    }

    /// Another query counts other things.
    pub fn is_about(&self, query: &Query) -> bool {
        self.about == *query
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
        let before = self.marks.iter().rposition(|mark| mark.at <= window.since);
        let before = before.filter(|at| window.since.duration_since(self.marks[*at].at) <= SLACK);
        let after = || self.marks.iter().position(|mark| mark.at > window.since);
        let from = before.or_else(after).filter(|at| self.marks[*at].at < last)?;
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
