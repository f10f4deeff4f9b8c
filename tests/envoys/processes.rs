//! `serin run` with a control plane in a process of its own: what `serin xds status` shows
//! of it, and a release during which it is killed by SIGKILL twenty times.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kube_local::seeded_rng::SeededRng;
use serde_json::{Value, json};
use serin::api::Weight;
use serin::api::canary::{Phase, status::Outcome};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep};

use crate::callers::Callers;
use crate::envoy::Envoy;
use crate::stage::Stage;
use crate::support::{Child, Folder, free_port};

const KILLS: usize = 20;

fn serin(stage: &Stage, folder: &Folder, more: &[String]) -> Child {
    let namespace = &stage.world.namespace;
    let own = [
        "run".to_owned(),
        format!("--namespaces={namespace}"),
        format!("--controller-namespace={namespace}"),
        format!("--kubeconfig={}", stage.kubeconfig().display()),
        format!("--xds-listen=127.0.0.1:{}", stage.control_plane),
    ];
    Child::start(folder.path(), Path::new(env!("CARGO_BIN_EXE_serin")), own.iter().chain(more))
}

async fn answers(stage: &Stage, callers: &Callers) {
    let served = async || callers.next(20).await.iter().all(|answer| answer.by_canary == Ok(false));
    stage.world.eventually("the proxy answers", served).await;
}

async fn status(arguments: &[&str], token: &str) -> (bool, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_serin"));
    command.args(["xds", "status", "--token-file", "-"]).args(arguments).stdin(Stdio::piped());
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("serin runs");
    let mut input = running.stdin.take().expect("an input");
    input.write_all(token.as_bytes()).await.expect("it is read");
    drop(input);
    let done = running.wait_with_output().await.expect("it ends");
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(text).expect("a text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn connected_proxies_are_shown_to_those_who_may_list_mesh_routes() {
    let stage = Stage::local().await;
    stage.world.canary(json!({"provider": "xds", "analysis": {"stepWeights": [50], "metrics": null}})).await;
    let (folder, api) = (Folder::new("serin"), format!("127.0.0.1:{}", free_port()));
    let running = serin(&stage, &folder, &[format!("--api-listen={api}")]);
    stage.world.reaches(Phase::Initialized).await;
    let server = format!("http://{api}");
    let (_, nobody) = status(&["--server", &server], &stage.token()).await;
    assert!(nobody.contains("No proxy is connected to serin"), "{nobody}{}", running.tail());
    let _envoy = Envoy::start(&stage, "edge-1").await;
    let shown = async || status(&["--server", &server], &stage.token()).await.1;
    stage
        .world
        .eventually("it is synced", async || {
            let shown = shown().await;
            shown.lines().any(|line| {
                line.starts_with("edge-1")
                    && line.contains("anonymous")
                    && line.matches("SYNCED").count() == 4
            })
        })
        .await;
    let (_, json) = status(&["--server", &server, "--output", "json"], &stage.token()).await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["proxies"][0]["node"], "edge-1");
    assert!(json["proxies"][0]["bytesSent"].as_u64() > Some(0), "{json}");
    let (allowed, why) = status(&["--server", &server], "made-up").await;
    assert!(!allowed && why.contains("not authenticated"), "{why}");
    let (allowed, why) = status(&["--server", "http://192.0.2.1:8443"], "made-up").await;
    assert!(!allowed && why.contains("must not be sent unencrypted"), "{why}");
}

#[test]
fn a_control_plane_without_tls_listens_on_loopback_only() {
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_serin"));
        command.args(["run", "--xds-listen", "0.0.0.0:0", "--kubeconfig", "/nonexistent"]).args(more);
        String::from_utf8(command.output().expect("serin runs").stderr).expect("a text")
    };
    let refused = run(&[]);
    assert!(refused.contains("--xds-listen") && refused.contains("--xds-insecure"), "{refused}");
    let insecure = run(&["--xds-insecure"]);
    assert!(!insecure.contains("--xds-insecure") && insecure.contains("/nonexistent"), "{insecure}");
    let missing = run(&["--xds-certificate", "a", "--xds-key", "b"]);
    assert!(missing.contains("--xds-client-ca"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_survives_twenty_kills_of_its_control_plane() {
    let stage = Stage::local().await;
    let world = stage.world.clone();
    let weights: Vec<u32> = (1..=12).map(|step| step * 8).collect();
    let analysis = json!({"interval": "1s", "stepWeights": weights, "metrics": null});
    world.canary(json!({"provider": "xds", "analysis": analysis})).await;
    let folder = Folder::new("serin");
    let mut running = serin(&stage, &folder, &[]);
    world.reaches(Phase::Initialized).await;
    let envoys = [Envoy::start(&stage, "edge-1").await, Envoy::start(&stage, "edge-2").await];
    let callers: Vec<Callers> = envoys.iter().map(|envoy| Callers::start(&envoy.url())).collect();
    for callers in &callers {
        answers(&stage, callers).await;
    }

    let (began, random) = (Instant::now(), SeededRng::seeded(21));
    world.push("web:v2").await;
    for _ in 0..KILLS {
        sleep(Duration::from_millis(200 + random.next_u64() % 1500)).await;
        // SIGKILL.
        drop(running);
        running = serin(&stage, &folder, &[]);
    }
    world.released(1).await;
    let status = world.status().await;
    assert_eq!(status.history[0].outcome, Outcome::Promoted, "{}", running.tail());
    assert_eq!(status.canary_weight, Weight::ZERO);
    stage.in_force().await;
    let image =
        world.get("Deployment", "web-primary").await["spec"]["template"]["spec"]["containers"][0]["image"]
            .clone();
    assert_eq!(image, "web:v2");

    let all: Vec<_> = callers.iter().flat_map(|callers| callers.since(began)).collect();
    let failed: Vec<String> = all.iter().filter_map(|answer| answer.by_canary.clone().err()).collect();
    println!("{} of {} requests failed", failed.len(), all.len());
    assert_eq!(failed, [] as [String; 0], "{}\n{}", envoys[0].tail(), envoys[1].tail());
}
