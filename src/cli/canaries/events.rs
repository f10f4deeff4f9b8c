//! `serin events`: what happened to a Canary, as its Events have it.

use anyhow::Context as _;
use futures::TryStreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _, api::ListParams};

use super::{CanaryArgs, Output, relative};
use crate::api_error::watch_error;
use crate::cli::inventory::table::{Cell, Style, Tone, plain, table, toned};

/// List the Events of a Canary, oldest first
///
///     serin events web              those that the cluster still has, for an hour as a rule
///     serin events web --watch      and each new one
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    canary: CanaryArgs,

    /// Print new ones as they come
    #[arg(short, long)]
    watch: bool,

    /// The objects, for programs
    #[arg(short, long, value_enum, conflicts_with = "watch")]
    output: Option<Output>,
}

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let subject = args.canary.connect().await?;
        subject.read().await?;
        let events: Api<Event> = Api::namespaced(subject.connection.client.clone(), &subject.namespace);
        let of_canary = format!("involvedObject.kind=Canary,involvedObject.name={}", subject.name);
        let listed = events.list(&ListParams::default().fields(&of_canary)).await;
        let mut listed = listed.map_err(|error| subject.connection.error("list Events", &error))?;
        listed.items.sort_by_key(time);
        match args.output {
            Some(Output::Json) => println!("{}", serde_json::to_string_pretty(&listed)?),
            Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(&listed)?),
            _ if listed.items.is_empty() && !args.watch => {
                eprintln!(
                    "The cluster has no Events of {}; it keeps them for an hour as a rule.",
                    subject.name
                );
            }
            wide => {
                let style = Style { colours: crate::cli::colours(), wide: wide == Some(Output::Wide) };
                let now = Timestamp::now();
                let rows = listed.items.iter().map(|event| row(event, now)).collect();
                print!("{}", table(&["WHEN", "REASON", "MESSAGE"], rows, style));
                if args.watch {
                    follow(&events, &of_canary, &listed.items).await?;
                }
            }
        }
        Ok(())
    })
}

async fn follow(events: &Api<Event>, of_canary: &str, known: &[Event]) -> anyhow::Result<()> {
    let only = watcher::Config::default().fields(of_canary);
    let mut stream = std::pin::pin!(watcher(events.clone(), only));
    loop {
        let event = match stream.try_next().await {
            Ok(event) => event.context("the watch ended")?,
            Err(error) => anyhow::bail!("cannot watch Events: {}", watch_error(&error).0),
        };
        if let watcher::Event::Apply(event) | watcher::Event::InitApply(event) = event
            && !known.iter().any(|known| known.uid() == event.uid())
        {
            let texts: Vec<String> =
                row(&event, Timestamp::now()).into_iter().map(|cell| cell.text).collect();
            println!("{}", texts.join("   "));
        }
    }
}

fn row(event: &Event, now: Timestamp) -> Vec<Cell> {
    let tone = match event.type_.as_deref() {
        Some("Warning") => Tone::Bad,
        _ => Tone::Plain,
    };
    vec![
        plain(time(event).map(|at| relative(at, now)).unwrap_or_default()),
        toned(event.reason.clone().unwrap_or_default(), tone),
        plain(event.message.clone().unwrap_or_default()),
    ]
}

fn time(event: &Event) -> Option<Timestamp> {
    let last = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref());
    last.map(|at| at.0).or(event.event_time.as_ref().map(|at| at.0))
}
