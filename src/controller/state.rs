//! What is remembered of one Canary while the controller runs, and nowhere
//! else: whatever is lost with it is simply asked for again.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{
    understand::{Meaning, MeaningFrom, Understood},
    wake::Version,
};
use crate::{
    api::CanaryStatus,
    engine::{
        action::{Look, Question, Split},
        observed::{Answer, Measured, Reply},
    },
    routing::{Arms, ObjectName, Stood},
    workload::{COMPANIONS, Configs, Snapshot},
};

#[derive(Default)]
pub struct Desk {
    /// Of the Canary: another one by the same name has another desk.
    pub uid: Option<String>,
    /// Only ever held by the one reconcile of this Canary.
    pub configs: tokio::sync::Mutex<Configs>,
    pub inbox: Mutex<Inbox>,
    /// How the pods were told apart when the target was last seen.
    pub arms: Mutex<Option<(Followed, Arc<Arms>)>>,
    pub stood: Stood,
    pub route: Mutex<Option<Route>>,
    pub followed: Mutex<Option<Followed>>,
    /// When everything that accompanies the target was last found to follow it.
    pub kept_up: Mutex<Option<KeptUp>>,
    pub meaning: Mutex<Option<(MeaningFrom, Meaning)>>,
    /// What was surely written last, then what may have been since.
    written: Mutex<Vec<Written>>,
    /// What its own writes made of objects, as far as their answers are known.
    own: Mutex<VecDeque<Version>>,
}

/// What the router last said.
pub struct Route {
    pub from: RouteFrom,
    pub split: Option<Split>,
    pub pending: Option<String>,
}

/// Everything that it followed from.
pub struct RouteFrom {
    /// Another one whenever the Canary means something else. Of its status a
    /// route follows the cookies only.
    pub objects: Arc<[ObjectName]>,
    pub cookies: (Option<String>, Option<String>),
    pub arms: Arc<Arms>,
    /// Of each object of the route.
    pub versions: Vec<Option<String>>,
}

impl PartialEq for RouteFrom {
    fn eq(&self, other: &Self) -> bool {
        let Self { objects, cookies, arms, versions } = other;
        Arc::ptr_eq(&self.objects, objects)
            && self.cookies == *cookies
            && Arc::ptr_eq(&self.arms, arms)
            && self.versions == *versions
    }
}

/// What everything that concerns a Canary follows from: what it means, and its
/// target's spec.
#[derive(Clone)]
pub struct Followed {
    objects: Arc<[ObjectName]>,
    target: (Option<String>, String),
}

impl Followed {
    pub fn of(understood: &Understood, target: &Snapshot) -> Self {
        let (uid, version) = target.state();
        let objects = Arc::clone(&understood.objects);
        Self { objects, target: (uid.map(str::to_owned), version) }
    }
}

impl PartialEq for Followed {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.objects, &other.objects) && self.target == other.target
    }
}

/// Everything that what accompanies a target follows from, and is itself.
pub struct KeptUp {
    pub target: Arc<Snapshot>,
    /// Of the Canary.
    pub generation: Option<i64>,
    /// Version of the canary's Service, where the target is a Service.
    pub canary_service: Option<String>,
    /// Of each kind of companions, in the namespace.
    pub companions: [u64; COMPANIONS.len()],
}

impl PartialEq for KeptUp {
    fn eq(&self, other: &Self) -> bool {
        let Self { target, generation, canary_service, companions } = other;
        self.target.is_written_alike(target)
            && self.generation == *generation
            && self.canary_service == *canary_service
            && self.companions == *companions
    }
}

/// So many writes of unknown outcome are remembered.
const UNSURE: usize = 8;

/// So many own writes are: a watch that was faster than their answers was so
/// within the one reconcile that made them.
const OWN: usize = 16;

/// The API keeps whole seconds; between two looks a second is a long time, and
/// what was counted in it would be counted twice.
struct Written {
    exact: Arc<CanaryStatus>,
    /// As the API keeps it: seldom asked for before the API has said it.
    told: OnceLock<Option<CanaryStatus>>,
}

impl Written {
    fn is_told_as(&self, told: &CanaryStatus) -> bool {
        let kept = || serde_json::to_value(&*self.exact).and_then(serde_json::from_value).ok();
        self.told.get_or_init(kept).as_ref() == Some(told)
    }
}

impl Desk {
    pub fn of(uid: Option<String>) -> Self {
        Self { uid, ..Self::default() }
    }

    /// The status as it was decided, if what the API tells is what was written.
    pub fn exact_status(&self, told: Option<&CanaryStatus>) -> Arc<CanaryStatus> {
        let Some(told) = told else { return Arc::default() };
        let written = self.written.lock();
        let exact = written.iter().find(|written| written.is_told_as(told));
        exact.map_or_else(|| Arc::new(told.clone()), |written| Arc::clone(&written.exact))
    }

    pub fn wrote_status(&self, exact: Arc<CanaryStatus>, told: CanaryStatus) {
        *self.written.lock() = vec![Written { exact, told: Some(told).into() }];
    }

    /// It knows what came of a write of its own, if anybody does.
    pub fn knows(&self, own: Option<Version>) {
        let mut known = self.own.lock();
        known.extend(own);
        if known.len() > OWN {
            known.pop_front();
        }
    }

    /// Is it what a write of its own made of an object, and known to be?
    pub fn is_own(&self, version: &Version) -> bool {
        self.own.lock().contains(version)
    }

    /// Is being written. Whether it was may never be said, but told it will be
    /// as the API keeps it.
    pub fn writes_status(&self, exact: Arc<CanaryStatus>) {
        let mut written = self.written.lock();
        if written.len() > UNSURE {
            written.remove(1);
        }
        written.push(Written { exact, told: OnceLock::new() });
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

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn changed(millisecond: i64) -> CanaryStatus {
        let at = Timestamp::from_millisecond(millisecond).unwrap();
        CanaryStatus { last_transition_time: Some(Time(at)), ..CanaryStatus::default() }
    }

    fn exact(desk: &Desk, told: i64) -> CanaryStatus {
        CanaryStatus::clone(&desk.exact_status(Some(&changed(told))))
    }

    #[test]
    fn a_status_is_exact_whether_or_not_its_write_was_answered() {
        let desk = Desk::default();
        desk.wrote_status(changed(1_200).into(), changed(1_000));
        for millisecond in 1..20 {
            desk.writes_status(changed(2_000 + 1_000 * millisecond + millisecond).into());
        }
        assert_eq!(exact(&desk, 1_000), changed(1_200), "none was done");
        assert_eq!(exact(&desk, 21_000), changed(21_019), "the last one was");
        assert_eq!(exact(&desk, 3_000), changed(3_000), "what is too long ago is forgotten");
        desk.wrote_status(changed(30_500).into(), changed(30_000));
        assert_eq!(exact(&desk, 30_000), changed(30_500));
        assert_eq!(exact(&desk, 21_000), changed(21_000));
    }
}
