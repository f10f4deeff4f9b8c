//! Who is next: those that were woken, one after the other, none twice at a
//! time, and at most one alarm for each. Pure, and in no order but that in
//! which they were woken, so that simulations replay.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

pub struct Agenda<Name> {
    ready: VecDeque<Name>,
    queued: HashSet<Name>,
    running: HashSet<Name>,
    /// Woken while running.
    again: HashSet<Name>,
    alarms: BTreeSet<(Instant, Name)>,
    alarm_of: HashMap<Name, Instant>,
    failures: HashMap<Name, u32>,
}

impl<Name> Default for Agenda<Name> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            running: HashSet::new(),
            again: HashSet::new(),
            alarms: BTreeSet::new(),
            alarm_of: HashMap::new(),
            failures: HashMap::new(),
        }
    }
}

impl<Name: Clone + Hash + Ord> Agenda<Name> {
    pub fn wake(&mut self, name: Name) {
        if self.running.contains(&name) {
            self.again.insert(name);
        } else if self.queued.insert(name.clone()) {
            self.ready.push_back(name);
        }
    }

    /// The next one, which now runs.
    pub fn start(&mut self) -> Option<Name> {
        let name = self.ready.pop_front()?;
        self.queued.remove(&name);
        self.running.insert(name.clone());
        self.disarm(&name);
        Some(name)
    }

    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    pub fn running(&self) -> &HashSet<Name> {
        &self.running
    }

    /// It is done, and somebody else's from now on.
    pub fn left(&mut self, name: &Name) {
        self.running.remove(name);
        self.leave(|left| left == name);
    }

    /// These are somebody else's from now on: nothing wakes them. Those that
    /// run may come to their end.
    pub fn leave(&mut self, leaves: impl Fn(&Name) -> bool) {
        self.ready.retain(|name| !leaves(name));
        self.queued.retain(|name| !leaves(name));
        self.again.retain(|name| !leaves(name));
        self.failures.retain(|name, _| !leaves(name));
        self.alarm_of.retain(|name, _| !leaves(name));
        self.alarms.retain(|(_, name)| !leaves(name));
    }

    /// It is done, and wants to be woken then.
    pub fn done(&mut self, name: Name, alarm: Option<Instant>) {
        self.failures.remove(&name);
        self.finish(name, alarm);
    }

    /// It failed so often in a row by now, and is tried again after as long as
    /// that asks for.
    pub fn failed(&mut self, name: Name, now: Instant, wait: impl FnOnce(u32) -> Duration) -> u32 {
        let failures = self.failures.entry(name.clone()).or_default();
        *failures = failures.saturating_add(1);
        let failures = *failures;
        self.finish(name, Some(now + wait(failures)));
        failures
    }

    pub fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Wakes everybody whose time has come.
    pub fn ring(&mut self, now: Instant) {
        while let Some((at, name)) = self.alarms.first().cloned()
            && at <= now
        {
            self.disarm(&name);
            self.wake(name);
        }
    }

    fn finish(&mut self, name: Name, alarm: Option<Instant>) {
        self.running.remove(&name);
        if let Some(at) = alarm {
            self.disarm(&name);
            self.alarm_of.insert(name.clone(), at);
            self.alarms.insert((at, name.clone()));
        }
        if self.again.remove(&name) {
            self.wake(name);
        }
    }

    fn disarm(&mut self, name: &Name) {
        if let Some(at) = self.alarm_of.remove(name) {
            self.alarms.remove(&(at, name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_runs_twice_at_a_time_and_no_wake_is_lost() {
        let mut agenda = Agenda::default();
        agenda.wake("web");
        agenda.wake("web");
        assert_eq!(agenda.start(), Some("web"));
        assert_eq!(agenda.start(), None);
        agenda.wake("web");
        assert_eq!(agenda.start(), None);
        agenda.done("web", None);
        assert_eq!(agenda.start(), Some("web"));
    }

    #[tokio::test]
    async fn an_alarm_rings_once_and_the_last_one_set_counts() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        for seconds in [5, 60] {
            agenda.wake("web");
            agenda.start();
            agenda.done("web", Some(later(seconds)));
        }
        agenda.ring(later(59));
        assert_eq!(agenda.start(), None);
        assert_eq!(agenda.next_alarm(), Some(later(60)));
        agenda.ring(later(60));
        assert_eq!(agenda.start(), Some("web"));
        assert_eq!(agenda.next_alarm(), None);
    }

    #[tokio::test]
    async fn who_left_is_not_woken_and_others_are() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        for name in ["web", "api"] {
            agenda.wake(name);
            agenda.start();
            agenda.done(name, Some(now));
        }
        agenda.wake("web");
        agenda.wake("api");
        assert_eq!(agenda.start(), Some("web"));
        agenda.wake("web");
        agenda.leave(|name| *name == "web");
        assert_eq!((agenda.running().len(), agenda.start()), (1, Some("api")));
        agenda.left(&"web");
        agenda.ring(now);
        assert_eq!(agenda.start(), None);
    }

    #[tokio::test]
    async fn failures_are_counted_until_it_is_done() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        let fails = |agenda: &mut Agenda<&str>| {
            agenda.wake("web");
            agenda.start();
            agenda.failed("web", now, |failures| Duration::from_secs(failures.into()))
        };
        assert_eq!([fails(&mut agenda), fails(&mut agenda)], [1, 2]);
        assert_eq!(agenda.next_alarm(), Some(now + Duration::from_secs(2)));
        agenda.done("web", None);
        assert_eq!(fails(&mut agenda), 1);
    }
}
