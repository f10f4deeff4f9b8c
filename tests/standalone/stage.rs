//! `serin standalone` in a process of its own, with a folder of manifests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::Api;
use kube::{Client, Config, config::KubeConfigOptions, config::Kubeconfig};
use serde_json::Value;
use serin::api::canary::status::PastRelease;
use serin::api::{Canary, CanaryStatus, EndpointGroup};
use tokio::time::{Instant, sleep};

use crate::support::{Child, Folder, free_port};

/// Two cores shared with builds are slow.
pub const LIMIT: Duration = Duration::from_secs(120);

pub struct Stage {
    /// Killed by SIGKILL when dropped. Before the folders: it works in them.
    pub process: Option<Child>,
    pub dir: Folder,
    logs: Folder,
    pub control_plane: u16,
    more: Vec<String>,
}

impl Stage {
    /// Not started yet.
    pub fn new(more: &[String]) -> Self {
        let (dir, logs) = (Folder::new("standalone"), Folder::new("standalone-logs"));
        Self { process: None, dir, logs, control_plane: free_port(), more: more.to_vec() }
    }

    pub fn start(&mut self) {
        let own = [
            "standalone".to_owned(),
            self.dir.path().display().to_string(),
            format!("--xds-listen=127.0.0.1:{}", self.control_plane),
        ];
        // That of the process before would be taken for its own.
        let _ = std::fs::remove_file(self.kubeconfig());
        let serin = Path::new(env!("CARGO_BIN_EXE_serin"));
        self.process = Some(Child::start(self.logs.path(), serin, own.iter().chain(&self.more)));
    }

    /// By SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join(".serin/kubeconfig")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.logs.join("serin.log")).unwrap_or_default()
    }

    /// Once it serves.
    pub async fn client(&mut self) -> Client {
        let began = Instant::now();
        loop {
            if let Some(client) = self.try_client().await {
                return client;
            }
            let ended = self.process.as_mut().is_none_or(Child::has_ended);
            assert!(!ended && began.elapsed() < LIMIT, "serin standalone does not serve:\n{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn try_client(&self) -> Option<Client> {
        serin::tls::install_crypto_provider();
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).ok()?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
        let client = Client::try_from(config).ok()?;
        client.apiserver_version().await.ok().map(|_| client)
    }

    pub async fn group(&mut self) -> EndpointGroup {
        let groups: Api<EndpointGroup> = Api::default_namespaced(self.client().await);
        groups.get("web").await.expect("an EndpointGroup")
    }

    /// The default before the folder was applied for the first time: the API serves earlier.
    pub async fn status(&mut self) -> CanaryStatus {
        let canaries: Api<Canary> = Api::default_namespaced(self.client().await);
        let canary = canaries.get_opt("web").await.expect("an answer");
        canary.and_then(|canary| canary.status).unwrap_or_default()
    }

    pub async fn becomes(&mut self, what: &str, is: impl Fn(&CanaryStatus) -> bool) -> CanaryStatus {
        let began = Instant::now();
        loop {
            let status = self.status().await;
            if is(&status) {
                return status;
            }
            let shown = serde_json::to_value(&status).unwrap_or(Value::Null);
            assert!(began.elapsed() < LIMIT, "{what}: {shown:#}\n{}", self.log());
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits for the end of this many releases; returns the last.
    pub async fn released(&mut self, count: usize) -> PastRelease {
        let is = |status: &CanaryStatus| status.history.len() >= count && status.release.is_none();
        self.becomes(&format!("{count} releases end"), is).await.history[0].clone()
    }
}
