//! `serin status`: everything about one Canary on one screen.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::ValueEnum;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, Selector};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _, api::ListParams};
use tokio::time::interval;

use super::images::Workloads;
use super::view::{Scene, render};
use super::{CanaryArgs, Subject};
use crate::api::Canary;
use crate::api::canary::TargetKind;
use crate::api_error::watch_error;
use crate::cli::paint::{Terminal, paint, print};

/// Show one Canary: split, steps, verdicts, gates, pods in trouble, what happens next
///
///     serin status web              once
///     serin status web --watch      until Ctrl-C; redrawn on a terminal
///     serin status web -o json      the object, for programs
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    canary: CanaryArgs,

    /// Show it again whenever it changes
    #[arg(short, long)]
    watch: bool,

    /// The object, for programs
    #[arg(short, long, value_enum, conflicts_with = "watch")]
    output: Option<Output>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Json,
    Yaml,
}

/// Pods in trouble that are shown.
const MAX_PODS: usize = 5;
/// Relative times change by themselves.
const REDRAW: Duration = Duration::from_secs(1);
/// Without a terminal.
const WIDTH: usize = 100;

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let subject = args.canary.connect().await?;
        let mut canary = subject.read().await?;
        canary.metadata.managed_fields = None;
        match args.output {
            Some(Output::Json) => println!("{}", serde_json::to_string_pretty(&canary)?),
            Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(&canary)?),
            None if args.watch => follow(&subject, canary).await?,
            None => print(&text(&subject, &canary).await),
        }
        Ok(())
    })
}

async fn text(subject: &Subject, canary: &Canary) -> String {
    let colours = crate::cli::colours();
    let width = terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0.into());
    let (images, pods) = surroundings(subject, canary).await;
    let scene = Scene { canary, images: &images, pods: &pods, now: Timestamp::now() };
    render(&scene, width, colours)
        .iter()
        .map(|line| paint(line, width, colours).trim_end().to_owned() + "\n")
        .collect()
}

/// Redraws on a terminal; else prints again whenever the status changes.
async fn follow(subject: &Subject, mut canary: Canary) -> anyhow::Result<()> {
    let mut terminal = Terminal::open().filter(|_| std::io::stdout().is_terminal());
    let only = watcher::Config::default().fields(&format!("metadata.name={}", subject.name));
    let mut events = watcher(subject.api(), only).boxed();
    let mut redraw = interval(REDRAW);
    let (mut images, mut pods) = surroundings(subject, &canary).await;
    if terminal.is_none() {
        print(&text(subject, &canary).await);
    }
    loop {
        if let Some(terminal) = &mut terminal {
            let scene = Scene { canary: &canary, images: &images, pods: &pods, now: Timestamp::now() };
            terminal.draw(&render(&scene, terminal.size().0, terminal.colours()));
        }
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(watcher::Event::Apply(seen) | watcher::Event::InitApply(seen))) => {
                    let changed = seen.status != canary.status;
                    canary = seen;
                    (images, pods) = surroundings(subject, &canary).await;
                    if changed && terminal.is_none() {
                        print(&format!("\n{}", text(subject, &canary).await));
                    }
                }
                Ok(Some(watcher::Event::Delete(_))) => anyhow::bail!("the Canary was deleted"),
                Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
                Ok(None) => anyhow::bail!("the watch ended"),
                Err(error) => anyhow::bail!("cannot watch the Canary: {}", watch_error(&error).0),
            },
            _ = redraw.tick(), if terminal.is_some() => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// Images of the arms, and pods of the canary in trouble; as far as the user may read
/// them.
async fn surroundings(subject: &Subject, canary: &Canary) -> (super::images::Images, Vec<String>) {
    let client = &subject.connection.client;
    let (workloads, pods) =
        tokio::join!(Workloads::list(client, Some(&subject.namespace)), pods_of_target(subject, canary));
    let mut troubles: Vec<String> = pods.iter().filter_map(trouble).collect();
    if troubles.len() > MAX_PODS {
        let more = troubles.len() - MAX_PODS;
        troubles.truncate(MAX_PODS);
        troubles.push(format!("{more} more pods"));
    }
    (workloads.images_of(canary), troubles)
}

async fn pods_of_target(subject: &Subject, canary: &Canary) -> Vec<Pod> {
    let (client, namespace) = (subject.connection.client.clone(), &subject.namespace);
    let target = &canary.spec.target_ref;
    let selector = match target.kind {
        TargetKind::Deployment => {
            let target = Api::<Deployment>::namespaced(client.clone(), namespace).get_opt(&target.name).await;
            target.ok().flatten().and_then(|target| target.spec).map(|spec| spec.selector)
        }
        TargetKind::DaemonSet => {
            let target = Api::<DaemonSet>::namespaced(client.clone(), namespace).get_opt(&target.name).await;
            target.ok().flatten().and_then(|target| target.spec).map(|spec| spec.selector)
        }
        _ => None,
    };
    let Some(selector) = selector.as_ref().and_then(label_selector) else { return Vec::new() };
    let pods = Api::<Pod>::namespaced(client, namespace);
    pods.list(&ListParams::default().labels_from(&selector)).await.map(|list| list.items).unwrap_or_default()
}

fn label_selector(selector: &LabelSelector) -> Option<Selector> {
    let labels = selector.match_labels.iter().flatten();
    let equal = labels.map(|(key, value)| Expression::Equal(key.clone(), value.clone()));
    let selector: Selector = equal.collect();
    (!selector.selects_all()).then_some(selector)
}

/// What keeps a pod from serving, with the container and its last words.
fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let mut troubles = containers.filter_map(container_trouble);
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
    let reason = waiting.and_then(|waiting| waiting.reason.clone());
    let reason = reason.filter(|reason| !["ContainerCreating", "PodInitializing"].contains(&reason.as_str()));
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let failed = container.state.as_ref().and_then(|state| state.terminated.as_ref()).or(last);
    let failed = failed.filter(|ended| ended.exit_code != 0 && (reason.is_some() || !container.ready));
    if reason.is_none() && failed.is_none() {
        return None;
    }
    let mut text = match &reason {
        Some(reason) => format!("{} is in {reason}", container.name),
        None => format!("{} ended", container.name),
    };
    if container.restart_count > 0 {
        text.push_str(&format!(", restarted {} times", container.restart_count));
    }
    if let Some(ended) = failed {
        text.push_str(&format!(", exit code {}", ended.exit_code));
        let why = ended.reason.as_deref().filter(|reason| *reason != "Error");
        text.extend(why.map(|reason| format!(" ({reason})")));
        let words = ended.message.as_deref().and_then(|message| message.trim().lines().last());
        text.extend(words.map(|words| format!(": {words}")));
    } else if let Some(message) = waiting.and_then(|waiting| waiting.message.as_ref()) {
        text.push_str(&format!(": {message}"));
    }
    Some(text)
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
        let pod = json!({ "metadata": { "name": "web-1" }, "status": { "containerStatuses": [status] } });
        trouble(&serde_json::from_value(pod).unwrap())
    }

    /// Shapes as the kubelet writes them: k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go.
    #[test]
    fn a_pod_in_trouble_is_named_with_its_container_and_its_last_words() {
        let crash = json!({
            "restartCount": 4,
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s restarting" } },
            "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
        });
        let text = "web-1: app is in CrashLoopBackOff, restarted 4 times, exit code 137 (OOMKilled)";
        assert_eq!(trouble_of(crash).as_deref(), Some(text));
        let pull =
            json!({ "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } } });
        assert_eq!(trouble_of(pull).as_deref(), Some("web-1: app is in ImagePullBackOff: no such image"));
        assert_eq!(trouble_of(json!({ "state": { "waiting": { "reason": "ContainerCreating" } } })), None);
        assert_eq!(trouble_of(json!({ "ready": true, "state": { "running": {} } })), None);
    }
}
