//! Does the judge keep its promises? Monte Carlo with fixed seeds, looking
//! after every scrape.

mod random;
mod traffic;

use serin::analysis::sequential::{Evidence, Sequential, Settings};
use serin::analysis::verdict::Outcome;
use traffic::{Release, Stretch, measured, runs};

const RUNS: u64 = 4_000;

fn judge() -> Sequential {
    Sequential::try_from(Settings {
        margin: std::env::var("MARGIN").map_or(1.5, |x| x.parse().unwrap()),
        ..Settings::default()
    })
    .unwrap()
}

/// (look, bad requests to canary) at which the judge fails the canary
fn fails_at(judge: &Sequential, release: &Release, run: u64) -> Option<(usize, u64)> {
    let mut evidence = Evidence::default();
    let mut bad = 0;
    for (i, look) in release.looks(run).enumerate() {
        bad += look.canary.bad();
        if matches!(judge.outcome(&mut evidence, &measured(look)), Outcome::Fail { .. }) {
            return Some((i, bad));
        }
    }
    None
}

fn false_alarms(release: &Release) -> f64 {
    let judge = judge();
    let start = std::time::Instant::now();
    let failed = runs(RUNS, |run| fails_at(&judge, release, run)).into_iter().flatten().count();
    eprint!("{:?} ", start.elapsed());
    failed as f64 / RUNS as f64
}

#[test]
fn explore() {
    for rps in [50.0, 500.0] {
        eprintln!("{rps} healthy {}", false_alarms(&Release::new("h", &[Stretch::healthy(rps, 0.005)])));
        for clump in [2, 7, 20] {
            let s = Stretch { clump, ..Stretch::healthy(rps, 0.005) };
            eprintln!("clump {clump} {rps} {}", false_alarms(&Release::new("h", &[s])));
        }
        let s = Stretch::healthy(rps, 0.005).canary_errors(0.0075);
        eprintln!("margin {rps} {}", false_alarms(&Release::new("h", &[s])));
        let h = Stretch { looks: 60, ..Stretch::healthy(rps, 0.005) };
        let inc = Stretch { looks: 60, ..Stretch::healthy(rps, 0.05) };
        eprintln!("incident {rps} {}", false_alarms(&Release::new("h", &[h, inc, h])));
        let ramp = [(0.05, 0.005), (0.2, 0.02), (0.5, 0.002)].map(|(weight, e)| Stretch {
            weight,
            looks: 60,
            ..Stretch::healthy(rps, e)
        });
        eprintln!("ramp {rps} {}", false_alarms(&Release::new("h", &ramp)));
        let judge = judge();
        let detect = |name: &str, r: Release, from: usize| {
            let mut at: Vec<_> = runs(2000, |run| fails_at(&judge, &r, run)).into_iter().flatten().collect();
            let found = at.len();
            let mut bads: Vec<_> = at.iter().map(|x| x.1).collect();
            at.sort();
            bads.sort();
            if found == 0 {
                eprintln!("{name} never");
                return;
            }
            eprintln!(
                "{name} {rps}: found {:.3} at {} / {} s, bad {} / {}",
                found as f64 / 2000.0,
                (at[found / 2].0 + 1 - from) * 10,
                (at[found * 9 / 10].0 + 1 - from) * 10,
                bads[found / 2],
                bads[found * 9 / 10]
            );
        };
        detect("0.5->3", Release::new("d", &[Stretch::healthy(rps, 0.005).canary_errors(0.03)]), 0);
        detect("0.5->1.5", Release::new("d", &[Stretch::healthy(rps, 0.005).canary_errors(0.015)]), 0);
        detect("0.05->.5", Release::new("d", &[Stretch::healthy(rps, 0.0005).canary_errors(0.005)]), 0);
        detect(
            "late 0.5->3",
            Release::new(
                "d",
                &[Stretch::healthy(rps, 0.005), Stretch::healthy(rps, 0.005).canary_errors(0.03)],
            ),
            180,
        );
        detect(
            "idle 0.5->3",
            Release::new(
                "d",
                &[
                    Stretch { weight: 0.5, ..Stretch::healthy(rps, 0.005) },
                    Stretch { weight: 1.0, ..Stretch::healthy(rps, 0.005).canary_errors(0.03) },
                ],
            ),
            180,
        );
    }
}
