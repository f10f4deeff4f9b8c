//! Requests of the controller that are refused for a while, by kind and verb.

use std::time::Duration;

use super::dice::Dice;
use super::refusal::{Refusal, denied_by_admission, forbidden, invalid};
use super::scenario::CanarySetup;

#[derive(Clone, Debug)]
pub struct PlannedRefusal {
    pub number: u32,
    /// The Canary whose work is refused; all of them for a whole kind.
    pub on: Option<usize>,
    pub hinders: Hinders,
    /// In every message of this refusal, and in no other.
    pub token: String,
    pub refusal: Refusal,
}

/// The work that a refusal keeps the controller from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hinders {
    Route,
    Status,
    /// Anything else, which must hinder neither of them.
    Other,
}

/// A refusal that is in force, or was.
pub struct ActiveRefusal {
    pub planned: PlannedRefusal,
    pub ended: Option<Duration>,
}

/// Refused requests of one Canary, without a long gap.
#[derive(Clone, Copy, Debug)]
pub struct RefusedSeries {
    /// Of one release: the next one may need other writes.
    pub release: u64,
    pub first: Duration,
    pub last: Duration,
    /// Since when the object does not show it.
    pub hidden_since: Option<Duration>,
}

/// A random refusal of a kind that this Canary needs.
pub fn refusal(dice: &Dice, on: usize, setup: &CanarySetup) -> PlannedRefusal {
    let number = dice.below(1_000_000) as u32;
    let token = format!("rule {number}");
    let name = setup.name;
    let plural = if setup.kind == "Deployment" { "deployments" } else { "daemonsets" };
    let written = |hinders: Hinders, plural: &str, object: String| {
        let path = format!("/{plural}/{object}");
        (hinders, Some(on), "PATCH", path)
    };
    let listed = |hinders: Hinders, plural: &str| (hinders, None, "GET", format!("/{plural}"));
    let mut choices = vec![
        written(Hinders::Other, plural, format!("{name}-primary")),
        written(Hinders::Other, plural, format!("{name}-primary")),
        written(Hinders::Other, plural, name.to_owned()),
        (Hinders::Other, None, "POST", format!("/{plural}")),
        written(Hinders::Route, "services", format!("{name}-primary")),
        written(Hinders::Route, "services", name.to_owned()),
        (Hinders::Other, Some(on), "PATCH", format!("/canaries/{name}")),
        listed(Hinders::Other, "poddisruptionbudgets"),
    ];
    if setup.spec["provider"].as_str().is_some_and(|provider| provider.starts_with("smi")) {
        choices.push(written(Hinders::Route, "trafficsplits", name.to_owned()));
        choices.push(written(Hinders::Route, "trafficsplits", name.to_owned()));
    }
    if setup.has_autoscaler {
        choices.push(written(Hinders::Other, "horizontalpodautoscalers", format!("{name}-primary")));
        choices.push(listed(Hinders::Other, "horizontalpodautoscalers"));
    }
    if setup.has_budget {
        choices.push(written(Hinders::Other, "poddisruptionbudgets", format!("{name}-primary")));
    }
    if setup.reads_config {
        choices.push((Hinders::Other, None, "POST", "/configmaps".to_owned()));
    }
    let (hinders, on, method, path) = dice.pick(&choices);
    let why = if method == "GET" { 0 } else { dice.below(3) };
    let mut refusal = match why {
        0 => forbidden(method, &path, &method.to_lowercase(), "things"),
        1 => invalid(method, &path, "\"x\""),
        _ => denied_by_admission(method, &path, "not now"),
    };
    refusal.message = format!("{} ({token})", refusal.message);
    PlannedRefusal { number, on, hinders, token, refusal }
}

/// The status of this Canary may not be written.
pub fn status_refusal(dice: &Dice, on: usize, setup: &CanarySetup) -> PlannedRefusal {
    let number = dice.below(1_000_000) as u32;
    let token = format!("rule {number}");
    let path = format!("/canaries/{}/status", setup.name);
    let refusal = denied_by_admission("PUT", path, &token);
    PlannedRefusal { number, on: Some(on), hinders: Hinders::Status, token, refusal }
}

/// The Canary that an object belongs to: the names of all begin with its own.
pub fn owner(object: &str) -> &str {
    object.split('-').next().unwrap_or(object)
}
