//! A Canary whose route changes: the recorded route is replaced, and its objects
//! removed, only once the split is in force on the new one.

use serin::{
    api::canary::{Provider, status::RouteStatus},
    engine::{Action, Observed, decide},
};

use crate::world::{World, canary};

fn route(service: &str) -> RouteStatus {
    RouteStatus { provider: Provider::Istio, service: service.to_owned(), objects: Vec::new() }
}

/// The recorded route and the migrations after one decision.
fn decided(
    recorded: Option<&str>,
    change: impl Fn(&mut Observed),
) -> (Option<RouteStatus>, Vec<RouteStatus>) {
    let mut world = World::initialized(&canary("stepWeight: 50"));
    world.status.route = recorded.map(route);
    let mut observed = Observed { route: Some(route("web")), ..world.observe() };
    change(&mut observed);
    let decision = decide(&world.plan, &world.status, &observed, world.now);
    let migrations = decision.actions.into_iter().filter_map(|action| match action {
        Action::MigrateRoute { from } => Some(from),
        _ => None,
    });
    (decision.status.route, migrations.collect())
}

#[test]
fn the_first_route_is_recorded_without_a_migration() {
    assert_eq!(decided(None, |_| {}), (Some(route("web")), vec![]));
}

#[test]
fn an_unchanged_route_is_not_migrated() {
    assert_eq!(decided(Some("web"), |_| {}), (Some(route("web")), vec![]));
}

#[test]
fn a_changed_route_is_migrated_and_then_recorded() {
    assert_eq!(decided(Some("old"), |_| {}), (Some(route("old")), vec![route("old")]));
    let migrated = decided(Some("old"), |observed| observed.migrated_from = Some(route("old")));
    assert_eq!(migrated, (Some(route("web")), vec![]));
}

#[test]
fn a_migration_of_another_route_does_not_count() {
    let other = decided(Some("old"), |observed| observed.migrated_from = Some(route("older")));
    assert_eq!(other, (Some(route("old")), vec![route("old")]));
}

#[test]
fn a_route_is_kept_until_the_split_is_in_force_on_the_new_one() {
    let waiting = decided(Some("old"), |observed| observed.split = None);
    assert_eq!(waiting, (Some(route("old")), vec![]));
}

#[test]
fn a_deleted_canary_migrates_nothing() {
    let deleted = decided(Some("old"), |observed| observed.deleting = true);
    assert_eq!(deleted, (Some(route("old")), vec![]));
}
