//! Laws of the sequential judge for every single look. Error rates over many
//! releases are tested by Monte Carlo, in `tests/judge`.

use proptest::prelude::*;

use super::*;
use crate::analysis::verdict::Estimate;

fn judge(settings: Settings) -> Sequential {
    Sequential::try_from(settings).unwrap()
}

fn counts(canary: (u64, u64), primary: (u64, u64)) -> Measurement {
    let of = |(bad, total)| Counts::of_bad(bad, total);
    Measurement::Counts(Arms { canary: of(canary), primary: of(primary) })
}

/// The verdicts after each look.
fn verdicts_of(judge: &Sequential, looks: impl IntoIterator<Item = Measurement>) -> Vec<Verdict> {
    let mut evidence = Evidence::default();
    looks.into_iter().map(|seen| judge.check(&mut evidence, &seen)).collect()
}

fn last(looks: impl IntoIterator<Item = Measurement>) -> Verdict {
    verdicts_of(&judge(Settings::default()), looks).pop().unwrap()
}

fn inconclusive_reason(verdict: &Verdict) -> Option<InconclusiveReason> {
    match verdict.outcome {
        JudgeOutcome::Inconclusive { reason } => Some(reason),
        JudgeOutcome::Pass { .. } | JudgeOutcome::Fail { .. } | JudgeOutcome::BeyondLimit => None,
    }
}

const PASS: JudgeOutcome = JudgeOutcome::Pass { non_inferior: false };
const CERTIFIED: JudgeOutcome = JudgeOutcome::Pass { non_inferior: true };
const FAIL: JudgeOutcome = JudgeOutcome::Fail { critical: false };

#[test]
fn a_failure_names_its_numbers() {
    let verdict = last([counts((16, 500), (44, 9_500)), counts((15, 500), (46, 9_500))]);
    assert_eq!(verdict.outcome, FAIL);
    assert_eq!(verdict.samples, Arms { canary: 1000, primary: 19_000 });
    assert_eq!(
        verdict.message,
        "canary 3.1 % errors (31 of 1,000) vs primary 0.5 % (90 of 19,000): \
         at least 1.5 times worse, chance of a false alarm < 1 %; its odds are 2.9 to 16.3 times the \
         primary's with 95 %"
    );
    let Estimate { value, low, high } = verdict.estimate.unwrap();
    assert!(low.unwrap() > 1.0 && low.unwrap() < value && value < 10.0, "{verdict:?}");
    assert!(high.is_none_or(|high| high > value));
}

#[test]
fn a_pass_message_states_the_lack_of_evidence() {
    let verdict = last(vec![counts((5, 1000), (95, 19_000)); 5]);
    assert_eq!(verdict.outcome, PASS);
    assert_eq!(
        verdict.message,
        "canary 0.5 % errors (25 of 5,000) vs primary 0.5 % (475 of 95,000): nothing shows it to be \
         1.5 times worse; a canary 3.6 times worse would have shown with 90 %; its odds are 0.4 to 2.3 \
         times the primary's with 95 %"
    );
}

#[test]
fn little_evidence_is_said_to_be_little_and_min_power_holds() {
    let few = || vec![counts((0, 30), (3, 570)); 2];
    let verdict = last(few());
    assert_eq!(verdict.outcome, PASS);
    assert!(verdict.message.contains("; even a far worse canary would hardly have shown;"), "{verdict:?}");
    let strict = judge(Settings { min_power: Some(4.0), ..Settings::default() });
    let verdict = verdicts_of(&strict, few()).pop().unwrap();
    assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::TooFewSamples));
    assert!(verdict.message.contains("minPower asks that 4 times worse would be found"), "{verdict:?}");
    let enough = vec![counts((5, 1000), (95, 19_000)); 5];
    assert_eq!(verdicts_of(&strict, enough).pop().unwrap().outcome, PASS);
}

/// Pods of the two arms are read at different moments: a look may have those of one only.
#[test]
fn durations_of_a_look_without_the_primary_wait_for_it() {
    let arm = |slow: u64, all: u64| {
        Histogram::cumulative([(0.1, all - slow), (1.0, all), (f64::INFINITY, all)]).unwrap()
    };
    let both = Measurement::Histogram(Arms { canary: arm(2, 20), primary: arm(100, 1000) });
    let alone = Measurement::Histogram(Arms { canary: arm(18, 20), primary: Histogram::default() });
    let judge = judge(Settings::default());
    let mut evidence = Evidence::default();
    let [.., verdict] = [&both, &both, &alone].map(|look| judge.check(&mut evidence, look));
    assert!(verdict.message.ends_with("there is nothing to compare with"), "{verdict:?}");
    let compared = judge.check(&mut evidence, &both);
    assert_eq!(compared.samples, Arms { canary: 80, primary: 3000 });
    assert_eq!(inconclusive_reason(&compared), Some(InconclusiveReason::Suspected), "{compared:?}");
}

/// One look convicts nobody, and nothing advances on it either.
#[test]
fn a_sudden_burst_holds_until_the_next_look() {
    let calm = counts((0, 40), (0, 1200));
    let burst = counts((3, 20), (0, 1200));
    let verdicts = verdicts_of(&judge(Settings::default()), [calm.clone(), burst, calm]);
    assert_eq!(verdicts[0].outcome, PASS, "{verdicts:?}");
    assert_eq!(inconclusive_reason(&verdicts[1]), Some(InconclusiveReason::Suspected), "{verdicts:?}");
    assert_eq!(verdicts[2].outcome, PASS, "{verdicts:?}");
    assert!(
        verdicts[2].message.contains("it looked 1.5 times worse, and later requests do not confirm it"),
        "{verdicts:?}"
    );
}

#[test]
fn a_pass_without_any_failure_bounds_the_share_of_the_canary() {
    let verdict = last(vec![counts((0, 1500), (0, 6000))]);
    assert!(verdict.message.ends_with("its share is below 0.2 % with 95 %"), "{verdict:?}");
}

#[test]
fn a_window_without_requests_to_the_primary_waits_for_some() {
    let calm = vec![counts((1, 250), (1, 250)); 60];
    let alone = counts((12, 250), (0, 0));
    let verdict = last(calm.into_iter().chain([alone.clone(), alone]));
    assert_ne!(verdict.outcome, FAIL, "{verdict:?}");
    // Once the primary has the requests of that time, they are compared together.
    let both = [counts((12, 250), (0, 0)), counts((0, 0), (0, 0)), counts((12, 250), (24, 500))];
    assert_eq!(last(both).outcome, last([counts((24, 500), (24, 500))]).outcome);
}

#[test]
fn a_pass_needs_new_requests_of_the_primary_too() {
    let first = counts((1, 200), (1, 200));
    let alone = counts((60, 200), (0, 10));
    let verdict = last([first, alone]);
    assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::TooFewSamples), "{verdict:?}");
}

#[test]
fn rare_errors_among_very_many_requests_are_seen() {
    let ten_times = vec![counts((1, 30_000), (10, 2_970_000)); 60];
    assert_eq!(last(ten_times).outcome, FAIL);
    let three_times = vec![counts((10, 1_000_000), (63, 19_000_000)); 60];
    assert_eq!(last(three_times).outcome, FAIL);
}

/// Looks ten seconds apart, of which all pods are known only until `lag` before.
fn lagging(looks: impl IntoIterator<Item = Measurement>, lag: i64) -> Vec<JudgeOutcome> {
    let (judge, mut evidence) = (judge(Settings::default()), Evidence::default());
    let checked = |(at, seen): (i64, Measurement)| {
        let until = 10_000 * at;
        let look = Look { until, known_until: until - lag, full: true, ..Look::default() };
        judge.check_at(&mut evidence, &seen, look).outcome
    };
    (1..).zip(looks).map(checked).collect()
}

#[test]
fn an_incident_that_one_arm_shows_first_convicts_nobody() {
    let calm = counts((1, 250), (24, 4750));
    let canary_first = counts((12, 250), (24, 4750));
    let shared = counts((12, 250), (240, 4750));
    let primary_last = counts((1, 250), (240, 4750));
    let looks = |first: usize| {
        [vec![calm.clone(); 20], vec![canary_first.clone(); first], vec![shared.clone(); 20]]
            .concat()
            .into_iter()
            .chain([primary_last.clone()])
            .chain(vec![calm.clone(); 20])
    };
    let outcomes = lagging(looks(3), 30_000);
    assert!(!outcomes.contains(&FAIL), "{outcomes:?}");
    assert_eq!(outcomes[19], PASS);
    assert!(matches!(outcomes.last(), Some(JudgeOutcome::Pass { .. })), "{outcomes:?}");
    // A canary that stays bad is convicted, later than by a source that reads both at once.
    let found = |lag| lagging(looks(30), lag).iter().position(|outcome| *outcome == FAIL);
    assert!(found(0) < found(30_000) && found(30_000).is_some(), "{:?} {:?}", found(0), found(30_000));
}

#[test]
fn young_pods_are_judged_by_total_failure_only() {
    let judge = judge(Settings::default());
    let warming = Look { warming_up: true, full: true, ..Look::default() };
    let mut evidence = Evidence::default();
    for _ in 0..10 {
        let verdict = judge.check_at(&mut evidence, &counts((40, 250), (24, 4750)), warming);
        assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::WarmingUp));
    }
    assert_eq!(judge.check(&mut evidence, &counts((1, 250), (24, 4750))).outcome, PASS);
    let mut evidence = Evidence::default();
    assert_eq!(judge.check_at(&mut evidence, &counts((250, 250), (24, 4750)), warming).outcome, FAIL);
}

#[test]
fn an_absolute_limit_is_judged_beside_the_comparison() {
    let judge = judge(Settings { floor: Some(Floor::Failed(0.01)), ..Settings::default() });
    let outcome = |looks: &[Measurement]| verdicts_of(&judge, looks.iter().cloned()).pop().unwrap();
    // Within the margin of the comparison, and beyond the limit.
    assert_eq!(outcome(&[counts((6, 500), (90, 9500))]).outcome, JudgeOutcome::BeyondLimit);
    assert_eq!(outcome(&[counts((4, 500), (90, 9500))]).outcome, PASS);
    let both = outcome(&[counts((25, 500), (475, 9500))]);
    assert_eq!(inconclusive_reason(&both), Some(InconclusiveReason::Incident));
    assert!(both.message.starts_with("incident: both arms are beyond the limit"), "{both:?}");
}

#[test]
fn nothing_passes_while_the_primary_is_far_from_its_usual_self() {
    let calm = vec![counts((1, 250), (24, 4750)); 30];
    let broken = vec![counts((12, 250), (240, 4750)); 10];
    let verdict = last(calm.iter().cloned().chain(broken.clone()));
    assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::Incident));
    assert!(verdict.message.starts_with("incident: the primary fails 4."), "{verdict:?}");
    let over = calm.iter().cloned().chain(broken).chain(calm.clone());
    assert!(matches!(last(over).outcome, JudgeOutcome::Pass { .. }));
    // The remedy of the incident.
    let remedy = vec![counts((0, 250), (2400, 4750)); 3];
    assert!(matches!(last(remedy).outcome, JudgeOutcome::Pass { .. }));
}

#[test]
fn a_suspected_canary_does_not_pass() {
    let (bad, good) = (counts((20, 103), (0, 202)), counts((0, 100), (0, 200)));
    let verdict = last([bad.clone()]);
    assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::Suspected));
    assert!(
        verdict.message.ends_with("it looks 1.5 times worse, and more requests must confirm it"),
        "{verdict:?}"
    );
    assert_eq!(last([bad.clone(), bad.clone()]).outcome, FAIL);
    // Three errors no longer matter once enough good requests followed.
    let three_errors = counts((3, 100), (0, 200));
    let recovered = [three_errors].into_iter().chain(vec![counts((0, 500), (1, 1000)); 8]);
    assert_eq!(last(recovered).outcome, PASS);
    assert_eq!(last([good.clone(), good]).outcome, PASS);
}

#[test]
fn missing_data_is_inconclusive_and_leaves_the_evidence_alone() {
    let judge = judge(Settings::default());
    let mut evidence = Evidence::default();
    judge.check(&mut evidence, &counts((2, 100), (1, 1900)));
    let before = evidence.clone();
    for (seen, expected) in [
        (Measurement::NoData, InconclusiveReason::NoData),
        (Measurement::Unavailable { why: "connection refused".into() }, InconclusiveReason::Unavailable),
        (Measurement::Scalar(0.0), InconclusiveReason::WrongMeasurementKind),
        (counts((0, 0), (0, 0)), InconclusiveReason::NoData),
        (counts((0, 0), (50, 1000)), InconclusiveReason::NoData),
    ] {
        assert_eq!(inconclusive_reason(&judge.check(&mut evidence, &seen)), Some(expected));
        assert_eq!(evidence, before);
    }
}

#[test]
fn too_few_requests_wait_for_more_and_then_count_together() {
    let verdicts = verdicts_of(&judge(Settings::default()), vec![counts((0, 8), (0, 152)); 6]);
    let passes: Vec<bool> = verdicts.iter().map(|verdict| verdict.outcome == PASS).collect();
    assert_eq!(passes, [false, false, true, false, false, true]);
    assert_eq!(inconclusive_reason(&verdicts[0]), Some(InconclusiveReason::TooFewSamples));
    assert!(verdicts[0].message.ends_with("too few new requests to the canary, 8 of the 20 needed"));
}

#[test]
fn a_canary_is_not_compared_with_a_primary_without_requests() {
    let verdict = last([counts((3, 1000), (0, 4))]);
    assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::TooFewSamples));
    assert!(verdict.message.ends_with("too few requests to the primary, 4 of the 20 needed"));
}

#[test]
fn a_canary_that_fails_everything_is_convicted_without_a_primary() {
    let verdict = last([counts((40, 40), (0, 0))]);
    assert_eq!(verdict.outcome, FAIL);
    assert_eq!(
        verdict.message,
        "canary fails 100 % of its requests (40 of 40), whatever the primary does: \
         chance of a false alarm < 1 %"
    );
    assert_eq!(last([counts((100_000, 100_000), (0, 0))]).outcome, FAIL);
    let one_by_one = verdicts_of(&judge(Settings::default()), vec![counts((1, 1), (0, 0)); 12]);
    let convicted = one_by_one.iter().position(|verdict| verdict.outcome == FAIL).unwrap();
    assert_eq!(convicted + 1, 9);
    // Nearly everything, and only after a while.
    let healthy = vec![counts((1, 200), (0, 0)); 50];
    let verdict = last(healthy.into_iter().chain(vec![counts((29, 30), (0, 0)); 2]));
    assert_eq!(verdict.outcome, FAIL);
    assert!(verdict.message.starts_with("canary fails 96.7 % of its requests (58 of 60)"), "{verdict:?}");
}

#[test]
fn a_canary_that_fails_half_of_its_requests_is_not_convicted_without_a_primary() {
    for bad in [0, 20, 100] {
        let verdict = last(vec![counts((bad, 200), (0, 0)); 50]);
        assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::TooFewSamples), "{bad} of 200");
    }
    let alternating = (0..500).map(|look| counts((look % 2, 1), (0, 0)));
    assert_eq!(inconclusive_reason(&last(alternating)), Some(InconclusiveReason::TooFewSamples));
}

#[test]
fn a_total_failure_that_the_primary_shares_is_left_to_the_comparison() {
    let passes = |verdict: Verdict| inconclusive_reason(&verdict) == Some(InconclusiveReason::Incident);
    assert!(passes(last(vec![counts((100, 100), (1900, 1900)); 5])));
    assert!(passes(last(vec![counts((90, 100), (1720, 1900)); 5])));
    let calm = vec![counts((0, 100), (5, 1900)); 20];
    let incident = vec![counts((100, 100), (1900, 1900)); 5];
    assert!(passes(last(calm.into_iter().chain(incident))));
    let few = last([counts((12, 12), (12, 12))]);
    assert_eq!(inconclusive_reason(&few), Some(InconclusiveReason::TooFewSamples));
}

#[test]
fn slowness_of_all_requests_is_no_total_failure() {
    let slow = Measurement::Histogram(Arms {
        canary: histogram([0, 0, 0, 0, 500]),
        primary: histogram([0, 0, 0, 0, 0]),
    });
    assert_eq!(inconclusive_reason(&last([slow])), Some(InconclusiveReason::TooFewSamples));
}

#[test]
fn a_new_step_needs_traffic_of_its_own() {
    let judge = judge(Settings::default());
    let mut evidence = Evidence::default();
    judge.check(&mut evidence, &counts((0, 15), (0, 285)));
    evidence.begin_step();
    assert_eq!(
        inconclusive_reason(&judge.check(&mut evidence, &counts((0, 15), (0, 285)))),
        Some(InconclusiveReason::TooFewSamples)
    );
    assert_eq!(judge.check(&mut evidence, &counts((0, 5), (0, 95))).outcome, PASS);
}

#[test]
fn a_canary_that_turns_bad_late_has_no_credit_to_spend() {
    let healthy = vec![counts((1, 250), (24, 4750)); 500];
    let bad = vec![counts((8, 250), (24, 4750)); 10];
    let verdicts = verdicts_of(&judge(Settings::default()), healthy.into_iter().chain(bad));
    assert_eq!(verdicts[499].outcome, JudgeOutcome::Pass { non_inferior: true });
    let failed = verdicts.iter().position(|verdict| verdict.outcome == FAIL).unwrap();
    assert!(failed < 500 + 7, "only at look {failed}");
    let message = &verdicts[failed].message;
    assert!(message.starts_with("canary 3.2 % errors ("), "{message}");
}

#[test]
fn a_failed_verdict_stays_failed() {
    let bad = vec![counts((60, 1000), (90, 19_000)); 2];
    let looks = bad.into_iter().chain(vec![counts((0, 1000), (0, 19_000)); 5]);
    let verdicts = verdicts_of(&judge(Settings::default()), looks);
    assert!(verdicts[1..].iter().all(|verdict| verdict.outcome == FAIL), "{verdicts:?}");
}

#[test]
fn with_an_idle_primary_there_is_nothing_to_compare_with() {
    let shared = vec![counts((25, 5000), (25, 5000)); 6];
    let alone = |bad| shared.iter().cloned().chain(vec![counts((bad, 10_000), (0, 0)); 3]);
    let verdict = last(alone(50));
    assert_eq!(verdict.outcome, PASS);
    assert!(verdict.message.contains("the primary is idle, so there is nothing to compare with"));
    assert_ne!(last(alone(300)).outcome, FAIL);
}

#[test]
fn non_inferiority_is_per_margin_and_reset_at_a_new_step() {
    let judge = judge(Settings { margin: 3.0, ..Settings::default() });
    let mut evidence = Evidence::default();
    let look = counts((2, 500), (45, 9500));
    let non_inferior_at =
        (0..200).find(|_| judge.outcome(&mut evidence, &look) == JudgeOutcome::Pass { non_inferior: true });
    assert!(non_inferior_at.is_some_and(|look| look > 0), "{non_inferior_at:?}");
    evidence.begin_step();
    assert_eq!(judge.outcome(&mut evidence, &look), PASS);
}

#[test]
fn only_the_overdispersion_estimate_outlives_a_release() {
    let judge = judge(Settings::default());
    let mut evidence = Evidence::default();
    for i in 0..200 {
        judge.outcome(&mut evidence, &counts((0, 250), (14 * (i % 2), 4750)));
    }
    let mut next = evidence.next_release();
    assert_eq!((next.p_value(), next.seen()), (1.0, Arms::default()));
    let clump = counts((7, 250), (14, 4750));
    assert_eq!(judge.outcome(&mut next, &clump), PASS);
    let verdict = judge.check(&mut next, &clump);
    assert!(verdict.message.contains("they come in bursts"), "{}", verdict.message);
}

fn histogram(counts: [u64; 5]) -> Histogram {
    let bounds = [0.05, 0.1, 0.25, 0.5, f64::INFINITY];
    Histogram::cumulative(bounds.into_iter().zip(counts)).unwrap()
}

#[test]
fn latency_is_judged_at_every_bound_and_names_the_one_that_stands_out() {
    let primary = histogram([5000, 9000, 9450, 9495, 9500]);
    let slow = Measurement::Histogram(Arms {
        canary: histogram([262, 473, 480, 490, 500]),
        primary: primary.clone(),
    });
    let verdict = last(vec![slow; 3]);
    assert_eq!(verdict.outcome, FAIL);
    let message = &verdict.message;
    assert!(
        message.starts_with("canary 2 % slower than 500 ms (30 of 1,500) vs primary 0.05 % (15 of 28,500)"),
        "{message}"
    );
    let alike = Measurement::Histogram(Arms { canary: histogram([263, 474, 497, 499, 500]), primary });
    assert_eq!(last(vec![alike; 3]).outcome, PASS);
}

#[test]
fn histograms_without_a_common_bound_cannot_be_compared() {
    let one = |bound| Histogram::cumulative([(bound, 9), (f64::INFINITY, 10)]).unwrap();
    let verdict = last([Measurement::Histogram(Arms { canary: one(0.1), primary: one(0.2) })]);
    assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::WrongMeasurementKind));
}

#[test]
fn uninformative_bounds_are_not_stored() {
    let judge = judge(Settings::default());
    let mut evidence = Evidence::default();
    let bounds = (1..=20u32).map(|i| {
        (
            f64::from(i),
            if i < 8 {
                0
            } else if i < 10 {
                400
            } else {
                500
            },
        )
    });
    let histogram = Histogram::cumulative(bounds.chain([(f64::INFINITY, 500)])).unwrap();
    judge.check(
        &mut evidence,
        &Measurement::Histogram(Arms { canary: histogram.clone(), primary: histogram }),
    );
    assert_eq!(evidence.streams().len(), 2);
}

#[test]
fn beyond_the_grid_there_is_a_lower_bound_and_no_upper_one() {
    let Estimate { value, low, high } =
        last([counts((27_925, 28_103), (570_806, 895_617))]).estimate.unwrap();
    assert!(value > 40.0 && low.is_some_and(|low| low < value) && high.is_none());
}

#[test]
fn absurd_counts_are_judged_in_time_and_without_panic() {
    let most = u64::MAX;
    let looks = [((most, most), (0, most)), ((1, most), (most, most)), ((most / 2, most), (0, 0))];
    let verdicts =
        verdicts_of(&judge(Settings::default()), looks.map(|(canary, primary)| counts(canary, primary)));
    assert!(verdicts.iter().all(|verdict| verdict.outcome == FAIL));
}

#[test]
fn a_check_that_is_scaled_down_can_still_fail_and_pass() {
    let million = 1_000_000;
    let primary = (95 * million / 200, 95 * million);
    assert_eq!(
        last(vec![counts((5 * million / 200, 5 * million), primary); 2]).outcome,
        JudgeOutcome::Pass { non_inferior: true }
    );
    assert_eq!(last(vec![counts((5 * million / 50, 5 * million), primary); 2]).outcome, FAIL);
}

#[test]
fn evidence_fits_into_a_status() {
    let judge = judge(Settings::default());
    let mut evidence = Evidence::default();
    for i in 0..10_000 {
        judge.outcome(&mut evidence, &counts((i % 5, 5_000), (45, 95_000)));
    }
    let bytes = serde_json::to_string(&evidence).unwrap().len();
    assert!(bytes < 2000, "{bytes} bytes");
}

#[test]
fn evidence_about_two_dozen_latency_bounds_fits_into_a_status() {
    // Rising bounds, all of them informative, at 5,000 requests a second.
    let bounds: Vec<f64> = (0..24).map(|i| 0.002 * 1.4_f64.powi(i)).collect();
    let arm = |requests: f64, slower: f64| {
        let within = |bound: &f64| 1.0 - 1.0 / (1.0 + (bound / (0.05 * slower)).powf(1.5));
        let bucket = |bound: &f64| (*bound, (requests * within(bound)).round() as u64);
        let buckets = bounds.iter().map(bucket).chain([(f64::INFINITY, requests as u64)]);
        Histogram::cumulative(buckets).unwrap()
    };
    let judge = judge(Settings::default());
    let mut evidence = Evidence::default();
    for i in 0..150 {
        let swing = 1.0 + 0.3 * (f64::from(i) * 0.7).sin();
        let canary = arm(10_000.0 * swing, 1.0 + 0.05 * (f64::from(i) * 1.3).sin());
        let primary = arm(40_000.0 * swing, 1.0 + 0.05 * f64::from(i).cos());
        judge.outcome(&mut evidence, &Measurement::Histogram(Arms { canary, primary }));
    }
    assert_eq!(evidence.streams().len(), 24);
    // As the status has it: a text within JSON, whose quotes are escaped.
    let text = serde_json::to_string(&evidence).unwrap();
    let bytes = serde_json::to_string(&text).unwrap().len();
    assert!(bytes <= 8000, "{bytes} bytes");
    assert_eq!(serde_json::from_str::<Evidence>(&text).unwrap(), evidence);
}

#[test]
fn the_durations_of_a_handful_of_requests_convict_nobody() {
    let arm = |fast: u64, slow: u64| {
        Histogram::cumulative([(0.1, fast), (1.0, fast), (f64::INFINITY, fast + slow)]).unwrap()
    };
    // A pod that dies delays its last requests: three at each of some looks.
    let look = Measurement::Histogram(Arms { canary: arm(0, 3), primary: arm(300, 1) });
    let outcomes: Vec<JudgeOutcome> = verdicts_of(&judge(Settings::default()), vec![look; 8])
        .into_iter()
        .map(|verdict| verdict.outcome)
        .collect();
    let convicted = outcomes.iter().position(|outcome| *outcome == FAIL);
    assert_eq!(convicted, Some(6), "by 21 requests: {outcomes:?}");
}

/// Orders among a thousand requests of the canary and 19,000 of the primary, evenly from
/// 1 to 100 each.
fn orders(canary: u64, primary: u64) -> Measurement {
    let arm = |orders: u64, requests: u64| {
        let within = (1..=10).map(|tens| (f64::from(tens) * 10.0, orders * tens as u64 / 10));
        let histogram = Histogram::cumulative(within.chain([(f64::INFINITY, orders)])).unwrap();
        Values { histogram, requests: Some(requests) }
    };
    Measurement::Values(Arms { canary: arm(canary, 1000), primary: arm(primary, 19_000) })
}

fn judge_of(worse: WorseValues) -> Sequential {
    judge(Settings { margin: 1.1, worse_values: Some(worse), ..Settings::default() })
}

#[test]
fn fewer_orders_fail_where_lower_values_are_worse_and_pass_where_higher_ones_are() {
    let looks = || vec![orders(15, 570); 20];
    let lower = verdicts_of(&judge_of(WorseValues::Lower), looks()).pop().unwrap();
    assert_eq!(lower.outcome, FAIL, "{lower:?}");
    assert!(
        lower
            .message
            .starts_with("canary 1.5 % with a value (285 of 19,000) vs primary 3 % (10,830 of 361,000)"),
        "{lower:?}"
    );
    let higher = verdicts_of(&judge_of(WorseValues::Higher), looks()).pop().unwrap();
    assert_eq!(higher.outcome, CERTIFIED, "{higher:?}");
    let more = vec![orders(60, 570); 20];
    assert_eq!(verdicts_of(&judge_of(WorseValues::Higher), more.clone()).pop().unwrap().outcome, FAIL);
    assert_eq!(verdicts_of(&judge_of(WorseValues::Lower), more).pop().unwrap().outcome, CERTIFIED);
}

#[test]
fn the_first_release_learns_its_thresholds_and_the_next_one_has_them() {
    let judge = judge_of(WorseValues::Lower);
    let mut evidence = Evidence::default();
    let first = judge.check(&mut evidence, &orders(2, 80));
    assert_eq!(inconclusive_reason(&first), Some(InconclusiveReason::TooFewSamples));
    assert_eq!(
        first.message,
        "the first release learns the usual values of the primary, 80 of the 100 needed"
    );
    assert!(evidence.streams().is_empty(), "nothing is compared yet");
    (0..3).for_each(|_| drop(judge.check(&mut evidence, &orders(30, 570))));
    assert_eq!(evidence.streams().len(), 5);
    let text = serde_json::to_string(&evidence).unwrap();
    assert_eq!(serde_json::from_str::<Evidence>(&text).unwrap(), evidence);
    let mut next = evidence.next_release();
    judge.check(&mut next, &orders(30, 570));
    assert_eq!(next.streams().len(), 5, "judged from its first look on");
}

#[test]
fn one_order_of_a_fortune_convicts_nobody() {
    let rich = |orders: u64| {
        let histogram = Histogram::cumulative([(10.0, 10), (50.0, 29), (f64::INFINITY, orders)]).unwrap();
        Values { histogram, requests: Some(1000) }
    };
    let look = |canary, primary| Measurement::Values(Arms { canary: rich(canary), primary: rich(primary) });
    let looks = (0..40).map(|at| if at == 20 { look(29, 30) } else { look(29, 29) });
    let verdict = verdicts_of(&judge_of(WorseValues::Lower), looks).pop().unwrap();
    assert_eq!(verdict.outcome, PASS, "{verdict:?}");
}

#[test]
fn values_without_a_direction_are_not_judged() {
    let verdict = last([orders(15, 570)]);
    assert_eq!(inconclusive_reason(&verdict), Some(InconclusiveReason::WrongMeasurementKind), "{verdict:?}");
}

/// Looks at pods of both arms: of each pod its bad and all requests.
fn by_pod(canary: &[(u64, u64)], primary: &[(u64, u64)]) -> Measurement {
    let arm = |name: &str, pods: &[(u64, u64)]| {
        let pod =
            |(i, (bad, total)): (usize, &(u64, u64))| (format!("{name}-{i}"), Counts::of_bad(*bad, *total));
        pods.iter().enumerate().map(pod).collect()
    };
    Measurement::by_pod(Arms { canary: arm("canary", canary), primary: arm("primary", primary) })
}

#[test]
fn one_broken_pod_is_convicted_and_named() {
    let good = (5, 1000);
    // The arm is 1.3 times as bad, within the margin.
    let look = || by_pod(&[good, good, (14, 1000), good, good], &[good; 5]);
    let verdict = last(vec![look(); 20]);
    assert_eq!(verdict.outcome, FAIL);
    assert_eq!(
        verdict.message,
        "pod canary-2 of the canary 1.4 % errors (280 of 20,000) vs primary 0.5 % (500 of 100,000): \
         at least 1.5 times worse, chance of a false alarm < 1 %"
    );
    let summed = last(vec![look().summed(); 20]);
    assert!(matches!(summed.outcome, JudgeOutcome::Pass { .. }), "{summed:?}");
}

/// Errors of a canary that is bad as a whole fall somewhere.
#[test]
fn a_pod_is_named_only_if_the_others_would_show_as_many_errors() {
    let primary = [(0, 1500); 2];
    let verdict = |pods: [(u64, u64); 2]| last(vec![by_pod(&pods, &primary); 4]);
    let alike = verdict([(1, 43), (0, 40)]);
    assert_eq!(alike.outcome, FAIL, "{alike:?}");
    assert!(!alike.message.contains("its pod"), "{alike:?}");
    let different = verdict([(4, 43), (0, 40)]);
    assert!(different.message.contains("it is its pod canary-0 (16 of 172)"), "{different:?}");
}

/// Looks at durations by pod: of a hundred requests of each so many are slower than 100 ms.
fn slow_by_pod(canary: &[u64], primary: &[u64]) -> Measurement {
    let pod =
        |slow: u64| Histogram::cumulative([(0.1, 100 - slow), (1.0, 100), (f64::INFINITY, 100)]).unwrap();
    let arm = |name: &str, pods: &[u64]| {
        pods.iter().enumerate().map(|(i, slow)| (format!("{name}-{i}"), pod(*slow))).collect()
    };
    Measurement::histograms_by_pod(Arms { canary: arm("canary", canary), primary: arm("primary", primary) })
}

#[test]
fn one_slow_pod_is_convicted_and_named() {
    let look = slow_by_pod(&[10, 10, 10, 10, 40], &[10, 10, 10, 10, 10]);
    let verdict = verdicts_of(&judge(Settings { margin: 1.25, ..Settings::default() }), vec![look; 40]).pop();
    let verdict = verdict.unwrap();
    assert_eq!(verdict.outcome, FAIL, "{verdict:?}");
    assert!(
        verdict.message.contains("pod canary-4") && verdict.message.contains("slower than 100 ms"),
        "{verdict:?}"
    );
}

#[test]
fn arms_whose_pods_differ_in_latency_are_not_convicted_by_the_draw_of_their_pods() {
    let latency = judge(Settings { margin: 1.25, ..Settings::default() });
    let canary = [5, 8, 12, 40, 40];
    let primary = [3, 6, 10, 14, 30];
    let by_pod = slow_by_pod(&canary, &primary);
    assert_eq!(verdicts_of(&latency, vec![by_pod.clone().summed(); 60]).pop().unwrap().outcome, FAIL);
    let outcome = verdicts_of(&latency, vec![by_pod; 60]).pop().unwrap().outcome;
    assert!(!matches!(outcome, JudgeOutcome::Fail { .. }), "{outcome:?}");
}

#[test]
fn arms_whose_pods_differ_are_not_convicted_by_the_draw_of_their_pods() {
    let primary = [(3, 1000), (9, 1000), (2, 1000), (4, 1000), (7, 1000)];
    let canary = [(5, 1000), (21, 1000), (4, 1000), (9, 1000), (12, 1000)];
    let look = by_pod(&canary, &primary);
    let verdict = last(vec![look.clone(); 40]);
    assert_ne!(verdict.outcome, FAIL, "{verdict:?}");
    assert_eq!(last(vec![look.summed(); 40]).outcome, FAIL, "twice as bad, if the pods are not known");
    // Pods that are alike show the same difference.
    let alike = by_pod(&[(10, 1000); 5], &[(5, 1000); 5]);
    assert_eq!(last(vec![alike; 40]).outcome, FAIL);
}

#[test]
fn no_pod_is_blamed_for_a_canary_that_turned_bad_as_a_whole() {
    let look = |bad| by_pod(&[(bad, 1000); 5], &[(50, 10_000); 5]);
    let verdict = last([vec![look(5); 100], vec![look(20); 10]].concat());
    assert_eq!(verdict.outcome, FAIL);
    assert!(!verdict.message.contains("pod"), "{verdict:?}");
}

#[test]
fn pods_that_are_read_in_turn_are_alike() {
    let idle = (0, 0);
    let looks = (0..40).map(|at| match at % 3 {
        0 => by_pod(&[(20, 1000), idle, idle], &[(50, 10_000), idle, idle]),
        1 => by_pod(&[idle, (20, 1000), idle], &[idle, (50, 10_000), (50, 10_000)]),
        _ => by_pod(&[(20, 1000), idle, (20, 1000)], &[(50, 10_000), idle, (50, 10_000)]),
    });
    assert_eq!(last(looks).outcome, FAIL);
}

#[test]
fn a_pod_that_counts_for_both_arms_is_a_gateway() {
    let gateway = |bad| [("envoy-x".to_owned(), Counts::of_bad(bad, 100))].into_iter().collect();
    let look = Measurement::by_pod(Arms { canary: gateway(1), primary: gateway(2) });
    assert_eq!(look, counts((1, 100), (2, 100)));
}

#[test]
fn evidence_of_another_layout_or_margin_is_not_misread() {
    let mut json = serde_json::to_value(Evidence::default()).unwrap();
    json["version"] = 1.into();
    let error = serde_json::from_value::<Evidence>(json).unwrap_err();
    assert_eq!(error.to_string(), "evidence of version 1, this judge reads version 4");

    let mut evidence = Evidence::default();
    let look = counts((3, 100), (1, 1900));
    judge(Settings::default()).check(&mut evidence, &look);
    let mut fresh = Evidence::default();
    let wider = judge(Settings { margin: 2.0, ..Settings::default() });
    assert_eq!(wider.check(&mut evidence, &look), wider.check(&mut fresh, &look));
}

#[test]
fn invalid_settings_are_refused() {
    let refused = |settings| Sequential::try_from(settings).unwrap_err();
    let default = Settings::default();
    assert_eq!(refused(Settings { false_rollback: 1.0, ..default }), SettingsError::FalseRollback(1.0));
    assert_eq!(refused(Settings { false_promotion: 0.0, ..default }), SettingsError::FalsePromotion(0.0));
    assert_eq!(refused(Settings { margin: 0.9, ..default }), SettingsError::Margin(0.9));
    assert!(Sequential::try_from(Settings { margin: f64::NAN, ..default }).is_err());
}

fn any_measurement() -> impl Strategy<Value = Measurement> {
    let arm = |most: u64| (0..=most).prop_flat_map(|total| (0..=total, Just(total)));
    prop_oneof![
        4 => (arm(300), arm(3000)).prop_map(|(canary, primary)| counts(canary, primary)),
        4 => ([arm(100), arm(100), arm(100)], [arm(900), arm(900), arm(900)])
            .prop_map(|(canary, primary)| by_pod(&canary, &primary)),
        1 => Just(Measurement::NoData),
        1 => Just(Measurement::Unavailable { why: "timeout".into() }),
    ]
}

proptest! {
    #[test]
    fn a_restart_after_every_check_changes_nothing(
        looks in prop::collection::vec((any_measurement(), any::<bool>()), 1..30), margin in 1.0..4.0f64,
    ) {
        let judge = judge(Settings { margin, ..Settings::default() });
        let (mut through, mut resumed) = (Evidence::default(), Evidence::default());
        for (seen, new_step) in looks {
            if new_step {
                through.begin_step();
                resumed.begin_step();
            }
            let verdict = judge.check(&mut through, &seen);
            prop_assert_eq!(&verdict, &judge.check(&mut resumed, &seen));
            let json = serde_json::to_string(&resumed).unwrap();
            resumed = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&through).unwrap());
        }
    }

    #[test]
    fn the_message_matches_the_outcome(looks in prop::collection::vec(any_measurement(), 1..20)) {
        let judge = judge(Settings::default());
        let (mut checked, mut silent) = (Evidence::default(), Evidence::default());
        for look in looks {
            prop_assert_eq!(judge.check(&mut checked, &look).outcome, judge.outcome(&mut silent, &look));
            prop_assert_eq!(&checked, &silent);
        }
    }

    #[test]
    fn one_more_canary_error_never_helps(
        (bad, total) in (0..60u64).prop_flat_map(|bad| (Just(bad), bad + 1..500)), primary in 0..60u64,
    ) {
        let judge = judge(Settings::default());
        let p_value = |bad| {
            let mut evidence = Evidence::default();
            judge.outcome(&mut evidence, &counts((bad, total), (primary, 5000)));
            evidence.p_value()
        };
        prop_assert!(p_value(bad + 1) <= p_value(bad));
    }

    #[test]
    fn any_counts_at_all_give_finite_numbers(
        looks in prop::collection::vec((0..=40_000u64, 0..=40_000u64, 0..=900_000u64, 0..=900_000u64), 1..3),
    ) {
        let judge = judge(Settings::default());
        let mut evidence = Evidence::default();
        for (a, b, c, d) in looks {
            let verdict = judge.check(&mut evidence, &counts((a.min(b), a.max(b)), (c.min(d), c.max(d))));
            if let Some(Estimate { value, low, high }) = verdict.estimate {
                prop_assert!([Some(value), low, high].into_iter().flatten().all(f64::is_finite));
                prop_assert!(low.is_none_or(|low| low <= value) && high.is_none_or(|high| value <= high), "{verdict:?}");
            }
            prop_assert!((0.0..=1.0).contains(&evidence.p_value()));
        }
    }
}
