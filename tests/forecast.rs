//! `serin simulate`, the program: what it predicts follows from the Canary and the seed, and
//! agrees with the engine run on another model of a cluster and of requests.

/// The cluster of the engine's own tests, which shares no code with the simulation.
#[allow(dead_code)]
#[path = "engine/world.rs"]
mod engine_world;
mod support;
/// The real controller on virtual time.
mod world;

use std::process::{Command, Output};

use engine_world::World as EngineWorld;
use serde_json::{Value, json};
use serin::analysis::Measurement;
use serin::api::Canary;
use serin::api::canary::Phase;
use serin::engine::{Action, decide, observed::CheckMeasurements};
use support::Folder;
use tokio::time::Instant;
use world::World;

const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");

fn canary(analysis: &str) -> String {
    format!(
        "apiVersion: serin.dev/v1alpha1\nkind: Canary\nmetadata: {{name: shop, namespace: default}}\nspec:\n  \
         provider: linkerd\n  targetRef: {{apiVersion: apps/v1, kind: Deployment, name: shop}}\n  \
         service: {{port: 80}}\n  analysis: {{{analysis}}}\n"
    )
}

fn simulate(manifest: &str, arguments: &str) -> Output {
    let folder = Folder::new("forecast");
    folder.write("canary.yaml", manifest);
    let mut command = Command::new(PROGRAM);
    command.args(["simulate", "-f", "canary.yaml"]).args(arguments.split_whitespace());
    command.current_dir(folder.path()).output().expect("the program")
}

fn forecast(manifest: &str, arguments: &str) -> Value {
    let output = simulate(manifest, &format!("{arguments} -o json"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

const COMPARED: &str = "interval: 1m, threshold: 5, stepWeights: [5, 10, 20, 50, 80], \
                        metrics: [{name: request-success-rate}, {name: request-duration}]";

#[test]
fn the_same_seed_gives_the_same_forecast_and_another_one_another() {
    let run = |seed: u32| {
        forecast(&canary(COMPARED), &format!("--releases 12 --fault errors=3% --seed {seed}"))["rows"].take()
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
}

#[test]
fn a_healthy_release_takes_its_steps_and_two_starts_of_pods() {
    let found = forecast(&canary(COMPARED), "--releases 2 --pod-start 10s");
    let healthy = &found["healthy"];
    assert_eq!(healthy["outcome"], "promoted");
    let decided = healthy["decidedSeconds"].as_f64().expect("a number");
    let finished = healthy["finishedSeconds"].as_f64().expect("a number");
    assert!((310.0..316.0).contains(&decided), "five minutes after the pods are ready: {healthy:#}");
    assert!((decided + 10.0..decided + 17.0).contains(&finished), "the primary restarts: {healthy:#}");
    let weights: Vec<f64> = healthy["timeline"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["weight"].as_f64())
        .collect();
    let mut rising: Vec<f64> = weights.iter().copied().filter(|weight| *weight > 0.0).collect();
    rising.dedup();
    assert_eq!(rising, [5.0, 10.0, 20.0, 50.0, 80.0]);
}

#[test]
fn a_bad_release_is_found_and_a_worse_one_sooner() {
    let found =
        forecast(&canary(COMPARED), "--releases 20 --fault errors=3% --fault errors=30% --fault p99=+60%");
    let rows = found["rows"].as_array().expect("rows");
    let faults: Vec<&str> = rows.iter().filter_map(|row| row["fault"].as_str()).collect();
    assert_eq!(faults, ["none", "errors=3%", "errors=30%", "p99=+60%"]);
    assert_eq!(rows[0]["serin"]["rolledBack"], 0, "{found:#}");
    let after = |row: usize| rows[row]["serin"]["seconds"]["median"].as_u64().expect("seconds");
    for row in [1, 2, 3] {
        assert_eq!(rows[row]["serin"]["rolledBack"], 20, "{found:#}");
        assert!(after(row) > 0);
    }
    assert!(after(2) < after(1), "{found:#}");
}

/// Success rates of at least 99 % of few requests: one that fails in a hundred is too many.
const THRESHOLD: &str = "interval: 1m, threshold: 2, stepWeights: [20, 50], warmup: 0s, verifySplit: false, \
                         metrics: [{name: request-success-rate, thresholdRange: {min: 99}}]";

/// Releases of a healthy revision that the engine rolls back on [`EngineWorld`], whose requests are
/// drawn here: as many as the weight gives in a minute, each failing with the same chance.
fn rolled_back_on_another_cluster(releases: u64, per_second: f64, failing: f64) -> u64 {
    let parsed: Canary = serde_saphyr::from_str(&canary(THRESHOLD)).expect("a Canary");
    let initialized = EngineWorld::initialized(&parsed);
    let mut random = fastrand::Rng::with_seed(11);
    let mut rolled_back = 0;
    for _ in 0..releases {
        let mut world = initialized.clone();
        world.push("v1-b");
        loop {
            let decision = decide(&world.plan, &world.status, &world.observe(), world.now);
            let mut performed = false;
            for action in &decision.actions {
                match action {
                    Action::Measure(check)
                        if world.measured.as_ref().is_none_or(|last| last.check != *check) =>
                    {
                        let share = world.split.canary.percent() / 100.0;
                        let requests = (per_second * share * 60.0) as u32;
                        let failed = (0..requests).filter(|_| random.f64() < failing).count();
                        let rate = 100.0 * (1.0 - failed as f64 / f64::from(requests));
                        let results =
                            check.metrics.iter().map(|one| (one.metric.clone(), Measurement::Scalar(rate)));
                        world.measured = Some(CheckMeasurements {
                            check: check.clone(),
                            at: world.now,
                            available_until: Default::default(),
                            known_until: Default::default(),
                            results: results.collect(),
                        });
                        performed = true;
                    }
                    Action::Measure(_) => {}
                    other => {
                        world.perform(other);
                        performed = true;
                    }
                }
            }
            world.record(&decision);
            match world.status.phase {
                Phase::Failed => {
                    rolled_back += 1;
                    break;
                }
                Phase::Promoting | Phase::Finalising | Phase::Succeeded => break,
                _ if performed => {}
                _ => world.now = world.next_wake.expect("a release that goes on").max(world.now),
            }
        }
    }
    rolled_back
}

#[test]
fn false_rollbacks_are_those_of_the_engine_on_another_cluster() {
    let releases = 2_000_u64;
    let arguments = format!(
        "--releases {releases} --rps 5 --errors 0.5 --scrape-interval 0s --fault none --pod-start 0s"
    );
    let found = forecast(&canary(THRESHOLD), &arguments);
    let row = &found["rows"][0]["serin"];
    let forecast = row["rolledBackShare"].as_f64().expect("a share");
    let direct = rolled_back_on_another_cluster(releases, 5.0, 0.005) as f64 / releases as f64;
    let error = |share: f64| (share * (1.0 - share) / releases as f64).sqrt();
    let both = error(forecast).hypot(error(direct));
    assert!((0.05..0.95).contains(&direct), "a rate that tells: {direct}");
    assert!((forecast - direct).abs() <= 2.0 * both, "{forecast} is not {direct}, beside an error of {both}");
}

/// The analysis of the demo.
const DEMO: &str = "interval: 4s, warmup: 0s, stepWeights: [5, 10, 25, 50], \
                    metrics: [{name: request-success-rate}, {name: request-duration}]";

/// Seconds from the first request to the canary until each of these releases was rolled back
/// by the real controller, which scrapes pods that a mesh sends 500 requests a second to.
async fn rolled_back_by_the_controller(releases: u64) -> Vec<f64> {
    let world = World::new().await;
    let analysis: Value = serde_saphyr::from_str(&format!("{{{DEMO}}}")).expect("YAML");
    let _serin = world.initialized(json!({ "analysis": analysis })).await;
    // A hundred a second each.
    let _traffic: Vec<_> = (0..5).map(|_| world.traffic()).collect();
    let mut delays = Vec::new();
    for release in 1..=releases {
        world.push(&format!("web:v{}-errors-2", release + 1)).await;
        world.becomes("sent requests", |status| status.canary_weight.hundredths() > 0).await;
        let began = Instant::now();
        world.reaches(Phase::Failed).await;
        delays.push(began.elapsed().as_secs_f64());
        world.released(release).await;
    }
    delays
}

#[tokio::test(start_paused = true)]
async fn detection_takes_as_long_as_with_the_real_controller() {
    let delays = rolled_back_by_the_controller(60).await;
    println!("{delays:?}");
    let real = delays.iter().sum::<f64>() / delays.len() as f64;
    let arguments =
        "--rps 500 --errors 0 --pods 2 --pod-start 1s --scrape-interval 0s --fault errors=2% --releases 1000";
    let found = forecast(&canary(DEMO), arguments);
    let forecast = found["rows"][1]["serin"]["seconds"]["mean"].as_f64().expect("seconds");
    println!("{real} {forecast}");
    assert!((forecast / real - 1.0).abs() <= 0.1, "{forecast} s is not {real} s: {delays:?}");
}

#[test]
fn suggested_steps_decide_within_the_time() {
    let found = forecast(&canary(COMPARED), "--releases 2 --suggest 10m --rps 100 --fault errors=3%");
    let suggestion = &found["suggestion"];
    assert_eq!(suggestion["suffices"], true, "{suggestion:#}");
    let promoted = suggestion["promotionSeconds"].as_f64().expect("seconds");
    assert!((60.0..=600.0).contains(&promoted), "{suggestion:#}");
    let weights: Vec<String> =
        suggestion["stepWeights"].as_array().expect("weights").iter().map(ToString::to_string).collect();
    // What it suggests, simulated by itself.
    let again = COMPARED.replace("5, 10, 20, 50, 80", &weights.join(", ")).replace(
        "interval: 1m",
        &format!("interval: {}", suggestion["interval"].as_str().expect("an interval")),
    );
    let tried = forecast(&canary(&again), "--releases 20 --rps 100 --fault errors=3%");
    assert_eq!(tried["healthy"]["finishedSeconds"], suggestion["promotionSeconds"]);
    assert!(tried["rows"][1]["serin"]["rolledBack"].as_u64().expect("a number") >= 18, "{tried:#}");
}

#[test]
fn the_table_and_the_picture_show_both_rules() {
    let folder = Folder::new("forecast");
    folder.write("canary.yaml", &canary(COMPARED));
    let mut command = Command::new(PROGRAM);
    command.args([
        "simulate",
        "-f",
        "canary.yaml",
        "--releases",
        "3",
        "--fault",
        "errors=5%",
        "--svg",
        "a.svg",
    ]);
    let output = command.current_dir(folder.path()).output().expect("the program");
    let table = String::from_utf8(output.stdout).expect("text");
    for text in
        ["shop: a healthy revision is promoted", "errors=5%", "Serin", "Flagger", "3 releases a row, seed 1"]
    {
        assert!(table.contains(text), "{text} in\n{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let svg = std::fs::read_to_string(folder.join("a.svg")).expect("a picture");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    // The weights, and two curves for each of two rows.
    assert_eq!(svg.matches("fill=\"none\"").count(), 5, "{svg}");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_the_way_out() {
    for (manifest, arguments, text) in [
        (canary(COMPARED), "--fault errors=2", "write errors=2%"),
        (canary(COMPARED), "--rps 0", "--rps must be more than 0"),
        (canary("interval: 1m"), "", "write one of iterations, stepWeight, stepWeights and steps"),
        (
            canary("stepWeight: 10, metrics: [{name: lag, templateRef: {name: lag}}]"),
            "",
            "add the template's file with -f",
        ),
        (
            "apiVersion: flagger.app/v1beta1\nkind: Canary\nmetadata: {name: a}\n".to_owned(),
            "",
            "serin migrate",
        ),
    ] {
        let output = simulate(&manifest, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(text), "{text:?} in {said}");
    }
}
