//! The table: each row a kind of release, each column an amount of traffic.

use std::ops::Range;
use std::time::Duration;

use jiff::SignedDuration;
use serin::api::canary::Metric;
use serin::api::{AnalysisTemplateSpec, Canary};
use serin::engine::Plan;
use serin::simulation::release::release;
use serin::simulation::{
    Cluster, Difference, Ending, MetricModel, Orders, Outcome, Scenario, Setting, Shared, Source,
};

use crate::{median_and_p90, peers, runs};

/// A row: what is expected of the releases, and how they are made.
struct Row {
    name: &'static str,
    want: Want,
    rates: &'static [f64],
    checks: u32,
    scenario: fn(f64) -> Scenario,
}

/// Fields of `spec.analysis` besides the metrics, for rows that are not of the usual ones.
const ANALYSES: [(&str, &str); 5] = [
    ("the README's Canary", "interval: 30s, threshold: 3, stepWeights: [1, 5, 20, 50]"),
    ("incident x10 in a step of 100 %", "warmup: 30s, interval: 1m, stepWeights: [20, 100]"),
    ("24 h at 1 rps, 80 %", "warmup: 30s, interval: 1m, stepWeights: [80]"),
    ("0.5 to 3 %, no warm-up", "warmup: 0s, interval: 1m, stepWeights: [5, 10, 20, 50, 80]"),
    ("0.5 to 1.5 %, no warm-up", "warmup: 0s, interval: 1m, stepWeights: [5, 10, 20, 50, 80]"),
];
/// How long a release may stay undecided, at least; else twice what its checks take.
const PATIENCE: SignedDuration = SignedDuration::from_hours(2);

const USUAL_ANALYSIS: &str = "warmup: 30s, interval: 1m, stepWeights: [5, 10, 20, 50, 80]";

impl Row {
    /// A cluster in which the primary runs, ready for a new revision.
    fn setting(&self, scenario: &Scenario) -> Setting {
        let own = ANALYSES.iter().find(|(name, _)| *name == self.name);
        let analysis = own.map_or(USUAL_ANALYSIS, |(_, analysis)| analysis);
        let durations = if scenario.latency { ", {name: request-duration}" } else { "" };
        let orders = match scenario.orders {
            Some(_) => ", {name: revenue, templateRef: {name: revenue}}",
            None => "",
        };
        let canary: Canary = serde_saphyr::from_str(&format!(
            "{{apiVersion: serin.dev/v1alpha1, kind: Canary, metadata: {{name: web}}, spec: {{ \
             targetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, service: {{port: 80}}, \
             analysis: {{{analysis}, metrics: [{{name: request-success-rate}}{durations}{orders}]}}}}}}"
        ))
        .expect("a Canary");
        let revenue: AnalysisTemplateSpec = serde_saphyr::from_str(
            "{provider: {type: prometheus}, values: {histogram: orders, total: requests}, direction: decrease}",
        )
        .expect("a template");
        let mut plan = Plan::new(&canary.spec, |_| Some(&revenue)).expect("a plan");
        plan.steps.iter_mut().for_each(|step| step.checks = self.checks);
        let template = |metric: &Metric| metric.template_ref.as_ref().map(|_| &revenue);
        let metrics = MetricModel::of_plan(&plan, &canary.spec.analysis, template);
        let cluster = Cluster::initialized(plan, 3, Duration::ZERO).expect("a primary");
        let seconds: u64 =
            cluster.plan.steps.iter().map(|step| u64::from(step.checks) * step.interval.as_secs()).sum();
        let patience = PATIENCE.max(SignedDuration::from_secs(2 * seconds as i64));
        Setting { cluster, metrics, matched: 0.1, patience }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Want {
    /// At most this share is rolled back.
    Healthy(f64),
    /// Found; the seconds are printed.
    Found,
    /// None is promoted.
    NotPromoted,
}

const ALL: &[f64] = &[50.0, 500.0, 5000.0];
const TWO: &[f64] = &[50.0, 500.0];

fn prometheus(every: f64) -> Source {
    Source::Prometheus { every, jitter: 0.0, lag: 0.0 }
}

fn incident(rps: f64, every: f64, pods: usize) -> Scenario {
    let shared = Shared::Incident(10.0, 180.0);
    Scenario { shared, source: prometheus(every), pods, ..Scenario::healthy(rps, 0.005) }
}

fn bad(rps: f64, errors: f64) -> Scenario {
    Scenario { canary: vec![Difference::Errors(errors)], ..Scenario::healthy(rps, 0.005) }
}

/// Three of a hundred requests order something.
fn shop(rps: f64, sigma: f64) -> Scenario {
    Scenario { orders: Some(Orders { share: 0.03, sigma }), ..Scenario::healthy(rps, 0.005) }
}

const ROWS: &[Row] = &[
    Row {
        name: "homogeneous 0.5 %",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario::healthy(rps, 0.005),
    },
    Row {
        name: "homogeneous, prometheus 15 s",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { source: prometheus(15.0), ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "at the margin",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| bad(rps, 0.0075),
    },
    Row {
        name: "diurnal",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario {
            shared: Shared::Diurnal,
            source: prometheus(15.0),
            ..Scenario::healthy(rps, 0.005)
        },
    },
    Row {
        name: "both metrics",
        want: Want::Healthy(0.01),
        rates: TWO,
        checks: 2,
        scenario: |rps| Scenario { latency: true, source: prometheus(15.0), ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "the README's Canary",
        want: Want::Healthy(0.01),
        rates: TWO,
        checks: 1,
        scenario: |rps| Scenario { latency: true, source: prometheus(15.0), ..Scenario::healthy(rps, 0.001) },
    },
    Row {
        name: "incident x10, prometheus 15 s, 3+3",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| incident(rps, 15.0, 3),
    },
    Row {
        name: "incident x10, prometheus 30 s, 3+3",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| incident(rps, 30.0, 3),
    },
    Row {
        name: "incident x10, prometheus 60 s, 3+3",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| incident(rps, 60.0, 3),
    },
    Row {
        name: "incident x10, prometheus 60 s, 20+20",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| incident(rps, 60.0, 20),
    },
    Row {
        name: "incident x10, primary 15 s late",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario {
            source: Source::Prometheus { every: 5.0, jitter: 0.0, lag: 15.0 },
            ..incident(rps, 5.0, 3)
        },
    },
    Row {
        name: "incident x10, jitter 0 to 30 s",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario {
            source: Source::Prometheus { every: 5.0, jitter: 30.0, lag: 0.0 },
            ..incident(rps, 5.0, 3)
        },
    },
    Row {
        name: "failover of 30 s, prometheus 30 s",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { shared: Shared::Failover(30.0), ..incident(rps, 30.0, 3) },
    },
    Row {
        name: "incident x10, cloudwatch",
        want: Want::Healthy(0.01),
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario { source: Source::CloudWatch, ..incident(rps, 60.0, 3) },
    },
    Row {
        name: "incident x10 in a step of 100 %",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 10,
        scenario: |rps| incident(rps, 15.0, 3),
    },
    Row {
        name: "pods CV 0.5, 5+5",
        want: Want::Healthy(0.02),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { pod_cv: 0.5, pods: 5, ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "pods CV 1, 5+5",
        want: Want::Healthy(0.02),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { pod_cv: 1.0, pods: 5, ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "clumps of 7",
        want: Want::Healthy(0.015),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { clump: (7, 0.0), ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "clumps of 20",
        want: Want::Healthy(0.015),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { clump: (20, 0.0), ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "clumps of 20 from minute 10",
        want: Want::Healthy(0.015),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { clump: (20, 900.0), ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "cold 30 s, errors x3",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario {
            canary: vec![Difference::ColdErrors(3.0)],
            ..Scenario::healthy(rps, 0.005)
        },
    },
    Row {
        name: "cold 30 s, latency x3",
        want: Want::Healthy(0.01),
        rates: TWO,
        checks: 2,
        scenario: |rps| Scenario {
            canary: vec![Difference::ColdLatency(3.0)],
            latency: true,
            ..Scenario::healthy(rps, 0.005)
        },
    },
    Row {
        name: "latency wanders, sd 0.05",
        want: Want::Healthy(0.01),
        rates: TWO,
        checks: 2,
        scenario: |rps| Scenario { latency_wander: 0.05, latency: true, ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "latency wanders, sd 0.2",
        want: Want::Healthy(0.01),
        rates: TWO,
        checks: 2,
        scenario: |rps| Scenario { latency_wander: 0.2, latency: true, ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "one pod of five 50 % slower",
        want: Want::Found,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario {
            pods: 5,
            latency: true,
            canary: vec![Difference::SlowPod(1.5)],
            ..Scenario::healthy(rps, 0.005)
        },
    },
    Row {
        name: "revenue, orders of sigma 1",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| shop(rps, 1.0),
    },
    Row {
        name: "revenue, orders of sigma 2, prometheus 30 s",
        want: Want::Healthy(0.01),
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { source: prometheus(30.0), ..shop(rps, 2.0) },
    },
    Row {
        name: "revenue, a 20 % drop of conversion",
        want: Want::Found,
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { canary: vec![Difference::Orders(0.8)], ..shop(rps, 1.0) },
    },
    Row {
        name: "revenue, orders worth 30 % less",
        want: Want::Found,
        rates: ALL,
        checks: 5,
        scenario: |rps| Scenario { canary: vec![Difference::OrderValue(0.7)], ..shop(rps, 1.0) },
    },
    Row {
        name: "24 h at 1 rps, 80 %",
        want: Want::Healthy(0.01),
        rates: &[1.0],
        checks: 1440,
        scenario: |rps| Scenario::healthy(rps, 0.005),
    },
    Row { name: "0.5 to 3 %", want: Want::Found, rates: TWO, checks: 5, scenario: |rps| bad(rps, 0.03) },
    Row {
        name: "0.5 to 3 %, no warm-up",
        want: Want::Found,
        rates: TWO,
        checks: 5,
        scenario: |rps| bad(rps, 0.03),
    },
    Row {
        name: "0.5 to 1.5 %, no warm-up",
        want: Want::Found,
        rates: TWO,
        checks: 5,
        scenario: |rps| bad(rps, 0.015),
    },
    Row {
        name: "0.5 to 1.5 % after an incident",
        want: Want::Found,
        rates: &[5000.0],
        checks: 5,
        scenario: |rps| Scenario { shared: Shared::Incident(10.0, 120.0), onset: 1200.0, ..bad(rps, 0.015) },
    },
    Row {
        name: "0.5 to 3 %, prometheus 15 s",
        want: Want::Found,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario { source: prometheus(15.0), ..bad(rps, 0.03) },
    },
    Row { name: "0.5 to 1.5 %", want: Want::Found, rates: TWO, checks: 5, scenario: |rps| bad(rps, 0.015) },
    Row {
        name: "0.05 to 0.5 %",
        want: Want::Found,
        rates: &[50.0],
        checks: 5,
        scenario: |rps| Scenario { errors: 0.0005, ..bad(rps, 0.005) },
    },
    Row { name: "0.5 to 100 %", want: Want::Found, rates: TWO, checks: 5, scenario: |rps| bad(rps, 1.0) },
    Row {
        name: "0.5 to 3 % at minute 10",
        want: Want::Found,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario { onset: 600.0, ..bad(rps, 0.03) },
    },
    Row {
        name: "all 20 % slower",
        want: Want::Found,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario {
            latency: true,
            canary: vec![Difference::Slower(1.2)],
            ..Scenario::healthy(rps, 0.005)
        },
    },
    Row {
        name: "one pod of five at 3 %",
        want: Want::Found,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario {
            pods: 5,
            canary: vec![Difference::OnePod(0.03)],
            ..Scenario::healthy(rps, 0.005)
        },
    },
    Row {
        name: "both arms at 5 % from minute 5 on",
        want: Want::NotPromoted,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario { shared: Shared::Broken(10.0), ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "both arms at 100 % from minute 5 on",
        want: Want::NotPromoted,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario { shared: Shared::Broken(200.0), ..Scenario::healthy(rps, 0.005) },
    },
    Row {
        name: "silent canary",
        want: Want::NotPromoted,
        rates: TWO,
        checks: 5,
        scenario: |rps| Scenario { canary: vec![Difference::Silent], ..Scenario::healthy(rps, 0.005) },
    },
];

fn cell(row: &Row, rps: f64, seeds: Range<u64>) -> Vec<Ending> {
    let scenario = (row.scenario)(rps);
    let setting = row.setting(&scenario);
    runs(seeds, |run| release(&setting, &scenario, run))
}

/// The pod that [`Difference::OnePod`] breaks.
const BROKEN_POD: &str = "pod canary-0";

/// `0.4 ± 0.2 %` rolled back; for a bad canary also the seconds (median/p90) and
/// the failed requests.
fn text(row: &Row, endings: &[Ending]) -> String {
    let all = endings.len() as f64;
    let count = |outcome| endings.iter().filter(|ending| ending.outcome == outcome).count();
    let percent = |part: usize| {
        let share = part as f64 / all;
        let error = (share * (1.0 - share) / all).sqrt().max(if part == 0 { 0.0 } else { 1.0 / all });
        format!("{:.1}±{:.1} %", 100.0 * share, 100.0 * error)
    };
    let back: Vec<&Ending> = endings.iter().filter(|e| e.outcome == Outcome::RolledBack).collect();
    let held = match count(Outcome::Held) {
        0 => String::new(),
        held => format!(" held {}", percent(held)),
    };
    let named = match back.iter().filter(|ending| ending.why.contains(BROKEN_POD)).count() {
        0 => String::new(),
        named => format!(", named {}", percent(named)),
    };
    let times = || match back.is_empty() {
        true => String::new(),
        false => {
            let (median, p90) = median_and_p90(back.iter().map(|ending| ending.after).collect());
            let (bad, _) = median_and_p90(back.iter().map(|ending| ending.bad).collect());
            format!(" {median}/{p90} s, {bad} bad")
        }
    };
    match row.want {
        Want::Healthy(_) => format!("{}{held}", percent(back.len())),
        Want::Found => format!("{}{held}{}{named}", percent(back.len()), times()),
        Want::NotPromoted => format!("promoted {}{}", percent(count(Outcome::Promoted)), times()),
    }
}

fn print(row: &Row, seeds: &Range<u64>) {
    let cells: Vec<String> = row
        .rates
        .iter()
        .map(|rps| format!("{rps:>6} rps: {}", text(row, &cell(row, *rps, seeds.clone()))))
        .collect();
    println!("{:<40}{}", row.name, cells.join("  |  "));
}

/// Cells that are played with fixed seeds at every test run: the row, its requests a
/// second, the number of releases, and how many of them may end otherwise than wanted.
const CHECKED: &[(&str, f64, u64, u64)] = &[
    ("homogeneous, prometheus 15 s", 500.0, 12, 0),
    ("at the margin", 50.0, 20, 1),
    ("incident x10, prometheus 30 s, 3+3", 500.0, 12, 0),
    ("incident x10, prometheus 60 s, 3+3", 50.0, 12, 0),
    ("failover of 30 s, prometheus 30 s", 500.0, 12, 0),
    ("cold 30 s, errors x3", 500.0, 8, 0),
    ("pods CV 1, 5+5", 500.0, 20, 1),
    ("clumps of 20", 50.0, 12, 0),
    ("clumps of 20 from minute 10", 50.0, 20, 1),
    ("0.5 to 3 %", 50.0, 12, 0),
    ("0.5 to 3 %, prometheus 15 s", 50.0, 12, 0),
    ("0.5 to 100 %", 50.0, 8, 0),
    ("revenue, orders of sigma 1", 500.0, 8, 0),
    ("revenue, orders of sigma 2, prometheus 30 s", 50.0, 8, 0),
    ("revenue, a 20 % drop of conversion", 5000.0, 8, 0),
    ("one pod of five at 3 %", 50.0, 20, 2),
    ("both arms at 5 % from minute 5 on", 50.0, 4, 0),
    ("both arms at 5 % from minute 5 on", 500.0, 4, 0),
    ("silent canary", 50.0, 4, 0),
];

/// The row whose verdicts must name [`BROKEN_POD`].
const NAMES_THE_POD: &str = "one pod of five at 3 %";

fn fixed_seeds_end_as_wanted() {
    for (name, rps, count, exceptions) in CHECKED {
        let row = ROWS.iter().find(|row| row.name == *name).expect("a row");
        let endings = cell(row, *rps, 0..*count);
        let as_wanted = |ending: &&Ending| match row.want {
            Want::Healthy(_) => ending.outcome != Outcome::RolledBack,
            Want::Found => {
                ending.outcome == Outcome::RolledBack
                    && (*name != NAMES_THE_POD || ending.why.contains(BROKEN_POD))
            }
            Want::NotPromoted => ending.outcome != Outcome::Promoted,
        };
        let otherwise = *count - endings.iter().filter(as_wanted).count() as u64;
        assert!(otherwise <= *exceptions, "{name}, {rps} rps: {}", text(row, &endings));
    }
}

/// Plays the checked cells with fixed seeds, and fails if they end otherwise than wanted.
/// With `RUNS` it prints the rows that `CELLS` is a part of the names of instead, with
/// other seeds: a measurement, not a test.
#[test]
fn the_table() {
    let wanted = std::env::var("CELLS").unwrap_or_default();
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let Some(count) = number("RUNS") else { return fixed_seeds_end_as_wanted() };
    let first = number("FIRST").unwrap_or(1_000_000);
    let seeds = first..first + count;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| row.name.contains(&wanted)).collect();
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    assert!(
        count > 0 && !rows.is_empty(),
        "RUNS={count} CELLS={wanted:?} play nothing; the rows are {names:#?}"
    );
    for row in rows {
        print(row, &seeds);
        if let Ok(why) = std::env::var("WHY") {
            for rps in row.rates {
                for ending in cell(row, *rps, seeds.clone()).iter().take(why.parse().unwrap_or(5)) {
                    println!("    {:?} {} s {}", ending.outcome, ending.after, ending.why);
                }
            }
        }
    }
    let peers = ["homogeneous 0.5 %", "incident x10, prometheus 15 s, 3+3", "0.5 to 3 %", "0.5 to 1.5 %"];
    for row in ROWS.iter().filter(|row| peers.contains(&row.name) && row.name.contains(&wanted)) {
        let scenario = (row.scenario)(50.0);
        let flagger = runs(seeds.clone(), |run| peers::flagger(&scenario, run, row.checks));
        let kayenta = runs(seeds.clone(), |run| peers::kayenta(&scenario, run));
        let (flagger, kayenta) = (text(row, &flagger), text(row, &kayenta));
        println!("  {}, 50 rps: Flagger's rule {flagger}  |  Kayenta-like {kayenta}", row.name);
    }
}
