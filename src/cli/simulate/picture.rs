//! The picture of a simulation: the canary's share over time, and below it the share of the
//! releases that were rolled back by then, for each fault and rule.

use std::fmt::Write as _;

use super::report::seconds;
use super::rows::{Summary, Table};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const PANEL: f64 = 130.0;
const GAP: f64 = 60.0;
const TOP: f64 = 40.0;

/// Distinct for people with any colour vision (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

struct Axis {
    longest: f64,
}

impl Axis {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (seconds / self.longest).clamp(0.0, 1.0)
    }
}

pub fn draw(name: &str, table: &Table) -> String {
    let summaries = || table.rows.iter().flat_map(|row| [Some(&row.serin), row.flagger.as_ref()]).flatten();
    let found = summaries().filter_map(|one| one.seconds.last()).max().copied().unwrap_or_default();
    let start =
        table.example.timeline.iter().find(|entry| entry.canary_share > 0.0).map_or(0.0, |one| one.at);
    let axis = Axis { longest: (start + found as f64).max(table.example.finished_at).max(1.0) };
    let legend = summaries().count() as f64 * 18.0;
    let height = TOP + 2.0 * PANEL + GAP + 40.0 + legend;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}: the canary's share of the requests</text>\n",
        escape(name)
    );
    frame(&mut svg, &axis, TOP);
    let mut path = format!("M{:.1} {:.1}", axis.x(0.0), level(TOP, 0.0));
    for entry in &table.example.timeline {
        let _ = write!(path, " H{:.1} V{:.1}", axis.x(entry.at), level(TOP, entry.canary_share));
    }
    let _ = write!(path, " H{:.1}", axis.x(axis.longest));
    let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"#333\" stroke-width=\"2\"/>");
    let below = TOP + PANEL + GAP;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"14\">rolled back by then</text>",
        below - 12.0
    );
    frame(&mut svg, &axis, below);
    let mut at = below + PANEL + 44.0;
    for (index, row) in table.rows.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let curves = [
            ("Serin", "", Some(&row.serin)),
            ("Flagger's rule", " stroke-dasharray=\"6 4\"", row.flagger.as_ref()),
        ];
        for (by, dashes, summary) in curves {
            let Some(summary) = summary else { continue };
            let path = curve(&axis, below, start, summary);
            let _ = writeln!(
                svg,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>"
            );
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {0} h30\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/><text x=\"{1}\" y=\"{2}\">{3}, {by}: {4:.1} % rolled back</text>",
                at - 4.0,
                LEFT + 38.0,
                at,
                escape(&row.fault.to_string()),
                summary.share(summary.rolled_back).0 * 100.0
            );
            at += 18.0;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn level(top: f64, share: f64) -> f64 {
    top + PANEL * (1.0 - share)
}

/// The share of all releases that is rolled back, over time.
fn curve(axis: &Axis, top: f64, start: f64, summary: &Summary) -> String {
    let mut path = format!("M{:.1} {:.1}", axis.x(0.0), level(top, 0.0));
    let all = summary.releases.max(1) as f64;
    for (index, after) in summary.seconds.iter().enumerate() {
        let share = (index + 1) as f64 / all;
        let _ = write!(path, " H{:.1} V{:.1}", axis.x(start + *after as f64), level(top, share));
    }
    let _ = write!(path, " H{:.1}", axis.x(axis.longest));
    path
}

/// Axes with five marks.
fn frame(svg: &mut String, axis: &Axis, top: f64) {
    for share in [0.0, 0.5, 1.0] {
        let y = level(top, share);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y} H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} %</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            share * 100.0
        );
    }
    for part in 0..=4 {
        let at = axis.longest * f64::from(part) / 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            axis.x(at),
            top + PANEL + 18.0,
            seconds(at)
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
