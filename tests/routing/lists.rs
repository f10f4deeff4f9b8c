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
        // At rest a route may be as its owner wrote it: it leads to the apex then.
        if split == Split::all_primary() && now == original {
            continue;
        }
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

/// The backends of an entry of any router.
fn backends(entry: &mut Value) -> &mut Vec<Value> {
    let inner = ["httpRoute", "grpcRoute"].into_iter().find(|kind| entry.get(kind).is_some());
    let field = match inner {
        Some(kind) => &mut entry[kind]["action"]["weightedTargets"],
        None if entry.get("backendRefs").is_some() => &mut entry["backendRefs"],
        None => &mut entry["route"],
    };
    field.as_array_mut().expect("backends")
}

pub async fn an_entry_that_also_leads_elsewhere_is_refused_before_any_write(world: World) {
    let route = world.route();
    let SharedListCase { at, foreign_entry: theirs, apex_entry: apex } = list(&world);
    let mut mixed = apex.clone();
    let legacy = backends(&mut theirs.clone())[0].clone();
    backends(&mut mixed)[0]["weight"] = json!(80);
    backends(&mut mixed).push(legacy);
    backends(&mut mixed)[1]["weight"] = json!(20);
    let mut body = world.case.existing_route.clone().expect("a route");
    *body.pointer_mut(at).expect("entries") = json!([theirs, mixed]);
    let before = world.create(&route, body).await;

    let refused =
        world.try_set(&Split::all_primary()).await.expect_err("it would move the traffic of legacy");
    let sentence = refused.to_string();
    assert!(refused.is_final() && sentence.contains("[1] of "), "{sentence}");
    assert!(sentence.contains("web and legacy") && sentence.contains("spec.service.name"), "{sentence}");
    assert_eq!(user_fields(&world.get(&route).await), user_fields(&before));
    assert!(world.find(&world.service("web-primary")).await.is_none(), "no Service was written");

    // The way out: one backend.
    rewrite(&world, &route, &[theirs.clone(), apex.clone()]).await;
    world.set(&Split::weight(world.partial_weight())).await;
    // Set back by its owner while it is adopted.
    let mixed = list(&world).of(&before).to_vec();
    rewrite(&world, &route, &mixed).await;
    assert_eq!(world.split().await, None);
    assert!(world.try_set(&Split::all_primary()).await.is_err());
    assert_eq!(entries(&world, &route).await, mixed);
}

pub async fn the_fields_of_a_replaced_entry_survive_a_hundred_steps(mut world: World) {
    let route = world.route();
    let tier = json!({"set": {"x-tier": "gold"}});
    let mut apex = list(&world).apex_entry.clone();
    let gateway = apex.get("backendRefs").is_some();
    if gateway {
        let tier = json!({"set": [{"name": "x-tier", "value": "gold"}]});
        let hsts = json!({"add": [{"name": "strict-transport-security", "value": "max-age=1"}]});
        apex["filters"] = json!([
            {"type": "ExtensionRef", "extensionRef": {"group": "example.com", "kind": "Waf", "name": "strict"}},
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}},
        ]);
        backends(&mut apex)[0]["filters"] = json!([
            {"type": "RequestHeaderModifier", "requestHeaderModifier": tier},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": hsts},
        ]);
    } else {
        backends(&mut apex)[0]["headers"] = json!({"request": tier, "response": {"set": {"hsts": "1"}}});
    }
    let mut body = world.case.existing_route.clone().expect("a route");
    *body.pointer_mut(list(&world).at).expect("entries") = json!([apex]);
    let before = world.create(&route, body).await;
    let original = list(&world).of(&before)[0].clone();
    world
        .edit(json!({
            "service": {"headers": {"request": {"set": {"x-from": "canary"}}}},
            "analysis": {"sessionAffinity": {"cookieName": "side"}},
        }))
        .await;
    world.edit_status(json!({"sessionAffinityCookie": "side=canary-1"})).await;
    for percent in 1..=100 {
        world.set(&Split::weight(Weight::from_percent(f64::from(percent)).unwrap())).await;
        let mut ours = entries(&world, &route).await.pop().expect("our entry");
        if gateway {
            assert_eq!(ours["filters"][0], original["filters"][0], "the ExtensionRef");
            assert_eq!(ours["filters"].as_array().expect("filters").len(), 2, "{ours}");
            assert_eq!(ours["filters"][1]["requestHeaderModifier"]["set"][0]["name"], "x-from");
            for backend in backends(&mut ours) {
                assert_eq!(backend["filters"][0], original["backendRefs"][0]["filters"][0]);
                let added = &backend["filters"][1]["responseHeaderModifier"]["add"];
                assert_eq!(added[0]["name"], "strict-transport-security");
                let sets_cookie = backend["name"] == "web-canary";
                assert_eq!(added.as_array().expect("headers").len(), 1 + usize::from(sets_cookie), "{added}");
            }
        } else {
            for backend in backends(&mut ours) {
                let headers = &backend["headers"];
                assert_eq!(headers["request"], original["route"][0]["headers"]["request"]);
                assert_eq!(headers["response"]["set"], json!({"hsts": "1"}));
                let sets_cookie = backend["destination"]["host"] == "web-canary";
                assert_eq!(headers["response"]["add"].is_object(), sets_cookie, "{headers}");
            }
        }
    }
    world.restore().await;
    assert_eq!(user_fields(&world.get(&route).await), user_fields(&before));
}
