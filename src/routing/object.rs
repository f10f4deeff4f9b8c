//! One object that a router writes: created, changed, adopted, restored.
//!
//! An object is written by server-side apply of exactly the fields that a router
//! needs. Two annotations record the writes:
//!
//! - `serin.dev/applied`: a hash of the set of applied fields, not of their
//!   values. It reveals fields that are no longer desired; changed values show
//!   by comparison.
//! - `serin.dev/original`: on adopted objects, the Canary that adopted it, the
//!   merge patch that restores it, and the [entries](super::shared_list) of a
//!   list that ours replaced.
//!
//! A restored object has no field in managedFields that is Serin's.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _, sync::Arc};

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    Error, ObjectCache, ObjectKey, Unsupported,
    fields::{covers, merged, write_field_paths},
    shared_list::{ManagedEntries, SharedList},
    split_annotation::SPLIT_ANNOTATION,
};
use crate::{
    api::{Canary, canary::service::Metadata},
    patch::{FIELD_MANAGER, apply_params, merge_params, restore_patch},
    stripped::{StrippedObject, strip_last_applied},
};

const APPLIED_ANNOTATION: &str = "serin.dev/applied";
const ORIGINAL_ANNOTATION: &str = "serin.dev/original";

/// Attempts to write an object that other clients change at the same time.
const MAX_WRITE_ATTEMPTS: usize = 5;

/// Annotations that exclude an object from Flux.
const FLUX_IGNORE: [(&str, &str); 2] = [
    ("kustomize.toolkit.fluxcd.io/reconcile", "disabled"),
    ("helm.toolkit.fluxcd.io/driftDetection", "disabled"),
];

/// Annotations that keep Argo CD from pruning an object that is not in its
/// repository. An adopted object may be there, so it does not get them.
const ARGO_IGNORE: [(&str, &str); 2] = [
    ("argocd.argoproj.io/compare-options", "IgnoreExtraneous"),
    ("argocd.argoproj.io/sync-options", "Prune=false"),
];

/// Every field of an object that a router manages, and no other.
pub struct DesiredObject {
    pub object: ObjectKey,
    metadata: Metadata,
    /// Only for objects that we create, not for adopted ones.
    owned_metadata: Metadata,
    /// All fields except `metadata`.
    body: Value,
    /// Only for objects that we create, likewise.
    owned_body: Value,
    entries: Option<ManagedEntries>,
}

impl DesiredObject {
    /// Drops metadata that is listed in `unmanagedMetadata`.
    pub fn new(canary: &Canary, object: ObjectKey, mut metadata: Metadata, body: Value) -> Self {
        let pairs = |pairs: [(&str, &str); 2]| pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        for (key, value) in pairs(FLUX_IGNORE) {
            metadata.annotations.entry(key).or_insert(value);
        }
        let mut owned_metadata = Metadata { labels: BTreeMap::new(), annotations: pairs(ARGO_IGNORE).into() };
        if object.kind.kind == "Service" {
            // ServiceMonitors written for Flagger select Services by it.
            owned_metadata.labels.insert("app".to_owned(), object.name.clone());
        }
        if let Some(theirs) = canary.spec.service.as_ref().and_then(|s| s.unmanaged_metadata.as_ref()) {
            for Metadata { labels, annotations } in [&mut metadata, &mut owned_metadata] {
                labels.retain(|key, _| !theirs.labels.contains(key));
                annotations.retain(|key, _| !theirs.annotations.contains(key));
            }
        }
        Self { object, metadata, owned_metadata, body, owned_body: json!({}), entries: None }
    }

    /// Adds fields that an adopted object keeps as they are.
    pub fn with_owned_defaults(mut self, body: Value) -> Self {
        self.owned_body = body;
        self
    }

    /// Adds entries of a list that others have entries in too.
    pub fn with_entries(mut self, entries: ManagedEntries) -> Self {
        self.entries = Some(entries);
        self
    }

    pub fn is_in_sync(&self, canary: &Canary, cache: &dyn ObjectCache) -> bool {
        self.object.find(cache).is_some_and(|live| self.matches(canary, &live))
    }

    /// Rejects a list that cannot be adopted without changing the traffic of others.
    pub fn check_adoptable(&self, cache: &dyn ObjectCache) -> Result<(), Unsupported> {
        self.object.find(cache).map_or(Ok(()), |live| self.check_entries(&live))
    }

    fn check_entries(&self, live: &DynamicObject) -> Result<(), Unsupported> {
        let mixed = self.entries.as_ref().and_then(|entries| {
            let (at, backends) = entries.list.mixed_entry(&live.data)?;
            Some((format!("{}[{at}]", entries.list.field()), backends))
        });
        match mixed {
            None => Ok(()),
            Some((entry, backends)) => Err(Unsupported::MixedEntry {
                object: self.object.to_string(),
                entry,
                backends: backends.join(" and "),
            }),
        }
    }

    /// True if the object is as its owner wrote it, and has the effect of these fields.
    pub fn is_left_to_owner(&self, canary: &Canary, live: &DynamicObject) -> bool {
        matches!(ObjectOwnership::of(live, canary), ObjectOwnership::Unmanaged)
            && self.is_needless(canary, live)
    }

    /// True if the object as its owner wrote it has the effect of these fields, so that
    /// none of them has to be written.
    fn is_needless(&self, canary: &Canary, live: &DynamicObject) -> bool {
        let metadata = json!({"labels": live.labels(), "annotations": live.annotations()});
        let mut owners = merged(json!({ "metadata": metadata }), &live.data);
        match ObjectOwnership::of(live, canary) {
            // Left behind by a Canary that is gone, and not as its owner would write it.
            ObjectOwnership::Unmanaged if live.annotations().contains_key(SPLIT_ANNOTATION) => return false,
            ObjectOwnership::Unmanaged => {}
            ObjectOwnership::Adopted(original) => {
                let patch = self.object.restoration(live, &original);
                json_patch::merge(&mut owners, &patch);
            }
            ObjectOwnership::Owned | ObjectOwnership::OwnedByOther(_) => return false,
        }
        let ours =
            |key: &str| key.starts_with("serin.dev/") || FLUX_IGNORE.iter().any(|(flux, _)| *flux == key);
        let Metadata { labels, annotations } = &self.metadata;
        let has = |field: &str, key: &str, value: &str| owners["metadata"][field][key] == value;
        labels.iter().all(|(key, value)| has("labels", key, value))
            && annotations.iter().all(|(key, value)| ours(key) || has("annotations", key, value))
            && covers(&owners, &self.body)
            && self.entries.as_ref().is_none_or(|entries| entries.is_needless(&owners))
    }

    /// Gives an adopted object that is [needless](Self::is_needless) back to its owner.
    /// True if the object is as its owner wrote it.
    pub async fn give_back(
        &self,
        client: &Client,
        canary: &Canary,
        cache: &dyn ObjectCache,
    ) -> Result<bool, Error> {
        let Some(live) = self.object.find(cache) else { return Ok(false) };
        if !self.is_needless(canary, &live) {
            return Ok(false);
        }
        if let ObjectOwnership::Adopted(_) = ObjectOwnership::of(&live, canary)
            && let Some(restored) = restore_adopted(client, canary, &self.object).await?
        {
            cache.apply_write_response(&self.object.kind, restored);
        }
        Ok(true)
    }

    fn matches(&self, canary: &Canary, live: &DynamicObject) -> bool {
        let original = match ObjectOwnership::of(live, canary) {
            ObjectOwnership::Owned => None,
            ObjectOwnership::Adopted(original) => Some(original),
            ObjectOwnership::Unmanaged | ObjectOwnership::OwnedByOther(_) => return false,
        };
        let ours = original.is_none();
        let originals = recorded_entries(original.as_ref());
        self.labels(ours).all(|(key, value)| live.labels().get(key) == Some(value))
            && self.annotations(ours).all(|(key, value)| live.annotations().get(key) == Some(value))
            && covers(&live.data, &self.body(ours))
            && self.entries.as_ref().is_none_or(|entries| entries.is_in_sync(&live.data, originals))
            && live.annotations().get(APPLIED_ANNOTATION) == Some(&self.field_set_hash(original.as_ref()))
    }

    /// Writes the object unless the cached one is in sync.
    pub async fn ensure(
        &self,
        client: &Client,
        canary: &Canary,
        cache: &dyn ObjectCache,
    ) -> Result<(), Error> {
        let objects = api(client, &self.object);
        let read = async || objects.get_opt(&self.object.name).await.map_err(api_error("read", &self.object));
        let mut live = match self.object.find(cache) {
            Some(live) => live,
            // An object just created may not be in the cache yet.
            None => match read().await? {
                Some(StrippedObject(uncached)) => Arc::new(uncached),
                None => return self.apply(&objects, cache, self.manifest(canary, None, None)).await,
            },
        };
        for _ in 1..MAX_WRITE_ATTEMPTS {
            match self.ensure_from(&objects, canary, cache, &live).await {
                Err(Error::Conflict { object }) => {
                    live = Arc::new(read().await?.ok_or(Error::Conflict { object })?.0);
                }
                done => return done,
            }
        }
        self.ensure_from(&objects, canary, cache, &live).await
    }

    async fn ensure_from(
        &self,
        objects: &Api<StrippedObject>,
        canary: &Canary,
        cache: &dyn ObjectCache,
        live: &DynamicObject,
    ) -> Result<(), Error> {
        if self.matches(canary, live) {
            return Ok(());
        }
        if !matches!(ObjectOwnership::of(live, canary), ObjectOwnership::OwnedByOther(_)) {
            self.check_entries(live)?;
        }
        let has_managed = || self.entries.as_ref().is_none_or(|entries| entries.list.has_managed(&live.data));
        match ObjectOwnership::of(live, canary) {
            ObjectOwnership::Owned => {
                self.apply(objects, cache, self.manifest(canary, Some(live), None)).await
            }
            ObjectOwnership::Adopted(original)
                if live.annotations().get(APPLIED_ANNOTATION)
                    == Some(&self.field_set_hash(Some(&original)))
                    && has_managed() =>
            {
                self.apply(objects, cache, self.manifest(canary, Some(live), Some(&original))).await
            }
            ObjectOwnership::Adopted(_) | ObjectOwnership::Unmanaged => {
                self.adopt(objects, canary, cache).await
            }
            ObjectOwnership::OwnedByOther(owner) => {
                Err(Error::AlreadyOwned { object: self.object.clone(), owner })
            }
        }
    }

    /// Adopts an object, or further fields of one: the same write that changes
    /// fields records their previous values.
    async fn adopt(
        &self,
        objects: &Api<StrippedObject>,
        canary: &Canary,
        cache: &dyn ObjectCache,
    ) -> Result<(), Error> {
        let StrippedObject(before) =
            objects.get(&self.object.name).await.map_err(api_error("read", &self.object))?;
        let (known, adopted) = match ObjectOwnership::of(&before, canary) {
            ObjectOwnership::Adopted(original) => (original, true),
            ObjectOwnership::Unmanaged => (AdoptionRecord::empty(canary), false),
            ObjectOwnership::Owned | ObjectOwnership::OwnedByOther(_) => {
                return Err(Error::Conflict { object: self.object.clone() });
            }
        };
        self.check_entries(&before)?;
        let replaced = match &self.entries {
            Some(entries) if adopted && entries.list.has_managed(&before.data) => known.entries,
            Some(entries) => entries.replaced_entries(&before.data),
            None => Vec::new(),
        };
        // The list is restored entry by entry, not by the patch.
        let restorable = |object: &DynamicObject| match &self.entries {
            Some(entries) => entries.list.strip_from(restorable_fields(object)),
            None => restorable_fields(object),
        };
        let mut untouched = restorable(&before);
        json_patch::merge(&mut untouched, &known.patch);

        let mut original = AdoptionRecord { entries: replaced, ..AdoptionRecord::empty(canary) };
        let mut manifest = self.manifest(canary, Some(&before), Some(&original));
        let trial = PatchParams { dry_run: true, ..apply_params() };
        let StrippedObject(after) = objects
            .patch(&self.object.name, &trial, &Patch::Apply(&manifest))
            .await
            .map_err(api_error("try to adopt", &self.object))?;

        let touched = merged(json!({"metadata": self.metadata(false)}), &self.body);
        original.patch =
            restore_patch(&restorable(&after), &untouched, &touched).unwrap_or_else(|| json!({}));
        manifest["metadata"]["annotations"][ORIGINAL_ANNOTATION] = json!(original.to_annotation());
        // A change by another client since the read is a conflict.
        manifest["metadata"]["resourceVersion"] = json!(before.resource_version());
        self.apply(objects, cache, manifest).await
    }

    async fn apply(
        &self,
        objects: &Api<StrippedObject>,
        cache: &dyn ObjectCache,
        manifest: Value,
    ) -> Result<(), Error> {
        let written = objects.patch(&self.object.name, &apply_params(), &Patch::Apply(&manifest)).await;
        cache.apply_write_response(&self.object.kind, written.map_err(api_error("apply", &self.object))?.0);
        Ok(())
    }

    /// The manifest to apply. The uid keeps the write from recreating a deleted
    /// object or changing its successor; the resourceVersion keeps it from undoing
    /// concurrent edits of a list that is written as a whole.
    fn manifest(
        &self,
        canary: &Canary,
        live: Option<&DynamicObject>,
        original: Option<&AdoptionRecord>,
    ) -> Value {
        let ObjectKey { kind, namespace, name } = &self.object;
        let Metadata { labels, mut annotations } = self.metadata(original.is_none());
        annotations.insert(APPLIED_ANNOTATION.to_owned(), self.field_set_hash(original));
        let mut metadata = json!({"name": name, "namespace": namespace, "labels": labels});
        if let Some(original) = original {
            annotations.insert(ORIGINAL_ANNOTATION.to_owned(), original.to_annotation());
        } else {
            metadata["ownerReferences"] =
                canary.controller_owner_ref(&()).into_iter().map(|o| json!(o)).collect();
        }
        metadata["annotations"] = json!(annotations);
        if let Some(uid) = live.and_then(ResourceExt::uid) {
            metadata["uid"] = json!(uid);
        }
        let mut body = self.body(original.is_none()).into_owned();
        if let Some(entries) = &self.entries {
            let data = live.map(|live| &live.data).unwrap_or(&Value::Null);
            entries.list.set_in(&mut body, entries.compose(data, recorded_entries(original)));
            if let Some(version) = live.and_then(ResourceExt::resource_version) {
                metadata["resourceVersion"] = json!(version);
            }
        }
        merged(json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}), &body)
    }

    fn body(&self, ours: bool) -> Cow<'_, Value> {
        match ours && self.owned_body != json!({}) {
            true => Cow::Owned(merged(self.owned_body.clone(), &self.body)),
            false => Cow::Borrowed(&self.body),
        }
    }

    fn metadata(&self, ours: bool) -> Metadata {
        let owned = |(key, value): (&String, &String)| (key.clone(), value.clone());
        Metadata {
            labels: self.labels(ours).map(owned).collect(),
            annotations: self.annotations(ours).map(owned).collect(),
        }
    }

    fn labels(&self, ours: bool) -> impl Iterator<Item = (&String, &String)> {
        with_defaults(&self.metadata.labels, ours.then_some(&self.owned_metadata.labels))
    }

    fn annotations(&self, ours: bool) -> impl Iterator<Item = (&String, &String)> {
        with_defaults(&self.metadata.annotations, ours.then_some(&self.owned_metadata.annotations))
    }

    /// Identifies the set of managed fields, whatever their values.
    fn field_set_hash(&self, original: Option<&AdoptionRecord>) -> String {
        let ours = original.is_none();
        let mut body = self.body(ours);
        if let Some(entries) = &self.entries {
            entries.list.set_in(body.to_mut(), json!(entries.build(recorded_entries(original))));
        }
        let mut fields = String::new();
        for (key, _) in self.labels(ours) {
            let _ = write!(fields, "label {key:?} ");
        }
        for (key, _) in self.annotations(ours) {
            let _ = write!(fields, "annotation {key:?} ");
        }
        write_field_paths(&body, &mut fields);
        let digest = Sha256::digest(fields);
        digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The pairs of the first map, and those of the other that it lacks.
fn with_defaults<'a>(
    first: &'a BTreeMap<String, String>,
    other: Option<&'a BTreeMap<String, String>>,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    other.into_iter().flatten().filter(|(key, _)| !first.contains_key(*key)).chain(first)
}

pub enum ObjectOwnership {
    /// Created by this Canary.
    Owned,
    /// Existed before this Canary, which manages some of its fields.
    Adopted(AdoptionRecord),
    /// No Canary manages it.
    Unmanaged,
    /// Created or adopted by another Canary.
    OwnedByOther(Owner),
}

/// The owner of an object, with the way to take the object over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Owner {
    #[error("Canary {0}; give this Canary a spec.service.name of its own, or delete Canary {0}")]
    Canary(String),
    /// Its primary and Services have owner references, and its target has no pods: a
    /// plain deletion takes all that serves.
    #[error(
        "the Canary {0} of Flagger; to take over what it made without an outage, set spec.suspend: true there, then run kubectl delete canaries.flagger.app {0} --cascade=orphan; its primary, Services and route stay, and this Canary adopts them"
    )]
    FlaggerCanary(String),
    #[error(
        "the unknown writer of its annotation serin.dev/original; remove the annotation, or give this Canary a spec.service.name of its own"
    )]
    Unknown,
}

impl ObjectOwnership {
    pub fn of(live: &DynamicObject, canary: &Canary) -> Self {
        let owners = live.owner_references();
        if owners.iter().any(|owner| Some(&owner.uid) == canary.uid().as_ref()) {
            return Self::Owned;
        }
        if let Some(other) = owners.iter().find(|owner| owner.kind == "Canary") {
            let flagger = other.api_version.starts_with("flagger.app/");
            let owner = if flagger { Owner::FlaggerCanary } else { Owner::Canary };
            return Self::OwnedByOther(owner(other.name.clone()));
        }
        let original = live
            .annotations()
            .get(ORIGINAL_ANNOTATION)
            .map(|text| serde_json::from_str::<AdoptionRecord>(text));
        match original {
            None => Self::Unmanaged,
            Some(Ok(original)) if original.canary == canary.name_any() => Self::Adopted(original),
            Some(Ok(original)) => Self::OwnedByOther(Owner::Canary(original.canary)),
            Some(Err(_)) => Self::OwnedByOther(Owner::Unknown),
        }
    }

    pub fn is_managed(&self) -> bool {
        matches!(self, Self::Owned | Self::Adopted(_))
    }
}

/// True if this Canary created or adopted any of these.
pub fn any_managed(objects: &[ObjectKey], canary: &Canary, cache: &dyn ObjectCache) -> bool {
    let ours = |live: Arc<DynamicObject>| ObjectOwnership::of(&live, canary).is_managed();
    objects.iter().any(|object| object.find(cache).is_some_and(ours))
}

/// The original values of an adopted object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdoptionRecord {
    canary: String,
    /// The merge patch that restores them.
    pub patch: Value,
    /// The entries of a list that ours replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    entries: Vec<Value>,
}

fn recorded_entries(original: Option<&AdoptionRecord>) -> &[Value] {
    original.map(|original| &original.entries[..]).unwrap_or_default()
}

impl AdoptionRecord {
    fn empty(canary: &Canary) -> Self {
        Self { canary: canary.name_any(), patch: json!({}), entries: Vec::new() }
    }

    fn to_annotation(&self) -> String {
        json!(self).to_string()
    }
}

/// Deletes an object that this Canary created, or restores one that it adopted.
pub async fn delete_or_restore(
    client: &Client,
    canary: &Canary,
    cache: &dyn ObjectCache,
    object: &ObjectKey,
) -> Result<(), Error> {
    let Some(live) = object.find(cache) else { return Ok(()) };
    match ObjectOwnership::of(&live, canary) {
        ObjectOwnership::Owned => delete(client, object, &live).await,
        ObjectOwnership::Adopted(_) => restore_adopted(client, canary, object).await.map(drop),
        ObjectOwnership::Unmanaged | ObjectOwnership::OwnedByOther(_) => Ok(()),
    }
}

/// Restores an adopted object. Later edits of others to fields that we did not
/// manage stay, and no field is ours in managedFields any more. Returns the object as
/// it was written.
pub async fn restore_adopted(
    client: &Client,
    canary: &Canary,
    object: &ObjectKey,
) -> Result<Option<DynamicObject>, Error> {
    let objects = api(client, object);
    let live = objects.get_opt(&object.name).await.map_err(api_error("read", object))?;
    let Some(StrippedObject(live)) = live else { return Ok(None) };
    let ObjectOwnership::Adopted(original) = ObjectOwnership::of(&live, canary) else { return Ok(None) };
    let ours = json!({"metadata": {
        "resourceVersion": live.resource_version(),
        "annotations": {APPLIED_ANNOTATION: null, ORIGINAL_ANNOTATION: null},
    }});
    let patch = merged(object.restoration(&live, &original), &ours);
    if !merge_patch(&objects, object, &patch).await? {
        return Ok(None);
    }
    disown(client, object).await
}

impl ObjectKey {
    /// The merge patch that undoes our changes.
    fn restoration(&self, live: &DynamicObject, original: &AdoptionRecord) -> Value {
        let mut patch = original.patch.clone();
        for list in SharedList::all_of(self).iter().filter(|list| list.has_managed(&live.data)) {
            list.set_in(&mut patch, list.restore_replaced(&live.data, &original.entries));
        }
        patch
    }
}

/// Removes us from managedFields. The values stay, and nobody owns them until
/// their next writer does: a server-side apply of other values by the owner of the
/// manifest is then no conflict.
async fn disown(client: &Client, object: &ObjectKey) -> Result<Option<DynamicObject>, Error> {
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), &object.namespace, &object.kind);
    for _ in 0..MAX_WRITE_ATTEMPTS {
        let live = objects.get_metadata_opt(&object.name).await.map_err(api_error("read", object))?;
        let Some(live) = live else { return Ok(None) };
        let mut fields = live.metadata.managed_fields.unwrap_or_default();
        fields.retain(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER));
        // The API server takes an empty list for "as before".
        let fields = if fields.is_empty() { json!([{}]) } else { json!(fields) };
        let version = live.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version, "managedFields": fields}});
        match objects.patch(&object.name, &merge_params(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            written => {
                let mut written = written.map_err(api_error("give back", object))?;
                written.metadata.managed_fields = None;
                strip_last_applied(&mut written.metadata.annotations);
                return Ok(Some(written));
            }
        }
    }
    Err(Error::Conflict { object: object.clone() })
}

/// Patches an object; one that is gone is no error. True if it exists.
pub async fn merge_patch(
    objects: &Api<StrippedObject>,
    object: &ObjectKey,
    patch: &Value,
) -> Result<bool, Error> {
    match objects.patch(&object.name, &merge_params(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        written => written.map(|_| true).map_err(api_error("restore", object)),
    }
}

async fn delete(client: &Client, object: &ObjectKey, live: &DynamicObject) -> Result<(), Error> {
    let exactly = Preconditions { uid: live.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(exactly), ..Default::default() };
    match api(client, object).delete(&object.name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(|_| ()).map_err(api_error("delete", object)),
    }
}

pub fn api(client: &Client, object: &ObjectKey) -> Api<StrippedObject> {
    Api::namespaced_with(client.clone(), &object.namespace, &object.kind)
}

fn api_error(doing: &'static str, object: &ObjectKey) -> impl FnOnce(kube::Error) -> Error {
    let object = object.clone();
    move |why| match why {
        kube::Error::Api(status) if status.code == 409 => Error::Conflict { object },
        why => Error::Api { doing, object, why: Box::new(why) },
    }
}

/// The fields of an object that users write and that can be restored.
fn restorable_fields(object: &DynamicObject) -> Value {
    let mut annotations = object.annotations().clone();
    annotations.retain(|key, _| key != APPLIED_ANNOTATION && key != ORIGINAL_ANNOTATION);
    let mut restorable = object.data.clone();
    if let Value::Object(fields) = &mut restorable {
        fields.remove("status");
        fields.insert("metadata".to_owned(), json!({"labels": object.labels(), "annotations": annotations}));
    }
    restorable
}
