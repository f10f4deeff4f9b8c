//! The primary's usual share of failed requests, and its present one.
//!
//! A comparison does not see that both arms are broken. So the primary is compared
//! with its own past as well, over this and earlier releases: while it fails far
//! more requests than usual, or a good part of all, there is an incident, whatever
//! its cause, and nothing passes; except a canary that the incident spares, which may
//! be the remedy.

use serde::{Deserialize, Serialize};

use super::fixed::Fixed;
use crate::analysis::measurement::{Arms, Counts};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Baseline {
    usual: FadingCounts,
    recent: FadingCounts,
    /// Of the canary.
    #[serde(default)]
    canary: FadingCounts,
    /// Of incidents. They become usual with the next release, which a person or a new
    /// revision begins, and never during this one, however long it is held.
    #[serde(default)]
    unusual: FadingCounts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct FadingCounts {
    bad: Fixed,
    total: Fixed,
}

/// Looks after which counts have faded.
const USUAL_LOOKS: f64 = 250.0;
const RECENT_LOOKS: f64 = 6.0;
/// How many times the usual share is an incident.
const FAR_BEYOND: f64 = 2.5;
/// A share that is an incident whatever is usual.
const TERRIBLE: f64 = 0.2;
/// How much longer the past must be known than the present.
const MIN_PAST: f64 = 2.0;
/// Failed requests that are never an incident, and standard deviations by chance.
const MIN_BAD: f64 = 10.0;
const MAX_SIGMA: f64 = 3.0;
/// Failed requests that a canary without any may have had by chance (95 %).
const MAX_UNSEEN: f64 = 3.0;

/// Shares of failed requests of the primary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Incident {
    pub recent: f64,
    pub usual: f64,
}

impl Baseline {
    pub fn update(&mut self, Arms { canary, primary }: Arms<Counts>) {
        if canary.total() > 0 {
            self.canary.fade(RECENT_LOOKS);
            self.canary.add((canary.bad() as f64, canary.total() as f64), 1.0);
        }
        if primary.total() == 0 {
            return;
        }
        // The past begins where the present fades, so that an incident is recognised
        // before it is past; and what may become one is not usual, so that the past does
        // not follow it.
        let suspect = self.recent.bad.get() > self.expected() || self.broken_primary().is_some();
        let past = if suspect { &mut self.unusual } else { &mut self.usual };
        let faded = self.recent.fade(RECENT_LOOKS);
        past.fade(USUAL_LOOKS);
        past.add(faded, 1.0);
        self.recent.add((primary.bad() as f64, primary.total() as f64), 1.0);
    }

    /// The primary is broken, and the canary no better.
    pub fn incident(&self) -> Option<Incident> {
        self.broken_primary().filter(|incident| !self.spares_canary(incident.recent))
    }

    fn broken_primary(&self) -> Option<Incident> {
        let (recent, usual) = (self.recent.rate()?, self.usual.rate().unwrap_or(0.0));
        let (bad, total) = (self.recent.bad.get(), self.recent.total.get());
        let expected = self.expected();
        let by_chance = expected + MAX_SIGMA * expected.sqrt() + MIN_BAD;
        let beyond = bad > by_chance && self.usual.total.get() > MIN_PAST * total;
        (beyond || (recent >= TERRIBLE && bad > MIN_BAD)).then_some(Incident { recent, usual })
    }

    /// The canary fails far fewer requests than the primary, whose share this is.
    fn spares_canary(&self, primary: f64) -> bool {
        let (bad, total) = (self.canary.bad.get(), self.canary.total.get());
        let at_most = bad + MAX_SIGMA * bad.sqrt() + MAX_UNSEEN;
        at_most * FAR_BEYOND < primary * total
    }

    /// Failed requests of the present that are far beyond the past, which is known by
    /// chance as well.
    fn expected(&self) -> f64 {
        let at_most = (self.usual.bad.get() + MIN_BAD) / self.usual.total.get().max(1.0);
        FAR_BEYOND * at_most * self.recent.total.get()
    }

    pub fn next_release(&self) -> Self {
        let mut usual = self.usual;
        usual.add((self.unusual.bad.get(), self.unusual.total.get()), 1.0);
        Baseline { usual, ..Baseline::default() }
    }
}

impl FadingCounts {
    /// Lets a part of the counts fade, and returns it.
    fn fade(&mut self, memory: f64) -> (f64, f64) {
        let faded = (self.bad.get() / memory, self.total.get() / memory);
        self.add(faded, -1.0);
        faded
    }

    fn add(&mut self, (bad, total): (f64, f64), weight: f64) {
        (self.bad, self.total) = (self.bad.plus(weight * bad), self.total.plus(weight * total));
    }

    fn rate(&self) -> Option<f64> {
        (self.total > Fixed::default()).then(|| self.bad.get() / self.total.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many failures of a thousand requests on each arm.
    fn both(bad: u64) -> Arms<Counts> {
        Arms { canary: Counts::of_bad(bad, 1000), primary: Counts::of_bad(bad, 1000) }
    }

    /// Looks from which on there is an incident, of these counts of failures on both
    /// arms.
    fn incidents(looks: impl IntoIterator<Item = u64>) -> Vec<usize> {
        incidents_of(looks.into_iter().map(|bad| (bad, bad)))
    }

    /// Likewise of the canary and of the primary.
    fn incidents_of(looks: impl IntoIterator<Item = (u64, u64)>) -> Vec<usize> {
        let mut baseline = Baseline::default();
        let mut found = Vec::new();
        for (at, (canary, primary)) in looks.into_iter().enumerate() {
            baseline.update(Arms {
                canary: Counts::of_bad(canary, 1000),
                primary: Counts::of_bad(primary, 1000),
            });
            if baseline.incident().is_some() {
                found.push(at);
            }
        }
        found
    }

    #[test]
    fn ten_times_the_usual_is_an_incident_until_it_is_over() {
        let found = incidents((0..100).map(|at| if (30..60).contains(&at) { 50 } else { 5 }));
        assert!(found.first().is_some_and(|first| (30..40).contains(first)), "{found:?}");
        assert!(found.last().is_some_and(|last| (59..75).contains(last)), "{found:?}");
    }

    #[test]
    fn an_incident_never_becomes_usual_within_a_release_and_does_with_the_next() {
        let mut baseline = Baseline::default();
        let mut broken_for = |looks: std::ops::Range<u64>| {
            looks.for_each(|at| baseline.update(both(if at < 30 { 5 } else { 50 })));
            baseline.incident()
        };
        assert!(broken_for(0..60).is_some());
        assert!(broken_for(60..10_000).is_some());
        baseline = baseline.next_release();
        (0..30).for_each(|_| baseline.update(both(50)));
        assert_eq!(baseline.incident(), None);
    }

    #[test]
    fn twice_the_usual_is_none() {
        assert_eq!(incidents((0..100).map(|at| if at < 50 { 5 } else { 10 })), [0; 0]);
    }

    #[test]
    fn a_primary_that_fails_a_fifth_of_all_is_one_from_the_beginning() {
        assert_eq!(incidents([300, 300]), [0, 1]);
        assert_eq!(incidents([100, 100]), [0; 0]);
    }

    #[test]
    fn a_canary_that_is_spared_may_be_the_remedy() {
        assert_eq!(incidents_of([(0, 300), (2, 300)]), [0; 0]);
        assert_eq!(incidents_of([(150, 300), (150, 300)]), [0, 1]);
        let spared = incidents_of((0..100).map(|at| if at < 30 { (5, 5) } else { (5, 50) }));
        assert_eq!(spared, [0; 0]);
    }
}
