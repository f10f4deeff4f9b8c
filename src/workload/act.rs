//! Performs the actions of a decision. Each is idempotent.

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use kube::{Client, ResourceExt as _, api::Patch, core::DynamicObject};
use serde_json::{Value, json};

use super::{
    CachedWorkload, CompanionChange, ConfigContents, Kind, SCALED_DOWN_AFTER, UnsupportedTarget, Workload,
    backup::{BackedUpSpec, EditedBackup, backed_up_spec, backup_digests, digests_of, record_digests},
    configs::copies_referenced,
    labels::HELM_IGNORE_DRIFT,
    manifests::{self, SCALE_TO_ZERO, copied_revision},
    scaler::{KEDA_PAUSED, PAUSED_BY_US, pin_of},
    write::{api, code, get},
};
use crate::{
    api::canary::{AutoscalerKind, AutoscalerRef, TargetKind},
    api_error::{api_message, is_refused},
    engine::revision::{ConfigRef, HashVersion},
    object_cache::ObjectCache,
    patch::merge_params,
    stripped::StrippedObject,
};

/// Why an action failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {attempt}: {}", api_message(source))]
    Api {
        attempt: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    UnsupportedTarget(#[from] UnsupportedTarget),
    #[error("cannot {attempt}: {kind} {name} does not exist")]
    Missing { attempt: String, kind: &'static str, name: String },
    #[error(
        "nothing was copied: {kind} {name} is at revision {actual} by now, and the one to copy was {expected}"
    )]
    TargetChanged { kind: &'static str, name: String, expected: String, actual: String },
    #[error(
        "nothing was kept: {kind} {name} is at revision {actual} by now, and the one to keep was {expected}"
    )]
    PrimaryChanged { kind: &'static str, name: String, expected: String, actual: String },
    #[error(
        "cannot restore revision {revision} of the primary: neither its backup {backup} nor the target has it; apply that version to the target again"
    )]
    BackupMissing { revision: String, backup: String },
    #[error(
        "cannot restore revision {revision} of the primary: its backup {backup} was edited since it was written; apply that version to the target again"
    )]
    BackupEdited { revision: String, backup: String },
}

impl Error {
    pub(super) fn api(attempt: impl Display) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { attempt: attempt.to_string(), source: Box::new(source) }
    }

    /// A retry cannot succeed until an object, a policy or a right changes.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_refused(source),
            Self::UnsupportedTarget(_)
            | Self::Missing { .. }
            | Self::BackupMissing { .. }
            | Self::BackupEdited { .. } => true,
            Self::TargetChanged { .. } | Self::PrimaryChanged { .. } => false,
        }
    }

    /// Another client wrote in between (409): a retry suffices.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if code(source) == Some(409))
    }
}

/// Attempts of a write that conflicts (409).
const MAX_CONFLICTS: u32 = 5;

/// The status of a workload changes often while its pods start and stop: after
/// the second conflict each retry waits longer.
async fn conflict_backoff(conflicts: u32) {
    if conflicts > 1 {
        tokio::time::sleep(Duration::from_millis(50) * conflicts).await;
    }
}

/// Cached workloads that the decision was based on; absent ones are read.
#[derive(Clone, Copy, Default)]
pub struct FromCache<'a> {
    pub target: Option<&'a CachedWorkload>,
    pub primary: Option<&'a CachedWorkload>,
}

/// The status's record of a primary that does not exist any more.
#[derive(Clone, Copy, Debug, Default)]
pub struct LostPrimary<'a> {
    /// Default: those of the backup, or of the target.
    pub replicas: Option<u32>,
    /// None if its backup is of a version without them.
    pub backup_digests: Option<&'a str>,
}

/// Config copies that only the backup refers to, not the primary.
fn unused_copies(primary: &DynamicObject, backup: &DynamicObject) -> Vec<(Kind, String)> {
    let read = copies_referenced(&primary.data["spec"]["template"]);
    let spec = backup.data["data"]["spec"].as_str().and_then(|spec| serde_json::from_str::<Value>(spec).ok());
    let mut unused = copies_referenced(&spec.unwrap_or_default()["template"]);
    unused.retain(|copy| !read.contains(copy));
    unused
}

/// The target at exactly the requested revision, with its configs.
struct VerifiedTarget {
    target: DynamicObject,
    refs: Vec<ConfigRef>,
    configs: ConfigContents,
}

impl Workload {
    /// Creates the primary, as a copy of the target at exactly this revision, or
    /// overwrites one at another revision that has not served yet.
    pub async fn create_primary(&self, client: &Client, revision: &str) -> Result<(), Error> {
        if self.kind == TargetKind::EndpointGroup {
            return self.promote_version(client, revision).await;
        }
        self.create_copy(client, revision, &LostPrimary::default()).await
    }

    async fn create_copy(
        &self,
        client: &Client,
        revision: &str,
        &LostPrimary { replicas: size, backup_digests: digests }: &LostPrimary<'_>,
    ) -> Result<(), Error> {
        for conflicts in 0..MAX_CONFLICTS {
            conflict_backoff(conflicts).await;
            let present = get(client, &self.namespace, self.kind(), &self.primary_name()).await?;
            if let Some(present) = &present {
                self.check_copy(&present.metadata, copied_revision(present))?;
                if copied_revision(present) == Some(revision) {
                    return Ok(());
                }
            }
            let verified = self.read_verified(client, revision, None).await?;
            let names = self.copy_names(&verified.refs, &verified.configs);
            let mut primary = self.primary_manifest(&verified.target, revision, &names, present.as_ref())?;
            let digests = present.as_ref().and_then(backup_digests).or(digests);
            if let Some(size) = size.filter(|_| self.kind == TargetKind::Deployment && present.is_none()) {
                primary.data["spec"]["replicas"] = size.max(1).into();
            }
            self.write_copies(client, &verified, &names).await?;
            let backup = self.read_backup(client).await?;
            let before = backup.as_ref().and_then(|backup| {
                BackedUpSpec::in_backup(backup, backup.data["data"]["revision"].as_str()?, digests)
            });
            let backup = self.backup_of(before, &primary);
            self.apply(client, Kind::ConfigMap, &backup).await?;
            record_digests(&mut primary.metadata, digests_of(&backup));
            let written = match &present {
                None => self.create(client, &primary).await?,
                Some(present) => self.patch_if_unchanged(client, present, &primary).await?.is_some(),
            };
            if written {
                return Ok(());
            }
        }
        Err(self.conflict_error("create the primary"))
    }

    /// Gives the canary this many replicas; a DaemonSet runs on every node, or
    /// on none.
    pub async fn scale_canary(
        &self,
        client: &Client,
        cache: &dyn ObjectCache,
        replicas: u32,
    ) -> Result<(), Error> {
        self.scale(client, cache, replicas, json!({})).await
    }

    /// Scales the canary to zero and records the release on the target.
    pub async fn scale_down_canary(
        &self,
        client: &Client,
        cache: &dyn ObjectCache,
        after: u64,
    ) -> Result<(), Error> {
        let release = format!("{}/{after}", self.owner.uid);
        self.scale(client, cache, 0, json!({ "annotations": { SCALED_DOWN_AFTER: release } })).await
    }

    async fn scale(
        &self,
        client: &Client,
        cache: &dyn ObjectCache,
        replicas: u32,
        metadata: Value,
    ) -> Result<(), Error> {
        let attempt = format!("scale {} {} to {replicas}", self.kind().name(), self.target);
        let mut patch = match self.kind {
            TargetKind::Deployment => json!({ "spec": { "replicas": replicas } }),
            TargetKind::DaemonSet => {
                let mark = if replicas == 0 { json!("true") } else { Value::Null };
                json!({ "spec": { "template": { "spec": { "nodeSelector": { SCALE_TO_ZERO: mark } } } } })
            }
            TargetKind::Service | TargetKind::EndpointGroup => return Ok(()),
        };
        patch["metadata"] = metadata;
        if let Some(scaler) = self.autoscaler.as_ref().filter(|s| s.kind == AutoscalerKind::ScaledObject) {
            self.pause_keda(client, scaler, replicas == 0).await?;
        }
        let scaled =
            self.workload_api(client).patch(&self.target, &merge_params(), &Patch::Merge(&patch)).await;
        let StrippedObject(written) = scaled.map_err(Error::api(attempt))?;
        self.apply_write_response(cache, written);
        Ok(())
    }

    /// Keeps the primary's autoscaler, if any, from scaling it below its present
    /// size.
    pub async fn pin_primary(&self, client: &Client) -> Result<(), Error> {
        let Some(scaler) = &self.autoscaler else { return Ok(()) };
        let name = self.primary_name();
        let primary = self.get_required(client, self.kind(), &name, "pin the primary").await?;
        let size = manifests::replicas(&primary.data["spec"]).unwrap_or(1);
        // A pin stays at its first value, even if the primary has grown since.
        self.write_scaler(client, scaler, |pin| pin.or(Some(size))).await
    }

    /// Lets the primary scale freely again.
    pub async fn unpin_primary(&self, client: &Client) -> Result<(), Error> {
        let Some(scaler) = &self.autoscaler else { return Ok(()) };
        self.write_scaler(client, scaler, |_| None).await
    }

    /// Creates a copy of the primary at its present size; the primary must be at
    /// exactly this revision.
    pub async fn keep_previous(&self, client: &Client, revision: &str) -> Result<(), Error> {
        if self.kind == TargetKind::EndpointGroup {
            return Ok(());
        }
        let (kind, attempt) = (self.kind(), "keep a copy of the primary");
        for conflicts in 0..MAX_CONFLICTS {
            conflict_backoff(conflicts).await;
            let present = get(client, &self.namespace, kind, &self.previous_name()).await?;
            if let Some(present) = &present {
                self.check_copy(&present.metadata, copied_revision(present))?;
                if copied_revision(present) == Some(revision) {
                    return Ok(());
                }
            }
            let primary = self.get_required(client, kind, &self.primary_name(), attempt).await?;
            let actual = copied_revision(&primary).unwrap_or_default();
            if actual != revision {
                let (name, expected, actual) = (self.primary_name(), revision.to_owned(), actual.to_owned());
                return Err(Error::PrimaryChanged { kind: kind.name(), name, expected, actual });
            }
            let previous = self.previous_manifest(&primary, present.as_ref())?;
            let kept = match &present {
                None => self.create(client, &previous).await?,
                Some(present) => self.patch_if_unchanged(client, present, &previous).await?.is_some(),
            };
            if kept {
                return Ok(());
            }
        }
        Err(self.conflict_error(attempt))
    }

    pub async fn drop_previous(&self, client: &Client) -> Result<(), Error> {
        if self.kind == TargetKind::EndpointGroup {
            return Ok(());
        }
        self.delete_own(client, self.kind(), &self.previous_name()).await
    }

    /// Copies the target to the primary, if it still is at exactly this revision.
    /// The backup of the primary and the copies of configs are written first.
    pub async fn promote(
        &self,
        client: &Client,
        cache: &dyn ObjectCache,
        revision: &str,
        cached: FromCache<'_>,
    ) -> Result<(), Error> {
        if self.kind == TargetKind::EndpointGroup {
            return self.promote_version(client, revision).await;
        }
        let name = self.primary_name();
        let mut primary = match cached.primary {
            Some(primary) => primary.to_dynamic_object(self.kind()),
            None => self.get_required(client, self.kind(), &name, "promote").await?,
        };
        self.check_copy(&primary.metadata, copied_revision(&primary))?;
        if copied_revision(&primary) == Some(revision) {
            return Ok(());
        }
        let verified = self.read_verified(client, revision, cached.target).await?;
        let names = self.copy_names(&verified.refs, &verified.configs);
        let last_backup = self.read_backup(client).await?;
        let unused = last_backup.as_ref().map(|backup| unused_copies(&primary, backup)).unwrap_or_default();
        self.write_copies(client, &verified, &names).await?;
        for conflicts in 1..=MAX_CONFLICTS {
            if let Some(before) = self.recorded_spec(client, &mut primary, last_backup.as_ref()).await? {
                let mut promoted =
                    self.primary_manifest(&verified.target, revision, &names, Some(&primary))?;
                let backup = self.backup_of(Some(before), &promoted);
                self.apply(client, Kind::ConfigMap, &backup).await?;
                record_digests(&mut promoted.metadata, digests_of(&backup));
                if let Some(written) = self.patch_if_unchanged(client, &primary, &promoted).await? {
                    let still_read = copies_referenced(&promoted.data["spec"]["template"]);
                    for (kind, name) in unused.into_iter().filter(|copy| !still_read.contains(copy)) {
                        self.delete_own(client, kind, &name).await?;
                    }
                    self.apply_write_response(cache, written);
                    return Ok(());
                }
            }
            conflict_backoff(conflicts).await;
            primary = self.get_required(client, self.kind(), &name, "promote").await?;
            // Promoted already, unknown to the stale cache. A backup of it would
            // overwrite the only revision to roll back to.
            if copied_revision(&primary) == Some(revision) {
                return Ok(());
            }
        }
        Err(self.conflict_error("promote"))
    }

    /// Gives the primary at least this many replicas, and its autoscaler, if any, the
    /// same minimum.
    pub async fn scale_primary(
        &self,
        client: &Client,
        cache: &dyn ObjectCache,
        replicas: u32,
    ) -> Result<(), Error> {
        if self.kind != TargetKind::Deployment {
            return Ok(());
        }
        let (name, patch) = (self.primary_name(), json!({ "spec": { "replicas": replicas } }));
        let scaled = self.workload_api(client).patch(&name, &merge_params(), &Patch::Merge(&patch)).await;
        let StrippedObject(written) =
            scaled.map_err(Error::api(format!("scale {} {name} to {replicas}", self.kind().name())))?;
        self.apply_write_response(cache, written);
        match &self.autoscaler {
            Some(scaler) => self.write_scaler(client, scaler, |pin| pin.max(Some(replicas))).await,
            None => Ok(()),
        }
    }

    /// Restores the primary from its backup, which must be of exactly this
    /// revision and as it was recorded; else from the target.
    pub async fn restore_primary(
        &self,
        client: &Client,
        cache: &dyn ObjectCache,
        revision: &str,
        lost: &LostPrimary<'_>,
    ) -> Result<(), Error> {
        if self.kind == TargetKind::EndpointGroup {
            return self.restore_version(client, revision).await;
        }
        let attempt = "restore the primary";
        let missing = || Error::BackupMissing { revision: revision.to_owned(), backup: self.backup_name() };
        let edited =
            |EditedBackup| Error::BackupEdited { revision: revision.to_owned(), backup: self.backup_name() };
        let backup = self.read_backup(client).await?;
        let spec = |digests: Option<&str>| match &backup {
            Some(backup) => backed_up_spec(backup, revision, digests),
            None => Ok(None),
        };
        for conflicts in 0..MAX_CONFLICTS {
            conflict_backoff(conflicts).await;
            let Some(primary) = get(client, &self.namespace, self.kind(), &self.primary_name()).await? else {
                let spec = spec(lost.backup_digests);
                let was_edited = spec.is_err();
                let recreated = backup.as_ref().zip(spec.ok().flatten()).and_then(|(backup, spec)| {
                    let mut primary = self.recreate_from_backup(spec, revision, lost.replicas)?;
                    // A spec of which no digest is recorded stays one.
                    let digests = lost.backup_digests.map_or_else(|| digests_of(backup), str::to_owned);
                    record_digests(&mut primary.metadata, digests);
                    Some(primary)
                });
                match recreated {
                    Some(primary) if self.create(client, &primary).await? => return Ok(()),
                    Some(_) => continue,
                    None => {
                        return match self.create_copy(client, revision, lost).await {
                            Err(Error::TargetChanged { .. } | Error::Missing { .. }) if was_edited => {
                                Err(edited(EditedBackup))
                            }
                            Err(Error::TargetChanged { .. } | Error::Missing { .. }) => Err(missing()),
                            other => other,
                        };
                    }
                }
            };
            self.check_copy(&primary.metadata, copied_revision(&primary))?;
            if copied_revision(&primary) == Some(revision) {
                return Ok(());
            }
            let spec = spec(backup_digests(&primary));
            let was_edited = spec.is_err();
            let restored =
                spec.ok().flatten().and_then(|spec| self.restore_from_backup(spec, revision, &primary));
            let Some(restored) = restored else {
                return match self.promote(client, cache, revision, FromCache::default()).await {
                    Err(Error::TargetChanged { .. }) if was_edited => Err(edited(EditedBackup)),
                    Err(Error::TargetChanged { .. }) => Err(missing()),
                    other => other,
                };
            };
            if let Some(written) = self.patch_if_unchanged(client, &primary, &restored).await? {
                self.apply_write_response(cache, written);
                return Ok(());
            }
        }
        Err(self.conflict_error(attempt))
    }

    /// Read-your-writes for Deployments and DaemonSets, whose status changes
    /// trigger the next reconcile. A Service has no status to change: the watch
    /// event of the write itself must trigger it, so the cache is left to the
    /// watch.
    fn apply_write_response(&self, cache: &dyn ObjectCache, written: DynamicObject) {
        match self.kind {
            TargetKind::Deployment | TargetKind::DaemonSet => {
                cache.apply_write_response(self.kind().resource(), written);
            }
            TargetKind::Service | TargetKind::EndpointGroup => {}
        }
    }

    /// Performs a change of [`Workload::companion_changes`].
    pub async fn apply_companion_change(
        &self,
        client: &Client,
        change: &CompanionChange,
    ) -> Result<(), Error> {
        match change {
            CompanionChange::Apply(kind, object) => self.apply(client, *kind, object).await,
            CompanionChange::Delete(kind, name) => self.delete_own(client, *kind, name).await,
            CompanionChange::DisableDriftDetection => {
                let (key, value) = HELM_IGNORE_DRIFT;
                let patch = json!({ "metadata": { "annotations": { key: value } } });
                api(client, &self.namespace, self.kind())
                    .patch(&self.target, &merge_params(), &Patch::Merge(&patch))
                    .await
                    .map_err(Error::api(format!("annotate {} {}", self.kind().name(), self.target)))?;
                Ok(())
            }
        }
    }

    /// Reads the configs, and the target unless it is cached, and verifies the
    /// revision.
    async fn read_verified(
        &self,
        client: &Client,
        revision: &str,
        cached: Option<&CachedWorkload>,
    ) -> Result<VerifiedTarget, Error> {
        let target = match cached {
            Some(target) => target.to_dynamic_object(self.kind()),
            None => self.get_required(client, self.kind(), &self.target, "copy the target").await?,
        };
        let spec = &target.data["spec"];
        let refs = self.config_refs(spec);
        let mut configs = ConfigContents::default();
        configs.read(client, &self.namespace, &refs).await?;
        let actual = self.digest(spec, &refs, &configs, HashVersion::of(Some(revision))).revision;
        if actual != revision {
            let (name, expected) = (self.target.clone(), revision.to_owned());
            return Err(Error::TargetChanged { kind: self.kind().name(), name, expected, actual });
        }
        Ok(VerifiedTarget { target, refs, configs })
    }

    async fn write_copies(
        &self,
        client: &Client,
        verified: &VerifiedTarget,
        names: &BTreeMap<ConfigRef, String>,
    ) -> Result<(), Error> {
        for (kind, copy) in self.copies(&verified.refs, &verified.configs, names) {
            self.apply(client, kind, &copy).await?;
        }
        Ok(())
    }

    /// KEDA would scale the target up again from zero.
    async fn pause_keda(&self, client: &Client, scaler: &AutoscalerRef, pause: bool) -> Result<(), Error> {
        let kind = Kind::ScaledObject;
        let attempt = if pause { "pause the autoscaler" } else { "resume the autoscaler" };
        // An autoscaler that is gone scales nothing.
        let Some(object) = get(client, &self.namespace, kind, &scaler.name).await? else { return Ok(()) };
        let ours = object.annotations().contains_key(PAUSED_BY_US);
        let paused = object.annotations().contains_key(KEDA_PAUSED);
        let annotations = match (pause, ours) {
            (true, false) if !paused => json!({ KEDA_PAUSED: "0", PAUSED_BY_US: "true" }),
            (false, true) => json!({ KEDA_PAUSED: null, PAUSED_BY_US: null }),
            _ => return Ok(()),
        };
        let patch = json!({ "metadata": { "annotations": annotations } });
        api(client, &self.namespace, kind)
            .patch(&scaler.name, &merge_params(), &Patch::Merge(&patch))
            .await
            .map_err(Error::api(format!("{attempt} {}", scaler.name)))?;
        Ok(())
    }

    /// Writes the primary's autoscaler; `pin` maps its present temporary minimum to
    /// the new one.
    async fn write_scaler(
        &self,
        client: &Client,
        scaler: &AutoscalerRef,
        pin: impl FnOnce(Option<u32>) -> Option<u32>,
    ) -> Result<(), Error> {
        let kind = Kind::from(scaler.kind);
        let source = self.get_required(client, kind, &scaler.name, "pin the primary").await?;
        let present = get(client, &self.namespace, kind, &format!("{}-primary", scaler.name)).await?;
        if let Some(present) = &present {
            self.check_companion(kind, &present.metadata)?;
        }
        let pin = pin(present.as_ref().and_then(pin_of));
        self.apply(client, kind, &self.scaler_copy(scaler, &source, pin)).await
    }
}
