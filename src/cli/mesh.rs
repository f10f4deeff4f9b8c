//! `serin mesh register`, `list` and `remove`: MeshApis and their Secrets.
//!
//! Credentials come from a file, standard input or the environment, never from the
//! command line, which other users of a machine can read. They are tried before anything
//! is written.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::config::Kubeconfig;
use kube::core::ObjectMeta;
use kube::{Client, ResourceExt as _};

use crate::api::condition::{ConditionStatus, READY};
use crate::api::mesh_api::{
    AppMeshApi, CREDENTIALS_LABEL, ConsulApi, KUBERNETES_CREDENTIALS, KubernetesApi, REST_API_CREDENTIALS,
};
use crate::api::reference::SecretRef;
use crate::api::{self, MeshApi, MeshApiSpec};
use crate::api_error::api_message;
use crate::discovery::rest;

const FIELD_MANAGER: &str = "serin-mesh";
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", FIELD_MANAGER);

/// Of trying the credentials.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// Of a file with credentials.
const MAX_CREDENTIALS_BYTES: u64 = 1 << 20;

/// Register meshes and clusters that the inventory reads through an API
///
/// A registration is a MeshApi and, with credentials, a Secret labelled
/// serin.dev/credentials, both in the namespace of the controller, which must run
/// with --mesh-apis. It takes effect at once; registering a name again replaces
/// its credentials.
///
///     serin mesh register app-mesh prod --region eu-west-1 --credentials ~/.aws/credentials -n serin
///     serin mesh register consul dc1 --address https://consul:8501 --token-file - -n serin
///     serin mesh register cluster west --from-kubeconfig west.yaml -n serin
///     serin mesh list -n serin
///     serin mesh remove west -n serin
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,

    /// Namespace of the controller [default: that of the kubeconfig's context]
    #[arg(short, long, global = true)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: super::connect::ClusterArgs,
}

#[derive(Subcommand)]
enum Verb {
    /// Try credentials, then write Secret and MeshApi
    #[command(subcommand)]
    Register(Kind),
    /// Show the registrations and how reading them goes
    List,
    /// Delete a MeshApi, and its Secret if `register` wrote it
    Remove {
        /// Name of the registration
        name: String,
    },
}

#[derive(Subcommand)]
enum Kind {
    AppMesh(AppMeshArgs),
    Consul(ConsulArgs),
    Cluster(ClusterArgs),
}

/// AWS App Mesh and Cloud Map in regions of an account
///
/// Without --credentials, --from-env and a role the controller uses its own AWS
/// credentials, which cannot be tried from here.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
struct AppMeshArgs {
    /// Name of the registration
    name: String,

    /// Regions to list, separated by commas
    #[arg(long, value_name = "REGIONS", value_delimiter = ',', required = true)]
    region: Vec<String>,

    /// List only the meshes of this account [default: all that the credentials see]
    #[arg(long, value_name = "ACCOUNT")]
    owner: Option<String>,

    /// Time between two listings, at least 30s [default: 1m]
    #[arg(long, value_name = "DURATION")]
    poll_interval: Option<api::Duration>,

    /// URL of App Mesh and Cloud Map, if not the public ones; needs keys
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,

    /// A credentials file of the AWS CLI; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "from_env")]
    credentials: Option<PathBuf>,

    /// Profile of that file
    #[arg(long, default_value = "default", requires = "credentials")]
    profile: String,

    /// Take AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
    #[arg(long)]
    from_env: bool,

    /// Role to assume, with the keys or else with the controller's own credentials
    #[arg(long, value_name = "ARN")]
    role_arn: Option<String>,

    /// External ID that the trust policy of the role requires
    #[arg(long, value_name = "ID", requires = "role_arn")]
    external_id: Option<String>,
}

/// The catalogue of a Consul datacenter
#[derive(clap::Args)]
struct ConsulArgs {
    /// Name of the registration
    name: String,

    /// URL of a server or agent; with a token it must be https
    #[arg(long, value_name = "URL")]
    address: String,

    /// Datacenter [default: that of the server at the address]
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,

    /// File with an ACL token that may read services and nodes; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "from_env")]
    token_file: Option<PathBuf>,

    /// Take the token from CONSUL_HTTP_TOKEN
    #[arg(long)]
    from_env: bool,
}

/// Another Kubernetes cluster
///
/// Only the chosen context goes into the Secret. Its user must have a token or
/// certificates in the file: a command or a path would be of the controller's container.
#[derive(clap::Args)]
struct ClusterArgs {
    /// Name of the registration, and of the cluster in the inventory
    name: String,

    /// Kubeconfig of the other cluster; - reads standard input
    #[arg(long, value_name = "FILE")]
    from_kubeconfig: PathBuf,

    /// Context of that file [default: its current context]
    #[arg(long, value_name = "NAME")]
    from_context: Option<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    crate::tls::install_crypto_provider();
    super::runtime()?.block_on(async {
        // Before the cluster is asked: an unreadable file is the more likely mistake.
        let registration = match &args.verb {
            Verb::Register(kind) => Some(Registration::read(kind)?),
            Verb::List | Verb::Remove { .. } => None,
        };
        let connection = args.cluster.connect().await?;
        let namespace = connection.namespace(args.namespace);
        let home = Home { client: connection.client, namespace };
        match (args.verb, registration) {
            (Verb::Register(_), Some(registration)) => home.register(registration).await,
            (Verb::Remove { name }, _) => home.remove(&name).await,
            (Verb::List | Verb::Register(_), _) => home.list().await,
        }
    })
}

/// A MeshApi to write, with the data of its Secret.
struct Registration {
    name: String,
    spec: MeshApiSpec,
    label: &'static str,
    data: BTreeMap<String, ByteString>,
}

impl Registration {
    fn read(kind: &Kind) -> anyhow::Result<Self> {
        let empty = MeshApiSpec { app_mesh: None, consul: None, kubernetes: None, secret_ref: None };
        let (name, mut spec, label, values) = match kind {
            Kind::AppMesh(args) => {
                let api = AppMeshApi {
                    regions: args.region.clone(),
                    owner: args.owner.clone(),
                    endpoint: args.endpoint.clone(),
                    poll_interval: args.poll_interval,
                };
                let spec = MeshApiSpec { app_mesh: Some(api), ..empty };
                (&args.name, spec, REST_API_CREDENTIALS, aws_values(args)?)
            }
            Kind::Consul(args) => {
                let api = ConsulApi { address: args.address.clone(), datacenter: args.datacenter.clone() };
                let token = match (&args.token_file, args.from_env) {
                    (Some(path), _) => Some(read(path)?.trim().to_owned()),
                    (None, true) => Some(variable("CONSUL_HTTP_TOKEN")?),
                    (None, false) => None,
                };
                let values = token.map(|token| ("token", token)).into_iter().collect();
                (&args.name, MeshApiSpec { consul: Some(api), ..empty }, REST_API_CREDENTIALS, values)
            }
            Kind::Cluster(args) => {
                let text = one_context(&read(&args.from_kubeconfig)?, args.from_context.as_deref())?;
                let spec = MeshApiSpec { kubernetes: Some(KubernetesApi::default()), ..empty };
                (&args.name, spec, KUBERNETES_CREDENTIALS, vec![("kubeconfig", text)])
            }
        };
        if !values.is_empty() {
            spec.secret_ref = Some(SecretRef { name: format!("meshapi-{name}") });
        }
        let data = values.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
        Ok(Self { name: name.clone(), spec, label, data: data.collect() })
    }

    /// Untried if only the controller has the credentials.
    fn can_be_tried(&self) -> bool {
        self.spec.app_mesh.is_none() || self.data.contains_key("accessKeyId")
    }

    fn secret(&self) -> Option<Secret> {
        let name = self.spec.secret_ref.as_ref()?.name.clone();
        let labels = [(CREDENTIALS_LABEL, self.label), MANAGED_BY];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Some(Secret {
            metadata: ObjectMeta { name: Some(name), labels: Some(labels.into()), ..ObjectMeta::default() },
            data: Some(self.data.clone()),
            ..Secret::default()
        })
    }
}

fn aws_values(args: &AppMeshArgs) -> anyhow::Result<Vec<(&'static str, String)>> {
    const NAMES: [(&str, &str); 3] = [
        ("accessKeyId", "AWS_ACCESS_KEY_ID"),
        ("secretAccessKey", "AWS_SECRET_ACCESS_KEY"),
        ("sessionToken", "AWS_SESSION_TOKEN"),
    ];
    let mut values = Vec::new();
    if let Some(path) = &args.credentials {
        let profile = profile(&read(path)?, &args.profile);
        for (key, name) in NAMES {
            match profile.get(&name.to_lowercase()) {
                Some(value) => values.push((key, value.clone())),
                None if key == "sessionToken" => {}
                None => anyhow::bail!(
                    "the profile {} of {} has no {}; --profile names another one",
                    args.profile,
                    path.display(),
                    name.to_lowercase()
                ),
            }
        }
    } else if args.from_env {
        for (key, name) in NAMES {
            match variable(name) {
                Ok(value) => values.push((key, value)),
                Err(_) if key == "sessionToken" => {}
                Err(error) => return Err(error),
            }
        }
    }
    values.extend(args.role_arn.clone().map(|arn| ("roleArn", arn)));
    values.extend(args.external_id.clone().map(|id| ("externalId", id)));
    Ok(values)
}

/// The settings of one section of an INI file.
fn profile(text: &str, wanted: &str) -> BTreeMap<String, String> {
    let (mut section, mut found) = (String::new(), BTreeMap::new());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.trim().to_owned();
        } else if let Some((key, value)) = line.split_once('=').filter(|_| section == wanted) {
            found.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    found
}

fn variable(name: &str) -> anyhow::Result<String> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.with_context(|| format!("--from-env: {name} is not set"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let (read, what) = match path.to_str() {
        Some("-") => (
            std::io::stdin().take(MAX_CREDENTIALS_BYTES).read_to_string(&mut text),
            "standard input".to_owned(),
        ),
        _ => {
            let what = path.display().to_string();
            let file = std::fs::File::open(path).with_context(|| format!("open {what}"))?;
            (file.take(MAX_CREDENTIALS_BYTES).read_to_string(&mut text), what)
        }
    };
    read.with_context(|| format!("read {what}"))?;
    anyhow::ensure!(!text.trim().is_empty(), "{what} is empty");
    Ok(text)
}

/// The kubeconfig with one context: credentials of other clusters stay where they are.
fn one_context(text: &str, wanted: Option<&str>) -> anyhow::Result<String> {
    // The parser's error quotes the text.
    let mut file = Kubeconfig::from_yaml(text).ok().context("the file is no kubeconfig")?;
    let wanted = wanted.map(str::to_owned).or(file.current_context.clone());
    let wanted = wanted.context("the kubeconfig has no current context; name one with --from-context")?;
    file.contexts.retain(|context| context.name == wanted);
    let context = file.contexts.first().and_then(|context| context.context.clone());
    let context = context.with_context(|| format!("the kubeconfig has no context {wanted}"))?;
    file.clusters.retain(|cluster| cluster.name == context.cluster);
    file.auth_infos.retain(|user| Some(&user.name) == context.user.as_ref());
    file.current_context = Some(wanted);
    serde_saphyr::to_string(&file).context("write the kubeconfig as YAML")
}

/// The namespace of the controller.
struct Home {
    client: Client,
    namespace: String,
}

impl Home {
    fn apis(&self) -> Api<MeshApi> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn register(&self, registration: Registration) -> anyhow::Result<()> {
        let secret = registration.secret();
        let shown = match registration.can_be_tried() {
            true => {
                let probe = rest::probe(&registration.spec, secret.as_ref());
                let answer = tokio::time::timeout(PROBE_TIMEOUT, probe).await;
                let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {PROBE_TIMEOUT:?}")));
                answer
                    .map_err(|why| anyhow::anyhow!("nothing was written, because the check failed: {why}"))?
            }
            false => "not tried: the controller's own AWS credentials are used".to_owned(),
        };
        let params = PatchParams::apply(FIELD_MANAGER);
        if let Some(secret) = &secret {
            let name = secret.name_any();
            let written = self.secrets().patch(&name, &params, &Patch::Apply(secret)).await;
            written.map_err(|error| anyhow::anyhow!("write the Secret {name}: {}", api_message(&error)))?;
        }
        let api = MeshApi::new(&registration.name, registration.spec);
        let written = self.apis().patch(&registration.name, &params, &Patch::Apply(&api)).await;
        written.map_err(|error| match &error {
            kube::Error::Api(status) if status.code == 404 => anyhow::anyhow!(
                "write the MeshApi {}: the cluster does not serve MeshApis, or has no namespace {}; run `serin crds | kubectl apply --server-side -f -`",
                registration.name,
                self.namespace
            ),
            error => {
                anyhow::anyhow!("write the MeshApi {}: {}", registration.name, api_message(error))
            }
        })?;
        println!("{} is registered in {}: {shown}.", registration.name, self.namespace);
        Ok(())
    }

    async fn list(&self) -> anyhow::Result<()> {
        let apis = self.listed().await?;
        if apis.is_empty() {
            println!("No registrations in namespace {}; -n names the controller's.", self.namespace);
            return Ok(());
        }
        let rows: Vec<[String; 5]> = apis.iter().map(row).collect();
        let head = ["NAME", "KIND", "READY", "OBJECTS", "MESSAGE"].map(str::to_owned);
        for row in std::iter::once(&head).chain(&rows) {
            let [name, kind, ready, objects, message] = row;
            let width =
                |at: usize| rows.iter().map(|row| row[at].len()).chain([head[at].len()]).max().unwrap_or(0);
            let (a, b, c, d) = (width(0), width(1), width(2), width(3));
            println!("{name:a$}   {kind:b$}   {ready:c$}   {objects:d$}   {message}");
        }
        Ok(())
    }

    async fn listed(&self) -> anyhow::Result<Vec<MeshApi>> {
        let listed = self.apis().list(&ListParams::default()).await;
        Ok(listed.map_err(|error| anyhow::anyhow!("list MeshApis: {}", api_message(&error)))?.items)
    }

    async fn remove(&self, name: &str) -> anyhow::Result<()> {
        let apis = self.listed().await?;
        let Some(api) = apis.iter().find(|api| api.name_any() == name) else {
            anyhow::bail!(
                "no registration {name} in namespace {}; `serin mesh list` shows them",
                self.namespace
            );
        };
        let deleted = self.apis().delete(name, &DeleteParams::default()).await;
        deleted.map_err(|error| anyhow::anyhow!("delete the MeshApi {name}: {}", api_message(&error)))?;
        let secret_of = |api: &MeshApi| api.spec.secret_ref.as_ref().map(|secret| secret.name.clone());
        let shared = |secret: &String| {
            apis.iter().any(|other| other.name_any() != name && secret_of(other).as_ref() == Some(secret))
        };
        let kept = match secret_of(api) {
            None => None,
            Some(secret) if shared(&secret) => Some(secret),
            Some(secret) => match self.is_ours(&secret).await? {
                None => None,
                Some(false) => Some(secret),
                Some(true) => {
                    let deleted = self.secrets().delete(&secret, &DeleteParams::default()).await;
                    deleted
                        .map_err(|e| anyhow::anyhow!("delete the Secret {secret}: {}", api_message(&e)))?;
                    None
                }
            },
        };
        println!("{name} is removed.");
        if let Some(secret) = kept {
            println!("The Secret {secret} stays: it is in use, or `serin mesh register` did not write it.");
        }
        Ok(())
    }

    /// None if it does not exist.
    async fn is_ours(&self, secret: &str) -> anyhow::Result<Option<bool>> {
        let found = self.secrets().get_metadata_opt(secret).await;
        let found =
            found.map_err(|error| anyhow::anyhow!("read the Secret {secret}: {}", api_message(&error)))?;
        Ok(found.map(|found| found.labels().get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1)))
    }
}

fn row(api: &MeshApi) -> [String; 5] {
    let spec = &api.spec;
    let kind = match (&spec.app_mesh, &spec.consul, &spec.kubernetes) {
        (Some(api), _, _) => format!("app-mesh {}", api.regions.join(",")),
        (_, Some(_), _) => "consul".to_owned(),
        _ => "cluster".to_owned(),
    };
    let status = api.status.as_ref();
    let ready = status.and_then(|status| status.conditions.iter().find(|c| c.type_ == READY));
    let objects = status.and_then(|status| status.objects).map_or("-".to_owned(), |count| count.to_string());
    let (ready, message) = match ready {
        Some(ready) if ready.status == ConditionStatus::True => ("yes", ready.message.clone()),
        Some(ready) => ("no", ready.message.clone()),
        None => ("-", "Not read yet: does the controller run with --mesh-apis?".to_owned()),
    };
    [api.name_any(), kind, ready.to_owned(), objects, message]
}
