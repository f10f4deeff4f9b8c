//! Failed attempts of one Canary's reconciles. One that lasts becomes an input of
//! the engine, which reports it on the object and lets the deadline run.

use std::time::Duration;

use jiff::Timestamp;

use crate::engine::{action::Purpose, observed::Failure, report::cut};

/// Fewer repetitions are as likely a conflict or a restart of the API server.
const LASTING_ATTEMPTS: u32 = 3;
const LASTING_AFTER: Duration = Duration::from_secs(5);
/// The server's words may differ each time; the reported ones change this often at
/// most.
const MESSAGE_LIFETIME: Duration = Duration::from_secs(60);

/// An attempt that failed in this reconcile.
#[derive(Clone, Debug)]
pub struct FailedAttempt {
    /// The attempt, the same at each repetition.
    pub attempt: String,
    pub failure: Failure,
}

/// The attempts that a reconcile did not get to. Nothing is known about them, so that
/// those that failed before still count as failed.
#[derive(Debug)]
pub enum Unattempted {
    /// These, behind one that failed.
    Named(Vec<&'static str>),
    /// There was nothing to decide on.
    All,
}

impl Unattempted {
    fn contains(&self, attempt: &str) -> bool {
        match self {
            Self::Named(names) => names.contains(&attempt),
            Self::All => true,
        }
    }
}

/// The attempts that failed in the last reconcile that got to them.
#[derive(Default)]
pub struct FailureLog(Vec<RepeatedFailure>);

struct RepeatedFailure {
    attempt: String,
    failure: Failure,
    attempts: u32,
    since: Timestamp,
    /// When the message was taken.
    message_at: Timestamp,
}

impl RepeatedFailure {
    fn lasts(&self, now: Timestamp) -> bool {
        let age = Duration::try_from(now.duration_since(self.since)).unwrap_or_default();
        self.failure.refused || (self.attempts >= LASTING_ATTEMPTS && age >= LASTING_AFTER)
    }
}

impl FailureLog {
    /// Replaces the attempts by those of this reconcile; those that failed before
    /// keep their age.
    pub fn record(&mut self, failed: Vec<FailedAttempt>, unattempted: &Unattempted, now: Timestamp) {
        let mut before = std::mem::take(&mut self.0);
        let failed: Vec<_> = failed
            .into_iter()
            .map(|FailedAttempt { attempt, failure }| {
                let known = before.iter().position(|known| known.attempt == attempt);
                let Some(mut known) = known.map(|at| before.swap_remove(at)) else {
                    return RepeatedFailure { attempt, failure, attempts: 1, since: now, message_at: now };
                };
                known.attempts = known.attempts.saturating_add(1);
                // The clock may have been stepped back.
                (known.since, known.message_at) = (known.since.min(now), known.message_at.min(now));
                let age = Duration::try_from(now.duration_since(known.message_at)).unwrap_or_default();
                if known.failure.refused != failure.refused || age >= MESSAGE_LIFETIME {
                    (known.failure, known.message_at) = (failure, now);
                }
                known
            })
            .collect();
        before.retain(|known| unattempted.contains(&known.attempt));
        self.0 = failed;
        self.0.append(&mut before);
    }

    /// In the order of their purposes.
    pub fn lasting(&self, now: Timestamp) -> Vec<Failure> {
        let mut lasting: Vec<Failure> = self
            .0
            .iter()
            .filter(|repeated| repeated.lasts(now))
            .map(|repeated| repeated.failure.clone())
            .collect();
        lasting.sort_by_key(|failure| failure.purpose);
        lasting
    }

    /// Has an attempt of this name failed so often that the reconcile goes on
    /// without it?
    pub fn is_lasting(&self, attempt: &str, now: Timestamp) -> bool {
        self.0.iter().any(|repeated| repeated.attempt == attempt && repeated.lasts(now))
    }
}

impl FailedAttempt {
    pub fn new(purpose: Purpose, attempt: impl Into<String>, message: String, refused: bool) -> Self {
        Self { attempt: attempt.into(), failure: Failure { purpose, message: cut(message), refused } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(refused: bool, message: &str) -> Vec<FailedAttempt> {
        vec![FailedAttempt::new(Purpose::Advance, "promote", message.to_owned(), refused)]
    }

    fn all_attempted() -> Unattempted {
        Unattempted::Named(Vec::new())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_failure_lasts_after_three_attempts_and_some_seconds() {
        let mut log = FailureLog::default();
        for second in [0, 1, 2] {
            log.record(failed(false, "timeout"), &all_attempted(), at(second));
            assert!(log.lasting(at(second)).is_empty());
        }
        assert_eq!(log.lasting(at(5)).len(), 1);
        log.record(Vec::new(), &all_attempted(), at(6));
        assert!(log.lasting(at(6)).is_empty());
    }

    #[test]
    fn a_refusal_lasts_at_once_and_keeps_its_words_for_a_minute() {
        let mut log = FailureLog::default();
        log.record(failed(true, "denied (1)"), &all_attempted(), at(0));
        log.record(failed(true, "denied (2)"), &all_attempted(), at(30));
        assert_eq!(log.lasting(at(30))[0].message, "denied (1)");
        log.record(failed(true, "denied (3)"), &all_attempted(), at(61));
        assert_eq!(log.lasting(at(61))[0].message, "denied (3)");
    }

    #[test]
    fn a_failure_is_kept_by_a_reconcile_that_does_not_get_to_its_attempt() {
        let mut log = FailureLog::default();
        log.record(failed(true, "denied"), &all_attempted(), at(0));
        for unattempted in [Unattempted::Named(vec!["promote"]), Unattempted::All] {
            log.record(Vec::new(), &unattempted, at(1));
            assert_eq!(log.lasting(at(1)).len(), 1, "{unattempted:?}");
        }
        log.record(Vec::new(), &Unattempted::Named(vec!["scale the canary"]), at(2));
        assert!(log.lasting(at(2)).is_empty());
    }
}
