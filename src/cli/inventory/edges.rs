//! `serin inventory edges`: who calls whom, as a Prometheus counted it.

use serde_json::json;

use super::report::{Format, Report};
use super::table::{Cell, Style, Tone, plain, table, toned};
use crate::metrics::prometheus::edges::{Caller, EDGE_WINDOW, Edge};

/// A success below this is shown as bad.
const GOOD_SUCCESS: f64 = 0.99;

pub fn report(edges: &[Edge], format: Option<Format>, style: Style) -> anyhow::Result<Report> {
    let text = match format {
        Some(Format::Json) => format!("{:#}\n", json!({ "edges": edges })),
        Some(Format::Yaml) => serde_saphyr::to_string(&json!({ "edges": edges }))?,
        None | Some(Format::Wide) if edges.is_empty() => {
            format!("No request of Istio or Linkerd was counted in the last {EDGE_WINDOW}.\n")
        }
        None | Some(Format::Wide) => edge_table(edges, style),
    };
    Ok(Report { text, notes: String::new() })
}

fn edge_table(edges: &[Edge], style: Style) -> String {
    let mut headers = vec!["FROM", "TO", "SERVICE", "MESH", "REQUESTS/S", "SUCCESS"];
    if style.wide {
        headers.push("COUNTED BY");
    }
    let row = |edge: &Edge| {
        let mut row = vec![
            caller(&edge.source),
            caller(&edge.destination),
            plain(&edge.service),
            plain(edge.mesh),
            plain(format!("{:.2}", edge.requests_per_second)),
            match edge.success {
                Some(success) => toned(
                    format!("{:.2} %", success * 100.0),
                    if success < GOOD_SUCCESS { Tone::Bad } else { Tone::Good },
                ),
                None => plain(""),
            },
        ];
        if style.wide {
            row.push(plain(format!("{:?}", edge.counted_by).to_lowercase()));
        }
        row
    };
    table(&headers, edges.iter().map(row).collect(), style)
}

/// `shop/web`.
fn caller(Caller { namespace, workload }: &Caller) -> Cell {
    match (namespace.as_str(), workload.as_str()) {
        ("", "") => toned("unknown", Tone::Dim),
        ("", workload) => plain(workload),
        (namespace, workload) => plain(format!("{namespace}/{workload}")),
    }
}
