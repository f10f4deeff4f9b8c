//! `serin history`: the last ten releases of a Canary.

use jiff::Timestamp;

use super::{CanaryArgs, length, relative};
use crate::api::canary::status::{Outcome, PastRelease};
use crate::cli::inventory::table::{Cell, Style, Tone, plain, table, toned};

/// List the last ten releases of a Canary: how each ended, and why
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    canary: CanaryArgs,
}

pub(in crate::cli) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let subject = args.canary.connect().await?;
        let canary = subject.read().await?;
        let history = canary.status.map(|status| status.history).unwrap_or_default();
        if history.is_empty() {
            eprintln!("No release of {} has ended yet.", subject.name);
            return Ok(());
        }
        let style = Style { colours: crate::cli::colours(), wide: false };
        let rows = history.iter().map(|past| row(past, Timestamp::now())).collect();
        print!("{}", table(&["ENDED", "OUTCOME", "TOOK", "WEIGHT", "REVISION", "REASON"], rows, style));
        Ok(())
    })
}

fn row(past: &PastRelease, now: Timestamp) -> Vec<Cell> {
    let (outcome, tone) = outcome(past.outcome);
    vec![
        plain(relative(past.finished_at.0, now)),
        toned(outcome, tone),
        plain(length(past.finished_at.0.duration_since(past.started_at.0))),
        plain(format!("{} %", past.highest_weight)),
        plain(past.revision.clone()),
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
