//! The Helm chart in the hands of the real Helm and the real kubectl, and the
//! controller's identity as the chart makes it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::{Cluster, Folder, Part, program};

pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/serin");

/// The output of a program.
#[derive(Debug)]
pub struct CommandOutput {
    command: String,
    success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.success, "{} failed: {}{}", self.command, self.stdout, self.stderr);
        self.stdout
    }

    /// Standard error of a failure.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!(!self.success, "{} went through: {}", self.command, self.stdout);
        self.stderr
    }
}

pub async fn run(mut command: Command, input: &str) -> CommandOutput {
    let what = format!("{:?}", command.as_std());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program without input may have ended already.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    CommandOutput { command: what, success: output.status.success(), stdout, stderr }
}

/// Helm with folders of its own.
pub struct Helm {
    program: PathBuf,
    pub folder: Folder,
}

impl Helm {
    pub fn new() -> Self {
        let program = program(Part::Helm, "helm").unwrap_or_else(|error| panic!("{error}"));
        Self { program, folder: Folder::new("helm") }
    }

    pub async fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        for home in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(home, self.folder.path());
        }
        run(command, "").await
    }

    /// The chart rendered with these `--set`s, under the name of its namespace.
    pub async fn template(&self, namespace: &str, set: &[&str]) -> Manifests {
        self.template_of(CHART, namespace, set).await
    }

    pub async fn template_of(&self, chart: &str, namespace: &str, set: &[&str]) -> Manifests {
        let mut arguments = vec!["template", namespace, chart, "--namespace", namespace];
        arguments.extend(set.iter().flat_map(|set| ["--set", set]));
        let text = self.run(&arguments).await.ok();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        Manifests { text, objects }
    }
}

/// Rendered manifests.
pub struct Manifests {
    pub text: String,
    pub objects: Vec<Value>,
}

impl Manifests {
    pub fn all<'m>(&'m self, kind: &'m str) -> impl Iterator<Item = &'m Value> {
        self.objects.iter().filter(move |object| object["kind"] == *kind)
    }

    #[track_caller]
    pub fn one<'m>(&'m self, kind: &'m str) -> &'m Value {
        let found: Vec<_> = self.all(kind).collect();
        assert_eq!(found.len(), 1, "as many {kind}s as one");
        found[0]
    }
}

pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    folder: Folder,
}

impl Kubectl {
    /// As an administrator.
    pub fn admin(cluster: &Cluster) -> Self {
        Self::with(&cluster.kubeconfig(), Folder::new("kubectl"))
    }

    /// As the user with this token.
    pub fn of(cluster: &Cluster, token: &str) -> Self {
        let folder = Folder::new("kubectl");
        folder.write("kubeconfig", &cluster.kubeconfig_of(token).to_string());
        Self::with(&folder.join("kubeconfig"), folder)
    }

    fn with(kubeconfig: &Path, folder: Folder) -> Self {
        let program = program(Part::Kubernetes, "kubectl").unwrap_or_else(|error| panic!("{error}"));
        Self { program, kubeconfig: kubeconfig.to_owned(), folder }
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub async fn run(&self, arguments: &[&str], input: &str) -> CommandOutput {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).env("HOME", self.folder.path());
        run(command, input).await
    }

    pub async fn apply(&self, manifests: &str) {
        self.run(&["apply", "--server-side", "-f", "-"], manifests).await.ok();
    }
}

/// A token as the kubelet gets it for a pod.
pub async fn token(cluster: &Cluster, namespace: &str, account: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client().await, namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(7200), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await;
    answer.expect("a token").status.expect("an answer").token
}

/// A client with exactly the rights that the chart gives to a controller in this
/// namespace.
pub async fn controller(cluster: &Cluster, namespace: &str) -> Client {
    const PLACEHOLDER: &str = "home-of-serin";
    static RENDERED: OnceCell<Manifests> = OnceCell::const_new();
    let set = ["smi=true", "istio=true", "gatewayApi=true", "appMesh=true", "replacePods=true"];
    let rendered = RENDERED.get_or_init(async || Helm::new().template(PLACEHOLDER, &set).await).await;
    let kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    let objects = kinds.iter().flat_map(|kind| rendered.all(kind));
    let text: String = objects.map(|object| format!("---\n{object}\n")).collect();
    Kubectl::admin(cluster).apply(&text.replace(PLACEHOLDER, namespace)).await;
    let name = rendered.one("ServiceAccount")["metadata"]["name"].as_str().expect("a name");
    let token = token(cluster, namespace, &name.replace(PLACEHOLDER, namespace)).await;
    super::client(&cluster.kubeconfig_of(&token).to_string()).await
}
