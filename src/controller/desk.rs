//! What is remembered of one Canary while the controller runs, and nowhere
//! else: whatever is lost with it is simply asked for again.

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::{
    api::CanaryStatus,
    engine::{
        action::{Look, Question},
        observed::{Answer, Measured, Reply},
    },
    routing::Arms,
    workload::Configs,
};

#[derive(Default)]
pub struct Desk {
    /// Of the Canary: another one by the same name has another desk.
    pub uid: Option<String>,
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
    pub fn of(uid: Option<String>) -> Self {
        Self { uid, ..Self::default() }
    }

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

/// Questions and measurements under way, and what came of them.
#[derive(Default)]
pub struct Inbox {
    answers: Vec<Answer>,
    asking: Vec<Question>,
    measured: Option<Measured>,
    measuring: Option<Look>,
    /// The step of a release whose first window has begun.
    begun: Option<(u64, u32)>,
}

impl Inbox {
    /// True if nobody asks this already.
    pub fn ask(&mut self, question: &Question) -> bool {
        let new = !self.asking.contains(question);
        if new {
            self.asking.push(question.clone());
        }
        new
    }

    pub fn answered(&mut self, question: Question, reply: Reply, at: Timestamp) {
        self.asking.retain(|asked| *asked != question);
        self.answers.retain(|known| known.question != question);
        self.answers.push(Answer { question, reply, at });
    }

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

    /// What came, except what was about an earlier release.
    pub fn read(&mut self, release: u64) -> (Vec<Answer>, Option<Measured>) {
        self.answers.retain(|answer| answer.question.release >= release);
        self.measured.take_if(|measured| measured.look.release < release);
        (self.answers.clone(), self.measured.clone())
    }
}
