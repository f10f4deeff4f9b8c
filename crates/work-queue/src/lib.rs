//! The reconcile queue: FIFO and deduplicated. An item is processed by one
//! worker at a time and has at most one scheduled requeue. Pure and
//! deterministic, so that simulations replay.

pub mod clock;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;

pub struct WorkQueue<Name> {
    queue: VecDeque<Name>,
    queued: HashSet<Name>,
    processing: HashSet<Name>,
    /// Enqueued while processing.
    dirty: HashSet<Name>,
    scheduled: BTreeSet<(Instant, Name)>,
    scheduled_at: HashMap<Name, Instant>,
    failures: HashMap<Name, u32>,
}

impl<Name> Default for WorkQueue<Name> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            queued: HashSet::new(),
            processing: HashSet::new(),
            dirty: HashSet::new(),
            scheduled: BTreeSet::new(),
            scheduled_at: HashMap::new(),
            failures: HashMap::new(),
        }
    }
}

impl<Name: Clone + Hash + Ord> WorkQueue<Name> {
    pub fn enqueue(&mut self, name: Name) {
        if self.processing.contains(&name) {
            self.dirty.insert(name);
        } else if self.queued.insert(name.clone()) {
            self.queue.push_back(name);
        }
    }

    /// Takes the oldest queued item and marks it as processing.
    pub fn start_next(&mut self) -> Option<Name> {
        let name = self.queue.pop_front()?;
        self.queued.remove(&name);
        self.processing.insert(name.clone());
        self.unschedule(&name);
        Some(name)
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn processing(&self) -> &HashSet<Name> {
        &self.processing
    }

    /// Ends processing of an item that now belongs to another replica.
    pub fn remove(&mut self, name: &Name) {
        self.processing.remove(name);
        self.remove_matching(|item| item == name);
    }

    /// Drops queued and scheduled items that now belong to another replica.
    /// Items in processing may finish.
    pub fn remove_matching(&mut self, matches: impl Fn(&Name) -> bool) {
        self.queue.retain(|name| !matches(name));
        self.queued.retain(|name| !matches(name));
        self.dirty.retain(|name| !matches(name));
        self.failures.retain(|name, _| !matches(name));
        self.scheduled_at.retain(|name, _| !matches(name));
        self.scheduled.retain(|(_, name)| !matches(name));
    }

    /// Ends processing successfully; resets the failure count.
    pub fn done(&mut self, name: Name, requeue_at: Option<Instant>) {
        self.failures.remove(&name);
        self.finish(name, requeue_at);
    }

    /// Requeues a failed item after `backoff(consecutive_failures)`; returns that
    /// number.
    pub fn requeue_failed(&mut self, name: Name, now: Instant, backoff: impl FnOnce(u32) -> Duration) -> u32 {
        let failures = self.failures.entry(name.clone()).or_default();
        *failures = failures.saturating_add(1);
        let failures = *failures;
        self.finish(name, Some(now + backoff(failures)));
        failures
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.scheduled.first().map(|(at, _)| *at)
    }

    /// Enqueues every item whose scheduled time has passed.
    pub fn enqueue_due(&mut self, now: Instant) {
        while let Some((at, name)) = self.scheduled.first().cloned()
            && at <= now
        {
            self.unschedule(&name);
            self.enqueue(name);
        }
    }

    /// Enqueues every scheduled item, whenever it is due.
    pub fn enqueue_scheduled(&mut self) {
        while let Some((_, name)) = self.scheduled.first().cloned() {
            self.unschedule(&name);
            self.enqueue(name);
        }
    }

    fn finish(&mut self, name: Name, requeue_at: Option<Instant>) {
        self.processing.remove(&name);
        if let Some(at) = requeue_at {
            self.unschedule(&name);
            self.scheduled_at.insert(name.clone(), at);
            self.scheduled.insert((at, name.clone()));
        }
        if self.dirty.remove(&name) {
            self.enqueue(name);
        }
    }

    fn unschedule(&mut self, name: &Name) {
        if let Some(at) = self.scheduled_at.remove(name) {
            self.scheduled.remove(&(at, name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_item_is_processed_once_at_a_time_and_no_request_is_lost() {
        let mut work_queue = WorkQueue::default();
        work_queue.enqueue("web");
        work_queue.enqueue("web");
        assert_eq!(work_queue.start_next(), Some("web"));
        assert_eq!(work_queue.start_next(), None);
        work_queue.enqueue("web");
        assert_eq!(work_queue.start_next(), None);
        work_queue.done("web", None);
        assert_eq!(work_queue.start_next(), Some("web"));
    }

    #[tokio::test]
    async fn a_scheduled_item_is_due_once_and_the_last_time_set_counts() {
        let (mut work_queue, now) = (WorkQueue::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        for seconds in [5, 60] {
            work_queue.enqueue("web");
            work_queue.start_next();
            work_queue.done("web", Some(later(seconds)));
        }
        work_queue.enqueue_due(later(59));
        assert_eq!(work_queue.start_next(), None);
        assert_eq!(work_queue.next_due(), Some(later(60)));
        work_queue.enqueue_due(later(60));
        assert_eq!(work_queue.start_next(), Some("web"));
        assert_eq!(work_queue.next_due(), None);
    }

    #[tokio::test]
    async fn all_scheduled_items_can_be_enqueued_at_once() {
        let (mut work_queue, now) = (WorkQueue::default(), Instant::now());
        for (name, seconds) in [("web", 3600), ("api", 60)] {
            work_queue.enqueue(name);
            work_queue.start_next();
            work_queue.done(name, Some(now + Duration::from_secs(seconds)));
        }
        work_queue.enqueue_scheduled();
        assert_eq!((work_queue.start_next(), work_queue.start_next()), (Some("api"), Some("web")));
        assert_eq!(work_queue.next_due(), None);
    }

    #[tokio::test]
    async fn a_removed_item_is_not_enqueued_and_others_are() {
        let (mut work_queue, now) = (WorkQueue::default(), Instant::now());
        for name in ["web", "api"] {
            work_queue.enqueue(name);
            work_queue.start_next();
            work_queue.done(name, Some(now));
        }
        work_queue.enqueue("web");
        work_queue.enqueue("api");
        assert_eq!(work_queue.start_next(), Some("web"));
        work_queue.enqueue("web");
        work_queue.remove_matching(|name| *name == "web");
        assert_eq!((work_queue.processing().len(), work_queue.start_next()), (1, Some("api")));
        work_queue.remove(&"web");
        work_queue.enqueue_due(now);
        assert_eq!(work_queue.start_next(), None);
    }

    #[tokio::test]
    async fn failures_are_counted_until_the_item_succeeds() {
        let (mut work_queue, now) = (WorkQueue::default(), Instant::now());
        let fails = |work_queue: &mut WorkQueue<&str>| {
            work_queue.enqueue("web");
            work_queue.start_next();
            work_queue.requeue_failed("web", now, |failures| Duration::from_secs(failures.into()))
        };
        assert_eq!([fails(&mut work_queue), fails(&mut work_queue)], [1, 2]);
        assert_eq!(work_queue.next_due(), Some(now + Duration::from_secs(2)));
        work_queue.done("web", None);
        assert_eq!(fails(&mut work_queue), 1);
    }
}
