//! What happens when: planned events, and those that follow once a Canary is in a
//! phase.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serin::api::canary::Phase;
use tokio::sync::Notify;

use super::scenario::Event;

/// Events by their time since the beginning, then in the order of their addition.
#[derive(Default)]
pub struct Agenda {
    events: BTreeMap<(Duration, u64), Event>,
    added: u64,
    /// Events that wait for a phase.
    triggers: Vec<Trigger>,
    /// An event was added.
    pub changed: Arc<Notify>,
}

struct Trigger {
    canary: String,
    phases: &'static [Phase],
    after: Duration,
    event: Event,
}

impl Agenda {
    pub fn add(&mut self, at: Duration, event: Event) {
        self.added += 1;
        self.events.insert((at, self.added), event);
        self.changed.notify_one();
    }

    /// Adds an event for when the Canary is in one of these phases.
    pub fn add_trigger(&mut self, canary: &str, phases: &'static [Phase], after: Duration, event: Event) {
        self.triggers.push(Trigger { canary: canary.to_owned(), phases, after, event });
    }

    /// A Canary is in this phase.
    pub fn record_phase(&mut self, canary: &str, phase: Phase, now: Duration) {
        let is_met = |trigger: &mut Trigger| trigger.canary == canary && trigger.phases.contains(&phase);
        for trigger in self.triggers.extract_if(.., is_met).collect::<Vec<_>>() {
            self.add(now + trigger.after, trigger.event);
        }
    }

    /// Is an event planned that meets this condition?
    pub fn has_planned(&self, condition: impl Fn(&Event) -> bool) -> bool {
        self.events.values().any(condition)
    }

    pub fn next_time(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn pop_due(&mut self, now: Duration) -> Option<Event> {
        let due = self.next_time().is_some_and(|at| at <= now);
        due.then(|| self.events.pop_first()).flatten().map(|(_, event)| event)
    }

    /// Forgets all but what belongs to a revision's own behaviour.
    pub fn heal(&mut self) {
        self.triggers.clear();
        self.events.retain(|_, event| matches!(event, Event::DieUnderTraffic { .. }));
    }
}
