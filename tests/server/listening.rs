//! `serin run --listen`, and what it does to clients that do not behave.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get as page;
use rcgen::CertifiedKey;
use reqwest::Certificate;
use serin::server::{BoundServer, Options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::support::{Folder, definitions, free_port};
use crate::world::{Series, World, get};

#[test]
fn a_port_in_use_is_reported_with_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    for (arguments, environment) in
        [(vec!["run", "--listen", &address], None), (vec!["run"], Some(address.as_str()))]
    {
        let mut serin = Command::new(env!("CARGO_BIN_EXE_serin"));
        serin.args(arguments).env_remove("SERIN_LISTEN");
        serin.envs(environment.map(|address| ("SERIN_LISTEN", address)));
        let Output { status, stderr, .. } = serin.output().expect("serin starts");
        let message = String::from_utf8_lossy(&stderr).into_owned();
        assert!(!status.success());
        for expected in ["--listen", &format!("cannot listen on {address}"), "or none"] {
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }
    let serin = Command::new(env!("CARGO_BIN_EXE_serin")).args(["run", "--listen", "8080"]).output();
    let message = String::from_utf8_lossy(&serin.expect("serin starts").stderr).into_owned();
    assert!(message.contains("--listen") && message.contains("127.0.0.1:8080, or none"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn serin_run_serves_its_pages_and_exits_cleanly() {
    let world = World::new().await;
    let serving = world.api_server.serve(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let folder = Folder::new("server");
    folder.write("kubeconfig", &serving.kubeconfig());
    let (port, kubeconfig) = (free_port(), folder.join("kubeconfig"));
    let mut serin = start(&kubeconfig, port);
    let url = |page: &str| format!("http://127.0.0.1:{port}{page}");
    let began = Instant::now();
    loop {
        let exists = TcpStream::connect(("127.0.0.1", port)).await.is_ok();
        if exists && get(&url("/readyz"), "*/*").await.code == 200 {
            break;
        }
        assert!(serin.try_wait().expect("a process").is_none(), "it ended");
        assert!(began.elapsed() < Duration::from_secs(120), "it never becomes ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(get(&url("/healthz"), "*/*").await.text, "ok\n");
    assert_eq!(get(&url("/"), "*/*").await.code, 404);
    let shown = Series::of(&get(&url("/metrics"), "*/*").await.text);
    shown.at_least(r#"serin_api_requests_total{verb="watch",result="ok"}"#, 1.0);
    shown.is(
        &format!("flagger_info{{version=\"{}\",mesh_provider=\"linkerd\"}}", env!("CARGO_PKG_VERSION")),
        1.0,
    );
    let killed = Command::new("kill").arg(serin.id().to_string()).status().expect("kill runs");
    assert!(killed.success());
    let ended = tokio::task::spawn_blocking(move || serin.wait()).await.expect("a thread");
    assert!(ended.expect("a process").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn serin_run_waits_for_its_definitions() {
    serin::tls::install_crypto_provider();
    let api_server = kube_local::ApiServer::new(kube_local::Options::default());
    let serving = api_server.serve(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let folder = Folder::new("early");
    folder.write("kubeconfig", &serving.kubeconfig());
    let port = free_port();
    let mut serin = Command::new(env!("CARGO_BIN_EXE_serin"))
        .args(["run", "--listen", &format!("127.0.0.1:{port}"), "--kubeconfig"])
        .arg(folder.join("kubeconfig"))
        .stderr(std::fs::File::create(folder.join("log")).expect("a file"))
        .spawn()
        .expect("serin starts");
    let (url, began) = (format!("http://127.0.0.1:{port}/readyz"), Instant::now());
    let log = || std::fs::read_to_string(folder.join("log")).expect("a log");
    let mut installed = false;
    loop {
        if !installed && log().contains("serin crds | kubectl apply -f -") {
            let page = get(&url, "*/*").await;
            assert_eq!(page.code, 503, "{}", page.text);
            definitions::install(&api_server.client(), definitions::ours()).await;
            installed = true;
        }
        let serves = TcpStream::connect(("127.0.0.1", port)).await.is_ok();
        if serves && get(&url, "*/*").await.code == 200 {
            break;
        }
        assert!(serin.try_wait().expect("a process").is_none(), "it ended: {}", log());
        assert!(began.elapsed() < Duration::from_secs(120), "it never becomes ready: {}", log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(installed, "it was ready without definitions");
    serin.kill().expect("a process");
    serin.wait().expect("a process");
}

#[tokio::test(flavor = "multi_thread")]
async fn serin_run_that_waits_ends_on_a_signal() {
    serin::tls::install_crypto_provider();
    let api_server = kube_local::ApiServer::new(kube_local::Options::default());
    let serving = api_server.serve(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let folder = Folder::new("early-end");
    folder.write("kubeconfig", &serving.kubeconfig());
    let mut serin = Command::new(env!("CARGO_BIN_EXE_serin"))
        .args(["run", "--kubeconfig"])
        .arg(folder.join("kubeconfig"))
        .stderr(std::fs::File::create(folder.join("log")).expect("a file"))
        .spawn()
        .expect("serin starts");
    let (log, began) = (folder.join("log"), Instant::now());
    while !std::fs::read_to_string(&log).expect("a log").contains("serin crds | kubectl apply -f -") {
        assert!(began.elapsed() < Duration::from_secs(120), "it does not say what it waits for");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let killed = Command::new("kill").arg(serin.id().to_string()).status().expect("kill runs");
    assert!(killed.success());
    let ended = tokio::task::spawn_blocking(move || serin.wait()).await.expect("a thread");
    assert!(ended.expect("a process").success(), "{}", std::fs::read_to_string(&log).expect("a log"));
}

/// As a Secret that is mounted has them.
fn write_certificate(folder: &Folder) -> Certificate {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    folder.write("tls.crt", &cert.pem());
    folder.write("tls.key", &signing_key.serialize_pem());
    Certificate::from_pem(cert.pem().as_bytes()).expect("a certificate")
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_accepted_over_tls_with_the_current_certificate() {
    let world = World::new().await;
    let serving = world.api_server.serve(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let (folder, port) = (Folder::new("heard"), free_port());
    folder.write("kubeconfig", &serving.kubeconfig());
    let first = write_certificate(&folder);
    let mut serin = Command::new(env!("CARGO_BIN_EXE_serin"));
    serin.args(["run", "--provider", "linkerd", "--api-listen", &format!("127.0.0.1:{port}")]);
    for (flag, file) in
        [("--kubeconfig", "kubeconfig"), ("--api-certificate", "tls.crt"), ("--api-key", "tls.key")]
    {
        serin.arg(flag).arg(folder.join(file));
    }
    let mut serin = serin.stderr(Stdio::null()).spawn().expect("serin starts");
    let url = format!("https://localhost:{port}/api/v1/namespaces/default/canaries/web/promote");
    let say = async |parse_builtin: &Certificate| {
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([parse_builtin.clone()]).build();
        http.expect("an HTTP client").post(&url).send().await.map(|answer| answer.status().as_u16())
    };
    let began = Instant::now();
    let answer = loop {
        match say(&first).await {
            Ok(answer) => break answer,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(120), "{error:?}"),
        }
        assert!(serin.try_wait().expect("a process").is_none(), "it ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(answer, 401);
    let plain = reqwest::Client::new().post(url.replace("https", "http")).send().await;
    assert!(plain.is_err(), "not in the clear: {plain:?}");
    let second = write_certificate(&folder);
    assert_eq!(say(&second).await.expect("the renewed one"), 401);
    assert!(say(&first).await.is_err(), "the one before is gone");
    folder.write("tls.key", "half written");
    assert_eq!(say(&second).await.expect("what cannot be used changes nothing"), 401);
    serin.kill().expect("it is there");
    serin.wait().expect("it ends");
}

#[test]
fn the_command_api_refuses_plain_http_off_loopback() {
    let folder = Folder::new("clear");
    folder.write("empty", "");
    let empty = folder.join("empty").display().to_string();
    for (arguments, expected) in [
        (vec!["--api-listen=0.0.0.0:0"], "add --api-certificate and --api-key"),
        (vec!["--api-listen=8443"], "127.0.0.1:8080, or none"),
        (vec!["--api-listen=0.0.0.0:0", "--api-certificate=a.crt"], "--api-key <FILE>"),
        (
            vec!["--api-listen=0.0.0.0:0", "--api-certificate=a.crt", "--api-key=a.key"],
            "cannot read the certificate a.crt",
        ),
        (
            vec!["--api-listen=0.0.0.0:0", "--api-certificate", &empty, "--api-key", &empty],
            "cannot read the private key",
        ),
    ] {
        let mut serin = Command::new(env!("CARGO_BIN_EXE_serin"));
        let Output { status, stderr, .. } = serin.arg("run").args(&arguments).output().expect("serin starts");
        let message = String::from_utf8_lossy(&stderr).into_owned();
        assert!(!status.success() && message.contains(expected), "{arguments:?}: {message}");
    }
}

fn start(kubeconfig: &Path, port: u16) -> std::process::Child {
    let mut serin = Command::new(env!("CARGO_BIN_EXE_serin"));
    serin.args(["run", "--provider", "linkerd", "--flagger-metrics"]);
    serin.arg("--kubeconfig").arg(kubeconfig).arg("--listen").arg(format!("127.0.0.1:{port}"));
    serin.stderr(Stdio::null()).spawn().expect("serin starts")
}

#[tokio::test]
async fn silent_clients_are_disconnected() {
    let world = World::new().await;
    let pages = world.pages(Options::default()).await;
    let mut silent = Vec::new();
    for at in 0..80 {
        let mut client = TcpStream::connect(pages.serving.address).await.expect("a connection");
        if at % 2 == 0 {
            client.write_all(b"GET /healthz HTT").await.expect("it takes a beginning");
        }
        silent.push(client);
    }
    // It connects after them, and is still served.
    assert_eq!(pages.get("/healthz").await.code, 200);
    for mut client in silent {
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(120), client.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "a client that says nothing keeps its connection");
    }
}

/// All places are taken by clients that send slowly: the oldest loses its place, and no
/// other does.
#[tokio::test]
async fn slow_clients_keep_nobody_out() {
    let world = World::new().await;
    let pages = world.pages(Options::default()).await;
    let mut slow = Vec::new();
    for _ in 0..64 {
        let mut client = TcpStream::connect(pages.serving.address).await.expect("a connection");
        client.write_all(b"GET /healthz HTT").await.expect("it takes a beginning");
        slow.push(client);
    }
    // Much sooner than the ten seconds after which a slow client is disconnected anyway.
    let answer = timeout(Duration::from_secs(8), pages.get("/healthz")).await;
    assert_eq!(answer.expect("a place of the oldest").code, 200);
    let mut youngest = slow.pop().expect("a client");
    youngest.write_all(b"P/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("the rest");
    let mut answer = Vec::new();
    youngest.read_to_end(&mut answer).await.expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
    let oldest = slow[0].read(&mut [0; 16]).await;
    assert!(matches!(oldest, Ok(0) | Err(_)), "{oldest:?}");
}

#[tokio::test]
async fn probes_may_have_an_address_of_their_own() {
    let world = World::new().await;
    let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let serving = server.serve(serin::server::probe_router(Arc::clone(&world.vitals)), None);
    let url = |page: &str| format!("http://{}{page}", serving.address);
    // There is no controller yet.
    assert_eq!(get(&url("/readyz"), "*/*").await.code, 503);
    assert_eq!(get(&url("/metrics"), "*/*").await.code, 404);
}

#[tokio::test]
async fn requests_accepted_before_shutdown_are_answered() {
    serin::tls::install_crypto_provider();
    let (heard, answered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = page({
        let (heard, answered) = (Arc::clone(&heard), Arc::clone(&answered));
        async move || {
            heard.notify_one();
            answered.notified().await;
            "late"
        }
    });
    let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    let address = server.address;
    let serving = server.serve(Router::new().route("/", slow), None);
    let asking = tokio::spawn(async move { get(&format!("http://{address}/"), "*/*").await });
    heard.notified().await;
    let ending = tokio::spawn(serving.shutdown());
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    answered.notify_one();
    assert_eq!(asking.await.expect("an answer").text, "late");
    ending.await.expect("it ends");
}
