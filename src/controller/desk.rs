//! What is remembered of one Canary while the controller runs, and nowhere
//! else: whatever is lost with it is simply asked for again.

use parking_lot::Mutex;

use crate::{
    api::CanaryStatus,
    engine::{action::Look, observed::Measured},
    routing::Arms,
    workload::Configs,
};

#[derive(Default)]
pub struct Desk {
    /// Only ever held by the one reconcile of this Canary.
    pub configs: tokio::sync::Mutex<Configs>,
    pub inbox: Mutex<Inbox>,
    /// How the pods were told apart when the target was last seen.
    pub arms: Mutex<Option<Arms>>,
    written: Mutex<Option<Written>>,
}

/// The API keeps whole seconds; between two looks a second is a long time.
struct Written {
    told: CanaryStatus,
    exact: CanaryStatus,
}

impl Desk {
    /// The status as it was decided, if what the API tells is what was written.
    pub fn exact_status(&self, told: &CanaryStatus) -> CanaryStatus {
        let written = self.written.lock();
        let exact = written.as_ref().filter(|written| written.told == *told);
        exact.map_or(told, |written| &written.exact).clone()
    }

    pub fn wrote_status(&self, exact: CanaryStatus, told: CanaryStatus) {
        *self.written.lock() = Some(Written { told, exact });
    }
}

/// What is being measured, and what came of it.
#[derive(Default)]
pub struct Inbox {
    measured: Option<Measured>,
    measuring: Option<Look>,
    /// The step of a release whose first window has begun.
    begun: Option<(u64, u32)>,
}

impl Inbox {
    /// True if nobody measures this already. Another look takes the place of
    /// the one before.
    pub fn measure(&mut self, look: &Look) -> bool {
        let new = self.measuring.as_ref() != Some(look);
        if new {
            self.measuring = Some(look.clone());
        }
        new
    }

    pub fn measured(&mut self, measured: Measured) {
        self.measuring.take_if(|look| *look == measured.look);
        self.measured = Some(measured);
    }

    /// True the first time that the look of a step is seen to go on; the step
    /// is none while nothing is looked at.
    pub fn begins(&mut self, step: Option<(u64, u32)>) -> bool {
        let new = step.is_some() && self.begun != step;
        self.begun = step;
        new
    }

    /// What came, unless it was about an earlier release.
    pub fn read(&mut self, release: u64) -> Option<Measured> {
        self.measured.take_if(|measured| measured.look.release < release);
        self.measured.clone()
    }
}
