//! `serin logs`: the last words of the canary's pods that fail.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::LogParams;
use kube::{Api, ResourceExt as _};

use super::CanaryArgs;
use super::status::pods_of_target;
use crate::workload::pod_trouble;

/// Print the logs of the canary's pods that fail: which container, why, and its
/// last lines
///
///     serin logs web            pods that crash, fail a probe or cannot start
///     serin logs web --all      all pods of the canary
///
/// Of a container that was restarted, the log is that of its last life.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    canary: CanaryArgs,

    /// Pods without trouble too
    #[arg(long)]
    all: bool,

    /// Lines of each container
    #[arg(long, value_name = "LINES", default_value_t = 20)]
    tail: i64,
}

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let subject = args.canary.connect().await?;
        let canary = subject.read().await?;
        let pods = pods_of_target(&subject, &canary).await;
        let pods = pods.map_err(|error| subject.connection.error("list the pods of the canary", &error))?;
        let api: Api<Pod> = Api::namespaced(subject.connection.client.clone(), &subject.namespace);
        let now = Timestamp::now();
        let mut shown = 0;
        for pod in &pods {
            let trouble = pod_trouble(pod, now);
            if trouble.is_none() && !args.all {
                continue;
            }
            println!("{}{}", if shown > 0 { "\n" } else { "" }, trouble.unwrap_or_else(|| pod.name_any()));
            shown += 1;
            for container in containers(pod, args.all) {
                let params = LogParams {
                    container: Some(container.name.clone()),
                    previous: has_crashed(container),
                    tail_lines: Some(args.tail),
                    ..LogParams::default()
                };
                match api.logs(&pod.name_any(), &params).await {
                    Ok(text) if text.trim().is_empty() => {
                        println!("  (container {} logged nothing)", container.name)
                    }
                    Ok(text) => text.lines().for_each(|line| println!("  {line}")),
                    Err(error) => {
                        let attempt = format!("read the log of container {}", container.name);
                        eprintln!("serin: {:#}", subject.connection.error(&attempt, &error));
                    }
                }
            }
        }
        match (shown, pods.len()) {
            (0, 0) => eprintln!("The canary of {} has no pods now.", subject.name),
            (0, pods) => {
                eprintln!("None of the {pods} pods of the canary fails; --all prints their logs too.")
            }
            _ => {}
        }
        Ok(())
    })
}

/// Those that have lived, and of a pod in trouble only those that are not ready.
fn containers(pod: &Pod, all: bool) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    let containers = status.flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    containers.filter(move |container| container.container_id.is_some() && (all || !container.ready))
}

/// It runs again: the log of this life does not show yet why the last one ended. While it
/// waits for its next life, the log is that of the last one anyway.
fn has_crashed(container: &ContainerStatus) -> bool {
    let runs = container.state.as_ref().is_some_and(|state| state.running.is_some());
    runs && container.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}
