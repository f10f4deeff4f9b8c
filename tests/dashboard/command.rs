//! `serin dashboard`: the real program, for the user of a kubeconfig.

use std::process::Stdio;

use serde_json::{Value, json};
use serin::api::canary::Phase;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support::Folder;
use crate::world::{TIMEOUT, World};

struct Dashboard {
    _process: Child,
    address: String,
    token: String,
}

async fn start(kubeconfig: &std::path::Path) -> Dashboard {
    let mut process = Command::new(env!("CARGO_BIN_EXE_serin"))
        .args(["dashboard", "--no-open", "--kubeconfig"])
        .arg(kubeconfig)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("serin starts");
    let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("a line").expect("text");
    let line = line.expect("an address");
    let url = line.rsplit_once(' ').expect("an address").1;
    let (address, token) = url.split_once("/#token=").expect("a secret");
    Dashboard { _process: process, address: address.to_owned(), token: token.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn serin_dashboard_acts_for_the_user_of_the_kubeconfig_only() {
    let world = World::new().await.with_web().await;
    let _controller = world.start().await;
    world.canary(json!({"analysis": {"interval": "1s", "warmup": "0s", "stepWeights": [20]}})).await;
    world.reaches(Phase::Initialized).await;
    let serving = world.api_server.serve(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let folder = Folder::new("dashboard");
    folder.write("kubeconfig", &serving.kubeconfig());
    let dashboard = start(&folder.join("kubeconfig")).await;
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let url = |path: &str| format!("{}{path}", dashboard.address);

    let list =
        client.get(url("/api/v1/canaries")).bearer_auth(&dashboard.token).send().await.expect("an answer");
    let list: Value = list.json().await.expect("JSON");
    assert_eq!(list["items"][0]["name"], "web", "{list}");
    let one = url("/api/v1/namespaces/default/canaries/web");
    let one: Value = client
        .get(&one)
        .bearer_auth(&dashboard.token)
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!((&one["mayAct"], &one["state"]), (&json!(true), &json!("Initialized")), "{one}");
    let pause = url("/api/v1/namespaces/default/canaries/web/pause");
    let paused = client.post(&pause).bearer_auth(&dashboard.token).send().await.expect("an answer");
    assert_eq!(paused.status(), 202);
    let inventory = url("/api/v1/inventory/workloads");
    let inventory = client.get(&inventory).bearer_auth(&dashboard.token).send().await.expect("an answer");
    let inventory: Value = inventory.json().await.expect("JSON");
    assert!(inventory["count"].as_u64().is_some_and(|count| count >= 2), "{inventory}");

    // Other users of this machine do not know the secret; other sites have another host.
    for token in ["", "token-of-olga"] {
        let other = client.get(url("/api/v1/canaries")).bearer_auth(token).send().await.expect("an answer");
        assert_eq!(other.status(), 401);
    }
    let rebound = client.get(url("/")).header("host", "evil.example:80").send().await.expect("an answer");
    assert_eq!(rebound.status(), 421);
}

#[tokio::test]
async fn serin_dashboard_is_for_loopback() {
    let refused =
        Command::new(env!("CARGO_BIN_EXE_serin")).args(["dashboard", "--listen", "0.0.0.0:0"]).output();
    let message = String::from_utf8(refused.await.expect("serin runs").stderr).expect("text");
    assert!(
        message.contains("not a loopback address") && message.contains("serin run --api-listen"),
        "{message}"
    );
}

#[tokio::test]
async fn a_half_configured_provider_is_refused_with_the_flag_that_is_missing() {
    const PROVIDER: &str = "--oidc-issuer-url=https://login.example.com";
    let whole = [
        PROVIDER,
        "--oidc-client-id=serin",
        "--oidc-session-key=/key",
        "--dashboard-url=https://serin.example.com",
    ];
    let serves = "--api-listen=127.0.0.1:0";
    let without = |missing: usize| -> Vec<&str> {
        let kept = whole.into_iter().enumerate().filter(|(at, _)| *at != missing);
        kept.map(|(_, flag)| flag).chain([serves]).collect()
    };
    for (flags, why) in [
        (without(0), "--oidc-client-id: it is about a provider: add --oidc-issuer-url"),
        (without(1), "--oidc-issuer-url: --oidc-client-id is missing"),
        (without(2), "--oidc-issuer-url: --oidc-session-key is missing"),
        (without(3), "--oidc-issuer-url: --dashboard-url is missing"),
        (whole.to_vec(), "needs --api-listen"),
        (vec!["--oidc-issuer-url=http://login.example.com", serves], "is not an https URL"),
        (
            vec![
                PROVIDER,
                "--oidc-client-id=x",
                "--oidc-session-key=/key",
                "--dashboard-url=http://serin",
                serves,
            ],
            "must be an https URL",
        ),
        (
            [without(9), vec!["--oidc-ca-file=/missing"]].concat(),
            "--oidc-ca-file: cannot read certificates from /missing",
        ),
    ] {
        let refused = Command::new(env!("CARGO_BIN_EXE_serin")).arg("run").args(&flags).output();
        let refused = refused.await.expect("serin runs");
        let message = String::from_utf8(refused.stderr).expect("text");
        assert!(!refused.status.success() && message.contains(why), "{flags:?}: {message}");
    }
}
