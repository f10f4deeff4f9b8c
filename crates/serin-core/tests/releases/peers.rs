//! Two rules of the field on the same traffic.

use serin::analysis::{
    Measurement,
    mann_whitney::{MannWhitney, Settings},
    measurement::Arms,
    verdict::JudgeOutcome,
};
use serin::simulation::{Ending, Outcome, Reader, Scenario, Traffic, flagger};

const WEIGHTS: [f64; 5] = [0.05, 0.1, 0.2, 0.5, 0.8];
const MINUTE: usize = 60;

/// Flagger's usual settings: a success rate of 99 %, checked every minute, and five
/// failed checks.
pub fn flagger(scenario: &Scenario, run: u64, checks: u32) -> Ending {
    let rule = flagger::Rule {
        weights: WEIGHTS.to_vec(),
        checks,
        interval: MINUTE,
        threshold: 5,
        min_success_rate: 99.0,
        max_duration: None,
    };
    flagger::release(&rule, scenario, run)
}

/// Mann–Whitney over the last fifty minutes, one point a minute, at the end of ten
/// minutes of each step; a step has as many points as Kayenta's users set.
pub fn kayenta(scenario: &Scenario, run: u64) -> Ending {
    let (mut traffic, reader) = (Traffic::new(scenario, run), Reader::new(scenario.source, run));
    traffic.run_until(300, Traffic::split(0.0));
    let judge = MannWhitney::try_from(Settings { min_samples: 10, ..Settings::default() }).expect("settings");
    let mut points: Arms<Vec<f64>> = Arms::default();
    for weight in WEIGHTS {
        for _ in 0..10 {
            let since = traffic.second;
            traffic.run_until(since + MINUTE, Traffic::split(weight));
            let counts = flagger::counts(&reader, &traffic, (since, since + MINUTE));
            points.canary.extend(counts.canary.rate());
            points.primary.extend(counts.primary.rate());
        }
        let verdict = judge.check(&Measurement::Samples(points.clone()));
        if matches!(verdict.outcome, JudgeOutcome::Fail { .. }) {
            return flagger::ended(Outcome::RolledBack, &traffic, scenario);
        }
    }
    flagger::ended(Outcome::Promoted, &traffic, scenario)
}
