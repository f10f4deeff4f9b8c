//! `serin status`: everything about one Canary on one screen.

use std::io::IsTerminal as _;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, api::ListParams};
use tokio::time::interval;

use super::view::{Scene, key_line, render};
use super::{CanaryArgs, Output, Subject};
use crate::api::Canary;
use crate::api::canary::TargetKind;
use crate::api_error::watch_error;
use crate::cli::keys::Keys;
use crate::cli::paint::{Terminal, check_reader, paint, print};
use crate::engine::command::Verb;
use crate::gates::commands::{self, Caller, CanaryRef};
use crate::workload::{
    images::{Images, Workloads},
    pod_trouble, pods,
};

/// Show one Canary: split, steps, verdicts, gates, pods in trouble, what happens
/// next
///
///     serin status web              once
///     serin status web --watch      until q or Ctrl-C; redrawn on a terminal, where p pauses
///                                   the release, r resumes it, a approves, x aborts
///     serin status web -o json      the object, for programs
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    canary: CanaryArgs,

    /// Show it again whenever it changes
    #[arg(short, long)]
    watch: bool,

    /// The whole history, or the object for programs
    #[arg(short, long, value_enum, conflicts_with = "watch")]
    output: Option<Output>,
}

/// Pods in trouble that are shown.
const MAX_PODS: usize = 5;
/// Relative times change by themselves.
const REDRAW: Duration = Duration::from_secs(1);
/// Without a terminal.
const WIDTH: usize = 100;
/// Releases of the history that are shown, and with `-o wide`.
const PAST_RELEASES: [usize; 2] = [3, 10];

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let subject = args.canary.connect().await?;
        let mut canary = subject.read().await?;
        canary.metadata.managed_fields = None;
        match args.output {
            Some(Output::Json) => println!("{}", serde_json::to_string_pretty(&canary)?),
            Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(&canary)?),
            None if args.watch => follow(&subject, canary).await?,
            wide => print(&text(&subject, &canary, PAST_RELEASES[usize::from(wide.is_some())]).await),
        }
        Ok(())
    })
}

async fn text(subject: &Subject, canary: &Canary, past: usize) -> String {
    let colours = crate::cli::colours();
    let width = terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0.into());
    let (images, pods) = surroundings(subject, canary).await;
    let scene = Scene { canary, images: &images, pods: &pods, now: Timestamp::now(), past };
    render(&scene, width)
        .iter()
        .map(|line| paint(line, width, colours).trim_end().to_owned() + "\n")
        .collect()
}

/// Redraws on a terminal; else prints again whenever the status changes.
async fn follow(subject: &Subject, mut canary: Canary) -> anyhow::Result<()> {
    let mut terminal = Terminal::open().filter(|_| std::io::stdout().is_terminal());
    let mut keyboard = terminal.as_ref().and_then(|_| Keys::open()).map(Keyboard::new);
    let only = watcher::Config::default().fields(&format!("metadata.name={}", subject.name));
    let mut events = watcher(subject.api(), only).boxed();
    let mut redraw = interval(REDRAW);
    let (mut images, mut pods) = surroundings(subject, &canary).await;
    if terminal.is_none() {
        print(&text(subject, &canary, PAST_RELEASES[0]).await);
    }
    loop {
        check_reader()?;
        if let Some(terminal) = &mut terminal {
            let past = PAST_RELEASES[0];
            let scene = Scene { canary: &canary, images: &images, pods: &pods, now: Timestamp::now(), past };
            let (width, height) = terminal.size();
            let mut lines = render(&scene, width);
            if let Some(keyboard) = &keyboard {
                // The keys are always in sight.
                lines.truncate(height.saturating_sub(3));
                lines.extend([Vec::new(), key_line(&keyboard.note)]);
            }
            terminal.draw(&lines);
        }
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(watcher::Event::Apply(seen) | watcher::Event::InitApply(seen))) => {
                    let changed = seen.status != canary.status;
                    canary = seen;
                    (images, pods) = surroundings(subject, &canary).await;
                    if changed && terminal.is_none() {
                        print(&format!("\n{}", text(subject, &canary, PAST_RELEASES[0]).await));
                    }
                }
                Ok(Some(watcher::Event::Delete(_))) => anyhow::bail!("the Canary was deleted"),
                Ok(Some(watcher::Event::Init | watcher::Event::InitDone)) => {}
                Ok(None) => anyhow::bail!("the watch ended"),
                Err(error) => anyhow::bail!("cannot watch the Canary: {}", watch_error(&error).0),
            },
            Some(quits) = OptionFuture::from(keyboard.as_mut().map(|keys| keys.next(subject))) => {
                if quits {
                    return Ok(());
                }
            }
            _ = redraw.tick(), if terminal.is_some() => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// Keys, and what became of the last one.
struct Keyboard {
    keys: Keys,
    note: String,
    /// x was pressed, and y follows or not.
    asks_to_abort: bool,
    running: Option<BoxFuture<'static, String>>,
}

impl Keyboard {
    fn new(keys: Keys) -> Self {
        Self { keys, note: String::new(), asks_to_abort: false, running: None }
    }

    /// Waits for the next key or for the end of a command; true for q.
    async fn next(&mut self, subject: &Subject) -> bool {
        let key = tokio::select! {
            note = async { match &mut self.running { Some(running) => running.await, None => std::future::pending().await } } => {
                (self.note, self.running) = (note, None);
                return false;
            }
            key = self.keys.next() => key,
        };
        let asked = std::mem::take(&mut self.asks_to_abort);
        self.note = String::new();
        let action = match key {
            'q' => return true,
            'y' if asked => Action::Command(Verb::Abort),
            'p' => Action::Command(Verb::Pause),
            'r' => Action::Command(Verb::Resume),
            'a' => Action::Approve,
            'x' => {
                self.asks_to_abort = true;
                self.note = "abort the release and roll it back? y for yes".to_owned();
                return false;
            }
            _ => return false,
        };
        self.running = Some(act(subject.clone(), action).boxed());
        false
    }
}

enum Action {
    Command(Verb),
    Approve,
}

/// By the same way as the commands; the outcome in one line.
async fn act(subject: Subject, action: Action) -> String {
    let client = &subject.connection.client;
    let canary = CanaryRef { namespace: &subject.namespace, name: &subject.name };
    let (doing, done) = match action {
        Action::Command(verb) => {
            let sent = commands::command(client, &Caller::Current, canary, verb, None).await;
            match sent {
                Err(error) => (verb.name(), Err(error)),
                Ok(command) => {
                    let denied = refusal(&subject, &command.id).await;
                    let outcome = denied.map(|why| format!("refused to {}: {why}", verb.name()));
                    return outcome.unwrap_or_else(|| format!("{}: accepted", verb.name()));
                }
            }
        }
        Action::Approve => {
            let sent = commands::approve(client, &Caller::Current, canary, None).await;
            ("approve", sent.map(|call| format!("approved: {}", call.gate)))
        }
    };
    match done {
        Ok(note) => note,
        Err(error) => format!("cannot {doing}: {:#}", subject.connection.command_error(error)),
    }
}

/// The controller's, if it refuses a command soon.
async fn refusal(subject: &Subject, id: &str) -> Option<String> {
    const PATIENCE: u32 = 20;
    for _ in 0..PATIENCE {
        let canary = subject.api().get(&subject.name).await.ok()?;
        let last = canary.status.and_then(|status| status.last_command);
        if let Some(last) = last.filter(|last| last.id == id) {
            return (!last.accepted).then_some(last.message);
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Some("no answer of the controller yet".to_owned())
}

/// Images of the arms, and pods of the canary in trouble; as far as the user may read
/// them.
async fn surroundings(subject: &Subject, canary: &Canary) -> (Images, Vec<String>) {
    let client = &subject.connection.client;
    let (workloads, pods) =
        tokio::join!(Workloads::list(client, Some(&subject.namespace)), pods_of_target(subject, canary));
    let now = Timestamp::now();
    let mut troubles: Vec<String> = pods.iter().flatten().filter_map(|pod| pod_trouble(pod, now)).collect();
    if troubles.len() > MAX_PODS {
        let more = troubles.len() - MAX_PODS;
        troubles.truncate(MAX_PODS);
        troubles.push(format!("{more} more pods"));
    }
    (workloads.images_of(canary), troubles)
}

pub(super) async fn pods_of_target(subject: &Subject, canary: &Canary) -> kube::Result<Vec<Pod>> {
    let (client, namespace) = (subject.connection.client.clone(), &subject.namespace);
    let target = &canary.spec.target_ref;
    let selector = match target.kind {
        TargetKind::Deployment => {
            let target =
                Api::<Deployment>::namespaced(client.clone(), namespace).get_opt(&target.name).await?;
            target.and_then(|target| target.spec).map(|spec| spec.selector)
        }
        TargetKind::DaemonSet => {
            let target =
                Api::<DaemonSet>::namespaced(client.clone(), namespace).get_opt(&target.name).await?;
            target.and_then(|target| target.spec).map(|spec| spec.selector)
        }
        _ => None,
    };
    let Some(selector) = selector.as_ref().and_then(pods::selector) else { return Ok(Vec::new()) };
    let pods = Api::<Pod>::namespaced(client, namespace);
    Ok(pods.list(&ListParams::default().labels_from(&selector)).await?.items)
}
