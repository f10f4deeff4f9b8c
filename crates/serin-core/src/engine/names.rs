//! What people read of a status at a glance: names of revisions, the images of both arms,
//! and the state in one word.

use std::collections::BTreeMap;

use super::decider::Decider;
use crate::api::Canary;
use crate::api::canary::{
    CanaryStatus, Phase,
    status::{GateState, GateStatus},
};
use crate::api::condition::{self, ConditionStatus};

impl Decider<'_> {
    /// Records the names of the revisions that are observed, and forgets those that the
    /// status does not mention any more.
    pub fn record_names(&mut self) {
        let (target, primary) = (self.observed.target.as_ref(), self.observed.primary.as_ref());
        let seen = [
            target.and_then(|target| Some((&target.revision, target.name.as_ref()?))),
            primary.and_then(|primary| Some((primary.revision.as_ref()?, primary.name.as_ref()?))),
        ];
        let is_known = |(revision, _): &(&String, &String)| {
            self.status.revisions.as_ref().is_some_and(|known| known.names.contains_key(*revision))
        };
        if !seen.iter().flatten().all(is_known) {
            let names = &mut self.status.revisions.get_or_insert_default().names;
            for (revision, name) in seen.into_iter().flatten() {
                names.entry(revision.clone()).or_insert_with(|| name.clone());
            }
        }
        let images = seen.map(|arm| arm.map(|(_, name)| name.as_str()));
        let image = change(images[1], images[0]);
        if !image.is_empty() && image != self.status.image {
            self.status.image = image;
        }
    }

    /// Once the decision is complete: its revisions are those to keep the names of.
    pub fn forget_names(&mut self) {
        let target = self.observed.target.as_ref().map(|target| target.revision.clone());
        let primary = self.observed.primary.as_ref().and_then(|primary| primary.revision.clone());
        let status = &mut self.status;
        let Some(revisions) = &mut status.revisions else { return };
        let mut names = std::mem::take(&mut revisions.names);
        let fields = [
            &revisions.primary,
            &revisions.candidate,
            &revisions.seen,
            &revisions.rejected,
            &revisions.previous,
            &target,
            &primary,
        ];
        let is_used = |revision: &String| {
            fields.iter().any(|field| field.as_ref() == Some(revision))
                || status.release.as_ref().is_some_and(|release| release.revision == *revision)
                || status.history.iter().any(|past| past.revision == *revision)
        };
        names.retain(|revision, _| is_used(revision));
        revisions.names = names;
    }

    /// What people call a revision.
    pub fn name_of(&self, revision: &str) -> String {
        name_of(&self.status, revision).to_owned()
    }
}

/// What people call a revision; its hash if it has no name.
pub fn name_of<'a>(status: &'a CanaryStatus, revision: &'a str) -> &'a str {
    status
        .revisions
        .as_ref()
        .and_then(|revisions| revisions.names.get(revision))
        .map_or(revision, String::as_str)
}

/// `web:v1 → v2`, or the one image of both.
pub fn change(primary: Option<&str>, target: Option<&str>) -> String {
    let (Some(old), Some(new)) = (primary, target) else {
        return primary.or(target).unwrap_or_default().to_owned();
    };
    let name = |image: &str| image.split([':', '@']).next().map(str::to_owned);
    match new.split_once([':', '@']) {
        _ if old == new => old.to_owned(),
        Some((_, tag)) if name(old) == name(new) => format!("{old} → {tag}"),
        _ => format!("{old} → {new}"),
    }
}

/// As [`state`]; a Canary that no controller has seen yet has a word too.
pub fn state_of(canary: &Canary) -> &'static str {
    canary.status.as_ref().map_or("Unseen", |status| state(status, canary.spec.suspend))
}

/// What a Canary does, in one word: its phase, or what it waits for.
pub fn state(status: &CanaryStatus, suspended: bool) -> &'static str {
    let condition =
        |of: &str| status.conditions.iter().find(|c| c.type_ == of && c.status == ConditionStatus::True);
    let holds = |of: &str| condition(of).is_some();
    // A release that was rolled back stalls as well.
    let refused = condition(condition::STALLED).is_some_and(|stalled| {
        let refusals = ["InvalidSpec", "Failing", "Unreadable"];
        status.phase != Phase::Failed || refusals.contains(&stalled.reason.as_str())
    });
    let waits = |by_person: bool| {
        let waiting =
            |gate: &GateStatus| gate.state == GateState::Waiting && gate.type_.is_none() == by_person;
        status.release.is_some() && status.gates.iter().any(waiting)
    };
    let ready = status.conditions.iter().find(|condition| condition.type_ == condition::READY);
    let reason = ready.map_or("", |ready| ready.reason.as_str());
    match status.phase {
        Phase::Terminating => "Terminating",
        Phase::Terminated => "Terminated",
        _ if refused => "Refused",
        _ if suspended => "Suspended",
        _ if waits(true) => "AwaitingApproval",
        _ if waits(false) => "AwaitingGate",
        _ if holds(condition::PAUSED) => "Paused",
        _ if reason == "WindowClosed" => "Frozen",
        _ if reason == "TooManyReleases" => "Queued",
        _ if holds(condition::DEGRADED) => "Degraded",
        phase => phase_name(phase),
    }
}

/// The phase as Flagger names it.
pub(super) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Initializing => "Initializing",
        Phase::Initialized => "Initialized",
        Phase::Waiting => "Waiting",
        Phase::Progressing => "Progressing",
        Phase::WaitingPromotion => "WaitingPromotion",
        Phase::Promoting => "Promoting",
        Phase::Finalising => "Finalising",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
        Phase::Terminating => "Terminating",
        Phase::Terminated => "Terminated",
    }
}

/// Name and tag of an image, without registry and repository path; of a digest, seven
/// digits.
pub fn short_image(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.find("@sha256:") {
        Some(at) => name.get(..at + "@sha256:".len() + 7).unwrap_or(name),
        None => name,
    }
}

/// What people call a pod template: its short image, or the version label where that has
/// no tag or a tag that moves.
pub fn template_name(image: &str, labels: &BTreeMap<String, String>) -> String {
    let image = short_image(image);
    let is_fixed = match image.split_once([':', '@']) {
        Some((_, tag)) => tag != "latest",
        None => false,
    };
    let version = || labels.get("app.kubernetes.io/version").or_else(|| labels.get("version"));
    match version().filter(|_| !is_fixed) {
        Some(version) => format!("{}:{version}", image.split(':').next().unwrap_or(image)),
        None => image.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_shown_by_name_and_tag() {
        let digest = "registry.example.com:5000/team/web@sha256:0123456789abcdef";
        assert_eq!(short_image(digest), "web@sha256:0123456");
        assert_eq!(short_image("registry.example.com:5000/team/web:v2"), "web:v2");
        assert_eq!(short_image("web"), "web");
    }

    #[test]
    fn a_change_names_both_versions_and_the_repository_once() {
        assert_eq!(change(Some("web:v1"), Some("web:v2")), "web:v1 → v2");
        assert_eq!(change(Some("web:v1"), Some("shop:v2")), "web:v1 → shop:v2");
        assert_eq!(change(Some("web:v1"), Some("web:v1")), "web:v1");
        assert_eq!(change(None, Some("web:v1")), "web:v1");
    }

    #[test]
    fn the_version_label_stands_in_for_a_tag_that_names_no_version() {
        let labels = BTreeMap::from([("app.kubernetes.io/version".to_owned(), "2.1".to_owned())]);
        assert_eq!(template_name("ghcr.io/team/web:v2", &labels), "web:v2");
        assert_eq!(template_name("ghcr.io/team/web:latest", &labels), "web:2.1");
        assert_eq!(template_name("web", &labels), "web:2.1");
        assert_eq!(template_name("web", &BTreeMap::new()), "web");
    }
}
