//! `serin history`: the last ten releases of a Canary.

use jiff::Timestamp;

use super::{CanaryArgs, Output, length, relative};
use crate::api::CanaryStatus;
use crate::api::canary::status::{Outcome, PastRelease};
use crate::cli::inventory::table::{Cell, Style, Tone, plain, table, toned};
use crate::engine::names::name_of;

/// List the last ten releases of a Canary: how each ended, and why
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    canary: CanaryArgs,

    /// The hashes too, or the list for programs
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let subject = args.canary.connect().await?;
        let canary = subject.read().await?;
        let status = canary.status.unwrap_or_default();
        if status.history.is_empty() {
            eprintln!("No release of {} has ended yet.", subject.name);
            return Ok(());
        }
        let wide = match args.output {
            Some(Output::Json) => {
                println!("{}", serde_json::to_string_pretty(&status.history)?);
                return Ok(());
            }
            Some(Output::Yaml) => {
                print!("{}", serde_saphyr::to_string(&status.history)?);
                return Ok(());
            }
            wide => wide.is_some(),
        };
        let style = Style { colours: crate::cli::colours(), wide };
        let row = |past| {
            let mut row = row(past, &status, Timestamp::now());
            if wide {
                row.insert(5, plain(past.revision.clone()));
            }
            row
        };
        let rows = status.history.iter().map(row).collect();
        let mut headers = vec!["ENDED", "OUTCOME", "TOOK", "WEIGHT", "REVISION", "REASON"];
        if wide {
            headers.insert(5, "HASH");
        }
        print!("{}", table(&headers, rows, style));
        Ok(())
    })
}

fn row(past: &PastRelease, status: &CanaryStatus, now: Timestamp) -> Vec<Cell> {
    let (outcome, tone) = outcome(past.outcome);
    vec![
        plain(relative(past.finished_at.0, now)),
        toned(outcome, tone),
        plain(length(past.finished_at.0.duration_since(past.started_at.0))),
        plain(format!("{} %", past.highest_weight)),
        plain(name_of(status, &past.revision)),
        plain(past.reason.clone()),
    ]
}

pub(super) fn outcome(outcome: Outcome) -> (&'static str, Tone) {
    match outcome {
        Outcome::Promoted => ("promoted", Tone::Good),
        Outcome::RolledBack => ("rolled back", Tone::Bad),
        Outcome::Aborted => ("aborted", Tone::Bad),
        Outcome::Superseded => ("superseded", Tone::Dim),
    }
}
