//! The chart on real API servers.

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::chart::{CHART, Helm, Kubectl, Manifests};
use crate::support::{self, Cluster, Folder};

pub const CONTROLLER_NAMESPACE: &str = "serin";

/// A cluster on which the chart is installed as it comes, with the routers of the features.
pub async fn installed() -> (&'static Cluster, &'static Manifests) {
    static INSTALLED: OnceCell<Manifests> = OnceCell::const_new();
    let cluster = support::audited().await;
    let manifests =
        INSTALLED.get_or_init(async || install(cluster, CONTROLLER_NAMESPACE, &["smi=true"]).await).await;
    (cluster, manifests)
}

/// Renders the chart for a new namespace and applies it there.
pub async fn install(cluster: &Cluster, home: &str, set: &[&str]) -> Manifests {
    let manifests = Helm::new().template(home, set).await;
    let kubectl = Kubectl::admin(cluster);
    kubectl.run(&["create", "namespace", home], "").await.ok();
    kubectl.apply(&manifests.text).await;
    manifests
}

#[tokio::test]
async fn the_pods_pass_the_restricted_pod_security_standard() {
    let (cluster, manifests) = installed().await;
    let kubectl = Kubectl::admin(cluster);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
    }});
    kubectl.apply(&namespace.to_string()).await;
    let template = &manifests.one("Deployment")["spec"]["template"];
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": {
        "name": "serin", "namespace": "restricted", "labels": template["metadata"]["labels"],
    }});
    kubectl.apply(&pod.to_string()).await;
    let security = &mut pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    // It does look.
    security["allowPrivilegeEscalation"] = json!(true);
    pod["metadata"]["name"] = json!("climber");
    let refused = kubectl.run(&["create", "-f", "-"], &pod.to_string()).await.refused();
    assert!(refused.contains("violates PodSecurity"), "{refused}");
}

/// Helm leaves the contents of a `crds` folder as they were at first.
#[tokio::test]
async fn an_upgrade_installs_the_crds_and_an_uninstall_keeps_them() {
    let cluster = support::real().await;
    let (helm, kubectl) = (Helm::new(), Kubectl::admin(cluster));
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let release = async |arguments: &[&str]| {
        let common = ["--kubeconfig", &kubeconfig, "--namespace", "serin-system"];
        helm.run(&[arguments, &common].concat()).await.ok()
    };
    let definition = async || -> Value {
        let get = ["get", "crd", "canaries.serin.dev", "-o", "json"];
        serde_json::from_str(&kubectl.run(&get, "").await.ok()).expect("JSON")
    };
    let columns = |definition: &Value| {
        definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array().map_or(0, Vec::len)
    };

    let earlier = earlier_chart();
    release(&["install", "serin", &earlier.join("serin").display().to_string(), "--create-namespace"]).await;
    let before = columns(&definition().await);
    kubectl.apply(&manifest_in_notes(&release(&["get", "notes", "serin"]).await)).await;
    release(&["upgrade", "serin", CHART, "--set", "provider=linkerd"]).await;
    assert_eq!(columns(&definition().await), before + 1);
    kubectl.apply(&manifest_in_notes(&release(&["get", "notes", "serin"]).await)).await;

    release(&["uninstall", "serin", "--wait"]).await;
    kubectl.run(&["get", "--namespace=default", "canary", "web"], "").await.ok();

    // Helm takes objects without its own labels only with `--take-ownership`.
    kubectl.run(&["annotate", "crd", "canaries.serin.dev", "meta.helm.sh/release-name-"], "").await.ok();
    release(&["install", "serin", CHART, "--take-ownership"]).await;
}

/// The Canary that the notes show.
fn manifest_in_notes(notes: &str) -> String {
    let begin = notes.find("  apiVersion:").expect("a manifest in the notes");
    notes[begin..].split("\n\n").next().expect("its end").to_owned()
}

/// The chart as it might have been, with a column less.
fn earlier_chart() -> Folder {
    let folder = Folder::new("chart");
    let copied = std::process::Command::new("cp").args(["-rL", CHART]).arg(folder.path()).status();
    assert!(copied.expect("cp").success());
    let file = "serin/files/crds/canaries.yaml";
    let text = std::fs::read_to_string(folder.join(file)).expect("the definition");
    let column = "    - jsonPath: .status.state\n      name: Status\n      type: string\n";
    assert!(text.contains(column), "the column that an earlier version lacks");
    folder.write(file, &text.replace(column, ""));
    folder
}
