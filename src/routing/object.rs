//! One object that a router writes: made, changed, adopted, put back.
//!
//! An object is written by server-side apply of exactly the fields a router
//! needs. Two annotations keep the books:
//!
//! - `serin.dev/applied`: which fields were applied. A field that is no longer
//!   wanted is noticed by it; a field whose value somebody changed is noticed
//!   by looking.
//! - `serin.dev/original`: on adopted objects, the merge patch that turns the
//!   object back into what it was, and the Canary that adopted it; with it the
//!   [entries](super::entries) of a list that ours stand in for.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _, sync::Arc};

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    Error, FIELD_MANAGER, Lookup, ObjectName,
    entries::{Entries, List},
    fields::{covers, merged, undo, write_fields},
};
use crate::{
    api::{Canary, canary::service::Metadata},
    lean::Lean,
};

const APPLIED: &str = "serin.dev/applied";
const ORIGINAL: &str = "serin.dev/original";

/// How often an object that others change at the same time is looked at anew.
const ATTEMPTS: usize = 5;

/// Flux leaves what carries these alone.
const FLUX: [(&str, &str); 2] = [
    ("kustomize.toolkit.fluxcd.io/reconcile", "disabled"),
    ("helm.toolkit.fluxcd.io/driftDetection", "disabled"),
];

/// Argo CD does not miss what carries these in its repository. An adopted
/// object may well be there, so it does not get them.
const ARGO: [(&str, &str); 2] = [
    ("argocd.argoproj.io/compare-options", "IgnoreExtraneous"),
    ("argocd.argoproj.io/sync-options", "Prune=false"),
];

/// Every field of an object that a router wants, and no other.
pub struct Wanted {
    pub object: ObjectName,
    metadata: Metadata,
    /// Only for an object that we make; what is adopted does without.
    if_ours: Metadata,
    /// Everything beside `metadata`.
    body: Value,
    /// Only in an object that we make, likewise.
    body_if_ours: Value,
    entries: Option<Entries>,
}

impl Wanted {
    /// What people listed in `unmanagedMetadata` is left out of the metadata.
    pub fn new(canary: &Canary, object: ObjectName, mut metadata: Metadata, body: Value) -> Self {
        let pairs = |pairs: [(&str, &str); 2]| pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        for (key, value) in pairs(FLUX) {
            metadata.annotations.entry(key).or_insert(value);
        }
        let mut if_ours = Metadata { labels: BTreeMap::new(), annotations: pairs(ARGO).into() };
        if object.kind.kind == "Service" {
            // ServiceMonitors written for Flagger find the Services by it.
            if_ours.labels.insert("app".to_owned(), object.name.clone());
        }
        if let Some(theirs) = canary.spec.service.as_ref().and_then(|s| s.unmanaged_metadata.as_ref()) {
            for Metadata { labels, annotations } in [&mut metadata, &mut if_ours] {
                labels.retain(|key, _| !theirs.labels.contains(key));
                annotations.retain(|key, _| !theirs.annotations.contains(key));
            }
        }
        Self { object, metadata, if_ours, body, body_if_ours: json!({}), entries: None }
    }

    /// With fields that an object of people's own says in its own way.
    pub fn unless_adopted(mut self, body: Value) -> Self {
        self.body_if_ours = body;
        self
    }

    /// With entries of a list that is not ours alone.
    pub fn with_entries(mut self, entries: Entries) -> Self {
        self.entries = Some(entries);
        self
    }

    /// Is the object as wanted already?
    pub fn stands(&self, canary: &Canary, seen: &dyn Lookup) -> bool {
        self.object.find(seen).is_some_and(|live| self.is(canary, &live))
    }

    fn is(&self, canary: &Canary, live: &DynamicObject) -> bool {
        let original = match Standing::of(live, canary) {
            Standing::Owned => None,
            Standing::Adopted(original) => Some(original),
            Standing::Foreign | Standing::Taken(_) => return false,
        };
        let ours = original.is_none();
        let originals = originals(original.as_ref());
        self.labels(ours).all(|(key, value)| live.labels().get(key) == Some(value))
            && self.annotations(ours).all(|(key, value)| live.annotations().get(key) == Some(value))
            && covers(&live.data, &self.body(ours))
            && self.entries.as_ref().is_none_or(|entries| entries.stand(&live.data, originals))
            && live.annotations().get(APPLIED) == Some(&self.shape(original.as_ref()))
    }

    /// Makes it so, with no request if it is so.
    pub async fn ensure(&self, client: &Client, canary: &Canary, seen: &dyn Lookup) -> Result<(), Error> {
        let objects = api(client, &self.object);
        let read = async || objects.get_opt(&self.object.name).await.map_err(failed("read", &self.object));
        let mut live = match self.object.find(seen) {
            Some(live) => live,
            // What was made a moment ago may not have been seen yet.
            None => match read().await? {
                Some(Lean(unseen)) => Arc::new(unseen),
                None => return self.apply(&objects, seen, self.manifest(canary, None, None)).await,
            },
        };
        for _ in 1..ATTEMPTS {
            match self.ensure_from(&objects, canary, seen, &live).await {
                Err(Error::Changed { object }) => {
                    live = Arc::new(read().await?.ok_or(Error::Changed { object })?.0);
                }
                done => return done,
            }
        }
        self.ensure_from(&objects, canary, seen, &live).await
    }

    async fn ensure_from(
        &self,
        objects: &Api<Lean>,
        canary: &Canary,
        seen: &dyn Lookup,
        live: &DynamicObject,
    ) -> Result<(), Error> {
        if self.is(canary, live) {
            return Ok(());
        }
        let has_ours = || self.entries.as_ref().is_none_or(|entries| entries.list.has_ours(&live.data));
        match Standing::of(live, canary) {
            Standing::Owned => self.apply(objects, seen, self.manifest(canary, Some(live), None)).await,
            Standing::Adopted(original)
                if live.annotations().get(APPLIED) == Some(&self.shape(Some(&original))) && has_ours() =>
            {
                self.apply(objects, seen, self.manifest(canary, Some(live), Some(&original))).await
            }
            Standing::Adopted(_) | Standing::Foreign => self.adopt(objects, canary, seen).await,
            Standing::Taken(owner) => Err(Error::Taken { object: self.object.clone(), owner }),
        }
    }

    /// Takes over an object that is not ours, or more of one than before: its
    /// fields as they were are remembered in the same write that changes them.
    async fn adopt(&self, objects: &Api<Lean>, canary: &Canary, seen: &dyn Lookup) -> Result<(), Error> {
        let Lean(before) = objects.get(&self.object.name).await.map_err(failed("read", &self.object))?;
        let known = match Standing::of(&before, canary) {
            Standing::Adopted(original) => original,
            Standing::Foreign => Original::nothing(canary),
            Standing::Owned | Standing::Taken(_) => {
                return Err(Error::Changed { object: self.object.clone() });
            }
        };
        let stood_in_for = match &self.entries {
            Some(entries) if entries.list.has_ours(&before.data) => known.entries,
            Some(entries) => entries.replaced(&before.data),
            None => Vec::new(),
        };
        // The list is put back entry by entry, not with the rest.
        let picture = |object: &DynamicObject| match &self.entries {
            Some(entries) => entries.list.without(picture(object)),
            None => picture(object),
        };
        let mut untouched = picture(&before);
        json_patch::merge(&mut untouched, &known.patch);

        let mut original = Original { entries: stood_in_for, ..Original::nothing(canary) };
        let mut manifest = self.manifest(canary, Some(&before), Some(&original));
        let trial = PatchParams { dry_run: true, ..params() };
        let Lean(after) = objects
            .patch(&self.object.name, &trial, &Patch::Apply(&manifest))
            .await
            .map_err(failed("try to adopt", &self.object))?;

        let touched = merged(json!({"metadata": self.metadata(false)}), &self.body);
        original.patch = undo(&picture(&after), &untouched, &touched).unwrap_or_else(|| json!({}));
        manifest["metadata"]["annotations"][ORIGINAL] = json!(original.written());
        // Whoever changes it between the reading and this write must be seen.
        manifest["metadata"]["resourceVersion"] = json!(before.resource_version());
        self.apply(objects, seen, manifest).await
    }

    async fn apply(&self, objects: &Api<Lean>, seen: &dyn Lookup, manifest: Value) -> Result<(), Error> {
        let written = objects.patch(&self.object.name, &params(), &Patch::Apply(&manifest)).await;
        seen.learn(&self.object.kind, written.map_err(failed("apply", &self.object))?.0);
        Ok(())
    }

    /// What to apply. The uid keeps the write from bringing back, or hitting
    /// the successor of, an object that is gone; the version keeps it from
    /// undoing what others just wrote in a list that is written as a whole.
    fn manifest(&self, canary: &Canary, live: Option<&DynamicObject>, original: Option<&Original>) -> Value {
        let ObjectName { kind, namespace, name } = &self.object;
        let Metadata { labels, mut annotations } = self.metadata(original.is_none());
        annotations.insert(APPLIED.to_owned(), self.shape(original));
        let mut metadata = json!({"name": name, "namespace": namespace, "labels": labels});
        if let Some(original) = original {
            annotations.insert(ORIGINAL.to_owned(), original.written());
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
            entries.list.put(&mut body, entries.compose(data, originals(original)));
            if let Some(version) = live.and_then(ResourceExt::resource_version) {
                metadata["resourceVersion"] = json!(version);
            }
        }
        merged(json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}), &body)
    }

    fn body(&self, ours: bool) -> Cow<'_, Value> {
        match ours && self.body_if_ours != json!({}) {
            true => Cow::Owned(merged(self.body_if_ours.clone(), &self.body)),
            false => Cow::Borrowed(&self.body),
        }
    }

    /// For an object that is ours, or for one that is adopted.
    fn metadata(&self, ours: bool) -> Metadata {
        let owned = |(key, value): (&String, &String)| (key.clone(), value.clone());
        Metadata {
            labels: self.labels(ours).map(owned).collect(),
            annotations: self.annotations(ours).map(owned).collect(),
        }
    }

    fn labels(&self, ours: bool) -> impl Iterator<Item = (&String, &String)> {
        both(&self.metadata.labels, ours.then_some(&self.if_ours.labels))
    }

    fn annotations(&self, ours: bool) -> impl Iterator<Item = (&String, &String)> {
        both(&self.metadata.annotations, ours.then_some(&self.if_ours.annotations))
    }

    /// Tells one set of fields from another, whatever their values.
    fn shape(&self, original: Option<&Original>) -> String {
        let ours = original.is_none();
        let mut body = self.body(ours);
        if let Some(entries) = &self.entries {
            entries.list.put(body.to_mut(), json!(entries.made(originals(original))));
        }
        let mut fields = String::new();
        for (key, _) in self.labels(ours) {
            let _ = write!(fields, "label {key:?} ");
        }
        for (key, _) in self.annotations(ours) {
            let _ = write!(fields, "annotation {key:?} ");
        }
        write_fields(&body, &mut fields);
        let digest = Sha256::digest(fields);
        digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The pairs of the first map, and those of the other that the first has not.
fn both<'a>(
    first: &'a BTreeMap<String, String>,
    other: Option<&'a BTreeMap<String, String>>,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    other.into_iter().flatten().filter(|(key, _)| !first.contains_key(*key)).chain(first)
}

/// Whose an object is.
pub enum Standing {
    /// This Canary made it.
    Owned,
    /// It was there before this Canary.
    Adopted(Original),
    /// Nobody's whom we know.
    Foreign,
    /// Another Canary's.
    Taken(String),
}

impl Standing {
    pub fn of(live: &DynamicObject, canary: &Canary) -> Self {
        let owners = live.owner_references();
        if owners.iter().any(|owner| Some(&owner.uid) == canary.uid().as_ref()) {
            return Self::Owned;
        }
        if let Some(other) = owners.iter().find(|owner| owner.kind == "Canary") {
            return Self::Taken(format!("Canary {}", other.name));
        }
        let original = live.annotations().get(ORIGINAL).map(|text| serde_json::from_str::<Original>(text));
        match original {
            None => Self::Foreign,
            Some(Ok(original)) if original.canary == canary.name_any() => Self::Adopted(original),
            Some(Ok(original)) => Self::Taken(format!("Canary {}", original.canary)),
            Some(Err(_)) => Self::Taken(format!("whoever wrote its annotation {ORIGINAL}")),
        }
    }

    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Owned | Self::Adopted(_))
    }
}

/// Did this Canary make or adopt any of these?
pub fn any_is_ours(objects: &[ObjectName], canary: &Canary, seen: &dyn Lookup) -> bool {
    let ours = |live: Arc<DynamicObject>| Standing::of(&live, canary).is_ours();
    objects.iter().any(|object| object.find(seen).is_some_and(ours))
}

/// What an adopted object was before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Original {
    canary: String,
    /// The merge patch that brings it back.
    pub patch: Value,
    /// The entries of a list that ours stand in for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    entries: Vec<Value>,
}

fn originals(original: Option<&Original>) -> &[Value] {
    original.map(|original| &original.entries[..]).unwrap_or_default()
}

impl Original {
    fn nothing(canary: &Canary) -> Self {
        Self { canary: canary.name_any(), patch: json!({}), entries: Vec::new() }
    }

    fn written(&self) -> String {
        json!(self).to_string()
    }
}

/// Deletes what this Canary made and puts back what it adopted.
pub async fn take_back(
    client: &Client,
    canary: &Canary,
    seen: &dyn Lookup,
    object: &ObjectName,
) -> Result<(), Error> {
    let Some(live) = object.find(seen) else { return Ok(()) };
    match Standing::of(&live, canary) {
        Standing::Owned => delete(client, object, &live).await,
        Standing::Adopted(_) => put_back(client, canary, object).await,
        Standing::Foreign | Standing::Taken(_) => Ok(()),
    }
}

/// Turns an adopted object back into what it was. What others changed in it
/// meanwhile stays, unless we had changed the same.
pub async fn put_back(client: &Client, canary: &Canary, object: &ObjectName) -> Result<(), Error> {
    let objects = api(client, object);
    let found = objects.get_opt(&object.name).await.map_err(failed("read", object))?;
    let Some(Lean(live)) = found else { return Ok(()) };
    let Standing::Adopted(original) = Standing::of(&live, canary) else { return Ok(()) };
    let ours = json!({"metadata": {
        "resourceVersion": live.resource_version(),
        "annotations": {APPLIED: null, ORIGINAL: null},
    }});
    let mut patch = merged(original.patch, &ours);
    for list in List::all_of(object).iter().filter(|list| list.has_ours(&live.data)) {
        list.put(&mut patch, list.put_back(&live.data, &original.entries));
    }
    change(&objects, object, &patch).await
}

/// Changes these fields of an object that exists; one that is gone needs none.
pub async fn change(objects: &Api<Lean>, object: &ObjectName, patch: &Value) -> Result<(), Error> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    match objects.patch(&object.name, &params, &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        written => written.map(|_| ()).map_err(failed("put back", object)),
    }
}

async fn delete(client: &Client, object: &ObjectName, live: &DynamicObject) -> Result<(), Error> {
    let exactly = Preconditions { uid: live.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(exactly), ..Default::default() };
    match api(client, object).delete(&object.name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(|_| ()).map_err(failed("delete", object)),
    }
}

pub fn api(client: &Client, object: &ObjectName) -> Api<Lean> {
    Api::namespaced_with(client.clone(), &object.namespace, &object.kind)
}

fn params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// With `force`, only a stale uid or version is a conflict.
fn failed(doing: &'static str, object: &ObjectName) -> impl FnOnce(kube::Error) -> Error {
    let object = object.clone();
    move |why| match why {
        kube::Error::Api(status) if status.code == 409 => Error::Changed { object },
        why => Error::Api { doing, object, why: Box::new(why) },
    }
}

/// The part of an object that people write and that can be put back.
fn picture(object: &DynamicObject) -> Value {
    let mut annotations = object.annotations().clone();
    annotations.retain(|key, _| key != APPLIED && key != ORIGINAL);
    let mut picture = object.data.clone();
    if let Value::Object(fields) = &mut picture {
        fields.remove("status");
        fields.insert("metadata".to_owned(), json!({"labels": object.labels(), "annotations": annotations}));
    }
    picture
}
