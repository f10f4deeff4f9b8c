//! A route that is an entry of a list, next to the routes of others.

use serde_json::{Value, json};
use serin::api::Weight;
use serin::engine::action::Split;
use serin::routing::ObjectKey;

use crate::routers::SharedListCase;
use crate::steps::match_conditions;
use crate::world::{World, user_fields};

fn list(world: &World) -> &SharedListCase {
    world.case.list.as_ref().expect("a router whose route is an entry of a list")
}

async fn entries(world: &World, route: &ObjectKey) -> Vec<Value> {
    list(world).of(&world.get(route).await).to_vec()
}

/// Writes the whole list as another client.
async fn rewrite(world: &World, route: &ObjectKey, entries: &[Value]) {
    let mut patch = json!({});
    let mut at = &mut patch;
    for field in list(world).at.split('/').skip(1) {
        at = &mut at[field];
    }
    *at = json!(entries);
    world.patch_as_user(route, &patch).await;
}

/// Every split that the router supports.
fn release(world: &World) -> Vec<Split> {
    let (can, some) = (world.capabilities(), Split::weight(world.partial_weight()));
    let mut splits = vec![Split::all_primary()];
    if can.mirror {
        splits.push(Split { mirror: Weight::FULL, ..Split::all_primary() });
    }
    if can.matches {
        splits.push(Split { matches: match_conditions(world), ..Split::all_primary() });
    }
    if can.match_with_weight {
        splits.push(Split { matches: match_conditions(world), ..some.clone() });
    }
    splits.extend([some, Split::weight(Weight::FULL), Split::all_primary()]);
    splits
}

pub async fn routes_of_others_survive_every_step_and_are_restored(world: World) {
    let route = world.route();
    let before = world.create(&route, world.case.existing_route.clone().expect("a route")).await;
    let theirs = list(&world).of(&before)[0].clone();
    for split in release(&world) {
        world.set(&split).await;
        assert_eq!(entries(&world, &route).await[0], theirs, "{split:?}");
    }
    // An entry added meanwhile survives as well.
    let mut now = entries(&world, &route).await;
    now.push(list(&world).foreign_entry.clone());
    rewrite(&world, &route, &now).await;
    let later = entries(&world, &route).await.last().expect("an entry").clone();
    assert_eq!(world.split().await, Some(Split::all_primary()), "it does not touch the split");
    for split in release(&world) {
        world.set(&split).await;
        assert_eq!(entries(&world, &route).await.last(), Some(&later), "{split:?}");
    }
    world.restore().await;
    let mut expected = list(&world).of(&before).to_vec();
    expected.push(later);
    assert_eq!(entries(&world, &route).await, expected);
}

pub async fn the_route_to_the_apex_is_replaced_and_restored(world: World) {
    let route = world.route();
    let SharedListCase { at, foreign_entry: theirs, apex_entry: apex } = list(&world);
    let mut body = world.case.existing_route.clone().expect("a route");
    let rest = body.pointer(at).expect("entries")[1].clone();
    *body.pointer_mut(at).expect("entries") = json!([theirs, apex, rest]);
    let before = world.create(&route, body).await;
    let original = list(&world).of(&before);
    for split in release(&world) {
        world.set(&split).await;
        let now = entries(&world, &route).await;
        assert_eq!(now.first(), original.first(), "{split:?}");
        assert_eq!(now.last(), original.last(), "what is for all others is not taken: {split:?}");
        // Conditions and options of the replaced entry are kept.
        let ours = &now[now.len() - 2];
        for (field, value) in original[1].as_object().expect("an entry") {
            let leads = value.to_string().contains("\"web\"");
            let mirrored = field == "filters" && split.mirror > Weight::ZERO;
            assert!(leads || mirrored || ours[field] == *value, "{field} of {ours}");
        }
    }
    world.restore().await;
    assert_eq!(user_fields(&world.get(&route).await), user_fields(&before));
}

pub async fn every_route_to_the_apex_is_replaced_and_restored(world: World) {
    let route = world.route();
    let SharedListCase { at, foreign_entry: theirs, apex_entry: apex } = list(&world);
    let mut body = world.case.existing_route.clone().expect("a route");
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
    assert_eq!(user_fields(&world.get(&route).await), user_fields(&before));
}

pub async fn a_concurrent_edit_of_the_list_is_kept(world: World) {
    let route = world.route();
    world.create(&route, world.case.existing_route.clone().expect("a route")).await;
    world.set(&Split::all_primary()).await;
    let stale = world.cached_objects().await;
    let mut now = entries(&world, &route).await;
    now.insert(0, list(&world).foreign_entry.clone());
    rewrite(&world, &route, &now).await;
    let theirs = entries(&world, &route).await[0].clone();
    let split = Split::weight(world.partial_weight());
    world.set_from(&stale, &split).await.unwrap();
    assert_eq!(world.split().await, Some(split));
    assert_eq!(entries(&world, &route).await[0], theirs);
    assert_eq!(entries(&world, &route).await.len(), now.len());
}

/// As a GitOps tool does.
pub async fn a_list_reset_by_others_is_taken_over_again(world: World) {
    let route = world.route();
    let before = world.create(&route, world.case.existing_route.clone().expect("a route")).await;
    let split = Split::weight(world.partial_weight());
    world.set(&split).await;
    let ours = entries(&world, &route).await;
    rewrite(&world, &route, list(&world).of(&before)).await;
    assert_eq!(world.split().await, None);
    world.set(&split).await;
    assert_eq!(entries(&world, &route).await, ours);
    world.restore().await;
    assert_eq!(user_fields(&world.get(&route).await), user_fields(&before));
}
