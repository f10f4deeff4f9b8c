//! Whose turn it is when only so many releases may be under way at a time.
//! Those that wait are let in by age, and only those are woken whose turn has
//! come.
//!
//! What it promises: within one replica there are never more under way than may
//! be, since a decision is made and counted under one lock. What it does not:
//! replicas count what their watches show. Two that start a release within the
//! moment that the other's status takes to be seen may together start more than
//! was free, at most what was free once more for each further replica. The
//! excess ends by itself, since nobody else starts until the count is below.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{CanaryName, wake::Waker};
use crate::{
    api::{
        canary::{CanaryStatus, Phase},
        condition::READY,
    },
    engine::{Decision, Observed, Reason},
};

pub struct Turns {
    cap: Option<u32>,
    queue: Mutex<Queue>,
    waker: Waker,
}

#[derive(Default)]
struct Queue {
    places: HashMap<CanaryName, Place>,
    under_way: usize,
    waiting: BTreeSet<(Timestamp, CanaryName)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    UnderWay,
    /// For nothing but its turn, with the release that began then.
    Waiting(Timestamp),
}

impl Turns {
    pub fn new(cap: Option<u32>, waker: Waker) -> Self {
        Self { cap, queue: Mutex::default(), waker }
    }

    pub fn are_limited(&self) -> bool {
        self.cap.is_some()
    }

    /// A Canary is so now; none if it is gone or cannot be read.
    pub fn see(&self, canary: &CanaryName, status: Option<&CanaryStatus>) {
        let Some(cap) = self.cap else { return };
        let next = self.queue.lock().put(canary, status.and_then(Place::of), cap);
        next.into_iter().for_each(|canary| self.waker.wake(canary));
    }

    /// Decides for a Canary. What follows counts from now on, unless [`see`]
    /// says that it was not recorded.
    ///
    /// [`see`]: Self::see
    pub fn decide(
        &self,
        canary: &CanaryName,
        seen: &mut Observed,
        decide: impl FnOnce(&Observed) -> Decision,
    ) -> Decision {
        let Some(cap) = self.cap else { return decide(seen) };
        let mut queue = self.queue.lock();
        seen.release_cap = Some(cap);
        seen.other_releases = queue.before(canary, cap);
        let decision = decide(seen);
        let next = queue.put(canary, Place::of(&decision.status), cap);
        drop(queue);
        next.into_iter().for_each(|canary| self.waker.wake(canary));
        decision
    }
}

impl Queue {
    /// How many others are under way, with those whose turn comes first as far
    /// as they fill what is free.
    fn before(&self, canary: &CanaryName, cap: u32) -> u32 {
        let place = self.places.get(canary);
        let under_way = self.under_way - usize::from(place == Some(&Place::UnderWay));
        let older = |(since, other): &&(Timestamp, CanaryName)| match place {
            Some(Place::Waiting(mine)) => (since, other) < (mine, canary),
            _ => true,
        };
        let free = (cap as usize).saturating_sub(under_way);
        let first = self.waiting.iter().take(free).take_while(older).count();
        u32::try_from(under_way + first).unwrap_or(u32::MAX)
    }

    /// Says whose turn has come by this.
    fn put(&mut self, canary: &CanaryName, place: Option<Place>, cap: u32) -> Vec<CanaryName> {
        let before = match place {
            Some(place) => self.places.insert(canary.clone(), place),
            None => self.places.remove(canary),
        };
        if before == place {
            return Vec::new();
        }
        match before {
            Some(Place::UnderWay) => self.under_way -= 1,
            Some(Place::Waiting(since)) => _ = self.waiting.remove(&(since, canary.clone())),
            None => {}
        }
        match place {
            Some(Place::UnderWay) => self.under_way += 1,
            Some(Place::Waiting(since)) => _ = self.waiting.insert((since, canary.clone())),
            None => {}
        }
        let free = (cap as usize).saturating_sub(self.under_way);
        match before {
            None => Vec::new(),
            Some(_) if place == Some(Place::UnderWay) => Vec::new(),
            Some(_) => self.waiting.iter().take(free).map(|(_, canary)| canary.clone()).collect(),
        }
    }
}

impl Place {
    /// None for one that takes no place.
    fn of(status: &CanaryStatus) -> Option<Self> {
        match status.phase {
            Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting | Phase::Finalising => {
                Some(Self::UnderWay)
            }
            Phase::Waiting => {
                let why = status.conditions.iter().find(|condition| condition.type_ == READY)?;
                let turn = Reason::TooManyReleases { others: 0, cap: 0 };
                // The API keeps whole seconds.
                let since = status.release.as_ref()?.started_at.0.as_second();
                let since = Timestamp::from_second(since).ok()?;
                (why.reason == turn.code()).then_some(Self::Waiting(since))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> CanaryName {
        CanaryName { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn since(second: i64) -> Option<Place> {
        Some(Place::Waiting(Timestamp::from_second(second).unwrap()))
    }

    #[test]
    fn those_that_came_first_go_first_and_nobody_else_is_woken() {
        let mut queue = Queue::default();
        let mut put = |canary: &str, place| queue.put(&name(canary), place, 2);
        assert!(put("a", Some(Place::UnderWay)).is_empty() && put("b", Some(Place::UnderWay)).is_empty());
        for (canary, second) in [("z", 1), ("y", 2), ("x", 3)] {
            assert!(put(canary, since(second)).is_empty());
        }
        assert_eq!(put("a", None), [name("z")]);
        assert_eq!(queue.before(&name("z"), 2), 1, "its turn has come");
        assert_eq!(queue.before(&name("y"), 2), 2, "the free place is spoken for");
        assert_eq!(queue.before(&name("new"), 2), 2, "those that wait came first");
        assert!(queue.put(&name("z"), Some(Place::UnderWay), 2).is_empty());
        assert_eq!(queue.put(&name("b"), None, 2), [name("y")]);
    }

    #[test]
    fn one_whose_turn_has_come_and_that_cannot_start_lets_the_next_one_go() {
        let mut queue = Queue::default();
        queue.put(&name("z"), since(1), 1);
        queue.put(&name("y"), since(2), 1);
        assert_eq!(queue.put(&name("z"), None, 1), [name("y")]);
        assert_eq!(queue.before(&name("y"), 1), 0);
    }

    #[test]
    fn one_that_is_under_way_is_not_in_its_own_way() {
        let mut queue = Queue::default();
        queue.put(&name("a"), Some(Place::UnderWay), 1);
        assert_eq!(queue.before(&name("a"), 1), 0);
        assert_eq!(queue.before(&name("b"), 1), 1);
    }
}
