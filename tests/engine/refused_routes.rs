//! Routes that the proxies refuse.

use std::time::Duration;

use serin::api::canary::{Phase, status::Outcome};
use serin::engine::action::Split;

use crate::world::{REFUSAL, World, canary};

#[test]
fn a_step_that_the_proxies_refuse_is_rolled_back_at_once() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [20, 50]"));
    world.refuses = |split| split.canary.percent() == 50.0;
    world.run_to_weight(50.0);
    let refused = world.now;
    world.settle();
    assert_eq!((world.status.phase, world.now), (Phase::Failed, refused));
    assert_eq!(world.split, Split::all_primary());
    let past = &world.status.history[0];
    assert_eq!((past.outcome, past.reason.as_str()), (Outcome::RolledBack, REFUSAL));
    assert!(world.journal.iter().any(|line| line.contains(REFUSAL)), "{:#?}", world.journal);
}

#[test]
fn a_refused_route_to_the_primary_alone_holds_the_release() {
    let mut world = World::releasing(&canary("interval: 1m, stepWeights: [20, 50]"));
    world.refuses = |split| !split.reaches_canary();
    world.run_for(Duration::from_secs(300));
    assert!(world.status.history.is_empty(), "{:#?}", world.status.history);
    world.refuses = |_| false;
    world.run();
    assert_eq!(world.status.phase, Phase::Succeeded);
}
