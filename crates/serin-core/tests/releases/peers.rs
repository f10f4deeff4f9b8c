//! Two rules of the field on the same traffic.

use serin::analysis::{
    Measurement,
    mann_whitney::{MannWhitney, Settings},
    measurement::{Arms, Counts},
    verdict::JudgeOutcome,
};

use crate::{
    drive::{Ending, Outcome},
    source::Reader,
    traffic::{Scenario, Traffic},
};

const WEIGHTS: [f64; 5] = [0.05, 0.1, 0.2, 0.5, 0.8];
const MINUTE: usize = 60;

fn of_window(reader: &Reader, traffic: &Traffic<'_>, window: (usize, usize)) -> Arms<Counts> {
    match reader.errors(traffic, (window.0 as f64, window.1 as f64)).summed() {
        Measurement::Counts(arms) => arms,
        _ => Arms::default(),
    }
}

/// Flagger's usual settings: a success rate of 99 %, checked every minute, and five
/// failed checks; a failed check does not advance.
pub fn flagger(scenario: &Scenario, run: u64, checks: u32) -> Ending {
    let (mut traffic, reader) = (Traffic::new(scenario, run), Reader::new(scenario.source, run));
    traffic.run_until(300, 0.0);
    let (mut passed, mut failed) = (0, 0);
    loop {
        let step = passed / checks as usize;
        let Some(weight) = WEIGHTS.get(step) else { return ended(Outcome::Promoted, &traffic, scenario) };
        let since = traffic.second;
        traffic.run_until(since + MINUTE, *weight);
        let canary = of_window(&reader, &traffic, (since, since + MINUTE)).canary;
        // Without data Flagger's check fails.
        match canary.rate() {
            Some(rate) if rate <= 0.01 => passed += 1,
            _ => failed += 1,
        }
        if failed == 5 {
            return ended(Outcome::RolledBack, &traffic, scenario);
        }
    }
}

/// Mann–Whitney over the last fifty minutes, one point a minute, at the end of ten
/// minutes of each step; a step has as many points as Kayenta's users set.
pub fn kayenta(scenario: &Scenario, run: u64) -> Ending {
    let (mut traffic, reader) = (Traffic::new(scenario, run), Reader::new(scenario.source, run));
    traffic.run_until(300, 0.0);
    let judge = MannWhitney::try_from(Settings { min_samples: 10, ..Settings::default() }).expect("settings");
    let mut points: Arms<Vec<f64>> = Arms::default();
    for weight in WEIGHTS {
        for _ in 0..10 {
            let since = traffic.second;
            traffic.run_until(since + MINUTE, weight);
            let counts = of_window(&reader, &traffic, (since, since + MINUTE));
            points.canary.extend(counts.canary.rate());
            points.primary.extend(counts.primary.rate());
        }
        let verdict = judge.check(&Measurement::Samples(points.clone()));
        if matches!(verdict.outcome, JudgeOutcome::Fail { .. }) {
            return ended(Outcome::RolledBack, &traffic, scenario);
        }
    }
    ended(Outcome::Promoted, &traffic, scenario)
}

fn ended(outcome: Outcome, traffic: &Traffic<'_>, scenario: &Scenario) -> Ending {
    let since = traffic.first_traffic.unwrap_or_default() as f64 + scenario.onset;
    let after = (traffic.second as f64 - since).max(0.0) as u64;
    Ending { outcome, after, bad: traffic.bad_served(), why: String::new() }
}
