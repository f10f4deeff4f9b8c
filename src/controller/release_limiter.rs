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

use super::{NamespacedName, trigger::RequestSender};
use crate::{
    api::{
        canary::{CanaryStatus, Phase},
        condition::READY,
    },
    engine::{Decision, Observed, Reason},
};

pub struct ReleaseLimiter {
    cap: Option<u32>,
    state: Mutex<LimiterState>,
    requests: RequestSender,
}

#[derive(Default)]
struct LimiterState {
    slots: HashMap<NamespacedName, Slot>,
    running: usize,
    waiting: BTreeSet<(Timestamp, NamespacedName)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Running,
    /// For nothing but its turn, with the release that began then.
    Waiting(Timestamp),
}

impl ReleaseLimiter {
    pub fn new(cap: Option<u32>, requests: RequestSender) -> Self {
        Self { cap, state: Mutex::default(), requests }
    }

    pub fn is_enabled(&self) -> bool {
        self.cap.is_some()
    }

    /// A Canary is so now; none if it is gone or cannot be read.
    pub fn observe(&self, canary: &NamespacedName, status: Option<&CanaryStatus>) {
        let Some(cap) = self.cap else { return };
        let next = self.state.lock().update(canary, status.and_then(Slot::of), cap);
        next.into_iter().for_each(|canary| self.requests.request(canary));
    }

    /// Decides for a Canary. What follows counts from now on, unless [`observe`]
    /// says that it was not recorded.
    ///
    /// [`observe`]: Self::observe
    pub fn decide(
        &self,
        canary: &NamespacedName,
        observed: &mut Observed,
        decide: impl FnOnce(&Observed) -> Decision,
    ) -> Decision {
        let Some(cap) = self.cap else { return decide(observed) };
        let mut queue = self.state.lock();
        observed.release_cap = Some(cap);
        observed.other_releases = queue.ahead_of(canary, cap);
        let decision = decide(observed);
        let next = queue.update(canary, Slot::of(&decision.status), cap);
        drop(queue);
        next.into_iter().for_each(|canary| self.requests.request(canary));
        decision
    }
}

impl LimiterState {
    /// How many others are under way, with those whose turn comes first as far
    /// as they fill what is free.
    fn ahead_of(&self, canary: &NamespacedName, cap: u32) -> u32 {
        let place = self.slots.get(canary);
        let under_way = self.running - usize::from(place == Some(&Slot::Running));
        let older = |(since, other): &&(Timestamp, NamespacedName)| match place {
            Some(Slot::Waiting(mine)) => (since, other) < (mine, canary),
            _ => true,
        };
        let free = (cap as usize).saturating_sub(under_way);
        let first = self.waiting.iter().take(free).take_while(older).count();
        u32::try_from(under_way + first).unwrap_or(u32::MAX)
    }

    /// Says whose turn has come by this.
    fn update(&mut self, canary: &NamespacedName, slot: Option<Slot>, cap: u32) -> Vec<NamespacedName> {
        let before = match slot {
            Some(place) => self.slots.insert(canary.clone(), place),
            None => self.slots.remove(canary),
        };
        if before == slot {
            return Vec::new();
        }
        match before {
            Some(Slot::Running) => self.running -= 1,
            Some(Slot::Waiting(since)) => _ = self.waiting.remove(&(since, canary.clone())),
            None => {}
        }
        match slot {
            Some(Slot::Running) => self.running += 1,
            Some(Slot::Waiting(since)) => _ = self.waiting.insert((since, canary.clone())),
            None => {}
        }
        let free = (cap as usize).saturating_sub(self.running);
        match before {
            None => Vec::new(),
            Some(_) if slot == Some(Slot::Running) => Vec::new(),
            Some(_) => self.waiting.iter().take(free).map(|(_, canary)| canary.clone()).collect(),
        }
    }
}

impl Slot {
    /// None for one that takes no place.
    fn of(status: &CanaryStatus) -> Option<Self> {
        match status.phase {
            Phase::Progressing | Phase::WaitingPromotion | Phase::Promoting | Phase::Finalising => {
                Some(Self::Running)
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

    fn name(name: &str) -> NamespacedName {
        NamespacedName { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn since(second: i64) -> Option<Slot> {
        Some(Slot::Waiting(Timestamp::from_second(second).unwrap()))
    }

    #[test]
    fn releases_start_in_order_and_no_other_canary_is_triggered() {
        let mut queue = LimiterState::default();
        let mut put = |canary: &str, place| queue.update(&name(canary), place, 2);
        assert!(put("a", Some(Slot::Running)).is_empty() && put("b", Some(Slot::Running)).is_empty());
        for (canary, second) in [("z", 1), ("y", 2), ("x", 3)] {
            assert!(put(canary, since(second)).is_empty());
        }
        assert_eq!(put("a", None), [name("z")]);
        assert_eq!(queue.ahead_of(&name("z"), 2), 1, "its turn has come");
        assert_eq!(queue.ahead_of(&name("y"), 2), 2, "the free place is spoken for");
        assert_eq!(queue.ahead_of(&name("new"), 2), 2, "those that wait came first");
        assert!(queue.update(&name("z"), Some(Slot::Running), 2).is_empty());
        assert_eq!(queue.update(&name("b"), None, 2), [name("y")]);
    }

    #[test]
    fn a_release_that_cannot_start_yields_its_slot() {
        let mut queue = LimiterState::default();
        queue.update(&name("z"), since(1), 1);
        queue.update(&name("y"), since(2), 1);
        assert_eq!(queue.update(&name("z"), None, 1), [name("y")]);
        assert_eq!(queue.ahead_of(&name("y"), 1), 0);
    }

    #[test]
    fn a_running_release_is_not_counted_against_itself() {
        let mut queue = LimiterState::default();
        queue.update(&name("a"), Some(Slot::Running), 1);
        assert_eq!(queue.ahead_of(&name("a"), 1), 0);
        assert_eq!(queue.ahead_of(&name("b"), 1), 1);
    }
}
