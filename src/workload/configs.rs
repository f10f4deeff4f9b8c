//! The ConfigMaps and Secrets that a target reads: references, contents, and the
//! copies that the primary reads instead.
//!
//! The reflectors cache metadata of configs only. Contents of a version are read
//! once and cached while that version is in use, so an idle Canary reads nothing.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use kube::{Client, core::DynamicObject};
use serde_json::{Value, json};

use super::{CachedWorkload, Error, Kind, Workload, write};
use crate::{
    engine::revision::{ConfigRef, HashVersion, revision},
    memo::Memo,
};

/// Annotations: a config with one of these set to `disable…` is neither tracked
/// nor copied.
const OPT_OUT: [&str; 2] = ["serin.dev/config-tracking", "flagger.app/config-tracking"];
/// Secrets of other types belong to the cluster, not to the application.
const SECRET_TYPES: [&str; 4] =
    ["Opaque", "kubernetes.io/basic-auth", "kubernetes.io/ssh-auth", "kubernetes.io/tls"];

/// Contents of the configs of one target, as last read.
#[derive(Clone, Debug, Default)]
pub struct ConfigContents {
    cached: BTreeMap<ConfigRef, CachedConfig>,
    /// With the configs that the target reads.
    digest: Memo<DigestInputs, (Vec<ConfigRef>, TargetDigest)>,
}

/// Configs that must be read before the target's revision can be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the contents of {} configs are not read yet", .0.len())]
pub struct MissingContents(pub Vec<ConfigRef>);

/// A ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    /// `data`, `binaryData` and `type`, if present.
    pub contents: Value,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    tracked: bool,
}

#[derive(Clone, Debug)]
struct CachedConfig {
    /// None if it does not exist.
    version: Option<String>,
    config: Option<Config>,
}

/// Inputs of a digest beside the versions of configs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DigestInputs {
    /// uid and version of the target's spec.
    target: (Option<String>, String),
    form: HashVersion,
}

impl DigestInputs {
    fn new(target: &CachedWorkload, form: HashVersion) -> Self {
        let (uid, version) = target.spec_version();
        Self { target: (uid.map(str::to_owned), version), form }
    }
}

/// The revision of a target, and a digest of each config that it reads.
#[derive(Clone, Debug)]
pub(super) struct TargetDigest {
    pub revision: String,
    /// By kind and name: `configmap/settings`.
    pub configs: BTreeMap<String, String>,
}

impl ConfigContents {
    /// Reads configs and caches their contents.
    pub async fn read(
        &mut self,
        client: &Client,
        namespace: &str,
        configs: impl IntoIterator<Item = &ConfigRef>,
    ) -> Result<(), Error> {
        let read = configs.into_iter().filter_map(|config| Some((config, Kind::of(config)?))).map(
            |(config, kind)| async move {
                let object = write::get(client, namespace, kind, &config.name).await?;
                let version = object.as_ref().and_then(|object| object.metadata.resource_version.clone());
                Ok::<_, Error>((config.clone(), CachedConfig { version, config: object.map(Config::from) }))
            },
        );
        self.cached.extend(try_join_all(read).await?);
        self.digest.clear();
        Ok(())
    }

    /// Drops other configs; the error lists those that are not cached at their
    /// present version.
    pub(super) fn retain_current(
        &mut self,
        refs: &[ConfigRef],
        version: &impl Fn(&ConfigRef) -> Option<String>,
    ) -> Result<(), MissingContents> {
        self.cached.retain(|config, _| refs.contains(config));
        let mut missing = Vec::new();
        for config in refs {
            match version(config) {
                None => _ = self.cached.insert(config.clone(), CachedConfig { version: None, config: None }),
                version if self.cached.get(config).is_some_and(|cached| cached.version == version) => {}
                Some(_) => missing.push(config.clone()),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(MissingContents(missing)) }
    }

    /// Tracked configs with their contents; none for those that do not exist.
    pub(super) fn tracked<'a>(
        &'a self,
        refs: &'a [ConfigRef],
    ) -> impl Iterator<Item = (ConfigRef, Option<&'a Config>)> {
        refs.iter()
            .map(|config| (config.clone(), self.cached.get(config).and_then(|cached| cached.config.as_ref())))
            .filter(|(_, config)| config.is_none_or(|config| config.tracked))
    }

    /// The last digest, if its inputs are unchanged.
    pub(super) fn memoized_digest(
        &self,
        target: &CachedWorkload,
        form: HashVersion,
        version: &impl Fn(&ConfigRef) -> Option<String>,
    ) -> Option<TargetDigest> {
        let (refs, digest) = self.digest.hit(&DigestInputs::new(target, form))?;
        let cached = |config| self.cached.get(config).is_some_and(|cached| cached.version == version(config));
        refs.iter().all(cached).then(|| digest.clone())
    }

    pub(super) fn memoize_digest(
        &mut self,
        target: &CachedWorkload,
        form: HashVersion,
        refs: Vec<ConfigRef>,
        digest: TargetDigest,
    ) {
        self.digest.set(DigestInputs::new(target, form), (refs, digest));
    }
}

impl From<DynamicObject> for Config {
    fn from(object: DynamicObject) -> Self {
        let annotations = object.metadata.annotations.unwrap_or_default();
        let opted_out =
            OPT_OUT.iter().any(|key| annotations.get(*key).is_some_and(|value| value.starts_with("disable")));
        let mut contents = object.data.as_object().cloned().unwrap_or_default();
        contents.retain(|key, _| ["data", "binaryData", "type"].contains(&key.as_str()));
        let applies = contents.get("type").and_then(Value::as_str).is_none_or(|t| SECRET_TYPES.contains(&t));
        Self {
            contents: contents.into(),
            labels: object.metadata.labels.unwrap_or_default(),
            annotations,
            tracked: applies && !opted_out,
        }
    }
}

impl Workload {
    /// The configs that a spec refers to, sorted and without duplicates.
    pub(super) fn config_refs(&self, spec: &Value) -> Vec<ConfigRef> {
        let mut refs = Vec::new();
        if self.options.track_configs {
            each_config(&mut spec["template"].clone(), &mut |kind, name| {
                refs.push(ConfigRef { kind: kind.name().to_owned(), name: name.clone() });
            });
        }
        refs.sort();
        refs.dedup();
        refs
    }

    /// The name of each config's copy: a hash of its contents and of the target,
    /// so that no two primaries share a copy.
    pub(super) fn copy_names(
        &self,
        refs: &[ConfigRef],
        configs: &ConfigContents,
    ) -> BTreeMap<ConfigRef, String> {
        let name = |config: &ConfigRef, contents: Option<&Value>| {
            let of = ConfigRef { name: format!("{}/{}", self.target, config.name), ..config.clone() };
            let digest = revision(HashVersion::CURRENT, &Value::Null, &[(of, contents)].into());
            let digits = digest.rsplit('-').next().unwrap_or_default();
            format!("{}-primary-{}", config.name, &digits[..digits.len().min(10)])
        };
        configs
            .tracked(refs)
            .map(|(config, cached)| {
                let copy = name(&config, cached.map(|cached| &cached.contents));
                (config, copy)
            })
            .collect()
    }

    /// The copies of those configs that exist.
    pub(super) fn copies(
        &self,
        refs: &[ConfigRef],
        configs: &ConfigContents,
        names: &BTreeMap<ConfigRef, String>,
    ) -> Vec<(Kind, DynamicObject)> {
        let copy = |(config, cached): (ConfigRef, Option<&Config>)| {
            let (kind, cached, name) = (Kind::of(&config)?, cached?, names.get(&config)?);
            let mut data = cached.contents.clone();
            data["immutable"] = json!(true);
            let mut object = DynamicObject {
                types: Some(kind.type_meta()),
                metadata: self.copy_metadata(name, &cached.labels, &cached.annotations),
                data,
            };
            self.mark_copy(&mut object.metadata, kind, &config.name);
            Some((kind, object))
        };
        configs.tracked(refs).filter_map(copy).collect()
    }
}

/// Replaces references to configs by references to their copies.
pub(super) fn point_to_copies(template: &mut Value, names: &BTreeMap<ConfigRef, String>) {
    each_config(template, &mut |kind, name| {
        let config = ConfigRef { kind: kind.name().to_owned(), name: name.clone() };
        if let Some(copy) = names.get(&config) {
            name.clone_from(copy);
        }
    });
}

/// The copies that a template refers to, by their naming pattern.
pub(super) fn copies_referenced(template: &Value) -> Vec<(Kind, String)> {
    let mut copies = Vec::new();
    each_config(&mut template.clone(), &mut |kind, name| {
        if name.contains("-primary-") {
            copies.push((kind, name.clone()));
        }
    });
    copies
}

/// Visits the name of every config that a template refers to.
fn each_config(template: &mut Value, visit: &mut dyn FnMut(Kind, &mut String)) {
    let spec = &mut template["spec"];
    for volume in items(spec, "volumes") {
        visit_name(volume, "/configMap/name", Kind::ConfigMap, visit);
        visit_name(volume, "/secret/secretName", Kind::Secret, visit);
        if let Some(projected) = volume.get_mut("projected") {
            for source in items(projected, "sources") {
                visit_name(source, "/configMap/name", Kind::ConfigMap, visit);
                visit_name(source, "/secret/name", Kind::Secret, visit);
            }
        }
    }
    for containers in ["initContainers", "containers"] {
        for container in items(spec, containers) {
            for variable in items(container, "env") {
                visit_name(variable, "/valueFrom/configMapKeyRef/name", Kind::ConfigMap, visit);
                visit_name(variable, "/valueFrom/secretKeyRef/name", Kind::Secret, visit);
            }
            for source in items(container, "envFrom") {
                visit_name(source, "/configMapRef/name", Kind::ConfigMap, visit);
                visit_name(source, "/secretRef/name", Kind::Secret, visit);
            }
        }
    }
}

fn items<'v>(value: &'v mut Value, list: &str) -> impl Iterator<Item = &'v mut Value> {
    value.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

fn visit_name(value: &mut Value, pointer: &str, kind: Kind, visit: &mut dyn FnMut(Kind, &mut String)) {
    if let Some(Value::String(name)) = value.pointer_mut(pointer) {
        visit(kind, name);
    }
}
