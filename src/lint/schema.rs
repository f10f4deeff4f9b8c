//! The definitions' own rules: an API server in this process holds them, and every object
//! is created there as a dry run. So what is refused is what a cluster refuses, in the
//! words that `kubectl apply` shows.

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, ResourceExt as _};
use kube_local::ApiServer;
use serde_json::json;

use super::{Code, Document, Finding};
use crate::api::{self, GROUP, VERSION};

/// A fault of this program, and not of the manifests.
#[derive(Debug, thiserror::Error)]
#[error("validate {what}: {source}")]
pub struct SchemaError {
    what: String,
    source: Box<kube::Error>,
}

pub struct Definitions {
    client: Client,
    _server: ApiServer,
}

impl Definitions {
    pub async fn load() -> Result<Self, SchemaError> {
        let server = ApiServer::new(kube_local::Options::default());
        let client = server.client();
        let definitions = Api::all(client.clone());
        for definition in api::crds() {
            let created = definitions.create(&PostParams::default(), &definition).await;
            created.map_err(|error| failed(&definition.name_any(), error))?;
        }
        Ok(Self { client, _server: server })
    }

    /// Why a cluster would refuse this object of Serin; nothing for others.
    pub async fn check(&self, document: &Document) -> Result<Vec<Finding>, SchemaError> {
        match document.group() {
            GROUP => {}
            "flagger.app" => return Ok(vec![flagger(document)]),
            _ => return Ok(Vec::new()),
        }
        let (api_version, kind) = (document.api_version(), document.kind());
        let definition = api::crds().into_iter().find(|one| one.spec.names.kind == kind);
        let Some(definition) = definition.filter(|_| api_version == format!("{GROUP}/{VERSION}")) else {
            let message = format!(
                "{GROUP} has no {kind} in {api_version}; write {GROUP}/{VERSION} and one of its kinds"
            );
            return Ok(vec![document.finding(Code::UnknownKind, "kind", message)]);
        };
        let gvk = GroupVersionKind::gvk(GROUP, VERSION, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, &definition.spec.names.plural);
        let namespaced = definition.spec.scope == "Namespaced";
        let objects: Api<DynamicObject> = match namespaced {
            true => {
                self.ensure_namespace(document.namespace()).await?;
                Api::namespaced_with(self.client.clone(), document.namespace(), &resource)
            }
            false => Api::all_with(self.client.clone(), &resource),
        };
        let mut value = document.value.clone();
        if !namespaced {
            value["metadata"]["namespace"].take();
        }
        // An object that was read from a cluster.
        for field in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"] {
            value["metadata"].as_object_mut().and_then(|metadata| metadata.remove(field));
        }
        value.as_object_mut().and_then(|object| object.remove("status"));
        let object: DynamicObject = match serde_json::from_value(value) {
            Ok(object) => object,
            Err(error) => return Ok(vec![document.finding(Code::Refused, "metadata", error.to_string())]),
        };
        let strict = PostParams { dry_run: true, ..PostParams::default() };
        match objects.create(&strict, &object).await {
            Ok(kept) => Ok(dropped_fields(document, &kept)),
            Err(kube::Error::Api(status)) => {
                let causes = status.details.as_ref().map(|details| &details.causes[..]).unwrap_or_default();
                if causes.is_empty() {
                    return Ok(vec![document.finding(Code::Refused, "", status.message.clone())]);
                }
                let finding = |cause: &kube::core::response::StatusCause| {
                    let message = format!("{}: {}", cause.field, cause.message);
                    document.finding(Code::Refused, &cause.field, message)
                };
                Ok(causes.iter().map(finding).collect())
            }
            Err(error) => Err(failed(document.name(), error)),
        }
    }

    async fn ensure_namespace(&self, name: &str) -> Result<(), SchemaError> {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }));
        let Ok(namespace) = namespace else { return Ok(()) };
        let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(self.client.clone());
        match namespaces.create(&PostParams::default(), &namespace).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(failed(name, error)),
        }
    }
}

fn failed(what: &str, source: kube::Error) -> SchemaError {
    SchemaError { what: what.to_owned(), source: Box::new(source) }
}

fn flagger(document: &Document) -> Finding {
    let kind = match document.kind() {
        "MetricTemplate" => ", and the kind AnalysisTemplate",
        _ => "",
    };
    let message =
        format!("it is Flagger's; write apiVersion: {GROUP}/{VERSION}{kind} to have it released by Serin");
    document.finding(Code::OtherTool, "apiVersion", message)
}

/// Fields that the server would drop without a word: typing errors. `kubectl apply` warns
/// of them, other clients do not.
fn dropped_fields(document: &Document, kept: &DynamicObject) -> Vec<Finding> {
    let mut findings = Vec::new();
    compare("spec", &document.value["spec"], &kept.data["spec"], &mut |path| {
        let message =
            format!("{path}: there is no such field, so it would be dropped; is it a typing error?");
        findings.push(document.finding(Code::Refused, path, message));
    });
    findings
}

fn compare(
    path: &str,
    written: &serde_json::Value,
    kept: &serde_json::Value,
    dropped: &mut impl FnMut(&str),
) {
    use serde_json::Value;
    match (written, kept) {
        (Value::Object(written), Value::Object(kept)) => {
            for (name, value) in written {
                let path = format!("{path}.{name}");
                match kept.get(name) {
                    None if value.is_null() => {}
                    None => dropped(&path),
                    Some(kept) => compare(&path, value, kept, dropped),
                }
            }
        }
        (Value::Array(written), Value::Array(kept)) => {
            for (at, (value, kept)) in written.iter().zip(kept).enumerate() {
                compare(&format!("{path}[{at}]"), value, kept, dropped);
            }
        }
        _ => {}
    }
}
