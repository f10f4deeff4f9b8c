//! A cluster for one script, with everything around it that the script expects.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use kube_local::serve::ApiServerHandle;
use kube_local::{ApiServer, Cluster};
use serde_json::{Value, json};
use serin::clock::Clock;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::data_plane::DataPlane;
use super::support::prometheus::Prometheus;
use super::support::{Child, Folder, Part, definitions, program, spawn};
use super::{rules, stand_ins};

/// Ends a script that hangs.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(900);

/// Metrics of Canaries that name no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// Prometheus, as Flagger's own installation has it.
    Prometheus,
    /// Serin scrapes the pods.
    Scrape,
}

/// Every pod with the labels that Flagger's installation and Istio's addon give it, and the
/// proxies.
const SCRAPES: &str = r#"
- job_name: pods
  kubernetes_sd_configs: [{role: pod, kubeconfig_file: KUBECONFIG}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_phase], regex: Running, action: keep}
  - {source_labels: [__meta_kubernetes_pod_container_port_name], regex: http-metrics, action: keep}
  - {source_labels: [__meta_kubernetes_namespace], target_label: kubernetes_namespace}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: kubernetes_pod_name}
  - {source_labels: [__meta_kubernetes_pod_label_app], target_label: app}
- job_name: proxies
  static_configs: [{targets: ["PROXIES"]}]
"#;

pub struct Surroundings {
    /// First, so that it ends before its API server.
    _serin: Child,
    _prometheus: Prometheus,
    _tasks: Vec<AbortOnDropHandle<()>>,
    _cluster: Cluster,
    _serving: ApiServerHandle,
    folder: Folder,
    addresses: Vec<(&'static str, String)>,
}

impl Surroundings {
    pub async fn start(provider: &str, metrics: Metrics) -> Surroundings {
        serin::tls::install_crypto_provider();
        let server =
            ApiServer::new(kube_local::Options { clock: Some(Clock::system()), ..Default::default() });
        let serving = server.serve(([127, 0, 0, 1], 0).into()).await.expect("a served API");
        let folder = Folder::new("flagger");
        folder.write("kubeconfig", &serving.kubeconfig());
        let cluster = server.start_cluster(true);
        let client = server.client();
        let mesh = provider.split(':').next().unwrap_or_default();
        let kinds = match mesh {
            "istio" => definitions::istio().into_iter().chain([istio_gateway()]).collect(),
            "gatewayapi" | "linkerd" => definitions::gateway().to_vec(),
            _ => vec![definitions::keda()],
        };
        definitions::install(&client, definitions::ours().into_iter().chain(kinds)).await;

        let of = |group, version, kind| ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let mut tasks = Vec::new();
        let served = match mesh {
            "istio" => vec![of("networking.istio.io", "v1", "VirtualService")],
            "gatewayapi" | "linkerd" => vec![of("gateway.networking.k8s.io", "v1", "HTTPRoute")],
            _ => Vec::new(),
        };
        let plane = DataPlane::start(&client, cluster.node.clone(), &served);
        if let [route] = &served[..]
            && route.kind == "HTTPRoute"
        {
            tasks.push(spawn(stand_ins::accept_routes(client.clone(), route.clone())));
        }
        let page = {
            let plane = plane.clone();
            axum::routing::get(async move || plane.metrics())
        };
        let gateway = {
            let plane = plane.clone();
            Router::new().fallback(async move |request| plane.answer(request).await)
        };
        let mut serve = async |router| {
            let (address, task) = listen(router).await;
            tasks.push(task);
            address
        };
        let proxies = serve(Router::new().route("/metrics", page)).await;
        let gateway = serve(gateway).await;
        let tester = serve(stand_ins::load_tester(plane)).await;
        let scrapes = SCRAPES.replace("KUBECONFIG", &folder.join("kubeconfig").display().to_string());
        let prometheus = Prometheus::start(&scrapes.replace("PROXIES", &proxies)).await;
        if mesh == "kubernetes" {
            let objects = of("keda.sh", "v1alpha1", "ScaledObject");
            tasks.push(spawn(stand_ins::scale_objects(client, objects, prometheus.url())));
        }
        let serin = serin(&folder, provider, (metrics == Metrics::Prometheus).then(|| prometheus.url()));
        let addresses = vec![
            ("root", folder.path().display().to_string()),
            ("prometheus", prometheus.url()),
            ("loadtester", format!("http://{tester}")),
            ("gateway", format!("http://{gateway}")),
        ];
        Surroundings {
            _serin: serin,
            _prometheus: prometheus,
            _tasks: tasks,
            _cluster: cluster,
            _serving: serving,
            folder,
            addresses,
        }
    }

    /// Runs the script in a namespace `test` that Flagger's `init.sh` has made.
    pub async fn run(self, script: &str) {
        for others in ["workloads/init.sh", "workloads/deployment.yaml", "workloads/daemonset.yaml"] {
            self.write(others);
        }
        for others in ["workloads/secret.yaml", "gatewayapi/test-utils.sh"] {
            self.write(others);
        }
        self.write(script);
        self.write_programs();
        for namespace in ["istio-system", "istio-ingress", "flagger-system", "linkerd"] {
            self.execute(&["kubectl", "create", "namespace", namespace]).await;
        }
        self.execute(&["bash", "test/workloads/init.sh"]).await;
        self.execute(&["bash", &format!("test/{script}"), ""]).await;
    }

    fn write(&self, script: &str) {
        let path = self.folder.join("test").join(script);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let mut text = rules::changed(script);
        for (name, address) in &self.addresses {
            text = text.replace(&format!("{{{{{name}}}}}"), address);
        }
        std::fs::write(path, text).expect("a script");
    }

    /// Programs that the scripts call by name. Serin's log is that of the Deployment
    /// `flagger`, the gateway listens already, and the only Go program is built.
    fn write_programs(&self) {
        let kubectl = program(Part::Kubernetes, "kubectl").unwrap_or_else(|error| panic!("{error}"));
        let verify = program(Part::FlaggerAffinity, "verify_session_affinity")
            .unwrap_or_else(|error| panic!("{error}"));
        let log = self.folder.join("serin.log");
        let kubectl = format!(
            "#!/bin/bash\nfor word in \"$@\"; do case $word in\n\
             logs) exec tail -n 3 {} ;;\nport-forward) exec sleep 900 ;;\nesac; done\nexec {} \"$@\"\n",
            log.display(),
            kubectl.display()
        );
        self.write_program("kubectl", &kubectl);
        self.write_program("go", &format!("#!/bin/bash\n[ \"$1\" = run ] && exec {}\n", verify.display()));
    }

    fn write_program(&self, name: &str, text: &str) {
        let folder = self.folder.join("bin");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(name), text).expect("a program");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.join(name), executable).expect("an executable");
    }

    async fn execute(&self, command: &[&str]) {
        let path =
            format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").expect("a PATH"));
        let output = std::fs::File::create(self.folder.join("script.log")).expect("a log");
        let mut process = tokio::process::Command::new(command[0]);
        process.args(&command[1..]).current_dir(self.folder.path()).kill_on_drop(true);
        process.env("PATH", path).env("HOME", self.folder.path());
        process.env("KUBECONFIG", self.folder.join("kubeconfig")).stdin(Stdio::null());
        process.stdout(output.try_clone().expect("a log")).stderr(output);
        let ended = tokio::time::timeout(SCRIPT_TIMEOUT, process.status()).await;
        if !ended.as_ref().is_ok_and(|ended| ended.as_ref().is_ok_and(std::process::ExitStatus::success)) {
            let end = match ended {
                Ok(status) => format!("ended with {}", status.expect("a program that starts")),
                Err(_) => format!("did not end in {SCRIPT_TIMEOUT:?}"),
            };
            let (output, log) = (self.tail("script.log", 60), self.tail("serin.log", 40));
            panic!("{command:?} {end}\n{output}\nSerin's log:\n{log}");
        }
    }

    fn tail(&self, file: &str, count: usize) -> String {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

/// The controller, as users run it.
fn serin(folder: &Folder, provider: &str, metrics_server: Option<String>) -> Child {
    let kubeconfig = folder.join("kubeconfig").display().to_string();
    let mut arguments = vec!["run", "--kubeconfig", &kubeconfig, "--provider", provider];
    // As Flagger's kustomize/kubernetes has it.
    arguments.extend(["--include-label-prefix", "app.kubernetes.io"]);
    if let Some(url) = &metrics_server {
        arguments.extend(["--metrics-server", url]);
    }
    Child::start(folder.path(), Path::new(env!("CARGO_BIN_EXE_serin")), arguments)
}

async fn listen(router: Router) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let task = spawn(async move { axum::serve(listener, router).await.expect("a server") });
    (address, task)
}

/// Istio's Gateway, of which the scripts write one and which nothing here reads.
fn istio_gateway() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gateways.networking.istio.io"},
        "spec": {
            "group": "networking.istio.io", "scope": "Namespaced",
            "names": {"kind": "Gateway", "listKind": "GatewayList", "plural": "gateways", "singular": "gateway"},
            "versions": [{"name": "v1alpha3", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": open}}],
        },
    })
}
