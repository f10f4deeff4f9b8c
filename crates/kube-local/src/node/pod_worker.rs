//! Runs one pod, from binding to removal.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::container::{ContainerReport, ContainerTask, Exit, RunState};
use super::status::status_of;
use super::{NodeInner, now_in_seconds};
use crate::controllers::events::EventType;
use crate::controllers::runtime::{backoff, ignore_not_found, is_conflict};

/// The pod as last seen by the watch; the sender is dropped when the pod is gone.
pub type PodUpdates = watch::Receiver<Arc<Pod>>;

/// The port of a pod that declares none.
const DEFAULT_PORT: u16 = 8080;

pub async fn run_pod(node: Arc<NodeInner>, mut updates: PodUpdates) {
    let pod = updates.borrow_and_update().clone();
    let api: Api<Pod> = Api::namespaced(node.client.clone(), &pod.namespace().unwrap_or_default());
    let _logs = LogsOfPod { node: node.clone(), pod: pod.clone() };
    let address = loop {
        match node.addresses.allocate() {
            Ok(address) => break address,
            Err(error) => {
                tracing::warn!(%error, pod = pod.name_any(), "cannot allocate a pod address; retrying");
                sleep(Duration::from_secs(1)).await;
            }
        }
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let started = pod
        .status
        .as_ref()
        .and_then(|status| status.start_time.clone())
        .unwrap_or(now_in_seconds(&node.options.clock));
    let reports = watch::Sender::new(vec![ContainerReport::creating(); spec.containers.len()]);
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();
    let connections = TaskTracker::new();
    let launch = |(index, container): (usize, &Container)| ContainerTask {
        node: node.clone(),
        pod: pod.clone(),
        container: container.clone(),
        index,
        ip: address.ip,
        ports: container_ports(&spec, index),
        seed: container_seed(node.options.seed, &pod, index),
        reports: reports.clone(),
        stop: stop.clone(),
        connections: connections.clone(),
    };
    let mut changed = reports.subscribe();
    let mut reporter =
        StatusReporter { node: node.clone(), api, pod: pod.clone(), ip: address.ip, started, attempts: 0 };
    let mut containers = FuturesUnordered::new();
    if pod.metadata.deletion_timestamp.is_none() && !is_finished(&pod) {
        containers.extend(spec.containers.iter().enumerate().map(launch).map(ContainerTask::run));
    }
    if !reporter.report_until_deletion(&mut containers, &mut changed, &mut updates).await {
        return;
    }
    let killing_events = async {
        for container in &spec.containers {
            let message = format!("Stopping container {}", container.name);
            node.events.publish(&*pod, EventType::Normal, "Killing", message).await;
        }
    };
    let draining = async {
        if let Some(delay) = pre_stop(&spec) {
            sleep(delay).await;
        }
        // New connections are refused; open ones may finish.
        stop.cancel();
        connections.close();
        connections.wait().await;
    };
    let _ =
        timeout(grace(&reporter.pod), run_containers_until(&mut containers, join(killing_events, draining)))
            .await;
    drop(containers);
    let now = now_in_seconds(&node.options.clock);
    let ended: Vec<_> = reports.borrow().iter().map(|report| terminated_report(report, &now)).collect();
    reporter.report_termination(&mut updates, &ended).await;
}

/// They are gone with the pod.
struct LogsOfPod {
    node: Arc<NodeInner>,
    pod: Arc<Pod>,
}

impl Drop for LogsOfPod {
    fn drop(&mut self) {
        self.node.logs.remove(&self.pod.namespace().unwrap_or_default(), &self.pod.name_any());
    }
}

/// Polls the containers until `end`.
async fn run_containers_until<F: Future<Output = ()>>(
    containers: &mut FuturesUnordered<F>,
    end: impl Future,
) {
    let mut end = std::pin::pin!(end);
    loop {
        tokio::select! {
            biased;
            Some(()) = containers.next() => {}
            _ = &mut end => return,
        }
    }
}

/// Writes the status of one pod.
struct StatusReporter {
    node: Arc<NodeInner>,
    api: Api<Pod>,
    /// The last known state in the API.
    pod: Arc<Pod>,
    ip: std::net::Ipv4Addr,
    started: Time,
    attempts: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum StatusWriteResult {
    Done,
    Retry,
    /// The pod no longer exists.
    Gone,
}

impl StatusReporter {
    /// Writes the containers' states until the pod is marked for deletion (true) or gone (false).
    async fn report_until_deletion<F: Future<Output = ()>>(
        &mut self,
        containers: &mut FuturesUnordered<F>,
        changed: &mut watch::Receiver<Vec<ContainerReport>>,
        updates: &mut PodUpdates,
    ) -> bool {
        let mut due = None;
        loop {
            if self.pod.metadata.deletion_timestamp.is_some() {
                return true;
            }
            tokio::select! {
                // Containers first, so that simultaneous changes are reported in one write.
                biased;
                Some(()) = containers.next() => {}
                received = updates.changed() => {
                    if received.is_err() {
                        return false;
                    }
                    if self.accept_newer(updates.borrow_and_update().clone()) {
                        due = Some(Instant::now());
                    }
                }
                _ = changed.changed() => due = Some(Instant::now()),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let reports = changed.borrow_and_update().clone();
                    due = match self.write_status(&reports).await {
                        StatusWriteResult::Done => None,
                        StatusWriteResult::Retry => Some(Instant::now() + backoff(self.attempts)),
                        StatusWriteResult::Gone => return false,
                    };
                }
            }
        }
    }

    /// True if `pod` is newer than the last known state.
    fn accept_newer(&mut self, pod: Arc<Pod>) -> bool {
        let version = |pod: &Pod| pod.resource_version().and_then(|version| version.parse::<u64>().ok());
        let is_newer = version(&pod) > version(&self.pod);
        if is_newer {
            self.pod = pod;
        }
        is_newer
    }

    async fn write_status(&mut self, reports: &[ContainerReport]) -> StatusWriteResult {
        let now = now_in_seconds(&self.node.options.clock);
        let status = status_of(&self.pod, reports, self.ip, &self.started, &now);
        if self.pod.status.as_ref() == Some(&status) {
            return StatusWriteResult::Done;
        }
        let mut pod = (*self.pod).clone();
        pod.status = Some(status);
        let name = pod.name_any();
        self.attempts = self.attempts.saturating_add(1);
        let current = match self.api.replace_status(&name, &PostParams::default(), &pod).await {
            Err(error) if is_conflict(&error) => ignore_not_found(self.api.get(&name).await),
            result => ignore_not_found(result),
        };
        match current {
            Ok(Some(current)) if current.uid() == self.pod.uid() => {
                let written = current.status == pod.status;
                self.pod = Arc::new(current);
                if written {
                    self.attempts = 0;
                    return StatusWriteResult::Done;
                }
                StatusWriteResult::Retry
            }
            Ok(_) => StatusWriteResult::Gone,
            Err(error) => {
                tracing::debug!(%error, pod = name, "cannot write a pod's status; retrying");
                StatusWriteResult::Retry
            }
        }
    }

    /// Removes the stopped pod or, if a finalizer keeps it, reports that it has stopped.
    async fn report_termination(&mut self, updates: &mut PodUpdates, reports: &[ContainerReport]) {
        let this_one = Preconditions { uid: self.pod.uid(), resource_version: None };
        let params =
            DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }.preconditions(this_one);
        let mut attempt = 0;
        loop {
            match ignore_not_found(self.api.delete(&self.pod.name_any(), &params).await) {
                Ok(None) => return,
                Ok(Some(_)) if self.pod.finalizers().is_empty() => return,
                // A finalizer keeps the pod: report that it has stopped.
                Ok(Some(_)) => break,
                Err(error) => {
                    // A conflict may mean that another pod has this name now.
                    let found = self.api.get_opt(&self.pod.name_any()).await;
                    if found.is_ok_and(|found| found.is_none_or(|found| found.uid() != self.pod.uid())) {
                        return;
                    }
                    tracing::debug!(%error, pod = self.pod.name_any(), "cannot remove a pod; retrying");
                    attempt += 1;
                    sleep(backoff(attempt)).await;
                }
            }
        }
        loop {
            match self.write_status(reports).await {
                StatusWriteResult::Gone => return,
                StatusWriteResult::Retry => sleep(backoff(self.attempts)).await,
                StatusWriteResult::Done => {
                    if updates.changed().await.is_err() {
                        return;
                    }
                    self.accept_newer(updates.borrow_and_update().clone());
                }
            }
        }
    }
}

/// How long the containers keep serving after deletion starts.
fn pre_stop(spec: &PodSpec) -> Option<Duration> {
    let sleeps = spec.containers.iter().filter_map(|container| {
        let seconds = container.lifecycle.as_ref()?.pre_stop.as_ref()?.sleep.as_ref()?.seconds;
        Some(Duration::from_secs(u64::try_from(seconds).ok()?))
    });
    sleeps.max()
}

fn grace(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = pod.metadata.deletion_grace_period_seconds.or(spec).unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn terminated_report(report: &ContainerReport, now: &Time) -> ContainerReport {
    let started = match &report.state {
        RunState::Running { since } => since.clone(),
        RunState::Exited(_) => return report.clone(),
        RunState::Waiting { .. } => now.clone(),
    };
    let exit = Exit { code: 0, message: None, started, finished: now.clone() };
    ContainerReport { state: RunState::Exited(exit), ready: false, ..report.clone() }
}

/// The ports a container listens on. A pod that declares none listens on one, in
/// its first container.
fn container_ports(spec: &PodSpec, index: usize) -> Vec<u16> {
    let declared = |container: &Container| {
        let tcp = container
            .ports
            .iter()
            .flatten()
            .filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP");
        let mut ports: Vec<_> = tcp.filter_map(|port| u16::try_from(port.container_port).ok()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    };
    if index == 0 && spec.containers.iter().all(|container| declared(container).is_empty()) {
        return vec![DEFAULT_PORT];
    }
    spec.containers.get(index).map(declared).unwrap_or_default()
}

/// Derived from names only: uids differ from run to run.
fn container_seed(seed: u64, pod: &Pod, container: usize) -> u64 {
    let text = format!("{}/{}/{container}", pod.namespace().unwrap_or_default(), pod.name_any());
    super::fnv_hash(seed, &text)
}
