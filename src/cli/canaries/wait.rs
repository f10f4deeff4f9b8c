//! `serin wait`: until a release has ended, with an exit code for each end.

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use futures::TryStreamExt as _;
use kube::runtime::watcher;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{CanaryArgs, Subject, state};
use crate::api::canary::status::{Outcome, Phase};
use crate::api::{self, Canary};
use crate::api_error::watch_error;
use crate::workload::images::{Images, Workloads};

/// Wait until the release of a Canary has ended; for pipelines
///
///     kubectl set image deployment/web web=web:v2
///     serin wait web --for promoted --timeout 20m
///
/// A release that the controller has not begun yet is waited for: the target's
/// image differs from the primary's, or it differs within the time of --settle.
///
/// Exit codes: 0 promoted (with --for finished: ended in any way), 1 an error, 2
/// rolled back, aborted or superseded, 3 refused until somebody changes something,
/// 4 timed out.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    canary: CanaryArgs,

    /// What to wait for
    #[arg(long = "for", value_enum, value_name = "END", default_value = "promoted")]
    end: End,

    /// How long
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    timeout: api::Duration,

    /// How long a release may take to begin, if none is under way
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    settle: api::Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum End {
    Promoted,
    Finished,
}

/// How the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Promoted,
    NotPromoted,
    Refused,
}

const TIMED_OUT: u8 = 4;

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<ExitCode> {
    crate::cli::runtime()?.block_on(async {
        let Args { canary, end, timeout, settle } = args;
        let subject = canary.connect().await?;
        subject.read().await?;
        let deadline = Instant::now() + timeout.get();
        match timeout_at(deadline, wait(&subject, settle.get())).await {
            Err(_) => {
                eprintln!("serin: not over within {}: {}", timeout, message(&subject.read().await?));
                Ok(ExitCode::from(TIMED_OUT))
            }
            Ok(ended) => Ok(ExitCode::from(match (ended?, end) {
                (Ended::Promoted, _) | (Ended::NotPromoted, End::Finished) => 0,
                (Ended::NotPromoted, End::Promoted) => 2,
                (Ended::Refused, _) => 3,
            })),
        }
    })
}

async fn wait(subject: &Subject, settle: Duration) -> anyhow::Result<Ended> {
    let only = watcher::Config::default().fields(&format!("metadata.name={}", subject.name));
    let mut events = std::pin::pin!(watcher(subject.api(), only));
    let settled = Instant::now() + settle;
    let (mut canary, mut last) = (subject.read().await?, String::new());
    loop {
        let text = message(&canary);
        if text != last {
            println!("{text}");
            last = text;
        }
        let workloads = Workloads::list(&subject.connection.client, Some(&subject.namespace)).await;
        let ended = ended(&canary, &workloads.images_of(&canary));
        let is_settled = Instant::now() >= settled;
        if let Some(ended) = ended.filter(|_| is_settled || canary.spec.suspend) {
            return Ok(ended);
        }
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(watcher::Event::Apply(seen) | watcher::Event::InitApply(seen))) => canary = seen,
                Ok(Some(watcher::Event::Delete(_))) => anyhow::bail!("the Canary was deleted"),
                Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
                Ok(None) => anyhow::bail!("the watch ended"),
                Err(error) => anyhow::bail!("cannot watch the Canary: {}", watch_error(&error).0),
            },
            () = sleep_until(settled), if !is_settled => {}
        }
    }
}

/// None while a release is under way or about to begin.
fn ended(canary: &Canary, images: &Images) -> Option<Ended> {
    let status = canary.status.as_ref()?;
    if state(canary) == "Refused" {
        return Some(Ended::Refused);
    }
    let differs = images.primary.is_some() && images.primary != images.target;
    match status.phase {
        _ if status.release.is_some() => None,
        Phase::Succeeded | Phase::Initialized => (!differs).then_some(Ended::Promoted),
        Phase::Failed => {
            let revisions = status.revisions.as_ref()?;
            let promoted = status.history.first().is_some_and(|past| past.outcome == Outcome::Promoted);
            let rejected = revisions.seen.is_some() && revisions.seen == revisions.rejected;
            (rejected || !differs).then_some(if promoted { Ended::Promoted } else { Ended::NotPromoted })
        }
        _ => None,
    }
}

fn message(canary: &Canary) -> String {
    let message = canary.status.as_ref().and_then(|status| status.message.clone());
    format!(
        "{}: {}",
        state(canary),
        message.unwrap_or_else(|| "the controller has not seen it yet".to_owned())
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn end_of(status: Value, primary: &str, target: &str) -> Option<Ended> {
        let canary = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": { "name": "web" },
            "spec": {
                "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
                "service": { "port": 80 },
                "analysis": { "stepWeight": 10 },
            },
            "status": status,
        });
        let images = Images { primary: Some(primary.to_owned()), target: Some(target.to_owned()) };
        ended(&serde_json::from_value(canary).unwrap(), &images)
    }

    #[test]
    fn a_pushed_image_is_waited_for_until_its_release_has_ended() {
        let succeeded = json!({ "phase": "Succeeded" });
        assert_eq!(end_of(succeeded.clone(), "web:v1", "web:v2"), None);
        assert_eq!(end_of(succeeded, "web:v2", "web:v2"), Some(Ended::Promoted));
        assert_eq!(end_of(json!({ "phase": "Progressing" }), "web:v1", "web:v2"), None);
        let rejected = json!({ "phase": "Failed", "revisions": { "seen": "v1-2", "rejected": "v1-2" } });
        assert_eq!(end_of(rejected, "web:v1", "web:v2"), Some(Ended::NotPromoted));
        let pushed_again = json!({ "phase": "Failed", "revisions": { "seen": "v1-3", "rejected": "v1-2" } });
        assert_eq!(end_of(pushed_again, "web:v1", "web:v3"), None);
        let stalled =
            json!([{ "type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "" }]);
        let refused = json!({ "phase": "Initializing", "conditions": stalled });
        assert_eq!(end_of(refused, "web:v1", "web:v1"), Some(Ended::Refused));
    }
}
