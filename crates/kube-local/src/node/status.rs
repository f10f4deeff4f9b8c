//! A pod's status, computed from the reports of its containers. Pure.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sha2::{Digest, Sha256};

use super::container::{ContainerReport, Exit, RunState};

/// The status to write. Keeps conditions of other writers (readiness gates), and
/// the time of every condition that did not change.
pub fn status_of(
    pod: &Pod,
    reports: &[ContainerReport],
    ip: Ipv4Addr,
    started: &Time,
    now: &Time,
) -> PodStatus {
    let before = pod.status.clone().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let initialised = spec.init_containers.map(|containers| {
        containers.iter().map(|container| init_status(container, uid, started)).collect::<Vec<_>>()
    });
    let containers = spec.containers.iter().zip(reports);
    let statuses =
        containers.clone().map(|(container, report)| container_status(container, report, uid)).collect();
    let unready: Vec<&str> = containers
        .filter(|(_, report)| !report.ready)
        .map(|(container, _)| container.name.as_str())
        .collect();
    let phase = phase(reports);

    let gates = spec.readiness_gates.unwrap_or_default();
    let shut = gates.iter().map(|gate| gate.condition_type.as_str()).find(|gate| !is_true(&before, gate));
    let mut conditions = Conditions { list: before.conditions.clone().unwrap_or_default(), now };
    conditions.set("PodReadyToStartContainers", None);
    conditions.set("Initialized", None);
    let not_ready = match phase {
        "Succeeded" => Some(("PodCompleted", String::new())),
        "Failed" => Some(("PodFailed", String::new())),
        _ if unready.is_empty() => None,
        _ => Some(("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))),
    };
    conditions.set("ContainersReady", not_ready.clone());
    let held = shut.map(|gate| {
        ("ReadinessGatesNotReady", format!("the status of pod readiness gate {gate:?} is not \"True\""))
    });
    conditions.set("Ready", not_ready.or(held));
    conditions.set("PodScheduled", None);

    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions.list),
        container_statuses: Some(statuses),
        init_container_statuses: initialised.filter(|statuses| !statuses.is_empty()),
        host_ip: Some(super::HOST_IP.to_owned()),
        host_ips: Some(vec![HostIP { ip: super::HOST_IP.to_owned() }]),
        pod_ip: Some(ip.to_string()),
        pod_ips: Some(vec![PodIP { ip: ip.to_string() }]),
        start_time: Some(started.clone()),
        ..before
    }
}

fn phase(reports: &[ContainerReport]) -> &'static str {
    let exits: Vec<_> = reports.iter().filter_map(|report| exit_code(&report.state)).collect();
    if !reports.is_empty() && exits.len() == reports.len() {
        return if exits.iter().all(|code| *code == 0) { "Succeeded" } else { "Failed" };
    }
    // A container that waits for a restart has run; one that waits for its first start has not.
    let waits =
        |report: &ContainerReport| matches!(report.state, RunState::Waiting { .. }) && report.last.is_none();
    if reports.iter().any(waits) { "Pending" } else { "Running" }
}

fn exit_code(state: &RunState) -> Option<i32> {
    match state {
        RunState::Exited(exit) => Some(exit.code),
        RunState::Waiting { .. } | RunState::Running { .. } => None,
    }
}

fn is_true(status: &PodStatus, condition: &str) -> bool {
    status.conditions.iter().flatten().any(|known| known.type_ == condition && known.status == "True")
}

struct Conditions<'a> {
    list: Vec<PodCondition>,
    now: &'a Time,
}

impl Conditions<'_> {
    /// `why_not` is reason and message if the condition is false.
    fn set(&mut self, type_: &str, why_not: Option<(&str, String)>) {
        let status = if why_not.is_none() { "True" } else { "False" };
        let (reason, message) = why_not.map(|(reason, message)| (reason.to_owned(), message)).unzip();
        let message = message.filter(|message| !message.is_empty());
        let index = self.list.iter().position(|known| known.type_ == type_).unwrap_or_else(|| {
            self.list.push(PodCondition { type_: type_.to_owned(), ..PodCondition::default() });
            self.list.len() - 1
        });
        let condition = &mut self.list[index];
        if condition.status != status || condition.last_transition_time.is_none() {
            condition.last_transition_time = Some(self.now.clone());
        }
        condition.status = status.to_owned();
        (condition.reason, condition.message) = (reason, message);
    }
}

fn container_status(container: &Container, report: &ContainerReport, uid: &str) -> ContainerStatus {
    let image = container.image.clone().unwrap_or_default();
    let life = |restarts: i32| format!("serin://{}", digest(&[uid, &container.name, &restarts.to_string()]));
    let this_life = life(report.restarts);
    let has_lived =
        report.restarts > 0 || !matches!(report.state, RunState::Waiting { .. }) || report.last.is_some();
    ContainerStatus {
        name: container.name.clone(),
        image_id: format!(
            "{}@sha256:{}",
            image.split([':', '@']).next().unwrap_or_default(),
            digest(&[&image])
        ),
        image,
        container_id: has_lived.then(|| this_life.clone()),
        ready: report.ready,
        started: Some(matches!(report.state, RunState::Running { .. })),
        restart_count: report.restarts,
        state: Some(match &report.state {
            RunState::Waiting { reason, message } => ContainerState {
                waiting: Some(ContainerStateWaiting {
                    reason: Some((*reason).to_owned()),
                    message: message.clone(),
                }),
                ..ContainerState::default()
            },
            RunState::Running { since } => ContainerState {
                running: Some(ContainerStateRunning { started_at: Some(since.clone()) }),
                ..ContainerState::default()
            },
            RunState::Exited(exit) => terminated(exit, this_life.clone()),
        }),
        last_state: report.last.as_ref().map(|exit| {
            let running = matches!(report.state, RunState::Running { .. });
            terminated(exit, if running { life(report.restarts - 1) } else { this_life })
        }),
        ..ContainerStatus::default()
    }
}

fn init_status(container: &Container, uid: &str, started: &Time) -> ContainerStatus {
    let exit = Exit { code: 0, message: None, started: started.clone(), finished: started.clone() };
    let report = ContainerReport { state: RunState::Exited(exit), last: None, restarts: 0, ready: true };
    ContainerStatus { started: Some(false), ..container_status(container, &report, uid) }
}

fn terminated(exit: &Exit, id: String) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(id),
            exit_code: exit.code,
            reason: Some(if exit.code == 0 { "Completed" } else { "Error" }.to_owned()),
            message: exit.message.clone(),
            started_at: Some(exit.started.clone()),
            finished_at: Some(exit.finished.clone()),
            signal: None,
        }),
        ..ContainerState::default()
    }
}

fn digest(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn pod(more: Value) -> Pod {
        let mut pod =
            json!({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "a", "image": "app:v1"}]}});
        json_patch::merge(&mut pod, &more);
        serde_json::from_value(pod).unwrap()
    }

    fn report(state: RunState, ready: bool, last: Option<Exit>) -> ContainerReport {
        ContainerReport { state, last, restarts: 0, ready }
    }

    fn running(ready: bool) -> ContainerReport {
        report(RunState::Running { since: at(1) }, ready, None)
    }

    fn exit(code: i32) -> Exit {
        Exit { code, message: None, started: at(1), finished: at(2) }
    }

    fn status_at(pod: &Pod, report: ContainerReport, now: i64) -> PodStatus {
        status_of(pod, &[report], Ipv4Addr::new(127, 64, 0, 1), &at(0), &at(now))
    }

    fn condition(status: &PodStatus, type_: &str) -> PodCondition {
        status.conditions.iter().flatten().find(|condition| condition.type_ == type_).unwrap().clone()
    }

    #[test]
    fn a_running_pod_is_ready_when_its_containers_are() {
        let status = status_at(&pod(json!({})), running(false), 5);
        let ready = condition(&status, "Ready");
        assert_eq!((status.phase.as_deref(), ready.status.as_str()), (Some("Running"), "False"));
        assert_eq!(ready.message.as_deref(), Some("containers with unready status: [a]"));
        assert_eq!(condition(&status_at(&pod(json!({})), running(true), 5), "Ready").status, "True");
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let mut pod = pod(json!({}));
        pod.status = Some(status_at(&pod, running(false), 5));
        let still = status_at(&pod, running(false), 9);
        assert_eq!(Some(&still), pod.status.as_ref());
        let ready = status_at(&pod, running(true), 9);
        assert_eq!(condition(&ready, "Ready").last_transition_time, Some(at(9)));
        assert_eq!(condition(&ready, "PodScheduled").last_transition_time, Some(at(5)));
    }

    #[test]
    fn a_crash_loop_shows_its_waiting_reason_and_last_exit() {
        let waiting = RunState::Waiting { reason: "CrashLoopBackOff", message: None };
        let status = status_at(&pod(json!({})), report(waiting, false, Some(exit(1))), 5);
        let container = &status.container_statuses.as_ref().unwrap()[0];
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(
            container.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(),
            Some("CrashLoopBackOff")
        );
        assert_eq!(container.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
    }

    #[test]
    fn a_pod_that_has_not_started_is_pending() {
        assert_eq!(
            status_at(&pod(json!({})), ContainerReport::creating(), 5).phase.as_deref(),
            Some("Pending")
        );
    }

    #[test]
    fn a_pod_whose_containers_all_ended_has_failed_or_succeeded() {
        let phase =
            |code| status_at(&pod(json!({})), report(RunState::Exited(exit(code)), false, None), 5).phase;
        assert_eq!((phase(0).as_deref(), phase(1).as_deref()), (Some("Succeeded"), Some("Failed")));
    }

    #[test]
    fn a_readiness_gate_keeps_the_pod_from_being_ready() {
        let gated = json!({"spec": {"readinessGates": [{"conditionType": "example.com/in-service"}]}});
        let mut pod = pod(gated);
        let shut = condition(&status_at(&pod, running(true), 5), "Ready");
        assert_eq!((shut.status.as_str(), shut.reason.as_deref()), ("False", Some("ReadinessGatesNotReady")));
        pod.status = serde_json::from_value(
            json!({"conditions": [{"type": "example.com/in-service", "status": "True"}]}),
        )
        .unwrap();
        let status = status_at(&pod, running(true), 5);
        assert_eq!(condition(&status, "Ready").status, "True");
        assert_eq!(condition(&status, "example.com/in-service").status, "True");
    }
}
