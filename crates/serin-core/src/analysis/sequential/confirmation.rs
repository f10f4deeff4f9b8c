//! A second opinion before a conviction.
//!
//! The arms are seldom read at the same moment: each pod is scraped at its own, and
//! one arm may lag. At the beginning and the end of a shared incident one arm then
//! shows it and the other does not, and the evidence against a healthy canary knows
//! no bounds. Nor is one clump of retries more than one event. In both cases requests
//! that come later, once both arms have been read again, speak for the canary.
//!
//! So evidence of the square root of what convicts raises an alarm. From the first
//! look on at which every pod was read since the alarm, the evidence must grow by
//! that factor again. If it shrinks by as much, the alarm is dropped. An incident has
//! an end as well as a beginning, so arms that are read at different moments must show
//! growth in two such rounds, of less in the second one. To ask for more
//! before a conviction keeps the error bound, and costs a canary that is found slowly
//! nothing: the second half of its evidence is the second opinion.

use serde::{Deserialize, Serialize};

use super::fixed::Fixed;

/// When the counts of a look were taken, in milliseconds of any one clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// The end of the window.
    pub until: i64,
    /// Requests before this moment are counted on all pods of both arms.
    pub known_until: i64,
    /// Pods of the canary are young: only total failure counts.
    pub warming_up: bool,
    /// The check is over: limits are judged.
    pub full: bool,
}

impl Look {
    /// Both arms were read at the same moment.
    pub fn is_aligned(self) -> bool {
        self.known_until >= self.until
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confirmation {
    /// The end of the look that raised the alarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raised_at: Option<i64>,
    /// The present round: the log-evidence, damped and raw, when all pods had been
    /// read since, and the end of that look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    round: Option<(Fixed, Fixed, i64)>,
    /// A round has shown growth.
    #[serde(default)]
    confirmed: bool,
}

/// Log-evidence, damped by the bursts of the last minutes and not. It must grow by
/// both: the one also grows while bursts fade, the other with every burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LogEvidence {
    pub damped: f64,
    pub raw: f64,
    /// Damped by the differences between pods as well: it convicts, but need not grow,
    /// as more requests to the same pods add ever less to it.
    pub worth: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    Calm,
    Suspected,
    Convicted,
    /// Later requests contradict the alarm.
    Refuted,
}

impl Confirmation {
    /// With the log-evidence after a look, and the log-evidence that convicts.
    pub fn update(&mut self, logs: LogEvidence, look: Look, convicts: f64) -> Finding {
        let evidence = logs.damped;
        let round = Some((Fixed::of(evidence), Fixed::of(logs.raw), look.until));
        let half = convicts / 2.0;
        if evidence <= 0.0 || (self.raised_at.is_none() && evidence < half) {
            *self = Confirmation::default();
            return Finding::Calm;
        }
        if self.raised_at.is_some_and(|raised| raised > look.until) {
            // The clock was stepped back.
            *self = Confirmation::default();
        }
        let raised_at = *self.raised_at.get_or_insert(look.until);
        let (grown, raw, began) = match self.round {
            Some((base, raw, began)) => (evidence - base.get(), logs.raw - raw.get(), began),
            None if look.known_until < raised_at => return Finding::Suspected,
            None => {
                self.round = round;
                return Finding::Suspected;
            }
        };
        if raw <= -half {
            *self = Confirmation::default();
            return Finding::Refuted;
        }
        let needed = if self.confirmed { half / 2.0 } else { half };
        if grown.min(raw) < needed || look.known_until < began {
            return Finding::Suspected;
        }
        if logs.worth >= convicts && (self.confirmed || look.is_aligned()) {
            return Finding::Convicted;
        }
        (self.confirmed, self.round) = (true, round);
        Finding::Suspected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONVICTS: f64 = 4.6;

    fn look(until: i64, lag: i64) -> Look {
        Look { until, known_until: until - lag, ..Look::default() }
    }

    #[track_caller]
    fn check(lag: i64, evidence: &[f64], expected: &[Finding]) {
        let mut confirmation = Confirmation::default();
        let findings: Vec<Finding> = (1..)
            .zip(evidence)
            .map(|(at, evidence)| {
                let logs = LogEvidence { damped: *evidence, raw: *evidence, worth: *evidence };
                confirmation.update(logs, look(10 * at, lag), CONVICTS)
            })
            .collect();
        assert_eq!(findings, expected);
    }

    use Finding::{Calm, Convicted, Refuted, Suspected};

    #[test]
    fn one_look_never_convicts_and_a_second_one_does() {
        check(0, &[1.0, 50.0, 51.0, 53.0], &[Calm, Suspected, Suspected, Convicted]);
    }

    #[test]
    fn evidence_that_grows_slowly_is_its_own_confirmation() {
        check(0, &[1.0, 2.4, 3.5, 4.0, 4.8], &[Calm, Suspected, Suspected, Suspected, Convicted]);
    }

    #[test]
    fn evidence_counts_as_fresh_once_all_pods_were_read_since_the_alarm() {
        let growing = [5.0, 50.0, 90.0, 91.0, 93.0, 95.0, 96.0, 97.0, 98.0];
        let mut expected = [Suspected; 9];
        expected[6..].fill(Convicted);
        check(20, &growing, &expected);
    }

    #[test]
    fn an_alarm_that_later_requests_contradict_is_dropped() {
        check(0, &[50.0, 49.0, 47.0, 2.0], &[Suspected, Suspected, Refuted, Calm]);
        check(0, &[2.4, 1.0, 0.0, 2.0], &[Suspected, Suspected, Calm, Calm]);
    }
}
