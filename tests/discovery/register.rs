//! `serin mesh`, the real binary, against the in-process API server.

use kube::api::ListParams;
use kube_local::ApiServer;
use serde_json::Value;
use serin::discovery::model::Kind;
use tokio::process::Command;

use super::rest::{Home, node_spec};
use super::support::Folder;
use super::support::app_mesh::{AppMeshServer, Path};
use super::support::chart::{CommandOutput, run};

struct Terminal {
    folder: Folder,
}

impl Terminal {
    async fn of(home: &Home) -> (Self, impl Sized) {
        let serving = home.api.serve(([127, 0, 0, 1], 0).into()).await.expect("a served API");
        let folder = Folder::new("mesh");
        folder.write("kubeconfig", &serving.kubeconfig());
        (Self { folder }, serving)
    }

    async fn mesh(&self, arguments: &[&str], input: &str) -> CommandOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_serin"));
        command.arg("mesh").args(arguments).args(["-n", "serin"]);
        command.env("KUBECONFIG", self.folder.join("kubeconfig")).env("HOME", self.folder.path());
        run(command, input).await
    }
}

const KEYS: &str = "[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = x\n\n[default]\naws_access_key_id = AKIATEST\naws_secret_access_key = hidden\n";

#[tokio::test]
async fn an_account_is_checked_registered_listed_and_removed() {
    let (home, server) = (Home::start().await, AppMeshServer::start());
    server.as_user(|user| user.create(&Path::Node("web".to_owned()), node_spec("web"), Default::default()));
    let (terminal, _serving) = Terminal::of(&home).await;
    let register = [
        "register",
        "app-mesh",
        "prod",
        "--region",
        "eu-west-1",
        "--endpoint",
        &server.url,
        "--credentials",
        "-",
    ];

    server.accept_only("AKIANEW");
    let refused = terminal.mesh(&register, KEYS).await.refused();
    assert!(refused.contains("nothing was written, because the check failed: list meshes in eu-west-1: UnrecognizedClientException"), "{refused}");
    assert!(!refused.contains("hidden"), "{refused}");
    assert_eq!(home.secrets().list(&ListParams::default()).await.expect("Secrets").items.len(), 0);
    let absent = terminal.mesh(&[&register[..], &["--profile", "none"]].concat(), KEYS).await.refused();
    assert!(
        absent.contains("the profile none of - has no aws_access_key_id; --profile names another one"),
        "{absent}"
    );

    server.accept_only("AKIATEST");
    let done = terminal.mesh(&register, KEYS).await.ok();
    assert_eq!(done, "prod is registered in serin: App Mesh shows these meshes: 1 in eu-west-1.\n");
    home.until_keys(Kind::AppMeshVirtualNode, &["aws:123456789012:eu-west-1 shop-mesh/web"]).await;
    home.until_ready("prod", "True", "complete").await;
    let listed = terminal.mesh(&["list"], "").await.ok();
    let row: Vec<&str> = listed.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[..5], ["prod", "app-mesh", "eu-west-1", "yes", "2"], "{listed}");

    let missing = terminal.mesh(&["remove", "dev"], "").await.refused();
    assert!(missing.contains("no registration dev in namespace serin"), "{missing}");
    assert_eq!(terminal.mesh(&["remove", "prod"], "").await.ok(), "prod is removed.\n");
    home.until_keys(Kind::AppMeshVirtualNode, &[]).await;
    assert_eq!(home.secrets().list(&ListParams::default()).await.expect("Secrets").items.len(), 0);
}

/// Credentials of other contexts stay where they are.
#[tokio::test]
async fn a_cluster_is_registered_with_one_context_only() {
    let (home, other) = (Home::start().await, ApiServer::new(Default::default()));
    let (terminal, _serving) = Terminal::of(&home).await;
    let serving = other.serve(([127, 0, 0, 1], 0).into()).await.expect("a served API");
    let mut kubeconfig: Value = serde_saphyr::from_str(&serving.kubeconfig()).expect("a kubeconfig");
    let user = serde_json::json!({"name": "boss", "user": {"token": "of-another-cluster"}});
    kubeconfig["users"].as_array_mut().expect("users").push(user);
    let register = ["register", "cluster", "west", "--from-kubeconfig", "-"];
    let done = terminal.mesh(&register, &kubeconfig.to_string()).await.ok();
    assert!(done.starts_with("west is registered in serin: the cluster serves "), "{done}");
    home.until_ready("west", "True", "complete").await;
    let secret = home.secrets().get("meshapi-west").await.expect("a Secret");
    let text = String::from_utf8(secret.data.expect("data")["kubeconfig"].0.clone()).expect("text");
    assert!(!text.contains("of-another-cluster"), "another user's token was copied");
    assert_eq!(terminal.mesh(&["remove", "west"], "").await.ok(), "west is removed.\n");
}
