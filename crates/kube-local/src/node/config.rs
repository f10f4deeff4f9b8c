//! A container's environment, and whether its ConfigMaps and Secrets exist.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use kube::{Api, Client, ResourceExt};

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {name}")]
    KeyNotFound { kind: &'static str, name: String, key: String },
    #[error("could not read {kind} \"{name}\": {source}")]
    Api { kind: &'static str, name: String, source: kube::Error },
}

/// Reads the ConfigMaps and Secrets of a pod's namespace.
pub struct ConfigReader {
    client: Client,
    namespace: String,
}

type ConfigData = BTreeMap<String, String>;

impl ConfigReader {
    pub fn new(client: Client, namespace: String) -> ConfigReader {
        ConfigReader { client, namespace }
    }

    /// The environment of the container's process; later entries win.
    pub async fn environment(
        &self,
        pod: &Pod,
        container: &Container,
        ip: &str,
    ) -> Result<ConfigData, ConfigError> {
        let mut environment = ConfigData::new();
        for from in container.env_from.iter().flatten() {
            let prefix = from.prefix.clone().unwrap_or_default();
            let mut entries = ConfigData::new();
            if let Some(source) = &from.config_map_ref {
                entries.extend(self.config_map(&source.name, source.optional).await?.unwrap_or_default());
            }
            if let Some(source) = &from.secret_ref {
                entries.extend(self.secret(&source.name, source.optional).await?.unwrap_or_default());
            }
            environment.extend(entries.into_iter().map(|(key, value)| (format!("{prefix}{key}"), value)));
        }
        for variable in container.env.iter().flatten() {
            let value = match (&variable.value, &variable.value_from) {
                (Some(value), _) => Some(value.clone()),
                (None, Some(source)) => self.value(source, pod, ip).await?,
                (None, None) => Some(String::new()),
            };
            environment.extend(value.map(|value| (variable.name.clone(), value)));
        }
        Ok(environment)
    }

    /// Checks that the sources of the pod's volumes exist.
    pub async fn volumes(&self, pod: &Pod) -> Result<(), ConfigError> {
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            if let Some(source) = &volume.config_map {
                self.config_map(&source.name, source.optional).await?;
            }
            if let Some(source) = &volume.secret {
                self.secret(source.secret_name.as_deref().unwrap_or_default(), source.optional).await?;
            }
        }
        Ok(())
    }

    async fn value(&self, source: &EnvVarSource, pod: &Pod, ip: &str) -> Result<Option<String>, ConfigError> {
        if let Some(field) = &source.field_ref {
            return Ok(Some(pod_field(pod, &field.field_path, ip)));
        }
        let (kind, name, key, optional, entries) = if let Some(from) = &source.config_map_key_ref {
            let entries = self.config_map(&from.name, from.optional).await?;
            (CONFIG_MAP, &from.name, &from.key, from.optional, entries)
        } else if let Some(from) = &source.secret_key_ref {
            let entries = self.secret(&from.name, from.optional).await?;
            (SECRET, &from.name, &from.key, from.optional, entries)
        } else {
            return Ok(None);
        };
        match entries.and_then(|mut entries| entries.remove(key)) {
            None if optional != Some(true) => {
                Err(ConfigError::KeyNotFound { kind, name: name.clone(), key: key.clone() })
            }
            value => Ok(value),
        }
    }

    async fn config_map(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<ConfigData>, ConfigError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = require_unless_optional(CONFIG_MAP, name, optional, api.get_opt(name).await)?;
        Ok(found.map(|found| found.data.unwrap_or_default()))
    }

    async fn secret(&self, name: &str, optional: Option<bool>) -> Result<Option<ConfigData>, ConfigError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = require_unless_optional(SECRET, name, optional, api.get_opt(name).await)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(found.map(|found| {
            found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value.0))).collect()
        }))
    }
}

const CONFIG_MAP: &str = "configmap";
const SECRET: &str = "secret";

fn require_unless_optional<K>(
    kind: &'static str,
    name: &str,
    optional: Option<bool>,
    result: kube::Result<Option<K>>,
) -> Result<Option<K>, ConfigError> {
    let name = name.to_owned();
    match result {
        Err(source) => Err(ConfigError::Api { kind, name, source }),
        Ok(None) if optional != Some(true) => Err(ConfigError::NotFound { kind, name }),
        Ok(found) => Ok(found),
    }
}

fn pod_field(pod: &Pod, path: &str, ip: &str) -> String {
    let spec = pod.spec.as_ref();
    let of_map =
        |map: &ConfigData, key: &str| map.get(key.trim_end_matches("']")).cloned().unwrap_or_default();
    match path {
        "metadata.name" => pod.name_any(),
        "metadata.namespace" => pod.namespace().unwrap_or_default(),
        "metadata.uid" => pod.uid().unwrap_or_default(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => {
            spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default()
        }
        "status.podIP" => ip.to_owned(),
        "status.hostIP" => super::HOST_IP.to_owned(),
        _ => match path.split_once("['") {
            Some(("metadata.labels", key)) => of_map(pod.labels(), key),
            Some(("metadata.annotations", key)) => of_map(pod.annotations(), key),
            _ => String::new(),
        },
    }
}
