//! `serin simulate`: a Canary on virtual time, before it meets traffic.
//!
//! ```text
//!   input   ─▶ Canary and templates of the files
//!   fault   ─▶ how the new revision differs: errors=2%, p99=+40%
//!   rows    ─▶ hundreds of releases on all cores, by the engine and by Flagger's rule
//!   suggest ─▶ other steps and intervals, tried in the same way
//!   report  ─▶ table, JSON;  picture ─▶ SVG
//! ```
//!
//! The engine, the judge and the traffic are `serin_core::simulation`; nothing here decides.

mod fault;
mod input;
mod picture;
mod report;
mod rows;
mod suggest;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serin_core::simulation::{Scenario, Source};

use crate::api::Duration;
use fault::Fault;
use input::Input;

/// Try a Canary on simulated traffic, before it meets yours
///
/// The engine and the judge of the controller decide hundreds of releases on virtual time:
/// how long a good one takes, how soon a bad one is rolled back and how many requests failed
/// by then, and how often a healthy one is rolled back by chance. Flagger's rule (a success
/// rate of 99 % unless the Canary has a range, over the last minute) judges the same traffic.
///
/// A fault is what is wrong with the new revision; faults with commas between come at once:
///
///   errors=2%           it fails 2 % of its requests
///   p99=+40%            all its requests take 40 % longer
///   p99=800ms           its median stays, and one request in a hundred takes longer than this
///   slow=1%:+800ms      one request in a hundred takes 800 ms longer
///   pod=5%              one of its pods fails 5 % of its requests
///   none                nothing: how often is it rolled back all the same?
///
/// The result depends on the seed and on nothing else of this machine. Requests fail
/// independently of each other, pods are alike, gates open at once: your service is worse.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Manifest with one Canary, and the AnalysisTemplates that it names; - for standard
    /// input
    #[arg(short, long, value_name = "FILE", required = true)]
    file: Vec<PathBuf>,

    /// The Canary, if the files have several
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Requests a second that the Service gets
    #[arg(long, value_name = "NUMBER", default_value_t = 50.0)]
    rps: f64,

    /// What is wrong with the new revision; may be given several times
    #[arg(long = "fault", value_name = "FAULT", default_values_t = [Fault::errors(0.02)])]
    faults: Vec<Fault>,

    /// When the fault begins, counted from the first request to the canary
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    onset: Duration,

    /// Requests that fail on a healthy revision, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.1)]
    errors: f64,

    /// The median duration of a request of a healthy revision
    #[arg(long, value_name = "DURATION", default_value = "50ms")]
    median: Duration,

    /// Pods of each arm
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pods: u32,

    /// How long a pod takes to become ready
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pod_start: Duration,

    /// How often Prometheus reads each pod; 0s if Serin scrapes them at each check
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    scrape_interval: Duration,

    /// Requests that a match of the Canary selects, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    matched: f64,

    /// Releases of each row: the standard error shrinks with the square root
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    releases: u64,

    /// Of the random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Find steps and an interval that decide within this time
    #[arg(long, value_name = "DURATION")]
    suggest: Option<Duration>,

    /// A table for people, or JSON
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    output: Format,

    /// Draw the weights and the decisions over time into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

const EXAMPLES: &str = "\
Examples:
  serin simulate -f canary.yaml
  serin simulate -f canary.yaml --rps 5 --fault errors=2% --fault p99=+40%
  serin simulate -f canary.yaml --fault errors=1%,slow=1%:+800ms --onset 10m
  serin simulate -f canary.yaml --suggest 15m
  serin simulate -f canary.yaml --svg release.svg -o json";

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    ensure!(args.rps > 0.0 && args.rps <= 1e6, "--rps must be more than 0, and at most a million");
    ensure!((0.0..100.0).contains(&args.errors), "--errors is in percent: 0 to 100");
    ensure!((0.0..=100.0).contains(&args.matched), "--matched is in percent: 0 to 100");
    ensure!((1..=100).contains(&args.pods), "--pods must be 1 to 100");
    ensure!(!args.median.get().is_zero(), "--median must be more than 0s");
    let input = Input::read(&args.file, args.name.as_deref())?;
    let setting = input.setting(args.pods, args.pod_start.get(), args.matched / 100.0)?;
    let healthy = healthy(&args);
    let table = rows::play(&input, &setting, &healthy, &args)?;
    let suggestion = match args.suggest {
        Some(within) => Some(suggest::suggest(&input, &setting, &healthy, &args, within.get())?),
        None => None,
    };
    if let Some(path) = &args.svg {
        let svg = picture::draw(&input.name(), &table);
        std::fs::File::create(path)
            .and_then(|mut file| file.write_all(svg.as_bytes()))
            .with_context(|| format!("write {}", path.display()))?;
    }
    match args.output {
        Format::Text => super::paint::print(&report::text(&input, &table, suggestion.as_ref(), &args)),
        Format::Json => println!("{:#}", report::json(&input, &table, suggestion.as_ref(), &args)),
    }
    Ok(())
}

/// The traffic of a revision that is as good as the one before.
fn healthy(args: &Args) -> Scenario {
    let every = args.scrape_interval.get().as_secs_f64();
    let source = match every > 0.0 {
        true => Source::Prometheus { every, jitter: 0.0, lag: 0.0 },
        false => Source::Scrape,
    };
    Scenario {
        pods: args.pods as usize,
        median: args.median.get().as_secs_f64(),
        onset: args.onset.get().as_secs_f64(),
        source,
        ..Scenario::healthy(args.rps, args.errors / 100.0)
    }
}
