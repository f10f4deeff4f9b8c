//! The result of a simulation as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use serin_core::simulation::{Outcome, TimelineEntry};

use super::Args;
use super::input::Input;
use super::rows::{Row, Summary, Table, assumed, compares, quantile};
use super::suggest::Suggestion;

/// `90 s`, `12 min`, `5 min 10 s`, `2 h 5 min`
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 60, whole % 60) {
        (0..=1, _) => format!("{whole} s"),
        (minutes @ 2..=119, 0) => format!("{minutes} min"),
        (minutes @ 2..=119, rest) => format!("{minutes} min {rest} s"),
        (minutes, _) => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

fn clock(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole / 3600 {
        0 => format!("{:02}:{:02}", whole / 60, whole % 60),
        hours => format!("{hours}:{:02}:{:02}", whole % 3600 / 60, whole % 60),
    }
}

pub fn text(input: &Input, table: &Table, suggestion: Option<&Suggestion>, args: &Args) -> String {
    let mut text = String::new();
    timeline(&mut text, input, table);
    let scrape = match args.scrape_interval.get().is_zero() {
        true => "scraped at each check".to_owned(),
        false => format!("read every {}", args.scrape_interval),
    };
    let _ = writeln!(
        text,
        "\n{} requests/s, {} % fail on a healthy revision, {} pods an arm, {scrape};\n{} releases a row, seed {}\n",
        args.rps, args.errors, args.pods, args.releases, args.seed
    );
    let _ = writeln!(
        text,
        "{:<22} {:<8} {:>14} {:>10} {:>17} {:>16}",
        "fault", "by", "rolled back", "promoted", "after s, p50/p90", "failed requests"
    );
    for Row { fault, serin, flagger } in &table.rows {
        row(&mut text, &fault.to_string(), "Serin", serin);
        if let Some(flagger) = flagger {
            row(&mut text, "", "Flagger", flagger);
        }
    }
    text.push('\n');
    notes(&mut text, input, table, args);
    if let Some(suggestion) = suggestion {
        suggested(&mut text, suggestion);
    }
    text
}

fn timeline(text: &mut String, input: &Input, table: &Table) {
    let example = &table.example;
    let ended = match example.outcome {
        Outcome::Promoted => {
            format!("a healthy revision is promoted {} after the push", seconds(example.finished_at))
        }
        Outcome::RolledBack => "a healthy revision is rolled back".to_owned(),
        Outcome::Held => "a healthy revision is not decided within a day".to_owned(),
    };
    let _ = writeln!(text, "{}: {ended}\n", input.name());
    for TimelineEntry { at, phase, canary_share } in &example.timeline {
        let bar = "█".repeat((canary_share * 20.0).round() as usize);
        let percent = format!("{} %", (canary_share * 10_000.0).round() / 100.0);
        let _ = writeln!(text, "  {:>8}  {:<17} {:>7}  {bar}", clock(*at), format!("{phase:?}"), percent);
    }
    if example.outcome != Outcome::Promoted {
        let _ = writeln!(text, "  {}", example.why);
    }
}

fn row(text: &mut String, fault: &str, by: &str, summary: &Summary) {
    let (back, error) = summary.share(summary.rolled_back);
    let pair = |values: &[u64]| match (quantile(values, 0.5), quantile(values, 0.9)) {
        (Some(median), Some(p90)) => format!("{median}/{p90}"),
        _ => "-".to_owned(),
    };
    let _ = writeln!(
        text,
        "{fault:<22} {by:<8} {:>14} {:>10} {:>17} {:>16}",
        format!("{:.1}±{:.1} %", back * 100.0, error * 100.0),
        format!("{:.1} %", summary.share(summary.promoted).0 * 100.0),
        pair(&summary.seconds),
        pair(&summary.failed_requests),
    );
}

fn notes(text: &mut String, input: &Input, table: &Table, args: &Args) {
    let mut note = |sentence: String| {
        for line in crate::cli::paint::wrap(&sentence, 88) {
            let _ = writeln!(text, "{line}");
        }
    };
    if table.rows.iter().any(|row| row.serin.held > 0) {
        note(
            "What is neither rolled back nor promoted holds: too few requests, or nothing to compare."
                .to_owned(),
        );
    }
    let Ok(setting) = input.setting(args.pods, args.pod_start.get(), args.matched / 100.0) else { return };
    let assumed = assumed(&setting);
    if !assumed.is_empty() {
        note(format!("Taken to pass, since no traffic decides their value: {}.", assumed.join(", ")));
    }
    if setting.metrics.is_empty() {
        note("The Canary has no metrics, so every revision is promoted whose pods become ready.".to_owned());
    } else if !compares(&setting) {
        note("No metric is compared with the primary: leave thresholdRange out, and both arms are judged by the same time.".to_owned());
    }
    note(
        "Requests fail independently of each other and gates open at once; a real service is less kind."
            .to_owned(),
    );
}

fn suggested(text: &mut String, suggestion: &Suggestion) {
    let found = &suggestion.found;
    let _ = writeln!(
        text,
        "\nSuggested ({} until a healthy revision is promoted):\n",
        seconds(suggestion.promotion_seconds)
    );
    text.push_str(&suggestion.yaml());
    let (share, error) = found.share(found.rolled_back);
    let median = quantile(&found.seconds, 0.5).map_or("-".to_owned(), |value| seconds(value as f64));
    let failed = quantile(&found.failed_requests, 0.5).map_or("-".to_owned(), |value| value.to_string());
    let _ = writeln!(
        text,
        "\nIt rolls back {:.0}±{:.0} % of the bad revisions, half of them within {median} and {failed} failed requests.",
        share * 100.0,
        error * 100.0
    );
    if !suggestion.suffices {
        text.push_str("That is too few: this traffic cannot show the fault in that time. Allow more time, or larger weights.\n");
    }
}

pub fn json(input: &Input, table: &Table, suggestion: Option<&Suggestion>, args: &Args) -> Value {
    let timeline = |entry: &TimelineEntry| json!({"at": entry.at, "phase": format!("{:?}", entry.phase), "weight": entry.canary_share * 100.0});
    let suggestion = suggestion.map(|one| {
        json!({
            "interval": crate::api::Duration::from(one.interval).to_string(), "stepWeights": one.weights,
            "promotionSeconds": one.promotion_seconds, "suffices": one.suffices, "found": summary(&one.found),
        })
    });
    json!({
        "canary": input.name(),
        "seed": args.seed,
        "healthy": {
            "outcome": outcome(table.example.outcome),
            "decidedSeconds": table.example.decided_at,
            "finishedSeconds": table.example.finished_at,
            "timeline": table.example.timeline.iter().map(timeline).collect::<Vec<_>>(),
        },
        "rows": table.rows.iter().map(|row| json!({
            "fault": row.fault.to_string(),
            "serin": summary(&row.serin),
            "flagger": row.flagger.as_ref().map(summary),
        })).collect::<Vec<_>>(),
        "suggestion": suggestion,
    })
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::RolledBack => "rolledBack",
        Outcome::Promoted => "promoted",
        Outcome::Held => "held",
    }
}

fn summary(summary: &Summary) -> Value {
    let mean = |values: &[u64]| {
        (!values.is_empty()).then(|| values.iter().sum::<u64>() as f64 / values.len() as f64)
    };
    let pair = |values: &[u64]| json!({"mean": mean(values), "median": quantile(values, 0.5), "p90": quantile(values, 0.9)});
    json!({
        "releases": summary.releases,
        "promoted": summary.promoted,
        "rolledBack": summary.rolled_back,
        "held": summary.held,
        "rolledBackShare": summary.share(summary.rolled_back).0,
        "standardError": summary.share(summary.rolled_back).1,
        "seconds": pair(&summary.seconds),
        "failedRequests": pair(&summary.failed_requests),
        "canaryRequests": pair(&summary.canary_requests),
    })
}
