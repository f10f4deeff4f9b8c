//! Runs one container: configures it, serves, probes, crashes, restarts.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::future::{join_all, pending};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::NodeInner;
use super::address::loopback_address;
use super::app::App;
use super::behaviour::Behaviour;
use super::config::{ConfigError, ConfigReader};
use super::probe::Prober;
use crate::controllers::events::EventType;

/// Routers by address, for callers in this process.
pub type Directory = Arc<RwLock<HashMap<SocketAddr, Router>>>;

/// Limits of the delay between restarts of a crashing container, as in the kubelet.
const MIN_RESTART_DELAY: Duration = Duration::from_secs(10);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(300);
const RECONFIGURE_INTERVAL: Duration = Duration::from_secs(2);

/// The state of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerReport {
    pub state: RunState,
    pub last: Option<Exit>,
    pub restarts: i32,
    pub ready: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    Waiting { reason: &'static str, message: Option<String> },
    Running { since: Time },
    Exited(Exit),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    pub code: i32,
    pub message: Option<String>,
    pub started: Time,
    pub finished: Time,
}

impl ContainerReport {
    pub fn creating() -> ContainerReport {
        ContainerReport {
            state: RunState::Waiting { reason: "ContainerCreating", message: None },
            last: None,
            restarts: 0,
            ready: false,
        }
    }
}

/// A container to run.
pub struct ContainerTask {
    pub node: Arc<NodeInner>,
    pub pod: Arc<Pod>,
    pub container: Container,
    /// The container's index in `reports`.
    pub index: usize,
    pub ip: Ipv4Addr,
    pub ports: Vec<u16>,
    pub seed: u64,
    pub reports: watch::Sender<Vec<ContainerReport>>,
    /// Cancelled when the pod has to stop serving.
    pub stop: CancellationToken,
    /// Open connections.
    pub connections: TaskTracker,
}

impl ContainerTask {
    /// Runs until dropped; with restart policy `Never`, until the first exit.
    pub async fn run(self) {
        let mut crashes = 0;
        loop {
            let started = self.now();
            let exit = match self.configure().await {
                Ok(behaviour) => self.run_once(behaviour, started.clone()).await,
                Err(ContainerConfigError(message)) => {
                    self.update_report(|report| {
                        report.state = RunState::Waiting {
                            reason: "CreateContainerConfigError",
                            message: Some(message.clone()),
                        };
                    });
                    sleep(RECONFIGURE_INTERVAL).await;
                    continue;
                }
            };
            let exit = Exit { code: 1, message: exit.err(), started, finished: self.now() };
            let policy = self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
            if policy == Some("Never") {
                self.update_report(|report| {
                    (report.state, report.ready) = (RunState::Exited(exit.clone()), false)
                });
                return;
            }
            let delay = MIN_RESTART_DELAY.saturating_mul(1 << crashes.min(5)).min(MAX_RESTART_DELAY);
            crashes += 1;
            let name = &self.container.name;
            let message = format!("back-off {}s restarting failed container={name}", delay.as_secs());
            self.update_report(|report| {
                report.state =
                    RunState::Waiting { reason: "CrashLoopBackOff", message: Some(message.clone()) };
                report.last = Some(exit.clone());
                report.ready = false;
            });
            self.node.events.publish(&*self.pod, EventType::Warning, "BackOff", message).await;
            sleep(delay).await;
            self.update_report_silently(|report| report.restarts += 1);
        }
    }

    async fn configure(&self) -> Result<Behaviour, ContainerConfigError> {
        let sources = ConfigReader::new(self.node.client.clone(), self.pod.namespace().unwrap_or_default());
        while let Err(missing) = sources.volumes(&self.pod).await {
            self.update_report(|report| {
                let message = Some(missing.to_string());
                report.state = RunState::Waiting { reason: "ContainerCreating", message };
            });
            sleep(RECONFIGURE_INTERVAL).await;
        }
        let environment = sources.environment(&self.pod, &self.container, &self.ip.to_string()).await?;
        let image = self.container.image.as_deref().unwrap_or_default();
        Behaviour::of(image, &environment).map_err(|error| ContainerConfigError(error.to_string()))
    }

    /// One run, from start to crash. The error is the reason, if known.
    async fn run_once(&self, behaviour: Behaviour, started: Time) -> Result<(), String> {
        let (delay, crashes, never_ready) =
            (behaviour.start_delay, behaviour.crash_loop, behaviour.never_ready);
        let (namespace, pod) = (self.pod.namespace().unwrap_or_default(), self.pod.name_any());
        let log = self.node.logs.begin(&namespace, &pod, &self.container.name, self.node.options.clock);
        log.line(format!("starting {} {}", behaviour.name, behaviour.version));
        if crashes {
            log.line("this version crashes when it starts".to_owned());
        }
        if crashes && delay.is_zero() {
            return Ok(());
        }
        let app = App::new(behaviour, &namespace, &pod, self.seed).with_log(log).router();
        let up = watch::Sender::new(false);
        self.update_report(|report| report.state = RunState::Running { since: started.clone() });

        let serving = async {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            if crashes {
                return Ok(());
            }
            let registered = self.register(&app);
            let listeners = self.listen().await?;
            up.send_replace(true);
            let message = format!("Started container {}", self.container.name);
            let started_event = self.node.events.publish(&*self.pod, EventType::Normal, "Started", message);
            let served = listeners.into_iter().map(|listener| {
                let stopped = self.stop.clone().cancelled_owned();
                let server = axum::serve(listener, app.clone()).with_graceful_shutdown(stopped);
                self.connections.track_future(server.into_future())
            });
            let refusing = async {
                self.stop.cancelled().await;
                drop(registered);
            };
            futures::join!(join_all(served), refusing, started_event);
            pending().await
        };
        let listening = || up.borrow().then(|| app.clone());
        let readiness = async {
            if never_ready {
                pending::<()>().await;
            }
            let mut up = up.subscribe();
            match self.container.readiness_probe.as_ref().map(Prober::new) {
                // Cannot fail: the sender lives as long as this future.
                None => drop(up.wait_for(|up| *up).await),
                Some(prober) => {
                    prober.initial_delay().await;
                    loop {
                        prober.wait_for(true, listening).await;
                        self.update_report(|report| report.ready = true);
                        prober.wait_period().await;
                        prober.wait_for(false, listening).await;
                        self.update_report(|report| report.ready = false);
                        prober.wait_period().await;
                    }
                }
            }
            self.update_report(|report| report.ready = true);
            pending().await
        };
        let liveness = async {
            let Some(prober) = self.container.liveness_probe.as_ref().map(Prober::new) else {
                return pending().await;
            };
            prober.initial_delay().await;
            prober.wait_for(false, listening).await;
            Err(format!("Container {} failed liveness probe, will be restarted", self.container.name))
        };
        let probing = async {
            if let Some(startup) = self.container.startup_probe.as_ref().map(Prober::new) {
                startup.initial_delay().await;
                startup.wait_for(true, listening).await;
            }
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                ended = readiness => ended,
                ended = liveness => ended,
            }
        };
        tokio::select! {
            biased;
            ended = serving => ended,
            ended = probing => ended,
        }
    }

    /// Makes the app reachable for callers in this process until the result is dropped.
    fn register(&self, app: &Router) -> DirectoryEntry {
        let addresses: Vec<_> = self.ports.iter().map(|port| self.address(*port)).collect();
        let mut directory = self.node.directory.write();
        directory.extend(addresses.iter().map(|address| (*address, app.clone())));
        DirectoryEntry { directory: self.node.directory.clone(), addresses }
    }

    async fn listen(&self) -> Result<Vec<TcpListener>, String> {
        let mut listeners = Vec::new();
        for port in self.ports.iter().filter(|_| self.node.options.listen) {
            let address = SocketAddrV4::new(loopback_address(self.ip), *port);
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.map_err(|error| format!("cannot listen on {address}: {error}"))?);
        }
        Ok(listeners)
    }

    fn address(&self, port: u16) -> SocketAddr {
        SocketAddrV4::new(self.ip, port).into()
    }

    fn now(&self) -> Time {
        super::now_in_seconds(&self.node.options.clock)
    }

    fn update_report(&self, change: impl FnOnce(&mut ContainerReport)) {
        self.reports.send_if_modified(|reports| {
            let Some(report) = reports.get_mut(self.index) else { return false };
            let before = report.clone();
            change(report);
            *report != before
        });
    }

    /// Changes the report without waking the reporter; written with the next report.
    fn update_report_silently(&self, change: impl FnOnce(&mut ContainerReport)) {
        self.reports.send_if_modified(|reports| {
            if let Some(report) = reports.get_mut(self.index) {
                change(report);
            }
            false
        });
    }
}

/// The container cannot be started as configured.
struct ContainerConfigError(String);

impl From<ConfigError> for ContainerConfigError {
    fn from(error: ConfigError) -> ContainerConfigError {
        ContainerConfigError(error.to_string())
    }
}

struct DirectoryEntry {
    directory: Directory,
    addresses: Vec<SocketAddr>,
}

impl Drop for DirectoryEntry {
    fn drop(&mut self) {
        let mut directory = self.directory.write();
        for address in &self.addresses {
            directory.remove(address);
        }
    }
}
