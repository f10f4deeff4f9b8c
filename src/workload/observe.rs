//! Observed state, derived from cached objects. Pure.

use std::collections::BTreeMap;

use super::{
    CachedWorkload, ConfigContents, MissingContents, PINNED, SCALED_DOWN_AFTER, UnsupportedTarget, Workload,
    configs::{self, TargetDigest},
    endpoint_group,
};
use crate::{
    api::canary::TargetKind,
    engine::{
        observed::{Previous, Primary, Target},
        revision::{ConfigRef, HashVersion, config_digest, revision},
    },
};
use kube::core::DynamicObject;
use serde_json::Value;

impl Workload {
    /// The target, with its revision in the hash version of `recorded`.
    ///
    /// `version` returns the resourceVersion of a ConfigMap or Secret, none if it
    /// does not exist. The error names configs that `configs` does not hold at
    /// that version and that must be read first ([`ConfigContents::read`]).
    pub fn observe_target(
        &self,
        target: &CachedWorkload,
        configs: &mut ConfigContents,
        version: impl Fn(&ConfigRef) -> Option<String>,
        recorded: Option<&str>,
    ) -> Result<Target, MissingContents> {
        if self.kind == TargetKind::EndpointGroup {
            return Ok(endpoint_group::observe_target(target));
        }
        let (pods, scaled_down_after) = (target.pods(self.kind), self.scaled_down_after(target));
        let form = HashVersion::of(recorded);
        let TargetDigest { revision, configs } = match configs.memoized_digest(target, form, &version) {
            Some(digest) => digest,
            None => {
                let spec = target.spec();
                let refs = self.config_refs(&spec);
                configs.retain_current(&refs, &version)?;
                let digest = self.digest(&spec, &refs, configs, form);
                configs.memoize_digest(target, form, refs, digest.clone());
                digest
            }
        };
        Ok(Target {
            revision,
            name: target.name().map(str::to_owned),
            trouble: None,
            configs,
            pods,
            scaled_down_after,
        })
    }

    /// The release recorded by [`Workload::scale_down_canary`]. That of another
    /// Canary, even of the same name, does not count.
    fn scaled_down_after(&self, target: &CachedWorkload) -> Option<u64> {
        let (canary, release) = target.annotation(SCALED_DOWN_AFTER)?.split_once('/')?;
        release.parse().ok().filter(|_| canary == self.owner.uid)
    }

    /// The spec has zero replicas.
    pub fn is_scaled_down(&self, target: &CachedWorkload) -> bool {
        target.pods(self.kind).desired == 0
    }

    /// The primary, and whether its autoscaler is pinned; none for an EndpointGroup of which
    /// no version is the primary yet.
    pub fn observe_primary(
        &self,
        primary: &CachedWorkload,
        autoscaler: Option<&DynamicObject>,
    ) -> Result<Option<Primary>, UnsupportedTarget> {
        if self.kind == TargetKind::EndpointGroup {
            return Ok(endpoint_group::observe_primary(primary));
        }
        self.check_copy(&primary.metadata, primary.copied_revision())?;
        let pin = autoscaler.and_then(|scaler| scaler.metadata.annotations.as_ref()?.get(PINNED));
        let pods = primary.pods(self.kind);
        Ok(Some(Primary {
            revision: primary.copied_revision().map(str::to_owned),
            name: primary.name().map(str::to_owned),
            trouble: None,
            pods,
            pinned: pin.is_some(),
            max_replicas: match self.kind {
                TargetKind::Deployment => autoscaler.and_then(|scaler| self.max_replicas(scaler)),
                TargetKind::DaemonSet | TargetKind::Service | TargetKind::EndpointGroup => Some(pods.desired),
            },
        }))
    }

    /// The previous version; none if this Canary does not own the object.
    pub fn observe_previous(&self, previous: &CachedWorkload) -> Option<Previous> {
        let ours = self.is_owner(&previous.metadata) && previous.metadata.deletion_timestamp.is_none();
        let revision = previous.copied_revision().filter(|_| ours)?.to_owned();
        Some(Previous { revision, pods: previous.pods(self.kind) })
    }

    /// All of `refs` must be in `configs`.
    pub(super) fn digest(
        &self,
        spec: &Value,
        refs: &[ConfigRef],
        configs: &ConfigContents,
        form: HashVersion,
    ) -> TargetDigest {
        let tracked: BTreeMap<_, _> = configs.tracked(refs).collect();
        let contents = tracked.iter().map(|(name, config)| (name.clone(), config.map(|c| &c.contents)));
        let revision = revision(form, &self.template(spec), &contents.collect());
        let digest = |(name, config): (&ConfigRef, &Option<&configs::Config>)| {
            let key = format!("{}/{}", name.kind.to_lowercase(), name.name);
            (key, config_digest(config.map(|config| &config.contents)))
        };
        TargetDigest { revision, configs: tracked.iter().map(digest).collect() }
    }
}
