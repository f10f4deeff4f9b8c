//! The backup of the primary: a ConfigMap with its spec before the last promotion, and
//! since. A spec is restored only if the primary, or the status once that is deleted, has
//! its digest: the right to write ConfigMaps is not the right to choose the pods of a
//! workload.

use std::collections::BTreeMap;

use kube::{
    Client,
    core::{DynamicObject, ObjectMeta},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{BACKUP_DIGESTS, Kind, Workload, act::Error, manifests::copied_revision, write::get};

impl Workload {
    /// A ConfigMap to restore the primary from: its spec before the promotion, if
    /// there was one, and since.
    pub(super) fn backup_of(&self, before: Option<BackedUpSpec>, primary: &DynamicObject) -> DynamicObject {
        let promoted = BackedUpSpec::of(primary);
        let mut data = json!({ "promotedRevision": promoted.revision, "promotedSpec": promoted.spec });
        if let Some(before) = before {
            (data["revision"], data["spec"]) = (before.revision.into(), before.spec.into());
        }
        let empty = BTreeMap::new();
        DynamicObject {
            types: Some(Kind::ConfigMap.type_meta()),
            metadata: self.copy_metadata(&self.backup_name(), &empty, &empty),
            data: json!({ "data": data }),
        }
    }

    pub(super) fn backup_name(&self) -> String {
        format!("{}-primary-before", self.target)
    }

    /// The backup of the primary that this Canary wrote.
    pub(super) async fn read_backup(&self, client: &Client) -> Result<Option<DynamicObject>, Error> {
        let backup = get(client, &self.namespace, Kind::ConfigMap, &self.backup_name()).await?;
        Ok(backup.filter(|backup| self.is_owner(&backup.metadata)))
    }

    /// The spec of the primary for its next backup. Its digest is recorded before that
    /// backup is written, since the promotion may end in between, and the primary be
    /// deleted. So the spec of the last backup is kept if the primary records it; else the
    /// primary is changed first. None on a conflict.
    pub(super) async fn recorded_spec(
        &self,
        client: &Client,
        primary: &mut DynamicObject,
        last_backup: Option<&DynamicObject>,
    ) -> Result<Option<BackedUpSpec>, Error> {
        // A backup is restored if no digests at all are recorded.
        let Some(digests) = backup_digests(primary) else { return Ok(Some(BackedUpSpec::of(primary))) };
        let revision = copied_revision(primary).unwrap_or_default();
        let recorded =
            last_backup.and_then(|backup| BackedUpSpec::in_backup(backup, revision, Some(digests)));
        if recorded.is_some() {
            return Ok(recorded);
        }
        let spec = BackedUpSpec::of(primary);
        if digests.split(' ').any(|digest| digest == spec.digest()) {
            return Ok(Some(spec));
        }
        let mut recording = primary.clone();
        record_digests(&mut recording.metadata, format!("{digests} {}", spec.digest()));
        let Some(written) = self.patch_if_unchanged(client, primary, &recording).await? else {
            return Ok(None);
        };
        *primary = written;
        Ok(Some(spec))
    }
}

/// A spec of the primary in a backup, as JSON text.
pub(super) struct BackedUpSpec {
    revision: String,
    spec: String,
}

impl BackedUpSpec {
    pub fn of(primary: &DynamicObject) -> Self {
        let revision = copied_revision(primary).unwrap_or_default().to_owned();
        Self { revision, spec: primary.data["spec"].to_string() }
    }

    /// The spec of this revision in a backup that has these digests.
    pub fn in_backup(backup: &DynamicObject, revision: &str, digests: Option<&str>) -> Option<Self> {
        let spec = backed_up_text(backup, revision, digests).ok()??.to_owned();
        Some(Self { revision: revision.to_owned(), spec })
    }

    pub fn digest(&self) -> String {
        digest(&self.revision, &self.spec)
    }
}

/// The keys of the two specs in a backup.
const BACKED_UP: [(&str, &str); 2] = [("revision", "spec"), ("promotedRevision", "promotedSpec")];

/// A spec in a backup is not the one that was recorded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EditedBackup;

/// The spec of this revision in a backup. `digests` are those of [`BACKUP_DIGESTS`]; none
/// for a backup of a version without them.
pub(super) fn backed_up_spec(
    backup: &DynamicObject,
    revision: &str,
    digests: Option<&str>,
) -> Result<Option<Value>, EditedBackup> {
    let text = backed_up_text(backup, revision, digests)?;
    text.map(|text| serde_json::from_str(text).map_err(|_| EditedBackup)).transpose()
}

fn backed_up_text<'b>(
    backup: &'b DynamicObject,
    revision: &str,
    digests: Option<&str>,
) -> Result<Option<&'b str>, EditedBackup> {
    let data = &backup.data["data"];
    let found = BACKED_UP.into_iter().find(|(key, _)| data[key] == revision);
    let Some(text) = found.and_then(|(_, spec)| data[spec].as_str()) else { return Ok(None) };
    let recorded = |digests: &str| digests.split(' ').any(|entry| entry == digest(revision, text));
    if digests.is_none_or(recorded) { Ok(Some(text)) } else { Err(EditedBackup) }
}

/// The digests of a backup, for [`record_digests`].
pub(super) fn digests_of(backup: &DynamicObject) -> String {
    let text = |key: &str| backup.data["data"][key].as_str();
    let digests =
        BACKED_UP.into_iter().filter_map(|(revision, spec)| Some(digest(text(revision)?, text(spec)?)));
    digests.collect::<Vec<_>>().join(" ")
}

/// Records digests of backups on the primary.
pub(super) fn record_digests(primary: &mut ObjectMeta, digests: String) {
    primary.annotations.get_or_insert_default().insert(BACKUP_DIGESTS.to_owned(), digests);
}

fn digest(revision: &str, spec: &str) -> String {
    let hex: String = Sha256::digest(spec).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{revision}:{hex}")
}

/// Those that the primary records of its backup.
pub(super) fn backup_digests(primary: &DynamicObject) -> Option<&str> {
    primary.metadata.annotations.as_ref()?.get(BACKUP_DIGESTS).map(String::as_str)
}
