//! Looks after one pod, from the moment it is bound until it is gone.

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

use super::container::{Exit, Launch, Report, State};
use super::status::status_of;
use super::{Shared, stamp};
use crate::local::controllers::events::Tone;
use crate::local::controllers::work::{backoff, is_conflict, unless_gone};

/// The pod as last heard of from the API; the sender goes when the pod does.
pub type News = watch::Receiver<Arc<Pod>>;

/// Where a container listens that declares no port.
const DEFAULT_PORT: u16 = 8080;

pub async fn look_after(node: Arc<Shared>, mut news: News) {
    let pod = news.borrow_and_update().clone();
    let api: Api<Pod> = Api::namespaced(node.client.clone(), &pod.namespace().unwrap_or_default());
    let address = loop {
        match node.addresses.take() {
            Ok(address) => break address,
            Err(error) => {
                tracing::warn!(%error, pod = pod.name_any(), "no address for a pod");
                sleep(Duration::from_secs(1)).await;
            }
        }
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let started = pod
        .status
        .as_ref()
        .and_then(|status| status.start_time.clone())
        .unwrap_or(stamp(&node.options.clock));
    let reports = watch::Sender::new(vec![Report::creating(); spec.containers.len()]);
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();
    let connections = TaskTracker::new();
    let launch = |(index, container): (usize, &Container)| Launch {
        node: node.clone(),
        pod: pod.clone(),
        container: container.clone(),
        index,
        ip: address.ip,
        ports: ports(&spec, index),
        seed: seed(node.options.seed, &pod, index),
        reports: reports.clone(),
        stop: stop.clone(),
        connections: connections.clone(),
    };
    let mut changed = reports.subscribe();
    let mut keeper =
        Keeper { node: node.clone(), api, pod: pod.clone(), ip: address.ip, started, attempts: 0 };
    let mut containers = FuturesUnordered::new();
    if pod.metadata.deletion_timestamp.is_none() && !is_finished(&pod) {
        containers.extend(spec.containers.iter().enumerate().map(launch).map(Launch::run));
    }
    if !keeper.tend(&mut containers, &mut changed, &mut news).await {
        return;
    }
    let farewell = async {
        for container in &spec.containers {
            let message = format!("Stopping container {}", container.name);
            node.events.tell(&*pod, Tone::Normal, "Killing", message).await;
        }
    };
    let last_requests = async {
        if let Some(still) = pre_stop(&spec) {
            sleep(still).await;
        }
        // Nobody new is let in; whoever is in may finish.
        stop.cancel();
        connections.close();
        connections.wait().await;
    };
    let _ = timeout(grace(&keeper.pod), drive(&mut containers, join(farewell, last_requests))).await;
    drop(containers);
    let now = stamp(&node.options.clock);
    let ended: Vec<_> = reports.borrow().iter().map(|report| ended(report, &now)).collect();
    keeper.say_goodbye(&mut news, &ended).await;
}

/// Lets the containers go on until `end`.
async fn drive<F: Future<Output = ()>>(containers: &mut FuturesUnordered<F>, end: impl Future) {
    let mut end = std::pin::pin!(end);
    loop {
        tokio::select! {
            biased;
            Some(()) = containers.next() => {}
            _ = &mut end => return,
        }
    }
}

/// Keeps the API informed about one pod.
struct Keeper {
    node: Arc<Shared>,
    api: Api<Pod>,
    /// As the API has it, as far as is known.
    pod: Arc<Pod>,
    ip: std::net::Ipv4Addr,
    started: Time,
    attempts: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Written {
    Yes,
    TryAgain,
    /// There is no such pod any more.
    Gone,
}

impl Keeper {
    /// Reports what the containers do until the pod is to be deleted (true) or gone (false).
    async fn tend<F: Future<Output = ()>>(
        &mut self,
        containers: &mut FuturesUnordered<F>,
        changed: &mut watch::Receiver<Vec<Report>>,
        news: &mut News,
    ) -> bool {
        let mut due = None;
        loop {
            if self.pod.metadata.deletion_timestamp.is_some() {
                return true;
            }
            tokio::select! {
                // Containers first: what they do at once is told at once, in one write.
                biased;
                Some(()) = containers.next() => {}
                heard = news.changed() => {
                    if heard.is_err() {
                        return false;
                    }
                    if self.learn(news.borrow_and_update().clone()) {
                        due = Some(Instant::now());
                    }
                }
                _ = changed.changed() => due = Some(Instant::now()),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let reports = changed.borrow_and_update().clone();
                    due = match self.write(&reports).await {
                        Written::Yes => None,
                        Written::TryAgain => Some(Instant::now() + backoff(self.attempts)),
                        Written::Gone => return false,
                    };
                }
            }
        }
    }

    /// True if it was news.
    fn learn(&mut self, pod: Arc<Pod>) -> bool {
        let version = |pod: &Pod| pod.resource_version().and_then(|version| version.parse::<u64>().ok());
        let is_news = version(&pod) > version(&self.pod);
        if is_news {
            self.pod = pod;
        }
        is_news
    }

    async fn write(&mut self, reports: &[Report]) -> Written {
        let now = stamp(&self.node.options.clock);
        let status = status_of(&self.pod, reports, self.ip, &self.started, &now);
        if self.pod.status.as_ref() == Some(&status) {
            return Written::Yes;
        }
        let mut pod = (*self.pod).clone();
        pod.status = Some(status);
        let name = pod.name_any();
        self.attempts = self.attempts.saturating_add(1);
        let known = match self.api.replace_status(&name, &PostParams::default(), &pod).await {
            Err(error) if is_conflict(&error) => unless_gone(self.api.get(&name).await),
            answer => unless_gone(answer),
        };
        match known {
            Ok(Some(known)) if known.uid() == self.pod.uid() => {
                let written = known.status == pod.status;
                self.pod = Arc::new(known);
                if written {
                    self.attempts = 0;
                    return Written::Yes;
                }
                Written::TryAgain
            }
            Ok(_) => Written::Gone,
            Err(error) => {
                tracing::debug!(%error, pod = name, "could not record a pod's status; trying again");
                Written::TryAgain
            }
        }
    }

    /// The last word about a pod: it has stopped and may be removed.
    async fn say_goodbye(&mut self, news: &mut News, reports: &[Report]) {
        let this_one = Preconditions { uid: self.pod.uid(), resource_version: None };
        let params =
            DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }.preconditions(this_one);
        let mut attempt = 0;
        loop {
            match unless_gone(self.api.delete(&self.pod.name_any(), &params).await) {
                Ok(None) => return,
                Ok(Some(_)) if self.pod.finalizers().is_empty() => return,
                // Somebody else holds on to it: say at least that it has stopped.
                Ok(Some(_)) => break,
                Err(error) => {
                    // A conflict may mean that another pod has its name by now.
                    let found = self.api.get_opt(&self.pod.name_any()).await;
                    if found.is_ok_and(|found| found.is_none_or(|found| found.uid() != self.pod.uid())) {
                        return;
                    }
                    tracing::debug!(%error, pod = self.pod.name_any(), "could not remove a pod; trying again");
                    attempt += 1;
                    sleep(backoff(attempt)).await;
                }
            }
        }
        loop {
            match self.write(reports).await {
                Written::Gone => return,
                Written::TryAgain => sleep(backoff(self.attempts)).await,
                Written::Yes => {
                    if news.changed().await.is_err() {
                        return;
                    }
                    self.learn(news.borrow_and_update().clone());
                }
            }
        }
    }
}

/// How long its containers are to go on serving after being asked to stop.
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

fn ended(report: &Report, now: &Time) -> Report {
    let started = match &report.state {
        State::Running { since } => since.clone(),
        State::Exited(_) => return report.clone(),
        State::Waiting { .. } => now.clone(),
    };
    let exit = Exit { code: 0, message: None, started, finished: now.clone() };
    Report { state: State::Exited(exit), ready: false, ..report.clone() }
}

/// The ports a container listens on. A pod that declares none at all listens on
/// one, in its first container.
fn ports(spec: &PodSpec, index: usize) -> Vec<u16> {
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

/// From names only: uids differ from run to run.
fn seed(seed: u64, pod: &Pod, container: usize) -> u64 {
    let text = format!("{}/{}/{container}", pod.namespace().unwrap_or_default(), pod.name_any());
    super::fnv(seed, &text)
}
