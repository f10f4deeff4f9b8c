//! What follows from an object of Flagger and ours beside it. Pure.

use kube::{ResourceExt as _, api::DynamicObject, core::ApiResource};
use serde_json::{Map, Value, json};

use crate::{
    api::{AlertProvider, AnalysisTemplate, Canary},
    migrate::flagger::{self, MIGRATED},
    patch::merge_diff,
};

/// On an object of ours: the spec that it was last given, as JSON. What is no longer in it
/// is removed.
const FOLLOWED: &str = "serin.dev/followed";

/// Fields of a Canary's status that both have.
const STATUS_FIELDS: [&str; 8] = [
    "phase",
    "failedChecks",
    "canaryWeight",
    "iterations",
    "sessionAffinityCookie",
    "primarySessionAffinityCookie",
    "previousSessionAffinityCookie",
    "lastTransitionTime",
];

/// A kind of Flagger, and ours.
pub struct FollowedKind {
    /// Flagger's.
    pub name: &'static str,
    pub theirs: ApiResource,
    pub ours: ApiResource,
}

impl FollowedKind {
    pub fn all() -> [Self; 3] {
        [
            Self::new("MetricTemplate", ApiResource::erase::<AnalysisTemplate>(&())),
            Self::new("AlertProvider", ApiResource::erase::<AlertProvider>(&())),
            Self::new("Canary", ApiResource::erase::<Canary>(&())),
        ]
    }

    fn new(name: &'static str, ours: ApiResource) -> Self {
        Self { name, theirs: flagger::resource(name), ours }
    }

    pub fn is_canary(&self) -> bool {
        self.name == "Canary"
    }
}

#[derive(Debug, PartialEq)]
pub enum Write {
    Nothing,
    /// Look again soon.
    Later,
    Create(Value),
    /// A merge patch.
    Patch(Value),
}

/// What is written, and why the object is not served as it is.
#[derive(Debug, PartialEq)]
pub struct Step {
    pub write: Write,
    pub refusal: Option<String>,
}

impl Step {
    fn only(write: Write) -> Self {
        Self { write, refusal: None }
    }

    fn refused(why: String) -> Self {
        Self { write: Write::Nothing, refusal: Some(why) }
    }
}

/// `running` is why a Flagger that runs keeps the Canary from being served.
pub fn step(
    kind: &FollowedKind,
    theirs: &DynamicObject,
    ours: Option<&DynamicObject>,
    running: Option<&str>,
) -> Step {
    let taken_over = theirs.annotations().contains_key(MIGRATED);
    let Some(ours) = ours else {
        if let Some(why) = running {
            return Step::refused(why.to_owned());
        }
        if kind.is_canary() && !taken_over && was_released_by_flagger(theirs) {
            return Step::refused(
                "Flagger has made its primary and its routes; run serin migrate --live once, which hands them over without moving traffic, and Serin serves it"
                    .to_owned(),
            );
        }
        let spec = spec(kind, theirs, false);
        return Step::only(Write::Create(json!({
            "apiVersion": kind.ours.api_version, "kind": kind.ours.kind,
            "metadata": metadata(kind, theirs, &spec), "spec": spec,
        })));
    };
    if ours.metadata.deletion_timestamp.is_some() {
        return Step::only(Write::Later);
    }
    let owners = ours.owner_references();
    let owned = owners.iter().any(|owner| Some(&owner.uid) == theirs.metadata.uid.as_ref());
    if !owned && owners.iter().any(|owner| owner.api_version == kind.theirs.api_version) {
        // Of one that was deleted: the garbage collector removes it.
        return Step::only(Write::Later);
    }
    if !owned && !taken_over {
        return Step::refused(format!(
            "{} {} of serin.dev exists and was not made from this object; delete one of the two",
            kind.ours.kind,
            ours.name_any()
        ));
    }
    let spec = spec(kind, theirs, running.is_some());
    let metadata = metadata(kind, theirs, &spec);
    let followed = metadata["annotations"][FOLLOWED].as_str();
    let before = ours.annotations().get(FOLLOWED);
    let is_current = owned && before.map(String::as_str) == followed && contains(&ours.data["spec"], &spec);
    let write = match is_current {
        true => Write::Nothing,
        false => {
            // One of `serin migrate --live` has none: what Flagger's flags say stays in it.
            let before: Option<Value> = before.and_then(|text| serde_json::from_str(text).ok());
            let removed = before.map_or(Value::Null, |before| merge_diff(&before, &spec));
            let mut patch = spec;
            add_nulls(&mut patch, &removed);
            Write::Patch(json!({ "metadata": metadata, "spec": patch }))
        }
    };
    Step { write, refusal: running.map(str::to_owned) }
}

/// Serin's status never has this field.
fn was_released_by_flagger(theirs: &DynamicObject) -> bool {
    theirs.data["status"]["lastAppliedSpec"].as_str().is_some_and(|hash| !hash.is_empty())
}

/// As Flagger's, and suspended while Flagger runs. `serin migrate --live` has suspended
/// Flagger's and noted what it was.
fn spec(kind: &FollowedKind, theirs: &DynamicObject, suspended: bool) -> Value {
    let mut spec = theirs.data["spec"].clone();
    let before = theirs.annotations().get(MIGRATED).filter(|_| kind.is_canary());
    if let Some(before) = before {
        spec["suspend"] = json!(before == "true");
    }
    if suspended {
        spec["suspend"] = json!(true);
    }
    spec
}

fn metadata(kind: &FollowedKind, theirs: &DynamicObject, spec: &Value) -> Value {
    json!({
        "name": theirs.name_any(),
        "namespace": theirs.namespace(),
        "annotations": { FOLLOWED: spec.to_string() },
        "ownerReferences": [{
            "apiVersion": kind.theirs.api_version, "kind": kind.theirs.kind,
            "name": theirs.name_any(), "uid": theirs.uid(), "controller": true,
        }],
    })
}

/// Whether every field of `wanted` has its value; others may be there.
fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| live.get(key).is_some_and(|live| contains(live, wanted)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| contains(live, wanted))
        }
        _ => live == wanted,
    }
}

/// Adds the nulls of a merge patch: the fields that it removes.
fn add_nulls(patch: &mut Value, removed: &Value) {
    let (Value::Object(patch), Value::Object(removed)) = (patch, removed) else { return };
    for (key, removed) in removed {
        match patch.get_mut(key) {
            Some(kept) => add_nulls(kept, removed),
            None if removed.is_null() => _ = patch.insert(key.clone(), Value::Null),
            None => {}
        }
    }
}

/// The merge patch that makes the status of Flagger's Canary that of ours, in Flagger's words;
/// none if it is already. A refusal is the condition Stalled.
pub fn status_patch(theirs: &Value, ours: &Value, refusal: Option<&str>, now: &str) -> Option<Value> {
    let mut patch = Map::new();
    for field in STATUS_FIELDS {
        let wanted = match &ours[field] {
            Value::Null if field == "phase" => json!("Initializing"),
            wanted => wanted.clone(),
        };
        // Without a status of ours nothing is known about Flagger's.
        if !ours.is_null() && theirs[field] != wanted {
            patch.insert(field.to_owned(), wanted);
        }
    }
    let conditions = conditions(theirs, ours, refusal, now);
    if theirs["conditions"] != conditions && !(theirs["conditions"].is_null() && conditions == json!([])) {
        patch.insert("conditions".to_owned(), conditions);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn conditions(theirs: &Value, ours: &Value, refusal: Option<&str>, now: &str) -> Value {
    let find = |status: &Value, type_: &str| {
        let all = status["conditions"].as_array()?;
        all.iter().find(|condition| condition["type"] == type_).cloned()
    };
    // Flagger's definition has no other fields.
    let of_theirs = |condition: Value| {
        let mut fields = Map::new();
        for field in ["type", "status", "reason", "message", "lastTransitionTime", "lastUpdateTime"] {
            if !condition[field].is_null() {
                fields.insert(field.to_owned(), condition[field].clone());
            }
        }
        Value::Object(fields)
    };
    let promoted = match ours.is_null() {
        true => find(theirs, "Promoted"),
        false => find(ours, "Promoted").map(of_theirs),
    };
    let stalled = match refusal {
        Some(message) => Some(match find(theirs, "Stalled") {
            Some(same) if same["message"] == message => same,
            _ => json!({
                "type": "Stalled", "status": "True", "reason": "Refused", "message": message,
                "lastTransitionTime": now, "lastUpdateTime": now,
            }),
        }),
        None => find(ours, "Stalled").map(of_theirs),
    };
    promoted.into_iter().chain(stalled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).expect("an object")
    }

    fn theirs(more: Value) -> DynamicObject {
        let mut value = json!({
            "apiVersion": "flagger.app/v1beta1", "kind": "Canary",
            "metadata": { "name": "web", "namespace": "shop", "uid": "1" },
            "spec": { "targetRef": { "name": "web" }, "analysis": { "stepWeight": 10, "threshold": 5 } },
        });
        json_patch::merge(&mut value, &more);
        object(value)
    }

    fn canary() -> FollowedKind {
        FollowedKind::new("Canary", ApiResource::erase::<Canary>(&()))
    }

    /// Ours, as it was made from theirs.
    fn made_from(theirs: &DynamicObject) -> Value {
        match step(&canary(), theirs, None, None).write {
            Write::Create(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ours_is_made_once_and_follows_each_field() {
        let before = theirs(json!({}));
        let mut ours = made_from(&before);
        assert_eq!(ours["metadata"]["ownerReferences"][0]["uid"], "1");
        // As the server stores it: with defaults.
        ours["spec"]["analysis"]["interval"] = json!("1m");
        let same = step(&canary(), &before, Some(&object(ours.clone())), None);
        assert_eq!(same, Step::only(Write::Nothing));

        let edited =
            theirs(json!({ "spec": { "analysis": { "stepWeight": null, "stepWeights": [5, 50] } } }));
        let Write::Patch(patch) = step(&canary(), &edited, Some(&object(ours.clone())), None).write else {
            panic!("it is patched");
        };
        json_patch::merge(&mut ours, &patch);
        let analysis = json!({ "stepWeights": [5, 50], "threshold": 5, "interval": "1m" });
        assert_eq!(ours["spec"]["analysis"], analysis);
        let current = step(&canary(), &edited, Some(&object(ours.clone())), None);
        assert_eq!(current.write, Write::Nothing);

        // An edit of ours is set back.
        ours["spec"]["analysis"]["threshold"] = json!(1);
        assert!(matches!(step(&canary(), &edited, Some(&object(ours)), None).write, Write::Patch(_)));
    }

    #[test]
    fn a_running_flagger_keeps_ours_suspended() {
        let object_of_theirs = theirs(json!({}));
        let refused = step(&canary(), &object_of_theirs, None, Some("Flagger runs"));
        assert_eq!(refused, Step::refused("Flagger runs".to_owned()));
        let ours = object(made_from(&object_of_theirs));
        let Step { write: Write::Patch(patch), refusal } =
            step(&canary(), &object_of_theirs, Some(&ours), Some("Flagger runs"))
        else {
            panic!("it is suspended");
        };
        assert_eq!((&patch["spec"]["suspend"], refusal.is_some()), (&json!(true), true));
        let mut suspended = serde_json::to_value(&ours).expect("JSON");
        json_patch::merge(&mut suspended, &patch);
        let Write::Patch(patch) = step(&canary(), &object_of_theirs, Some(&object(suspended)), None).write
        else {
            panic!("it goes on");
        };
        assert_eq!(patch["spec"].get("suspend"), Some(&Value::Null));
    }

    #[test]
    fn what_is_not_ours_to_take_is_refused_with_the_way_out() {
        let released = theirs(json!({ "status": { "lastAppliedSpec": "5454669676" } }));
        let refusal = step(&canary(), &released, None, None).refusal.expect("a refusal");
        assert!(refusal.contains("serin migrate --live"), "{refusal}");

        let other = object(json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": {} }));
        let refusal = step(&canary(), &theirs(json!({})), Some(&other), None).refusal.expect("a refusal");
        assert!(refusal.contains("delete one of the two"), "{refusal}");

        // What serin migrate --live made is taken, with the suspend of before.
        let annotations =
            json!({ "metadata": { "annotations": { MIGRATED: "false" } }, "spec": { "suspend": true } });
        let Write::Patch(patch) = step(&canary(), &theirs(annotations), Some(&other), None).write else {
            panic!("it is taken");
        };
        assert_eq!(patch["spec"]["suspend"], false);
    }

    #[test]
    fn ours_of_a_deleted_object_is_waited_for() {
        let ours = made_from(&theirs(json!({ "metadata": { "uid": "0" } })));
        assert_eq!(step(&canary(), &theirs(json!({})), Some(&object(ours)), None).write, Write::Later);
    }

    #[test]
    fn the_status_is_in_flaggers_words_and_written_once() {
        let ours = json!({
            "phase": "Progressing", "state": "Paused", "canaryWeight": 20, "failedChecks": 1, "iterations": 0,
            "conditions": [
                { "type": "Ready", "status": "False", "reason": "Progressing" },
                { "type": "Promoted", "status": "Unknown", "reason": "Progressing", "message": "20 %", "observedGeneration": 3 },
            ],
        });
        let mut theirs = json!({ "lastAppliedSpec": "1" });
        let patch = status_patch(&theirs, &ours, None, "2026-01-01T00:00:00Z").expect("a patch");
        json_patch::merge(&mut theirs, &patch);
        assert_eq!(
            theirs,
            json!({
                "phase": "Progressing", "canaryWeight": 20, "failedChecks": 1, "iterations": 0, "lastAppliedSpec": "1",
                "conditions": [{ "type": "Promoted", "status": "Unknown", "reason": "Progressing", "message": "20 %" }],
            })
        );
        assert_eq!(status_patch(&theirs, &ours, None, "2026-01-01T00:00:09Z"), None);

        let refused = status_patch(&theirs, &ours, Some("no"), "2026-01-01T00:00:09Z").expect("a patch");
        json_patch::merge(&mut theirs, &refused);
        assert_eq!(theirs["conditions"][1]["message"], "no");
        assert_eq!(status_patch(&theirs, &ours, Some("no"), "2026-01-01T00:01:00Z"), None);
    }
}
