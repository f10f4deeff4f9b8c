//! The controller as the chart starts it, on this machine.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::chart::{Kubectl, Manifests, token};
use crate::support::{self, Child, Cluster, Folder};

/// The API server refreshes its REST mapping every half minute.
const OWNER_KINDS_TIMEOUT: Duration = Duration::from_secs(300);

/// Replicas of one Deployment, with a token of its ServiceAccount.
pub struct ReplicaGroup {
    cluster: &'static Cluster,
    user: String,
    /// How long the audit log was before they began.
    earlier_audit_events: usize,
    replicas: Vec<Replica>,
    folder: Folder,
}

impl ReplicaGroup {
    /// `namespace` is one that they may write to.
    pub async fn start(
        cluster: &'static Cluster,
        home: &str,
        manifests: &Manifests,
        namespace: &str,
        count: usize,
    ) -> Self {
        let mut group = Self::start_with(cluster, home, manifests, namespace, &[]).await;
        let others = (1..count).map(|number| Replica::start(manifests, home, number, &group.folder));
        group.replicas.extend(others);
        group
    }

    /// One, with files of the Secrets that are mounted below `/etc/serin`: a slash is a
    /// hyphen in their names.
    pub async fn start_with(
        cluster: &'static Cluster,
        home: &str,
        manifests: &Manifests,
        namespace: &str,
        files: &[(&str, &str)],
    ) -> Self {
        let name = manifests.one("ServiceAccount")["metadata"]["name"].as_str().expect("a name");
        let token = token(cluster, home, name).await;
        await_owners(cluster, namespace, &token).await;
        let (earlier, folder) = (cluster.audit().len(), Folder::new("serin"));
        folder.write("kubeconfig", &cluster.kubeconfig_of(&token).to_string());
        files.iter().for_each(|(file, text)| folder.write(file, text));
        let replicas = vec![Replica::start(manifests, home, 0, &folder)];
        Self {
            cluster,
            user: format!("system:serviceaccount:{home}:{name}"),
            earlier_audit_events: earlier,
            replicas,
            folder,
        }
    }

    /// Their requests to the API server, none of which was refused.
    pub fn audited_requests(&self) -> Vec<Value> {
        let mut events = self.cluster.audit().split_off(self.earlier_audit_events);
        events.retain(|event| event["user"]["username"] == *self.user);
        let denied: Vec<&Value> =
            events.iter().filter(|event| event["responseStatus"]["code"] == 403).collect();
        assert!(denied.is_empty(), "refused for want of a right: {denied:#?}");
        events
    }

    pub async fn assert_healthy(&mut self) {
        for replica in &mut self.replicas {
            replica.assert_healthy().await;
        }
    }

    /// The others take over its shards.
    pub fn kill_one(&mut self) {
        self.replicas.pop();
    }

    /// The address of the first one's command API, if it has one.
    pub fn command_api_url(&self) -> Option<String> {
        let first = self.replicas.first()?;
        first.serves_command_api.then(|| format!("http://{}", first.command_api_address))
    }

    /// Of the first one.
    pub fn smi_metrics_address(&self) -> &str {
        &self.replicas[0].smi_metrics_address
    }

    /// The end of their logs.
    pub fn log_tails(&self) -> String {
        self.replicas.iter().map(|replica| replica.child.tail()).collect()
    }
}

/// `serin run`, as the kubelet would start it.
struct Replica {
    child: Child,
    address: String,
    probe_address: String,
    command_api_address: String,
    smi_metrics_address: String,
    serves_command_api: bool,
    /// The paths of the rendered probes.
    probes: Vec<String>,
    _folder: Folder,
}

impl Replica {
    fn start(manifests: &Manifests, home: &str, number: usize, kubeconfig: &Folder) -> Self {
        let container = &manifests.one("Deployment")["spec"]["template"]["spec"]["containers"][0];
        let listed = |what: &str| container[what].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let mut line = vec!["-i".to_owned()];
        line.push(format!("KUBECONFIG={}", kubeconfig.join("kubeconfig").display()));
        for variable in listed("env") {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                None => text(&variable["value"]),
                Some("metadata.name") => format!("serin-{number}"),
                Some("metadata.namespace") => home.to_owned(),
                Some(other) => panic!("who knows {other}?"),
            };
            line.push(format!("{}={value}", text(&variable["name"])));
        }
        line.push(env!("CARGO_BIN_EXE_serin").to_owned());
        // Only here do replicas share a network.
        let [address, probe_address, ear, xds, smi] =
            [(); 5].map(|()| format!("127.0.0.1:{}", support::free_port()));
        let given: Vec<String> = listed("args").iter().map(text).collect();
        let hears = given.iter().any(|argument| argument.starts_with("--api-listen"));
        let here = |argument: &String| {
            let argument = argument.replace("0.0.0.0:8080", &address).replace("127.0.0.1:8443", &ear);
            let argument = argument.replace("0.0.0.0:8081", &probe_address).replace("0.0.0.0:18000", &xds);
            let mounted = format!("{}/smi-metrics-", kubeconfig.path().display());
            argument.replace("0.0.0.0:6443", &smi).replace("/etc/serin/smi-metrics/", &mounted)
        };
        line.extend(given.iter().map(here));
        let probes =
            ["livenessProbe", "readinessProbe"].map(|probe| text(&container[probe]["httpGet"]["path"]));
        let folder = Folder::new("replica");
        let child = Child::start(folder.path(), Path::new("/usr/bin/env"), line);
        Self {
            child,
            address,
            probe_address,
            command_api_address: ear,
            smi_metrics_address: smi,
            serves_command_api: hears,
            probes: probes.into(),
            _folder: folder,
        }
    }

    async fn assert_healthy(&mut self) {
        assert!(!self.child.has_ended(), "it runs to the end; {}", self.child.tail());
        let probes = self.probes.iter().map(|path| (&self.probe_address, path.as_str()));
        for (address, path) in probes.chain([(&self.address, "/metrics")]) {
            let answer = reqwest::get(format!("http://{address}{path}")).await.expect("an answer");
            assert!(answer.status().is_success(), "{path}: {answer:?}");
        }
    }
}

/// The API server takes a while to know the kinds that an owner reference
/// may name.
async fn await_owners(cluster: &Cluster, namespace: &str, token: &str) {
    let kubectl = Kubectl::of(cluster, token);
    let owner = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "name": "web", "uid": "1",
        "controller": true, "blockOwnerDeletion": true,
    });
    let owned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "owned", "namespace": namespace, "ownerReferences": [owner],
    }});
    let began = Instant::now();
    loop {
        let output = kubectl.run(&["create", "--dry-run=server", "-f", "-"], &owned.to_string()).await;
        if !output.stderr.contains("cannot find RESTMapping") {
            output.ok();
            return;
        }
        assert!(began.elapsed() < OWNER_KINDS_TIMEOUT, "{output:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
