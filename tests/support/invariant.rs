//! The release invariants of ARCHITECTURE.md, shared by the two suites that
//! check them: `tests/engine` on random histories, `tests/simulate` on writes.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    PromotedIsAnalysed = 1,
    WeightFollowsPlan = 2,
    FailureReturnsTraffic = 3,
    ReturnsToReadyPrimary = 4,
    EvidenceRollsBack = 5,
    RevisionIsNotLost = 6,
    CrashSafe = 7,
    FreezeHolds = 8,
    UpgradeStartsNothing = 9,
    AbortReturnsTraffic = 10,
    ShareIsJudged = 11,
    ReadyIsTrue = 12,
    LastingErrorIsShown = 13,
    TroubleStaysAtHome = 14,
}

use Invariant::*;

impl Invariant {
    pub const ALL: [Self; 14] = [
        PromotedIsAnalysed,
        WeightFollowsPlan,
        FailureReturnsTraffic,
        ReturnsToReadyPrimary,
        EvidenceRollsBack,
        RevisionIsNotLost,
        CrashSafe,
        FreezeHolds,
        UpgradeStartsNothing,
        AbortReturnsTraffic,
        ShareIsJudged,
        ReadyIsTrue,
        LastingErrorIsShown,
        TroubleStaysAtHome,
    ];

    /// Its number in ARCHITECTURE.md.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Its sentence in ARCHITECTURE.md.
    pub fn sentence(self) -> &'static str {
        match self {
            PromotedIsAnalysed => "The revision promoted is exactly the revision analysed.",
            WeightFollowsPlan => {
                "A canary gets traffic only while it can serve; weights rise only along the plan, never past \
                 `maxWeight`, never before the current weight was judged."
            }
            FailureReturnsTraffic => {
                "Failed, aborted or superseded: all traffic goes to the primary and stays there, unless the \
                 primary is the broken one."
            }
            ReturnsToReadyPrimary => {
                "After a promotion all traffic goes to the primary only once the primary is ready with the \
                 promoted revision, or can serve while the target is at another revision, which nobody \
                 judged, or can serve and did not become ready again within the deadline."
            }
            EvidenceRollsBack => {
                "\"Unavailable\" and \"no traffic\" are not \"bad\": they hold. Only evidence rolls back, or \
                 the user's own deadline."
            }
            RevisionIsNotLost => "A new revision is never lost: it is released or explicitly refused.",
            CrashSafe => "Kill the controller between any two actions: the next one reaches the same end.",
            FreezeHolds => "Inside a freeze nothing starts, advances or promotes; rollback always may.",
            UpgradeStartsNothing => "Upgrading Serin starts no release: the revision hash is versioned.",
            AbortReturnsTraffic => {
                "An abort gets all traffic back to the primary within a minute, as long as the route can be \
                 written."
            }
            ShareIsJudged => {
                "No request reaches a revision at a share that it was not judged for on the way there, \
                 promotion included."
            }
            ReadyIsTrue => {
                "`Ready` is never a lie: the primary exists, is ready, and all traffic goes to it."
            }
            LastingErrorIsShown => "An error that lasts a minute is on the object.",
            TroubleStaysAtHome => {
                "One Canary's trouble never delays another's decision by more than 30 seconds."
            }
        }
    }
}

/// A broken rule. Rules beside the invariants have no `invariant`.
#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: Option<Invariant>,
    pub details: String,
}

impl From<String> for Violation {
    fn from(details: String) -> Self {
        Self { invariant: None, details }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.invariant {
            Some(invariant) => {
                write!(f, "{}: {} ({})", invariant.number(), self.details, invariant.sentence())
            }
            None => f.write_str(&self.details),
        }
    }
}

/// How often each invariant was checked on a state in which it could have been
/// violated.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<Invariant, u64>);

impl Coverage {
    pub fn count(&mut self, invariant: Invariant) {
        *self.0.entry(invariant).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (invariant, times) in &other.0 {
            *self.0.entry(*invariant).or_default() += times;
        }
    }

    /// Each invariant with its number of checks, which may be none.
    pub fn iter(&self) -> impl Iterator<Item = (Invariant, u64)> {
        Invariant::ALL.into_iter().map(|invariant| (invariant, self.0.get(&invariant).copied().unwrap_or(0)))
    }

    /// Panics if one of these invariants was never exercised.
    pub fn assert_exercised(&self, invariants: &[Invariant]) {
        for (invariant, times) in self.iter().filter(|(invariant, _)| invariants.contains(invariant)) {
            let (number, sentence) = (invariant.number(), invariant.sentence());
            assert!(times > 0, "never exercised: {number}. {sentence}\n{self:?}");
        }
    }
}

#[test]
fn the_invariants_are_those_of_architecture_md() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(include_str!("../../ARCHITECTURE.md"));
    for (at, invariant) in Invariant::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(invariant.number()), at + 1);
        let item = format!("{}. {}", invariant.number(), words(invariant.sentence()));
        assert!(text.contains(&item), "not in ARCHITECTURE.md: {item}");
    }
}
