//! Machines that serve a version, the Envoys of their callers, and the callers.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::stage::{LIMIT, Stage};
use crate::support::{Child, Folder, Part, free_port, program, spawn};

/// A service on loopback that answers with its version.
pub struct Machine {
    pub version: &'static str,
    pub port: u16,
    _serving: AbortOnDropHandle<()>,
}

impl Machine {
    /// Of this many requests one fails; 0 for none. Health checks do not.
    pub async fn start(version: &'static str, one_in: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let count = Arc::new(AtomicUsize::new(0));
        let answer = move || {
            let fails = one_in > 0 && count.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in);
            async move {
                match fails {
                    true => (StatusCode::INTERNAL_SERVER_ERROR, format!("{version} is broken")),
                    false => (StatusCode::OK, version.to_owned()),
                }
            }
        };
        let service = Router::new().route("/", get(answer)).route("/healthz", get(|| async { "ok" }));
        let serving = spawn(async move { _ = axum::serve(listener, service).await });
        Self { version, port, _serving: serving }
    }
}

/// The group `web` at these machines.
pub fn group(version: &str, machines: &[&Machine]) -> String {
    let endpoint = |machine: &&Machine| {
        format!("  - {{address: 127.0.0.1, port: {}, version: {}}}\n", machine.port, machine.version)
    };
    let endpoints: String = machines.iter().map(endpoint).collect();
    format!(
        "apiVersion: serin.dev/v1alpha1\nkind: EndpointGroup\nmetadata: {{name: web}}\nspec:\n  port: 80\n  \
         version: {version}\n  healthCheck: {{path: /healthz, interval: 1s}}\n  endpoints:\n{endpoints}"
    )
}

/// Ends when dropped.
pub struct Envoy {
    _child: Child,
    _folder: Folder,
    port: u16,
    pub admin: u16,
}

impl Envoy {
    /// In front of a caller of `web`.
    pub async fn start(stage: &Stage, node: &str) -> Self {
        let (port, admin) = (free_port(), free_port());
        let printed = Command::new(Path::new(env!("CARGO_BIN_EXE_serin")))
            .args([
                "xds",
                "bootstrap",
                node,
                "--control-plane",
                &format!("127.0.0.1:{}", stage.control_plane),
            ])
            .args(["--upstream", &format!("default/web:80=127.0.0.1:{port}")])
            .args(["--admin", &format!("127.0.0.1:{admin}")])
            .output()
            .expect("serin runs");
        assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        let folder = Folder::new("envoy");
        folder.write("envoy.yaml", &String::from_utf8(printed.stdout).expect("YAML"));
        let envoy = program(Part::Envoy, "envoy").unwrap_or_else(|error| panic!("{error}"));
        let arguments = ["--config-path", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart"];
        let mut child = Child::start(folder.path(), &envoy, arguments);
        let began = Instant::now();
        let ready = format!("http://127.0.0.1:{admin}/ready");
        while !reqwest::get(&ready).await.is_ok_and(|answer| answer.status().is_success()) {
            assert!(
                !child.has_ended() && began.elapsed() < LIMIT,
                "Envoy never gets ready; {}",
                child.tail()
            );
            sleep(Duration::from_millis(50)).await;
        }
        Self { _child: child, _folder: folder, port, admin }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub at: Instant,
    /// The version; or what went wrong.
    pub version: Result<String, String>,
}

/// Calls through an Envoy until it is dropped.
pub struct Callers {
    answers: Arc<Mutex<Vec<Answer>>>,
    _work: Vec<AbortOnDropHandle<()>>,
}

impl Callers {
    pub fn start(envoy: &Envoy) -> Self {
        let answers = Arc::<Mutex<Vec<Answer>>>::default();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
        let client = client.build().expect("an HTTP client");
        let url = format!("http://127.0.0.1:{}/", envoy.port);
        let work = (0..3).map(|_| {
            let (client, url, answers) = (client.clone(), url.clone(), Arc::clone(&answers));
            spawn(async move {
                loop {
                    let at = Instant::now();
                    let version = call(&client, &url).await;
                    answers.lock().push(Answer { at, version });
                    sleep(Duration::from_millis(5)).await;
                }
            })
        });
        let work = work.collect();
        Self { answers, _work: work }
    }

    pub fn since(&self, then: Instant) -> Vec<Answer> {
        self.answers.lock().iter().filter(|answer| answer.at >= then).cloned().collect()
    }

    /// Waits until this version, and no other, answers a while.
    pub async fn settle_on(&self, version: &str) {
        let began = Instant::now();
        loop {
            let now = Instant::now();
            sleep(Duration::from_millis(300)).await;
            let answers = self.since(now);
            let is_settled = answers.iter().all(|answer| answer.version.as_deref() == Ok(version));
            if answers.len() >= 20 && is_settled {
                return;
            }
            assert!(began.elapsed() < LIMIT, "not only {version} answers: {:?}", answers.last());
        }
    }

    /// What went wrong since then.
    pub fn failures(&self, since: Instant) -> Vec<String> {
        self.since(since).into_iter().filter_map(|answer| answer.version.err()).collect()
    }
}

async fn call(client: &reqwest::Client, url: &str) -> Result<String, String> {
    let answer = client.get(url).header("host", "web").send().await.map_err(|error| format!("{error:?}"))?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| format!("{error:?}"))?;
    if status.is_success() { Ok(text) } else { Err(format!("{status}: {text}")) }
}
