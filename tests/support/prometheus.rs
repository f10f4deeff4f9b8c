//! The real Prometheus, on a free loopback port.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Child, Folder, Part, free_port, program};

/// Two cores shared with a build are slow; a healthy start takes half a second.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Every pod of a cluster at every port it declares, labelled as Flagger's
/// queries want it. Pods that show an address that nobody can reach listen at
/// its twin on loopback.
const PODS: &str = r#"
- job_name: pods
  kubernetes_sd_configs: [{role: pod, namespaces: {names: [NAMESPACES]}, kubeconfig_file: KUBECONFIG}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_phase], regex: Running, action: keep}
  - {source_labels: [__meta_kubernetes_namespace], target_label: kubernetes_namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: kubernetes_pod_name}
  - {source_labels: [__address__], regex: '10[.](.+)', target_label: __address__, replacement: '127.$1'}
"#;

/// Ends when dropped.
pub struct Prometheus {
    /// None while stopped. Before the folder: it works in it.
    child: Option<Child>,
    folder: Folder,
    port: u16,
    scheme: &'static str,
}

impl Prometheus {
    /// Reads every pod of the cluster that the kubeconfig names, twice a second.
    pub async fn of_pods(kubeconfig: &Path) -> Prometheus {
        Self::of_pods_in("", kubeconfig).await
    }

    /// Reads the pods of one namespace.
    pub async fn of_pods_in(namespace: &str, kubeconfig: &Path) -> Prometheus {
        let pods = PODS.replace("NAMESPACES", namespace);
        Self::start(&pods.replace("KUBECONFIG", &kubeconfig.display().to_string())).await
    }

    /// Reads what these `scrape_configs` say, twice a second.
    pub async fn start(scrape_configs: &str) -> Prometheus {
        let mut prometheus = Self::prepare(scrape_configs);
        prometheus.restart().await;
        prometheus
    }

    /// Serves TLS, for which `server.crt`, `server.key` and `users`, a line of
    /// `basic_auth_users`, are given.
    pub async fn with_tls_and_password(certificate: &str, key: &str, users: &str) -> Prometheus {
        let mut prometheus = Self { scheme: "https", ..Self::prepare("") };
        prometheus.folder.write("server.crt", certificate);
        prometheus.folder.write("server.key", key);
        let web = format!(
            "tls_server_config: {{cert_file: server.crt, key_file: server.key}}\nbasic_auth_users: {{{users}}}\n"
        );
        prometheus.folder.write("web.yml", &web);
        prometheus.restart().await;
        prometheus
    }

    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Kills it. What it has scraped stays.
    pub fn stop(&mut self) {
        self.child = None;
    }

    /// Starts it at the same address, with what it has scraped before.
    pub async fn restart(&mut self) {
        let program = program(Part::Prometheus, "prometheus").unwrap_or_else(|error| panic!("{error}"));
        let arguments = [
            "--config.file=prometheus.yml".to_owned(),
            "--storage.tsdb.path=data".to_owned(),
            format!("--web.listen-address=127.0.0.1:{}", self.port),
            "--web.config.file=web.yml".to_owned(),
            "--web.enable-otlp-receiver".to_owned(),
        ];
        self.child = Some(Child::start(self.folder.path(), &program, arguments));
        self.await_ready().await;
    }

    fn prepare(scrape_configs: &str) -> Prometheus {
        let folder = Folder::new("prometheus");
        let global = "global: {scrape_interval: 500ms, scrape_timeout: 500ms}";
        folder.write("prometheus.yml", &format!("{global}\nscrape_configs:\n{scrape_configs}\n"));
        folder.write("web.yml", "");
        Prometheus { child: None, folder, port: free_port(), scheme: "http" }
    }

    async fn await_ready(&mut self) {
        serin::tls::install_crypto_provider();
        let client = reqwest::Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build();
        let client = client.expect("an HTTP client");
        let began = Instant::now();
        loop {
            let answer = client.get(format!("{}/-/ready", self.url())).send().await;
            // With `basic_auth_users` even this needs credentials.
            if answer.is_ok_and(|answer| answer.status().is_success() || answer.status().as_u16() == 401) {
                return;
            }
            let child = self.child.as_mut().expect("a started process");
            assert!(!child.has_ended(), "Prometheus ended while it started; {}", child.tail());
            assert!(
                began.elapsed() < START_TIMEOUT,
                "Prometheus is not ready after {START_TIMEOUT:?}; {}",
                child.tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
