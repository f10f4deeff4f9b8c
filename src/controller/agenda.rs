//! Who is next: Canaries that were woken, one after the other, none twice at a
//! time, and at most one alarm for each. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{CanaryName, lease::hash};

/// The first wait after a failure; it doubles with each further one.
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Agenda {
    ready: VecDeque<CanaryName>,
    queued: HashSet<CanaryName>,
    running: HashSet<CanaryName>,
    /// Woken while running.
    again: HashSet<CanaryName>,
    alarms: BTreeSet<(Instant, CanaryName)>,
    alarm_of: HashMap<CanaryName, Instant>,
    failures: HashMap<CanaryName, u32>,
}

impl Agenda {
    pub fn wake(&mut self, canary: CanaryName) {
        if self.running.contains(&canary) {
            self.again.insert(canary);
        } else if self.queued.insert(canary.clone()) {
            self.ready.push_back(canary);
        }
    }

    /// The next one, which now runs.
    pub fn start(&mut self) -> Option<CanaryName> {
        let canary = self.ready.pop_front()?;
        self.queued.remove(&canary);
        self.running.insert(canary.clone());
        self.disarm(&canary);
        Some(canary)
    }

    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    pub fn running(&self) -> &HashSet<CanaryName> {
        &self.running
    }

    /// It is done, and somebody else's from now on.
    pub fn left(&mut self, canary: &CanaryName) {
        self.running.remove(canary);
        self.leave(|left| left == canary);
    }

    /// These are somebody else's from now on: nothing wakes them. Those that
    /// run may come to their end.
    pub fn leave(&mut self, leaves: impl Fn(&CanaryName) -> bool) {
        self.ready.retain(|canary| !leaves(canary));
        self.queued.retain(|canary| !leaves(canary));
        self.again.retain(|canary| !leaves(canary));
        self.failures.retain(|canary, _| !leaves(canary));
        self.alarm_of.retain(|canary, _| !leaves(canary));
        self.alarms.retain(|(_, canary)| !leaves(canary));
    }

    /// It is done, and wants to be woken then.
    pub fn done(&mut self, canary: CanaryName, alarm: Option<Instant>) {
        self.failures.remove(&canary);
        self.finish(canary, alarm);
    }

    /// It failed, and is tried again, later each time.
    pub fn failed(&mut self, canary: CanaryName, now: Instant) -> Duration {
        let failures = self.failures.entry(canary.clone()).or_default();
        *failures = failures.saturating_add(1);
        let wait = backoff(&canary, *failures);
        self.finish(canary, Some(now + wait));
        wait
    }

    /// How often in a row it failed.
    pub fn failures(&self, canary: &CanaryName) -> u32 {
        self.failures.get(canary).copied().unwrap_or(0)
    }

    pub fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Wakes everybody whose time has come.
    pub fn ring(&mut self, now: Instant) {
        while let Some((at, canary)) = self.alarms.first().cloned()
            && at <= now
        {
            self.disarm(&canary);
            self.wake(canary);
        }
    }

    fn finish(&mut self, canary: CanaryName, alarm: Option<Instant>) {
        self.running.remove(&canary);
        if let Some(at) = alarm {
            self.disarm(&canary);
            self.alarm_of.insert(canary.clone(), at);
            self.alarms.insert((at, canary.clone()));
        }
        if self.again.remove(&canary) {
            self.wake(canary);
        }
    }

    fn disarm(&mut self, canary: &CanaryName) {
        if let Some(at) = self.alarm_of.remove(canary) {
            self.alarms.remove(&(at, canary.clone()));
        }
    }
}

/// Spread by name, so that those that failed together are not tried together;
/// by nothing else, so that simulations replay.
fn backoff(canary: &CanaryName, failures: u32) -> Duration {
    let wait = SHORTEST.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST);
    let spread = hash(format!("{canary}{failures}").as_bytes());
    wait.mul_f64(0.5 + (spread >> 40) as f64 / (1u64 << 24) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> CanaryName {
        CanaryName { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    #[tokio::test]
    async fn nobody_runs_twice_at_a_time_and_no_wake_is_lost() {
        let mut agenda = Agenda::default();
        agenda.wake(name("web"));
        agenda.wake(name("web"));
        assert_eq!(agenda.start(), Some(name("web")));
        assert_eq!(agenda.start(), None);
        agenda.wake(name("web"));
        assert_eq!(agenda.start(), None);
        agenda.done(name("web"), None);
        assert_eq!(agenda.start(), Some(name("web")));
    }

    #[tokio::test]
    async fn an_alarm_rings_once_and_the_last_one_set_counts() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        for seconds in [5, 60] {
            agenda.wake(name("web"));
            agenda.start();
            agenda.done(name("web"), Some(later(seconds)));
        }
        agenda.ring(later(59));
        assert_eq!(agenda.start(), None);
        assert_eq!(agenda.next_alarm(), Some(later(60)));
        agenda.ring(later(60));
        assert_eq!(agenda.start(), Some(name("web")));
        assert_eq!(agenda.next_alarm(), None);
    }

    #[tokio::test]
    async fn who_left_is_not_woken_and_others_are() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        for canary in ["web", "api"] {
            agenda.wake(name(canary));
            agenda.start();
            agenda.done(name(canary), Some(now));
        }
        agenda.wake(name("web"));
        agenda.wake(name("api"));
        assert_eq!(agenda.start(), Some(name("web")));
        agenda.wake(name("web"));
        agenda.leave(|canary| *canary == name("web"));
        assert_eq!((agenda.running().len(), agenda.start()), (1, Some(name("api"))));
        agenda.left(&name("web"));
        agenda.ring(now);
        assert_eq!(agenda.start(), None);
    }

    #[tokio::test]
    async fn failures_wait_longer_each_time_up_to_a_limit() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..20 {
            agenda.wake(name("web"));
            agenda.start();
            waits.push(agenda.failed(name("web"), now));
        }
        assert!(waits[0] < Duration::from_millis(301) && waits[5] > waits[0].mul_f64(4.0));
        assert!(waits.iter().all(|wait| *wait <= LONGEST.mul_f64(1.5)));
        assert_eq!(agenda.failures(&name("web")), 20);
        agenda.done(name("web"), None);
        assert_eq!(agenda.failures(&name("web")), 0);
    }
}
