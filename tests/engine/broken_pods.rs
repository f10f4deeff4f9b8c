//! One pod of the canary is bad and the others are not.

use serin::api::canary::Phase;
use serin::api::canary::status::Verdict;
use serin::engine::{Action, decide};

use crate::world::{World, canary};

const ANALYSIS: &str = "stepWeights: [20, 50], metrics: [{name: request-success-rate}]";

fn releasing(on_broken_pod: &str) -> World {
    let mut world = World::releasing(&canary(&format!("{ANALYSIS}{on_broken_pod}")));
    world.broken_pod = Some("canary-broken".to_owned());
    world
}

fn deletions(world: &World) -> Vec<&String> {
    world.journal.iter().filter(|line| line.contains("replace pod")).collect()
}

#[test]
fn by_default_a_broken_pod_rolls_back_and_is_named() {
    let mut world = releasing("");
    world.run_to(Phase::Failed);
    let reason = &world.status.history[0].reason;
    assert!(reason.contains("pod canary-broken of the canary 80 % errors"), "{reason}");
    assert!(deletions(&world).is_empty(), "{:?}", world.journal);
}

#[test]
fn a_broken_pod_is_replaced_and_the_release_goes_on() {
    let mut world = releasing(", onBrokenPod: replace");
    world.run_to(Phase::Succeeded);
    assert_eq!(deletions(&world), ["    replace pod canary-broken"]);
    let event = world.journal.iter().find(|line| line.contains("is replaced")).expect("an Event");
    assert!(
        event.contains("Pod canary-broken of the canary is replaced, and the canary judged anew"),
        "{event}"
    );
    assert!(event.contains("request-success-rate: pod canary-broken"), "{event}");
}

#[test]
fn a_second_broken_pod_rolls_back() {
    let mut world = releasing(", onBrokenPod: replace");
    world.run_until(|world| world.deleted_pod.is_some());
    world.broken_pod = Some("canary-second".to_owned());
    world.run_to(Phase::Failed);
    assert_eq!(deletions(&world).len(), 1);
    let reason = &world.status.history[0].reason;
    assert!(reason.contains("canary-second"), "{reason}");
}

#[test]
fn a_canary_that_is_bad_as_a_whole_is_rolled_back_at_once() {
    let mut world = releasing(", onBrokenPod: replace");
    world.health = crate::world::Health::Bad;
    world.run_to(Phase::Failed);
    assert!(deletions(&world).is_empty(), "{:?}", world.journal);
}

/// The status is written last, so a crash in between repeats the decision, not a deletion
/// of another pod.
#[test]
fn a_pod_is_deleted_only_after_it_is_recorded() {
    let mut world = releasing(", onBrokenPod: replace");
    let wants = |world: &World| {
        let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
        decision.actions.contains(&Action::ReplacePod { pod: "canary-broken".to_owned() })
    };
    world.run_until(|world| serin::engine::replaced_pod(&world.status).is_some());
    assert_eq!(world.deleted_pod, None);
    let metric = &world.status.metrics[0];
    assert_eq!((metric.verdict, metric.failures, metric.evidence), (Verdict::Inconclusive, 0, None));
    assert!(wants(&world));
    world.persisted_replacement = None;
    assert!(!wants(&world), "the record is not written yet");
    world.persisted_replacement = Some("canary-broken".to_owned());
    world.deleted_pod = Some("canary-broken".to_owned());
    assert!(!wants(&world), "it is done");
}

/// Of a name that is no pod of the canary, for example: the release goes on, and the next
/// finding rolls back.
#[test]
fn a_pod_that_cannot_be_deleted_rolls_back_in_the_end() {
    let mut world = releasing(", onBrokenPod: replace");
    world.broken_pod_stays = true;
    world.run_to(Phase::Failed);
    assert_eq!(deletions(&world).len(), 1, "{:?}", world.journal);
}
