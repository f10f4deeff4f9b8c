//! Makes the objects follow the manifests of a folder: server-side apply under a field
//! manager of its own, and deletion of what was applied from the folder and is no longer
//! there.
//!
//! The folder is looked at each second. inotify would save a stat per file and second, and
//! miss changes on network file systems and below a link that is replaced, which is how
//! checkouts are switched.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, ValidationDirective,
};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Discovery, Scope, verbs};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::manifests::{self, Manifest, Manifests, Stamps};
use crate::api_error::api_message;

const INTERVAL: Duration = Duration::from_secs(1);
/// Until what failed is tried again, if no file changes.
const RETRY: Duration = Duration::from_secs(10);

const FIELD_MANAGER: &str = "serin-standalone";
/// On each object of the folder.
const FROM_FOLDER: &str = "serin.dev/from-folder";

/// Groups and kinds whose pods nobody would start.
const UNSERVED: [(&str, &str); 3] = [("apps", ""), ("batch", ""), ("", "Pod")];

/// Kind, namespace and name.
type Applied = BTreeSet<(String, String, String)>;

pub struct Sync {
    client: Client,
    folder: PathBuf,
    namespace: String,
    /// Of the files that were applied last.
    stamps: Option<Stamps>,
    reported: Vec<String>,
}

impl Sync {
    pub fn new(client: Client, folder: PathBuf, namespace: String) -> Self {
        Self { client, folder, namespace, stamps: None, reported: Vec::new() }
    }

    pub async fn run(&mut self) {
        let mut since_attempt = Duration::ZERO;
        loop {
            sleep(INTERVAL).await;
            since_attempt += INTERVAL;
            let is_retry = !self.reported.is_empty() && since_attempt >= RETRY;
            let is_changed = manifests::stamps(&self.folder).ok() != self.stamps;
            if is_changed || is_retry {
                self.once().await;
                since_attempt = Duration::ZERO;
            }
        }
    }

    /// Reports each error once, until it is another one.
    pub async fn once(&mut self) {
        let errors = match manifests::stamps(&self.folder) {
            Ok(stamps) => {
                let manifests = manifests::read(&self.folder, &stamps);
                self.stamps = Some(stamps);
                self.apply(manifests).await
            }
            Err(error) => {
                self.stamps = None;
                vec![format!("{}: {error}", self.folder.display())]
            }
        };
        for error in errors.iter().filter(|error| !self.reported.contains(error)) {
            tracing::error!("{error}");
        }
        if errors.is_empty() && !self.reported.is_empty() {
            tracing::info!("every manifest of {} is applied again", self.folder.display());
        }
        self.reported = errors;
    }

    async fn apply(&self, Manifests { read, mut errors }: Manifests) -> Vec<String> {
        let is_complete = errors.is_empty();
        let mut applied = Applied::new();
        for manifest in read {
            match self.apply_one(&manifest, &mut applied).await {
                Ok(()) => {}
                Err(why) => errors.push(format!("{}: {why}", manifest.place)),
            }
        }
        if is_complete {
            errors.extend(self.prune(&applied).await);
        }
        errors
    }

    /// Also a manifest that is refused is there, so that its object is not deleted.
    async fn apply_one(
        &self,
        Manifest { place, value }: &Manifest,
        applied: &mut Applied,
    ) -> Result<(), String> {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        if UNSERVED.iter().any(|(of, only)| *of == group && (only.is_empty() || *only == kind)) {
            return Err(format!(
                "a {kind} needs nodes, and there are none: describe its machines by an EndpointGroup"
            ));
        }
        let (resource, scope) = self.resource(&GroupVersionKind::gvk(group, version, kind)).await?;
        let mut value = value.clone();
        let namespace = match scope {
            Scope::Cluster => String::new(),
            Scope::Namespaced => {
                let own = text("/metadata/namespace");
                let namespace = if own.is_empty() { self.namespace.clone() } else { own.to_owned() };
                value["metadata"]["namespace"] = json!(namespace);
                namespace
            }
        };
        applied.insert((kind.to_owned(), namespace.clone(), name.to_owned()));
        if !namespace.is_empty() {
            self.ensure_namespace(&namespace).await?;
        }
        value["metadata"]["labels"][FROM_FOLDER] = json!("true");
        let api = self.api(&resource, &namespace);
        let before = api.get_metadata_opt(name).await.ok().flatten().and_then(|held| held.resource_version());
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(FIELD_MANAGER).force()
        };
        let written =
            api.patch(name, &params, &Patch::Apply(&value)).await.map_err(|error| sentence(&error))?;
        if written.resource_version() != before {
            let verb = if before.is_none() { "created" } else { "changed" };
            tracing::info!("{verb} {kind} {name} ({place})");
        }
        Ok(())
    }

    /// Deletes objects of the folder that it no longer has.
    async fn prune(&self, applied: &Applied) -> Vec<String> {
        let mut errors = Vec::new();
        let served = match Discovery::new(self.client.clone()).run().await {
            Ok(served) => served,
            Err(error) => return vec![sentence(&error)],
        };
        let resources = served.groups().flat_map(|group| group.recommended_resources());
        for (resource, capabilities) in resources {
            if !capabilities.supports_operation(verbs::LIST)
                || !capabilities.supports_operation(verbs::DELETE)
            {
                continue;
            }
            let labelled = ListParams::default().labels(&format!("{FROM_FOLDER}=true"));
            let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let held = match all.list_metadata(&labelled).await {
                Ok(held) => held,
                Err(error) => {
                    errors.push(sentence(&error));
                    continue;
                }
            };
            for object in held.items {
                let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                let key = (resource.kind.clone(), namespace, name);
                if applied.contains(&key) || object.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                let (kind, namespace, name) = key;
                tracing::info!("deleting {kind} {name}, which is no longer in {}", self.folder.display());
                let deleted =
                    self.api(&resource, &namespace).delete(&name, &DeleteParams::background()).await;
                if let Err(error) = deleted {
                    errors.push(format!("{kind} {name} is no longer in the folder: {}", sentence(&error)));
                }
            }
        }
        errors
    }

    async fn resource(&self, kind: &GroupVersionKind) -> Result<(ApiResource, Scope), String> {
        match discovery::pinned_kind(&self.client, kind).await {
            Ok((resource, capabilities)) => Ok((resource, capabilities.scope)),
            Err(kube::Error::Api(status)) if status.code != 404 => Err(status.message.clone()),
            Err(_) => Err(format!(
                "there is no {} of {}: correct apiVersion or kind, or add its definition to the folder",
                kind.kind,
                kind.api_version()
            )),
        }
    }

    async fn ensure_namespace(&self, name: &str) -> Result<(), String> {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.client.clone());
        if namespaces.get_metadata_opt(name).await.map_err(|error| sentence(&error))?.is_some() {
            return Ok(());
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let created =
            namespaces.patch(name, &PatchParams::apply(FIELD_MANAGER), &Patch::Apply(namespace)).await;
        created.map(drop).map_err(|error| sentence(&error))
    }

    fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        match namespace {
            "" => Api::all_with(self.client.clone(), resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, resource),
        }
    }
}

fn sentence(error: &kube::Error) -> String {
    api_message(error)
}
