//! A route that is an entry of a list, beside the routes of other people.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;
use serin::routing::ObjectName;

use crate::rows::List;
use crate::steps::chosen;
use crate::world::{World, written};

fn list(world: &World) -> &List {
    world.row.list.as_ref().expect("a router whose route is an entry of a list")
}

async fn entries(world: &World, route: &ObjectName) -> Vec<Value> {
    list(world).of(&world.get(route).await).to_vec()
}

/// Somebody else writes the whole list, as anybody must.
async fn rewrite(world: &World, route: &ObjectName, entries: &[Value]) {
    let mut patch = json!({});
    let mut at = &mut patch;
    for field in list(world).at.split('/').skip(1) {
        at = &mut at[field];
    }
    *at = json!(entries);
    world.meddle(route, &patch).await;
}

/// Every split that the router can do.
fn release(world: &World) -> Vec<Split> {
    let (can, some) = (world.can(), Split::weight(world.some()));
    let mut splits = vec![Split::home()];
    if can.mirror {
        splits.push(Split { mirror: Weight::FULL, ..Split::home() });
    }
    if can.matches {
        splits.push(Split { matches: chosen(world), ..Split::home() });
    }
    if can.match_with_weight {
        splits.push(Split { matches: chosen(world), ..some.clone() });
    }
    splits.extend([some, Split::weight(Weight::FULL), Split::home()]);
    splits
}

pub async fn routes_of_others_survive_every_step_and_are_put_back(world: World) {
    let route = world.route();
    let before = world.create(&route, world.row.before.clone().expect("a route")).await;
    let theirs = list(&world).of(&before)[0].clone();
    for split in release(&world) {
        world.set(&split).await;
        assert_eq!(entries(&world, &route).await[0], theirs, "{split:?}");
    }
    // One that comes meanwhile is theirs as well.
    let mut now = entries(&world, &route).await;
    now.push(list(&world).theirs.clone());
    rewrite(&world, &route, &now).await;
    let later = entries(&world, &route).await.last().expect("an entry").clone();
    assert_eq!(world.split().await, Some(Split::home()), "it does not touch the split");
    for split in release(&world) {
        world.set(&split).await;
        assert_eq!(entries(&world, &route).await.last(), Some(&later), "{split:?}");
    }
    world.restore().await;
    let mut expected = list(&world).of(&before).to_vec();
    expected.push(later);
    assert_eq!(entries(&world, &route).await, expected);
}

pub async fn the_route_to_the_apex_is_stood_in_for_and_put_back(world: World) {
    let route = world.route();
    let List { at, theirs, apex } = list(&world);
    let mut body = world.row.before.clone().expect("a route");
    let rest = body.pointer(at).expect("entries")[1].clone();
    *body.pointer_mut(at).expect("entries") = json!([theirs, apex, rest]);
    let before = world.create(&route, body).await;
    let original = list(&world).of(&before);
    for split in release(&world) {
        world.set(&split).await;
        let now = entries(&world, &route).await;
        assert_eq!(now.first(), original.first(), "{split:?}");
        assert_eq!(now.last(), original.last(), "what is for all others is not taken: {split:?}");
        // What it asks of a request and does to it goes on.
        let ours = &now[now.len() - 2];
        for (field, value) in original[1].as_object().expect("an entry") {
            let leads = value.to_string().contains("\"web\"");
            let mirrored = field == "filters" && split.mirror > Weight::ZERO;
            assert!(leads || mirrored || ours[field] == *value, "{field} of {ours}");
        }
    }
    world.restore().await;
    assert_eq!(written(&world.get(&route).await), written(&before));
}

pub async fn every_route_to_the_apex_is_stood_in_for_and_put_back(world: World) {
    let route = world.route();
    let List { at, theirs, apex } = list(&world);
    let mut body = world.row.before.clone().expect("a route");
    let rest = body.pointer(at).expect("entries")[1].clone();
    *body.pointer_mut(at).expect("entries") = json!([apex, theirs, apex, rest]);
    let before = world.create(&route, body).await;
    let original = list(&world).of(&before);
    for split in release(&world) {
        world.set(&split).await;
        let now = entries(&world, &route).await;
        let each = (now.len() - 2) / 2;
        assert_eq!((&now[each], now.last()), (&original[1], original.last()), "{split:?}");
        assert_eq!(now[..each], now[each + 1..=2 * each], "{split:?}");
        assert!(now[0].to_string().contains("web-canary"), "{split:?}");
    }
    world.restore().await;
    assert_eq!(written(&world.get(&route).await), written(&before));
}

pub async fn an_edit_of_the_list_at_the_same_moment_loses_nothing(world: World) {
    let route = world.route();
    world.create(&route, world.row.before.clone().expect("a route")).await;
    world.set(&Split::home()).await;
    let stale = world.seen().await;
    let mut now = entries(&world, &route).await;
    now.insert(0, list(&world).theirs.clone());
    rewrite(&world, &route, &now).await;
    let theirs = entries(&world, &route).await[0].clone();
    let split = Split::weight(world.some());
    world.set_from(&stale, &split).await.unwrap();
    assert_eq!(world.split().await, Some(split));
    assert_eq!(entries(&world, &route).await[0], theirs);
    assert_eq!(entries(&world, &route).await.len(), now.len());
}

/// Whoever applies manifests from a repository does that.
pub async fn a_list_that_somebody_puts_back_is_taken_over_again(world: World) {
    let route = world.route();
    let before = world.create(&route, world.row.before.clone().expect("a route")).await;
    let split = Split::weight(world.some());
    world.set(&split).await;
    let ours = entries(&world, &route).await;
    rewrite(&world, &route, list(&world).of(&before)).await;
    assert_eq!(world.split().await, None);
    world.set(&split).await;
    assert_eq!(entries(&world, &route).await, ours);
    world.restore().await;
    assert_eq!(written(&world.get(&route).await), written(&before));
}
