//! The reason why a pod does not serve, in the words of its status. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;

/// A container that runs for this long without being ready fails a probe; before, it
/// starts.
const STARTING: SignedDuration = SignedDuration::from_secs(5);

/// What keeps a pod from serving: the pod, the container, its last words. It does not
/// change from restart to restart.
pub fn pod_trouble(pod: &Pod, now: Timestamp) -> Option<String> {
    let status = pod.status.as_ref()?;
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let containers =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let mut troubles = containers.filter_map(|container| {
        let stopped = || container_trouble(container);
        stopped().or_else(|| failing_probe(pod, container, now))
    });
    let unschedulable = || {
        let conditions = status.conditions.iter().flatten();
        let mut unscheduled = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
        unscheduled.find_map(|condition| condition.message.clone())
    };
    let trouble = troubles.next().or_else(unschedulable)?;
    Some(format!("{}: {trouble}", pod.name_any()))
}

fn container_trouble(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    let reason = reason.filter(|reason| !["ContainerCreating", "PodInitializing"].contains(reason));
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let failed = container.state.as_ref().and_then(|state| state.terminated.as_ref()).or(last);
    let failed = failed.filter(|ended| ended.exit_code != 0 && !container.ready);
    let name = &container.name;
    let mut text = match (reason, failed) {
        (None, None) => return None,
        // Between two attempts the reason changes to and fro.
        (Some("ErrImagePull"), _) => format!("container {name} is in ImagePullBackOff"),
        (None, Some(_)) if container.restart_count == 0 => format!("container {name} ended"),
        (None | Some("CrashLoopBackOff"), Some(_)) => format!("container {name} is in CrashLoopBackOff"),
        (Some(reason), _) => format!("container {name} is in {reason}"),
    };
    match (failed, waiting.and_then(|waiting| waiting.message.as_ref())) {
        (Some(ended), _) => {
            text.push_str(&format!(", exit code {}", ended.exit_code));
            let why = ended.reason.as_deref().filter(|reason| *reason != "Error");
            text.extend(why.map(|reason| format!(" ({reason})")));
            let words = ended.message.as_deref().and_then(|message| message.trim().lines().last());
            text.extend(words.map(|words| format!(": {words}")));
        }
        // The time until the next attempt is no reason.
        (None, Some(message)) if !message.starts_with("back-off") => text.push_str(&format!(": {message}")),
        (None, _) => {}
    }
    Some(text)
}

fn failing_probe(pod: &Pod, container: &ContainerStatus, now: Timestamp) -> Option<String> {
    let running = container.state.as_ref()?.running.as_ref()?;
    let since = running.started_at.as_ref()?.0;
    if container.ready || now.duration_since(since) < STARTING {
        return None;
    }
    let containers = &pod.spec.as_ref()?.containers;
    let spec = containers.iter().find(|spec| spec.name == container.name)?;
    let probe = match (container.started, &spec.startup_probe, &spec.readiness_probe) {
        (Some(false), Some(_), _) => "startup",
        (_, _, Some(_)) => "readiness",
        _ => return None,
    };
    Some(format!("container {} runs, and its {probe} probe fails", container.name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn trouble_of(container: Value) -> Option<String> {
        let mut status = json!({
            "name": "app", "ready": false, "restartCount": 0, "image": "web:v2", "imageID": "",
        });
        json_patch::merge(&mut status, &container);
        let spec = json!({ "containers": [{ "name": "app", "readinessProbe": { "periodSeconds": 1 } }] });
        let status = json!({ "containerStatuses": [status] });
        let pod = json!({ "metadata": { "name": "web-1" }, "spec": spec, "status": status });
        pod_trouble(&serde_json::from_value(pod).unwrap(), "2026-01-01T00:01:00Z".parse().unwrap())
    }

    /// Shapes as the kubelet writes them: k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go.
    #[test]
    fn a_pod_in_trouble_is_named_with_its_container_and_its_last_words() {
        let killed = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        let text = "web-1: container app is in CrashLoopBackOff, exit code 137 (OOMKilled)";
        for (restarts, state) in [
            (4, json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s restarting" } })),
            (5, json!({ "running": { "startedAt": "2026-01-01T00:00:59Z" } })),
            (5, killed.clone()),
        ] {
            let crash = json!({ "restartCount": restarts, "state": state, "lastState": killed });
            assert_eq!(trouble_of(crash).as_deref(), Some(text), "{state}");
        }
        let panicked = json!({ "terminated": {
            "exitCode": 1, "reason": "Error", "message": "starting\nno route to the database\n",
        } });
        assert_eq!(
            trouble_of(json!({ "state": panicked })).as_deref(),
            Some("web-1: container app ended, exit code 1: no route to the database")
        );
        for reason in ["ErrImagePull", "ImagePullBackOff"] {
            let pull = json!({ "state": { "waiting": { "reason": reason, "message": "no such image" } } });
            let text = "web-1: container app is in ImagePullBackOff: no such image";
            assert_eq!(trouble_of(pull).as_deref(), Some(text));
        }
        assert_eq!(trouble_of(json!({ "state": { "waiting": { "reason": "ContainerCreating" } } })), None);
    }

    #[test]
    fn a_container_that_runs_and_is_not_ready_fails_its_probe() {
        let since = |at: &str| json!({ "state": { "running": { "startedAt": at } } });
        let text = "web-1: container app runs, and its readiness probe fails";
        assert_eq!(trouble_of(since("2026-01-01T00:00:10Z")).as_deref(), Some(text));
        assert_eq!(trouble_of(since("2026-01-01T00:00:58Z")), None);
        let mut ready = since("2026-01-01T00:00:10Z");
        ready["ready"] = true.into();
        assert_eq!(trouble_of(ready), None);
    }
}
