//! Columns of a pod, which summarise its conditions and container states.

use jiff::Timestamp;
use serde_json::Value;

use super::columns::{age, column, count, list, name, or, text};
use crate::kinds::Column;
use crate::kubectl::since;

pub(super) fn all() -> Vec<Column> {
    vec![
        name(),
        column("Ready", "string", 0, "Containers ready, of all.", |pod, _| {
            let summary = Summary::of(pod);
            format!("{}/{}", summary.ready, summary.containers).into()
        }),
        column("Status", "string", 0, "What the pod is doing.", |pod, _| Summary::of(pod).status.into()),
        column("Restarts", "string", 0, "How often its containers were restarted.", restarts),
        age(),
        column("IP", "string", 1, "Its address.", |pod, _| {
            or(or(text(pod, "/status/podIPs/0/ip"), text(pod, "/status/podIP")), "<none>").into()
        }),
        column("Node", "string", 1, "Where it runs.", |pod, _| {
            or(text(pod, "/spec/nodeName"), "<none>").into()
        }),
        column("Nominated Node", "string", 1, "Where it will run once there is room.", |pod, _| {
            or(text(pod, "/status/nominatedNodeName"), "<none>").into()
        }),
        column(
            "Readiness Gates",
            "string",
            1,
            "Its own conditions for being ready, fulfilled of all.",
            |pod, _| {
                let gates: Vec<_> =
                    list(pod, "/spec/readinessGates").map(|gate| text(gate, "/conditionType")).collect();
                if gates.is_empty() {
                    return "<none>".into();
                }
                let open = gates.iter().filter(|gate| condition_holds(pod, gate)).count();
                format!("{open}/{}", gates.len()).into()
            },
        ),
    ]
}

struct Summary<'a> {
    containers: usize,
    ready: usize,
    status: String,
    restarts: i64,
    last_restart: Option<&'a str>,
}

impl<'a> Summary<'a> {
    fn of(pod: &'a Value) -> Summary<'a> {
        let phase = text(pod, "/status/phase");
        let mut summary = Summary {
            containers: list(pod, "/spec/containers").count(),
            ready: 0,
            status: or(text(pod, "/status/reason"), phase).to_owned(),
            restarts: 0,
            last_restart: None,
        };
        let gated = |condition: &Value| {
            text(condition, "/type") == "PodScheduled" && text(condition, "/reason") == "SchedulingGated"
        };
        if list(pod, "/status/conditions").any(gated) {
            summary.status = "SchedulingGated".to_owned();
        }
        let sidecars: Vec<_> = list(pod, "/spec/initContainers")
            .filter(|container| text(container, "/restartPolicy") == "Always")
            .map(|container| text(container, "/name"))
            .collect();
        summary.containers += sidecars.len();
        if !summary.apply_init_containers(pod, &sidecars) || condition_holds(pod, "Initialized") {
            summary.apply_containers(pod, &sidecars);
        }
        if pod.pointer("/metadata/deletionTimestamp").is_some() {
            if text(pod, "/status/reason") == "NodeLost" {
                summary.status = "Unknown".to_owned();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                summary.status = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Applies the states of the init containers; true if one has not finished.
    fn apply_init_containers(&mut self, pod: &'a Value, sidecars: &[&str]) -> bool {
        let all = list(pod, "/spec/initContainers").count();
        for (i, container) in list(pod, "/status/initContainerStatuses").enumerate() {
            self.count_restarts(container);
            let sidecar = sidecars.contains(&text(container, "/name"));
            let terminated = container.pointer("/state/terminated");
            let waiting = text(container, "/state/waiting/reason");
            if terminated.is_some_and(|state| count(state, "/exitCode") == 0) {
                continue;
            }
            if sidecar && container.get("started") == Some(&Value::Bool(true)) {
                self.ready += usize::from(is_ready(container));
                continue;
            }
            self.status = match (terminated, waiting) {
                (Some(state), _) => format!("Init:{}", termination_reason(state)),
                (None, "" | "PodInitializing") => format!("Init:{i}/{all}"),
                (None, reason) => format!("Init:{reason}"),
            };
            return true;
        }
        false
    }

    fn apply_containers(&mut self, pod: &'a Value, sidecars: &[&str]) {
        (self.restarts, self.last_restart) = (0, None);
        let statuses = list(pod, "/status/initContainerStatuses");
        for container in statuses.filter(|container| sidecars.contains(&text(container, "/name"))) {
            self.count_restarts(container);
        }
        let (mut any_running, mut error) = (false, None);
        let statuses: Vec<_> = list(pod, "/status/containerStatuses").collect();
        for container in statuses.into_iter().rev() {
            self.count_restarts(container);
            let waiting = text(container, "/state/waiting/reason");
            if !waiting.is_empty() {
                self.status = waiting.to_owned();
            } else if let Some(state) = container.pointer("/state/terminated") {
                self.status = termination_reason(state);
                if count(state, "/exitCode") != 0 {
                    error = Some(self.status.clone());
                }
            } else if is_ready(container) && container.pointer("/state/running").is_some() {
                any_running = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" {
            match (any_running, error) {
                (true, _) if condition_holds(pod, "Ready") => self.status = "Running".to_owned(),
                (_, Some(error)) => self.status = error,
                (true, None) => self.status = "NotReady".to_owned(),
                (false, None) => {}
            }
        }
    }

    fn count_restarts(&mut self, container: &'a Value) {
        self.restarts += count(container, "/restartCount");
        let ended = container.pointer("/lastState/terminated/finishedAt").and_then(Value::as_str);
        // Times in the same notation sort as text.
        self.last_restart = self.last_restart.max(ended);
    }
}

fn restarts(pod: &Value, now: Timestamp) -> Value {
    let summary = Summary::of(pod);
    match summary.last_restart {
        Some(last) if summary.restarts > 0 => {
            format!("{} ({} ago)", summary.restarts, since(Some(last), now))
        }
        _ => summary.restarts.to_string(),
    }
    .into()
}

fn termination_reason(terminated: &Value) -> String {
    match (text(terminated, "/reason"), count(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", count(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn is_ready(container: &Value) -> bool {
    container.get("ready") == Some(&Value::Bool(true))
}

fn condition_holds(pod: &Value, kind: &str) -> bool {
    list(pod, "/status/conditions").any(|c| text(c, "/type") == kind && text(c, "/status") == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(status: Value) -> String {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]},
            "status": status});
        let summary = Summary::of(&pod);
        format!("{}/{} {} {}", summary.ready, summary.containers, summary.status, summary.restarts)
    }

    #[test]
    fn a_pods_status_names_what_blocks_it() {
        assert_eq!(status(json!({"phase": "Pending"})), "0/2 Pending 0");
        assert_eq!(
            status(json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]})),
            "0/2 Init:CrashLoopBackOff 2"
        );
        assert_eq!(
            status(json!({"phase": "Running", "containerStatuses": [
                {"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}},
                {"name": "b", "ready": false, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]})),
            "1/2 CrashLoopBackOff 3"
        );
        assert_eq!(
            status(json!({"phase": "Failed", "containerStatuses": [
                {"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                {"name": "b", "state": {"terminated": {"exitCode": 3}}}]})),
            "0/2 ExitCode:3 0"
        );
    }

    #[test]
    fn a_restart_is_shown_with_its_age() {
        let pod = json!({"spec": {"containers": [{"name": "a"}]}, "status": {"containerStatuses": [
            {"name": "a", "restartCount": 1, "lastState": {"terminated": {"finishedAt": "2026-01-01T00:00:00Z"}}}]}});
        let now = "2026-01-01T00:01:00Z".parse().expect("a time");
        assert_eq!(restarts(&pod, now), "1 (60s ago)");
    }
}
