//! Who is worked on: the Canaries of the shards that are held. A shard that is
//! gained wakes its Canaries; one that is lost is forgotten.
//!
//! ```text
//!   Elsewhere ─ held ─▶ Gained ─▶ Refreshing ─ its Canaries are as new as when
//!      ▲                                          │ their last holder let go
//!      │                                          ▼
//!      └─ nothing under way ◀─ Ending ◀─ asked ─ Ours
//! ```
//!
//! and from anywhere back to Elsewhere, at once, when the shard is lost.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    CanaryName, Outcome, Shared, Version, Woken,
    lease::{Ended, Fence, Hold, hash},
};
use crate::agenda::Agenda;

/// How long to wait before Canaries are listed again after that failed.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// The first wait after a failure; it doubles with each further one.
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

pub struct Round {
    shared: Arc<Shared>,
    fence: Fence,
    pub agenda: Agenda<CanaryName>,
    /// What watches told of while a Canary was worked on. They may well tell of
    /// a write before it is answered, and only the answer says whose it was.
    told: HashMap<CanaryName, Vec<Version>>,
    stances: Vec<Stance>,
    refreshing: JoinSet<Vec<Term>>,
}

type Term = Ended;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stance {
    Elsewhere,
    Gained(u64),
    Refreshing(u64),
    Ours(u64),
    Ending(u64),
}

impl Round {
    /// A replica that is alone begins with everything, and need not ask what
    /// others wrote.
    pub fn new(shared: Arc<Shared>) -> Self {
        let mut fence = shared.fence.clone();
        let alone = fence.is_open();
        let stance = |_| if alone { Stance::Ours(0) } else { Stance::Elsewhere };
        let stances = fence.holds().into_iter().map(stance).collect();
        let mut round = Self {
            shared,
            fence,
            agenda: Agenda::default(),
            told: HashMap::new(),
            stances,
            refreshing: JoinSet::new(),
        };
        round.apply(Change::Tenure);
        round
    }

    /// Until something is to be done about shards.
    pub async fn changed(&mut self) -> Change {
        tokio::select! {
            biased;
            () = self.fence.changed() => Change::Tenure,
            Some(Ok(terms)) = self.refreshing.join_next() => Change::Refreshed(terms),
        }
    }

    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Tenure => self.follow(),
            Change::Refreshed(terms) => self.refreshed(&terms),
        }
        let gained = self.stances.iter().enumerate();
        let gained: Vec<Term> = gained
            .filter_map(|(shard, stance)| match stance {
                Stance::Gained(term) => Some(Term { shard, term: *term }),
                _ => None,
            })
            .collect();
        // One list at a time, for all that were gained before it.
        if !gained.is_empty() && self.refreshing.is_empty() {
            for Term { shard, term } in &gained {
                self.stances[*shard] = Stance::Refreshing(*term);
            }
            self.refreshing.spawn(refresh(Arc::clone(&self.shared), gained));
        }
    }

    pub fn wake(&mut self, Woken { canary, by }: Woken) {
        let Stance::Ours(_) = self.stances[self.fence.shard_of(&canary)] else { return };
        match by {
            Some(version) if !self.shared.is_news(&canary, &version) => {}
            Some(version) if self.agenda.running().contains(&canary) => {
                self.told.entry(canary).or_default().push(version);
            }
            _ => self.agenda.wake(canary),
        }
    }

    pub fn conclude(&mut self, canary: CanaryName, outcome: Outcome) {
        let shard = self.fence.shard_of(&canary);
        let told = self.told.remove(&canary).unwrap_or_default();
        if !matches!(self.stances[shard], Stance::Ours(_)) {
            self.agenda.left(&canary);
            self.shared.forget(&canary);
            return self.end(shard);
        }
        if told.iter().any(|version| self.shared.is_news(&canary, version)) {
            self.agenda.wake(canary.clone());
        }
        match outcome {
            Outcome::Done(alarm) => {
                let alarm = alarm.map(|at| self.shared.instant(at));
                self.agenda.done(canary, alarm);
            }
            Outcome::Failed(why) => {
                let wait = |failures| backoff(&canary, failures);
                let failures = self.agenda.failed(canary.clone(), Instant::now(), wait);
                tracing::debug!(%canary, failures, "{why}; trying again");
                if failures == 5 {
                    tracing::warn!(%canary, "{why}; trying again and again");
                }
            }
        }
    }

    fn follow(&mut self) {
        for (shard, hold) in self.fence.holds().into_iter().enumerate() {
            match (self.stances[shard], hold) {
                (Stance::Gained(now) | Stance::Refreshing(now) | Stance::Ours(now), Hold::Kept { term })
                    if now == term => {}
                (Stance::Ending(now), Hold::Ending { term }) if now == term => {}
                (Stance::Elsewhere, Hold::None) => {}
                (Stance::Ours(now), Hold::Ending { term }) if now == term => {
                    self.leave(shard);
                    self.stances[shard] = Stance::Ending(term);
                    self.end(shard);
                }
                (_, hold) => {
                    self.lose(shard);
                    match hold {
                        Hold::None => {}
                        Hold::Kept { term } => self.stances[shard] = Stance::Gained(term),
                        // Nothing of it ever began.
                        Hold::Ending { term } => {
                            self.stances[shard] = Stance::Ending(term);
                            self.end(shard);
                        }
                    }
                }
            }
        }
    }

    fn refreshed(&mut self, terms: &[Term]) {
        let new: Vec<bool> = (0..self.stances.len())
            .map(|shard| {
                let term = terms.iter().find(|term| term.shard == shard).map(|term| term.term);
                term.is_some_and(|term| self.stances[shard] == Stance::Refreshing(term))
            })
            .collect();
        for Term { shard, term } in terms.iter().filter(|term| new[term.shard]) {
            self.shared.beside[*shard].begin();
            self.stances[*shard] = Stance::Ours(*term);
        }
        for canary in self.shared.caches.canaries.everything() {
            let canary = CanaryName::of(&*canary);
            if new[self.fence.shard_of(&canary)] {
                self.agenda.wake(canary);
            }
        }
    }

    /// Gives a shard back once nothing is under way for it.
    fn end(&mut self, shard: usize) {
        let Stance::Ending(term) = self.stances[shard] else { return };
        if self.agenda.running().iter().any(|canary| self.fence.shard_of(canary) == shard) {
            return;
        }
        self.forget(shard);
        let (fence, rest) = (self.fence.clone(), self.shared.beside[shard].end());
        tokio::spawn(async move {
            rest.await;
            fence.ended(Ended { shard, term });
        });
    }

    fn lose(&mut self, shard: usize) {
        self.leave(shard);
        self.forget(shard);
        // What it had to say is not waited for.
        drop(self.shared.beside[shard].end());
        self.stances[shard] = Stance::Elsewhere;
    }

    fn leave(&mut self, shard: usize) {
        let fence = &self.fence;
        self.agenda.leave(|canary| fence.shard_of(canary) == shard);
    }

    fn forget(&self, shard: usize) {
        let desks = self.shared.desks.lock();
        let ours = desks.keys().filter(|canary| self.fence.shard_of(canary) == shard);
        let ours: Vec<CanaryName> = ours.cloned().collect();
        drop(desks);
        ours.iter().for_each(|canary| self.shared.forget(canary));
    }
}

/// What [`Round::apply`] is to take in.
pub enum Change {
    Tenure,
    Refreshed(Vec<Term>),
}

/// Nothing may be decided on what is older than what its last holder saw, or
/// wrote.
async fn refresh(shared: Arc<Shared>, gained: Vec<Term>) -> Vec<Term> {
    while let Err(error) = shared.caches.refresh().await {
        tracing::warn!(%error, "cannot list what the Canaries of new shards are about; trying again");
        sleep(LIST_AGAIN).await;
    }
    gained
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

    #[test]
    fn failures_wait_longer_each_time_up_to_a_limit() {
        let web = CanaryName { namespace: "shop".to_owned(), name: "web".to_owned() };
        let waits: Vec<Duration> = (1..=20).map(|failures| backoff(&web, failures)).collect();
        assert!(waits[0] < Duration::from_millis(301) && waits[5] > waits[0].mul_f64(4.0));
        assert!(waits.iter().all(|wait| *wait <= LONGEST.mul_f64(1.5)));
    }
}
