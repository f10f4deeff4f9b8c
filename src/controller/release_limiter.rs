//! Limits the number of releases that run at a time. Waiting releases get free
//! slots by age, and only a release whose slot is free is requeued. A release that is
//! paused, or waits for a gate, holds no slot and needs one to move again.
//!
//! Guarantee: within one replica there are never more running than the cap,
//! since a decision counts only if the slots are as they were observed. Caveat:
//! replicas count what their watches deliver. Two that start a release before
//! either sees the other's status may together exceed the cap, by at most the
//! free slots once more per further replica. The excess ends by itself, since
//! nothing starts until the count is below the cap.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::queue::trigger::{NamespacedName, RequestSender};
use crate::{
    api::{
        canary::{CanaryStatus, Phase},
        condition::READY,
    },
    engine::{Observed, Reason},
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
    /// For a slot only, with a release that was created then.
    Waiting(Timestamp),
}

impl ReleaseLimiter {
    pub fn new(cap: Option<u32>, requests: RequestSender) -> Self {
        Self { cap, state: Mutex::default(), requests }
    }

    pub fn is_enabled(&self) -> bool {
        self.cap.is_some()
    }

    /// Takes in a status; none if the Canary is deleted or invalid.
    pub fn observe(&self, canary: &NamespacedName, status: Option<&CanaryStatus>) {
        let Some(cap) = self.cap else { return };
        let next = self.state.lock().update(canary, status.and_then(Slot::of), cap);
        self.request_all(next);
    }

    /// Releases of others that count against the cap for this Canary, and the
    /// cap.
    pub fn ahead_of(&self, canary: &NamespacedName) -> (u32, Option<u32>) {
        match self.cap {
            Some(cap) => (self.state.lock().ahead_of(canary, cap), self.cap),
            None => (0, None),
        }
    }

    /// Takes in a decision, if [`ahead_of`](Self::ahead_of) still gives the
    /// observed count; else returns false, and the decision must be made again.
    /// It counts until [`observe`](Self::observe) sees another status.
    pub fn update(&self, canary: &NamespacedName, observed: &Observed, decided: &CanaryStatus) -> bool {
        let Some(cap) = self.cap else { return true };
        let mut state = self.state.lock();
        if state.ahead_of(canary, cap) != observed.other_releases {
            return false;
        }
        let next = state.update(canary, Slot::of(decided), cap);
        drop(state);
        self.request_all(next);
        true
    }

    fn request_all(&self, canaries: Vec<NamespacedName>) {
        canaries.into_iter().for_each(|canary| self.requests.request(canary));
    }
}

impl LimiterState {
    /// Running releases, plus older waiting ones that fit the free slots.
    fn ahead_of(&self, canary: &NamespacedName, cap: u32) -> u32 {
        let slot = self.slots.get(canary);
        let running = self.running - usize::from(slot == Some(&Slot::Running));
        let older = |(since, other): &&(Timestamp, NamespacedName)| match slot {
            Some(Slot::Waiting(mine)) => (since, other) < (mine, canary),
            _ => true,
        };
        let free = (cap as usize).saturating_sub(running);
        let first = self.waiting.iter().take(free).take_while(older).count();
        u32::try_from(running + first).unwrap_or(u32::MAX)
    }

    /// Returns the waiting releases whose slot this frees.
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
        match slot {
            Some(Slot::Running) => Vec::new(),
            // One that joins may be older than those that wait for the free slots.
            Some(Slot::Waiting(_)) | None => {
                self.waiting.iter().take(free).map(|(_, canary)| canary.clone()).collect()
            }
        }
    }
}

impl Slot {
    /// None for a Canary that takes no slot.
    fn of(status: &CanaryStatus) -> Option<Self> {
        let release = status.release.as_ref()?;
        match status.phase {
            Phase::Waiting
            | Phase::Progressing
            | Phase::WaitingPromotion
            | Phase::Promoting
            | Phase::Finalising => {}
            Phase::Initializing
            | Phase::Initialized
            | Phase::Succeeded
            | Phase::Failed
            | Phase::Terminating
            | Phase::Terminated => return None,
        }
        if release.state.holds_slot {
            return Some(Self::Running);
        }
        let why = status.conditions.iter().find(|condition| condition.type_ == READY)?;
        let turn = Reason::TooManyReleases { others: 0, cap: 0 };
        // The API keeps whole seconds.
        let since = release.state.queued_since.as_ref().unwrap_or(&release.started_at).0.as_second();
        let since = Timestamp::from_second(since).ok()?;
        (why.reason == turn.code()).then_some(Self::Waiting(since))
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
        assert_eq!(queue.ahead_of(&name("z"), 2), 1, "its slot is free");
        assert_eq!(queue.ahead_of(&name("y"), 2), 2, "the free slot goes to an older one");
        assert_eq!(queue.ahead_of(&name("new"), 2), 2, "waiting ones are older");
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
    fn an_older_release_that_joins_the_queue_is_requeued_for_the_free_slot() {
        let mut queue = LimiterState::default();
        queue.update(&name("y"), since(2), 1);
        assert_eq!(queue.ahead_of(&name("paused"), 1), 1);
        assert_eq!(queue.update(&name("paused"), since(1), 1), [name("paused")]);
        assert_eq!(queue.ahead_of(&name("paused"), 1), 0);
        assert_eq!(queue.ahead_of(&name("y"), 1), 1);
    }

    #[test]
    fn a_running_release_is_not_counted_against_itself() {
        let mut queue = LimiterState::default();
        queue.update(&name("a"), Some(Slot::Running), 1);
        assert_eq!(queue.ahead_of(&name("a"), 1), 0);
        assert_eq!(queue.ahead_of(&name("b"), 1), 1);
    }
}
