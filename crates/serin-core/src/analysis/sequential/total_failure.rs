//! Total failure: evidence about the canary alone, for errors only.
//!
//! A comparison is blind while the primary has no requests, as with all traffic
//! on the canary. So there is a second e-process, against "the canary fails at
//! most half of its requests". For each share of [`SHARES`] a request multiplies
//! the evidence by its likelihood over that under one half, on average at most
//! one if no more than half fail. A canary that fails everything is convicted by
//! its ninth request (at 1/α = 100); a healthy one stays far below one.
//!
//! A primary that fails as much over the same time speaks for a shared incident:
//! the comparison alone decides then. Ignoring evidence keeps the error bound.

use serde::{Deserialize, Serialize};

use super::confirmation::{Confirmation, Finding, LogEvidence, Look};
use super::e_process::{MIN_LOG, log, log_add, log_mean, remaining_prior, start_prior};
use super::fixed::Fixed;
use crate::analysis::measurement::{Arms, Counts};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TotalFailure {
    /// Looks with requests to the canary.
    checks: u32,
    /// Log-evidence that the canary has come to fail this share of its requests.
    alarm: [Fixed; SHARES.len()],
    /// Counts since the evidence was last in the canary's favour.
    suspect: Arms<Counts>,
    #[serde(default)]
    confirmation: Confirmation,
}

/// Shares of failed requests that are compared with one half.
const SHARES: [f64; 4] = [0.6, 0.75, 0.9, 0.99];
/// Requests from which on a primary that fails as well excuses the canary.
const MIN_PRIMARY_REQUESTS: u64 = 5;

impl Default for TotalFailure {
    fn default() -> Self {
        TotalFailure {
            checks: 0,
            alarm: [Fixed::of(MIN_LOG); SHARES.len()],
            suspect: Arms::default(),
            confirmation: Confirmation::default(),
        }
    }
}

impl TotalFailure {
    pub fn update(&mut self, look: Arms<Counts>) {
        let bad = look.canary.bad() as f64;
        let good = look.canary.total() as f64 - bad;
        let start = start_prior(self.checks);
        for (alarm, share) in self.alarm.iter_mut().zip(SHARES) {
            let gain = bad * (2.0 * share).ln() + good * (2.0 * (1.0 - share)).ln();
            *alarm = log(log_add(alarm.get(), start.ln()) + gain);
        }
        self.checks = self.checks.saturating_add(1);
        self.suspect.canary.add(look.canary);
        self.suspect.primary.add(look.primary);
        if self.log_e_value() < 0.0 {
            self.suspect = Arms::default();
        }
    }

    /// Whether the canary is convicted, with this log-evidence. If both arms were read
    /// at the same moment one look is enough: no burst of retries is half of all
    /// requests.
    pub fn finding(&mut self, look: Look, alarm: f64) -> Finding {
        let evidence = self.log_e_value_unless_shared();
        let logs = LogEvidence { damped: evidence, raw: evidence, worth: evidence };
        let confirmed = self.confirmation.update(logs, look, alarm);
        if look.is_aligned() && evidence >= alarm { Finding::Convicted } else { confirmed }
    }

    /// Drops an alarm that later requests did not confirm.
    pub fn drop_alarm(&mut self) {
        *self = TotalFailure { checks: self.checks, ..TotalFailure::default() };
    }

    /// The log of the evidence that the canary fails, or has come to fail, more than
    /// half of its requests; at most zero while the primary fails as well.
    pub fn log_e_value_unless_shared(&self) -> f64 {
        if self.is_shared() { self.log_e_value().min(0.0) } else { self.log_e_value() }
    }

    /// The canary's requests behind the evidence.
    pub fn suspect(&self) -> Counts {
        self.suspect.canary
    }

    fn log_e_value(&self) -> f64 {
        log_add(log_mean(&self.alarm), remaining_prior(self.checks).ln())
    }

    /// Whether the primary fails at least half as much over the same time.
    fn is_shared(&self) -> bool {
        let Arms { canary, primary } = self.suspect.map(Counts::rate);
        self.suspect.primary.total() >= MIN_PRIMARY_REQUESTS
            && canary.zip(primary).is_some_and(|(canary, primary)| primary >= canary / 2.0)
    }
}
