//! The real servers: etcd, kube-apiserver, kube-controller-manager.
//!
//! No scheduler and no kubelet: pods name their node, and a test that
//! runs them brings a node.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use serde_json::json;

use super::{Child, Cluster, Folder, NODE, Part, User, free_port, program};

const ADMIN_TOKEN: &str = "admin-token";

/// Two cores shared with a build are slow; a healthy start takes two seconds.
const START_TIMEOUT: Duration = Duration::from_secs(120);

const CONTROLLERS: [&str; 9] = [
    "deployment-controller",
    "replicaset-controller",
    "daemonset-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "clusterrole-aggregation-controller",
    "validatingadmissionpolicy-status-controller",
];

/// Logs the requests of ServiceAccounts.
const AUDIT: [&str; 2] = ["--audit-policy-file=audit.yaml", "--audit-log-path=audit.log"];
const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ['system:serviceaccounts']}
- {level: None}
";

/// Forwards requests to aggregated APIs under a certificate of its own.
const AGGREGATION: [&str; 8] = [
    "--proxy-client-cert-file=front-proxy.crt",
    "--proxy-client-key-file=front-proxy.key",
    "--requestheader-client-ca-file=front-proxy-ca.crt",
    "--requestheader-allowed-names=front-proxy-client",
    "--requestheader-username-headers=X-Remote-User",
    "--requestheader-uid-headers=X-Remote-Uid",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
];

/// Additions to the usual cluster.
#[derive(Default)]
pub struct Extras {
    /// Files in the folder that the servers work in.
    pub files: Vec<(&'static str, String)>,
    /// Administrators besides the usual one, each with its own name as token.
    pub users: Vec<&'static str>,
    pub apiserver_flags: Vec<&'static str>,
    pub controller_flags: Vec<&'static str>,
    /// The one of the usual controllers that it does without.
    pub without: Option<&'static str>,
}

/// As strict as an API server comes: it also checks the right to block an
/// owner's deletion. Requests of ServiceAccounts are in [`Cluster::audit`]. It forwards
/// requests to aggregated APIs, of whose front proxy [`Cluster::front_proxy`] has the key.
pub async fn start_audited() -> Result<Cluster, String> {
    let strict = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";
    let files = vec![("audit.yaml", AUDIT_POLICY.to_owned())];
    let apiserver_flags = [AUDIT[0], AUDIT[1], strict].into_iter().chain(AGGREGATION).collect();
    start(Extras { files, apiserver_flags, ..Extras::default() }).await
}

pub async fn start(extras: Extras) -> Result<Cluster, String> {
    let etcd = program(Part::Etcd, "etcd")?;
    let apiserver = program(Part::Kubernetes, "kube-apiserver")?;
    let controllers = program(Part::Kubernetes, "kube-controller-manager")?;

    let folder = Folder::new("cluster");
    let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());
    write_credentials(&folder, port, &extras.users);
    extras.files.iter().for_each(|(name, text)| folder.write(name, text));

    let (etcd_url, peer_url) =
        (format!("http://127.0.0.1:{etcd_port}"), format!("http://127.0.0.1:{peer_port}"));
    let etcd = Child::start(
        folder.path(),
        &etcd,
        [
            "--unsafe-no-fsync".to_owned(),
            "--data-dir=etcd".to_owned(),
            format!("--listen-client-urls={etcd_url}"),
            format!("--advertise-client-urls={etcd_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
        ],
    );
    let apiserver = Child::start(
        folder.path(),
        &apiserver,
        [
            &*format!("--etcd-servers={etcd_url}"),
            &*format!("--secure-port={port}"),
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
            "--token-auth-file=tokens.csv",
            "--anonymous-auth=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=accounts.pub",
            "--service-account-signing-key-file=accounts.key",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
        ]
        .into_iter()
        .chain(extras.apiserver_flags),
    );

    let mut cluster = Cluster { children: vec![etcd, apiserver], folder };
    await_ready(&mut cluster).await?;

    let usual: Vec<&str> = CONTROLLERS.into_iter().filter(|name| extras.without != Some(*name)).collect();
    // It gives up after ten seconds without an API server, so it comes second.
    let controllers = Child::start(
        cluster.folder.path(),
        &controllers,
        [
            "--kubeconfig=kubeconfig",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            &format!("--secure-port={}", free_port()),
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
            "--service-account-private-key-file=accounts.key",
            &format!("--controllers={}", usual.join(",")),
        ]
        .into_iter()
        .chain(extras.controller_flags),
    );
    cluster.children.push(controllers);
    register_node(cluster.client_of(User::Admin).await).await?;
    Ok(cluster)
}

async fn register_node(client: Client) -> Result<(), String> {
    let labels = [("kubernetes.io/hostname".to_owned(), NODE.to_owned())].into();
    let metadata = ObjectMeta { name: Some(NODE.to_owned()), labels: Some(labels), ..Default::default() };
    let node = Node { metadata, ..Default::default() };
    let nodes = Api::<Node>::all(client);
    let failed = |error| format!("register {NODE}: {error}");
    nodes.create(&PostParams::default(), &node).await.map_err(failed)?;
    // Admission taints every new node; a DaemonSet would keep off it.
    let untainted = json!({"spec": {"taints": null}});
    nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(untainted)).await.map(drop).map_err(failed)
}

fn write_credentials(folder: &Folder, port: u16, users: &[&str]) {
    let key = || KeyPair::generate().expect("a key pair");
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "serin test authority");
    let authority_key = key();
    let authority_cert = authority.self_signed(&authority_key).expect("a self-signed authority");

    let server_key = key();
    let server_cert = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])
        .and_then(|params| params.signed_by(&server_key, &Issuer::new(authority, authority_key)))
        .expect("a server certificate");

    folder.write("ca.crt", &authority_cert.pem());
    folder.write("server.crt", &server_cert.pem());
    folder.write("server.key", &server_key.serialize_pem());
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "serin test front proxy authority");
    let authority_key = key();
    folder.write("front-proxy-ca.crt", &authority.self_signed(&authority_key).expect("an authority").pem());
    let issuer = Issuer::new(authority, authority_key);
    // The second is of the same authority, and not the front proxy.
    for name in ["front-proxy", "other"] {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("{name}-client"));
        let own = key();
        folder.write(&format!("{name}.crt"), &params.signed_by(&own, &issuer).expect("a certificate").pem());
        folder.write(&format!("{name}.key"), &own.serialize_pem());
    }
    let accounts = key();
    folder.write("accounts.key", &accounts.serialize_pem());
    folder.write("accounts.pub", &accounts.public_key_pem());
    let administrator = |(token, name): (&str, &str)| format!("{token},{name},{name},system:masters\n");
    let known = [(ADMIN_TOKEN, "admin")].into_iter().chain(users.iter().map(|user| (*user, *user)));
    folder.write("tokens.csv", &known.map(administrator).collect::<String>());
    let authority = folder.join("ca.crt");
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority": authority,
        }}],
        "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "admin"}}],
        "current-context": "testbed",
    });
    folder.write("kubeconfig", &kubeconfig.to_string());
}

/// Waits until every post-start hook has run: before that, requests succeed
/// but the default namespace or the RBAC rules may not be there.
async fn await_ready(cluster: &mut Cluster) -> Result<(), String> {
    let client = cluster.client_of(User::Admin).await;
    let began = Instant::now();
    loop {
        let request = http::Request::get("/readyz").body(Vec::new()).expect("a plain request");
        let answer = match client.request_text(request).await {
            Ok(text) if text == "ok" => break,
            Ok(text) => text,
            Err(error) => error.to_string(),
        };
        let ended = cluster.children.iter_mut().find_map(|child| child.has_ended().then(|| child.tail()));
        if let Some(tail) = ended {
            return Err(format!("a server of the test cluster ended while it started; {tail}"));
        }
        if began.elapsed() > START_TIMEOUT {
            let tails: Vec<String> = cluster.children.iter().map(Child::tail).collect();
            return Err(format!(
                "the test cluster is not ready after {START_TIMEOUT:?}: {answer}\n{}",
                tails.join("\n")
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let namespaces = Api::<Namespace>::all(client);
    while namespaces.get_opt("default").await.ok().flatten().is_none() {
        if began.elapsed() > START_TIMEOUT {
            return Err(format!("the test cluster has no default namespace after {START_TIMEOUT:?}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
