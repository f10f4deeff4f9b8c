//! Moves replicas from old ReplicaSets to the current one, within `maxSurge` and `maxUnavailable`.

use std::cmp::Reverse;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::revision::{self, DESIRED_REPLICAS, MAX_REPLICAS};

/// How far a rolling update may exceed and fall below the desired number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutLimits {
    pub max_surge: i32,
    pub max_unavailable: i32,
}

pub fn desired_replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

pub fn rollout_limits(deployment: &Deployment) -> RolloutLimits {
    let replicas = desired_replicas(deployment);
    if is_recreate(deployment) {
        return RolloutLimits { max_surge: 0, max_unavailable: 0 };
    }
    let rolling = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref()?.rolling_update.clone());
    let rolling = rolling.unwrap_or_default();
    let quarter = IntOrString::String("25%".to_owned());
    let surge =
        resolve_int_or_percent(rolling.max_surge.as_ref().unwrap_or(&quarter), replicas, Rounding::Up);
    let unavailable = resolve_int_or_percent(
        rolling.max_unavailable.as_ref().unwrap_or(&quarter),
        replicas,
        Rounding::Down,
    );
    // If both were zero, no pod could be replaced.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    RolloutLimits { max_surge: surge, max_unavailable: unavailable.min(replicas) }
}

#[derive(Clone, Copy)]
pub enum Rounding {
    Up,
    Down,
}

/// A number, or a percentage of `whole`; invalid text counts as zero.
pub fn resolve_int_or_percent(part: &IntOrString, whole: i32, rounding: Rounding) -> i32 {
    match part {
        IntOrString::Int(number) => (*number).max(0),
        IntOrString::String(text) => {
            let percent: i64 =
                text.strip_suffix('%').and_then(|number| number.trim().parse().ok()).unwrap_or(0);
            let hundredths = percent.max(0) * i64::from(whole.max(0));
            let part = match rounding {
                Rounding::Up => (hundredths + 99) / 100,
                Rounding::Down => hundredths / 100,
            };
            i32::try_from(part).unwrap_or(i32::MAX)
        }
    }
}

pub fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Available pods, at most the set's size: the status of a set that was just
/// scaled down still counts the pods it is about to lose.
pub fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0).min(size(set))
}

fn total(sets: &[ReplicaSet], of: fn(&ReplicaSet) -> i32) -> i32 {
    sets.iter().map(of).sum()
}

/// Resizes a set and records the Deployment's size in its annotations.
pub fn resize(set: &mut ReplicaSet, deployment: &Deployment, size: i32) {
    set.spec.get_or_insert_default().replicas = Some(size);
    let desired = desired_replicas(deployment);
    let most = desired.saturating_add(rollout_limits(deployment).max_surge);
    let annotations = set.annotations_mut();
    annotations.insert(DESIRED_REPLICAS.to_owned(), desired.to_string());
    annotations.insert(MAX_REPLICAS.to_owned(), most.to_string());
}

fn annotated_number(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    set.annotations().get(annotation)?.parse().ok()
}

/// Whether `replicas` changed since the sets were last sized.
pub fn is_being_scaled(deployment: &Deployment, sets: &[ReplicaSet]) -> bool {
    sets.iter().filter(|set| size(set) > 0).any(|set| {
        annotated_number(set, DESIRED_REPLICAS).is_some_and(|desired| desired != desired_replicas(deployment))
    })
}

/// The size that the current set may have now, given the total of all sets.
pub fn next_size(deployment: &Deployment, current: i32, all: i32) -> i32 {
    if is_recreate(deployment) {
        return desired_replicas(deployment);
    }
    let allowed = (desired_replicas(deployment) + rollout_limits(deployment).max_surge - all).max(0);
    current + allowed.min(desired_replicas(deployment) - current)
}

/// Scales the current set; true if its size changed.
pub fn scale_current(deployment: &Deployment, sets: &mut [ReplicaSet], current: usize) -> bool {
    let (now, all) = (size(&sets[current]), total(sets, size));
    let next = if now >= desired_replicas(deployment) {
        desired_replicas(deployment)
    } else {
        next_size(deployment, now, all)
    };
    if next != now {
        resize(&mut sets[current], deployment, next);
    }
    next != now
}

/// Scales down old sets as far as availability allows: unhealthy pods first, then
/// the rest, oldest first.
pub fn scale_down_old(deployment: &Deployment, sets: &mut [ReplicaSet], current: usize) -> bool {
    let least = desired_replicas(deployment) - rollout_limits(deployment).max_unavailable;
    let not_up_yet = size(&sets[current]) - available(&sets[current]);
    let mut spare = total(sets, size) - least - not_up_yet;
    let before = total(sets, size);
    let order = oldest_first(sets, current);
    for &old in &order {
        let unhealthy = size(&sets[old]) - available(&sets[old]);
        let fewer = unhealthy.min(spare).max(0);
        if fewer > 0 {
            let remaining = size(&sets[old]) - fewer;
            resize(&mut sets[old], deployment, remaining);
            spare -= fewer;
        }
    }
    if spare > 0 {
        let mut dispensable = total(sets, available) - least;
        for &old in &order {
            let fewer = size(&sets[old]).min(dispensable).max(0);
            if fewer > 0 {
                let remaining = size(&sets[old]) - fewer;
                resize(&mut sets[old], deployment, remaining);
                dispensable -= fewer;
            }
        }
    }
    total(sets, size) != before
}

fn oldest_first(sets: &[ReplicaSet], current: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..sets.len()).filter(|set| *set != current && size(&sets[*set]) > 0).collect();
    order.sort_by_cached_key(|set| revision::age(&sets[*set]));
    order
}

pub fn scale_old_to_zero(deployment: &Deployment, sets: &mut [ReplicaSet], current: Option<usize>) -> bool {
    let mut emptied = false;
    for (index, set) in sets.iter_mut().enumerate() {
        if Some(index) != current && size(set) > 0 {
            resize(set, deployment, 0);
            emptied = true;
        }
    }
    emptied
}

/// Distributes a changed `replicas` over the sets in proportion to their sizes,
/// so that scaling during a rollout keeps its balance.
pub fn scale(deployment: &Deployment, sets: &mut [ReplicaSet], current: Option<usize>) {
    let active: Vec<_> = (0..sets.len()).filter(|set| size(&sets[*set]) > 0).collect();
    let only = match active.as_slice() {
        [] => current.or_else(|| (0..sets.len()).max_by_key(|set| revision::age(&sets[*set]))),
        [one] => Some(*one),
        _ => None,
    };
    if let Some(only) = only {
        resize(&mut sets[only], deployment, desired_replicas(deployment));
        return;
    }
    if current.is_some_and(|current| is_complete(deployment, &sets[current])) {
        scale_old_to_zero(deployment, sets, current);
        return;
    }
    if !is_recreate(deployment) {
        scale_in_proportion(deployment, sets, active);
    }
}

fn is_complete(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let desired = Some(desired_replicas(deployment));
    annotated_number(set, DESIRED_REPLICAS) == desired
        && Some(size(set)) == desired
        && Some(available(set)) == desired
}

fn scale_in_proportion(deployment: &Deployment, sets: &mut [ReplicaSet], mut active: Vec<usize>) {
    let most = if desired_replicas(deployment) > 0 {
        desired_replicas(deployment) + rollout_limits(deployment).max_surge
    } else {
        0
    };
    let to_add = most - total(sets, size);
    if to_add > 0 {
        active.sort_by_cached_key(|set| (Reverse(size(&sets[*set])), Reverse(revision::age(&sets[*set]))));
    } else {
        active.sort_by_cached_key(|set| (Reverse(size(&sets[*set])), revision::age(&sets[*set])));
    }
    let mut added = 0;
    let mut sizes = Vec::with_capacity(active.len());
    for &set in &active {
        let share = proportional_share(deployment, &sets[set], most);
        let allowed = to_add - added;
        let share = if to_add > 0 { share.clamp(0, allowed) } else { share.clamp(allowed.min(0), 0) };
        added += share;
        sizes.push(size(&sets[set]) + share);
    }
    // The largest set takes the remainder of rounding.
    if let Some(first) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    for (set, size) in active.into_iter().zip(sizes) {
        resize(&mut sets[set], deployment, size);
    }
}

fn proportional_share(deployment: &Deployment, set: &ReplicaSet, most: i32) -> i32 {
    if desired_replicas(deployment) == 0 {
        return -size(set);
    }
    let deployment_had = || deployment.status.as_ref().and_then(|status| status.replicas);
    let most_before =
        annotated_number(set, MAX_REPLICAS).or_else(deployment_had).filter(|most| *most > 0).unwrap_or(1);
    let scaled = f64::from(size(set)) * f64::from(most) / f64::from(most_before);
    scaled.round() as i32 - size(set)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(replicas: i32, surge: serde_json::Value, unavailable: serde_json::Value) -> Deployment {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {
            "replicas": replicas, "selector": {}, "template": {},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        }}))
        .unwrap()
    }

    /// `(size, available)`, oldest first.
    fn sets(sizes: &[(i32, i32)]) -> Vec<ReplicaSet> {
        let set = |(index, (size, available)): (usize, &(i32, i32))| {
            serde_json::from_value(json!({
                "metadata": {"name": format!("web-{index}"), "creationTimestamp": format!("2026-01-01T00:00:0{index}Z")},
                "spec": {"replicas": size, "selector": {}},
                "status": {"replicas": size, "availableReplicas": available},
            }))
            .unwrap()
        };
        sizes.iter().enumerate().map(set).collect()
    }

    fn sizes(sets: &[ReplicaSet]) -> Vec<i32> {
        sets.iter().map(size).collect()
    }

    #[test]
    fn surge_rounds_up_and_unavailable_rounds_down() {
        assert_eq!(
            rollout_limits(&deployment(10, json!("25%"), json!("25%"))),
            RolloutLimits { max_surge: 3, max_unavailable: 2 }
        );
        assert_eq!(
            rollout_limits(&deployment(1, json!("25%"), json!("25%"))),
            RolloutLimits { max_surge: 1, max_unavailable: 0 }
        );
        assert_eq!(
            rollout_limits(&deployment(3, json!(2), json!(1))),
            RolloutLimits { max_surge: 2, max_unavailable: 1 }
        );
    }

    #[test]
    fn without_surge_or_unavailable_one_pod_may_be_missing() {
        assert_eq!(
            rollout_limits(&deployment(3, json!(0), json!("0%"))),
            RolloutLimits { max_surge: 0, max_unavailable: 1 }
        );
        assert_eq!(
            rollout_limits(&deployment(0, json!(0), json!(0))),
            RolloutLimits { max_surge: 0, max_unavailable: 0 }
        );
    }

    #[test]
    fn the_current_set_grows_only_into_the_surge() {
        let deployment = deployment(4, json!(1), json!(0));
        let mut sets = sets(&[(4, 4), (0, 0)]);
        assert!(scale_current(&deployment, &mut sets, 1));
        assert_eq!(sizes(&sets), [4, 1]);
        assert!(!scale_current(&deployment, &mut sets, 1));
    }

    #[test]
    fn old_pods_are_kept_until_new_ones_are_available() {
        let deployment = deployment(4, json!(1), json!(0));
        let mut waiting = sets(&[(4, 4), (1, 0)]);
        assert!(!scale_down_old(&deployment, &mut waiting, 1));
        let mut up = sets(&[(4, 4), (1, 1)]);
        assert!(scale_down_old(&deployment, &mut up, 1));
        assert_eq!(sizes(&up), [3, 1]);
    }

    #[test]
    fn unhealthy_old_pods_are_removed_even_if_new_ones_are_not_ready() {
        let deployment = deployment(4, json!(1), json!(0));
        let mut sets = sets(&[(4, 2), (1, 0)]);
        assert!(!scale_down_old(&deployment, &mut sets, 1));
        let mut with_slack = self::sets(&[(4, 2), (1, 0)]);
        let deployment = self::deployment(4, json!(1), json!(2));
        assert!(scale_down_old(&deployment, &mut with_slack, 1));
        assert_eq!(sizes(&with_slack), [2, 1]);
    }

    #[test]
    fn scaling_in_the_middle_of_a_rollout_keeps_the_proportions() {
        let before = deployment(10, json!(3), json!(2));
        let mut sets = sets(&[(8, 8), (5, 3)]);
        for set in &mut sets {
            let size = size(set);
            resize(set, &before, size);
        }
        let after = deployment(15, json!(3), json!(2));
        assert!(is_being_scaled(&after, &sets));
        scale(&after, &mut sets, Some(1));
        assert_eq!(sizes(&sets), [11, 7]);
        assert!(!is_being_scaled(&after, &sets));
    }

    #[test]
    fn scaling_to_zero_empties_every_set() {
        let mut sets = sets(&[(8, 8), (5, 3)]);
        scale(&deployment(0, json!(3), json!(2)), &mut sets, Some(1));
        assert_eq!(sizes(&sets), [0, 0]);
    }

    #[test]
    fn a_single_active_set_takes_all() {
        let mut sets = sets(&[(0, 0), (5, 5)]);
        scale(&deployment(2, json!(1), json!(0)), &mut sets, Some(1));
        assert_eq!(sizes(&sets), [0, 2]);
    }
}
