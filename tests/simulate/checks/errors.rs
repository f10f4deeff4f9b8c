//! Invariant 13: an error that lasts a minute is on the object.

use std::time::Duration;

use super::{InvariantChecker, LawResult};
use crate::invariant::Invariant::LastingErrorIsShown;
use crate::model::CanaryModel;
use crate::refusals::RefusedSeries;

const LASTING: Duration = Duration::from_secs(60);
/// The next decision may not need the attempt, such as after a command to promote. If it
/// fails again later, the reconcile after that reports it.
const MAX_HIDDEN: Duration = Duration::from_secs(1);

impl InvariantChecker {
    /// A request for this Canary was refused once more; `token` is a part of the
    /// server's words. `able_since`: since when the controller can write the status.
    pub fn check_lasting_error(
        &mut self,
        on: &CanaryModel,
        token: &str,
        series: &mut RefusedSeries,
        able_since: Duration,
    ) -> LawResult {
        let length = series.last.saturating_sub(series.first.max(able_since));
        let Some(status) = on.status().filter(|_| length > LASTING) else { return Ok(()) };
        let quoted = status.conditions.iter().any(|condition| condition.message.contains(token))
            || status.message.as_ref().is_some_and(|message| message.contains(token));
        let hidden_since = *series.hidden_since.get_or_insert(series.last);
        if quoted {
            series.hidden_since = None;
        }
        let hidden = series.last.saturating_sub(hidden_since);
        self.law(LastingErrorIsShown, quoted || hidden <= MAX_HIDDEN, || {
            let conditions: Vec<_> = status
                .conditions
                .iter()
                .map(|condition| format!("{} {:?}: {}", condition.type_, condition.status, condition.message))
                .collect();
            format!("{}: {token} refused a request for {length:?}; conditions: {conditions:?}", on.name)
        })
    }
}
