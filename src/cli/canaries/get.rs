//! `serin get`: all Canaries, a line each.

use std::collections::BTreeMap;

use anyhow::Context as _;
use futures::TryStreamExt as _;
use kube::{Api, ResourceExt as _, api::ListParams, runtime::watcher};

use super::{Output, state};
use crate::api::Canary;
use crate::api_error::watch_error;
use crate::cli::connect::ClusterArgs;
use crate::cli::inventory::table::{Cell, Style, Tone, plain, table, toned};
use crate::routing::provider_name;
use crate::workload::images::Workloads;

/// List Canaries: what each one does, and whether it needs a person
///
///     serin get              Canaries of this namespace
///     serin get -A           of all namespaces
///     serin get --watch      a line again whenever it changes
///     serin get -o json      the objects, for programs
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Args {
    /// Namespace [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,

    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// More columns, or the objects for programs
    #[arg(short, long, value_enum)]
    output: Option<Output>,

    /// Print a Canary again whenever its line changes
    #[arg(short, long)]
    watch: bool,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let connection = args.cluster.connect().await?;
        let namespace = (!args.all_namespaces).then(|| connection.namespace(args.namespace));
        let client = connection.client.clone();
        let canaries: Api<Canary> = match &namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        let listed = canaries.list(&ListParams::default()).await;
        let mut listed = listed.map_err(|error| connection.error("list Canaries", &error))?;
        listed.items.iter_mut().for_each(|canary| canary.metadata.managed_fields = None);
        match args.output {
            Some(Output::Json) => println!("{}", serde_json::to_string_pretty(&listed)?),
            Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(&listed)?),
            wide => {
                let style = Style { colours: crate::cli::colours(), wide: wide == Some(Output::Wide) };
                let workloads = Workloads::list(&client, namespace.as_deref()).await;
                let row = |canary: &Canary| row(canary, &workloads, namespace.is_none(), style.wide);
                if listed.items.is_empty() {
                    let whose = namespace
                        .as_ref()
                        .map_or("the cluster".to_owned(), |name| format!("namespace {name}"));
                    eprintln!("No Canaries in {whose}.");
                }
                if !listed.items.is_empty() {
                    let headers = headers(namespace.is_none(), style.wide);
                    print!("{}", table(&headers, listed.items.iter().map(row).collect(), style));
                }
                if args.watch {
                    follow(&canaries, namespace.as_deref(), style, listed.items).await?;
                }
            }
        }
        Ok(())
    })
}

fn headers(all_namespaces: bool, wide: bool) -> Vec<&'static str> {
    let mut headers = vec!["NAME", "STATUS", "WEIGHT", "STEP", "IMAGE"];
    if all_namespaces {
        headers.insert(0, "NAMESPACE");
    }
    if wide {
        headers.extend(["FAILED", "PROVIDER", "TARGET"]);
    }
    headers.push("MESSAGE");
    headers
}

fn row(canary: &Canary, workloads: &Workloads, all_namespaces: bool, wide: bool) -> Vec<Cell> {
    let status = canary.status.clone().unwrap_or_default();
    let state = state(canary);
    let tone = match state {
        "Refused" | "Failed" | "Degraded" => Tone::Bad,
        "Succeeded" | "Initialized" => Tone::Good,
        _ => Tone::Plain,
    };
    let mut row = vec![
        plain(canary.name_any()),
        toned(state, tone),
        plain(format!("{} %", status.canary_weight)),
        plain(status.step.as_ref().map(|step| step.progress.clone()).unwrap_or_default()),
        plain(workloads.images_of(canary).change()),
    ];
    if all_namespaces {
        row.insert(0, plain(canary.namespace().unwrap_or_default()));
    }
    if wide {
        let target = &canary.spec.target_ref;
        let provider = status.route.as_ref().map(|route| provider_name(route.provider));
        row.extend([
            plain(status.failed_checks.to_string()),
            plain(provider.unwrap_or_default()),
            plain(format!("{:?}/{}", target.kind, target.name)),
        ]);
    }
    row.push(plain(status.message.unwrap_or_default()));
    row
}

/// Prints a line whenever one is another than before.
async fn follow(
    canaries: &Api<Canary>,
    namespace: Option<&str>,
    style: Style,
    known: Vec<Canary>,
) -> anyhow::Result<()> {
    let workloads = Workloads::list(&canaries.clone().into_client(), namespace).await;
    let line = |canary: &Canary, workloads: &Workloads| {
        let row = row(canary, workloads, namespace.is_none(), style.wide);
        let texts: Vec<String> =
            row.into_iter().map(|cell| cell.text).filter(|text| !text.is_empty()).collect();
        texts.join("   ")
    };
    let key = |canary: &Canary| (canary.namespace(), canary.name_any());
    let mut last: BTreeMap<_, String> = known.iter().map(|c| (key(c), line(c, &workloads))).collect();
    let mut events = std::pin::pin!(watcher(canaries.clone(), watcher::Config::default()));
    loop {
        let event = match events.try_next().await {
            Ok(event) => event.context("the watch ended")?,
            Err(error) => anyhow::bail!("cannot watch Canaries: {}", watch_error(&error).0),
        };
        let (canary, gone) = match event {
            watcher::Event::Apply(canary) | watcher::Event::InitApply(canary) => (canary, false),
            watcher::Event::Delete(canary) => (canary, true),
            watcher::Event::Init | watcher::Event::InitDone => continue,
        };
        let workloads = Workloads::list(&canaries.clone().into_client(), namespace).await;
        let text = match gone {
            true => format!("{}   deleted", canary.name_any()),
            false => line(&canary, &workloads),
        };
        if last.insert(key(&canary), text.clone()).as_ref() != Some(&text) {
            println!("{text}");
        }
    }
}
