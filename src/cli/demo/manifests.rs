//! Objects applied before the first release: the demo's own, or those of
//! `--file`.

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::api::canary::TargetKind;
use crate::api::{self, Canary};

const SHOP_YAML: &str = include_str!("shop.yaml");
const NAMESPACE: &str = "default";

/// The objects to apply, and the names that the releases need.
pub struct Manifests {
    /// Applied in this order.
    pub objects: Vec<DynamicObject>,
    pub namespace: String,
    pub canary: String,
    pub deployment: String,
    /// The container whose image is released.
    pub container: String,
    /// Its image, without a tag.
    pub image: String,
    /// The apex Service, which clients call.
    pub service: String,
}

impl Manifests {
    /// The demo's own.
    pub fn builtin(image: Option<&str>) -> anyhow::Result<Self> {
        Self::parse(SHOP_YAML, image).context("read the manifests of the demo")
    }

    /// The user's: a Canary and other objects. A missing Deployment is
    /// generated.
    pub fn parse(text: &str, image: Option<&str>) -> anyhow::Result<Self> {
        let mut documents: Vec<Value> = serde_saphyr::from_multiple(text).context("it is not YAML")?;
        documents.retain(|document| !document.is_null());
        for document in &mut documents {
            ensure!(
                document["metadata"].is_object(),
                "it contains something that is not a Kubernetes object: {document}"
            );
            // Cluster-scoped objects lose it again when applied.
            let namespace = &mut document["metadata"]["namespace"];
            if namespace.is_null() {
                *namespace = json!(NAMESPACE);
            }
        }
        let mut canaries = documents.iter().filter(|document| document["kind"] == "Canary");
        let canary = match (canaries.next(), canaries.next()) {
            (Some(canary), None) => canary.clone(),
            (None, _) => bail!("it has no Canary: the demo needs one"),
            (Some(_), Some(_)) => bail!("it has several Canaries: the demo watches one"),
        };
        let version = canary["apiVersion"].as_str().unwrap_or_default();
        ensure!(
            version.starts_with("serin.dev/"),
            "its Canary has apiVersion {version}; change that to {}/{}, or let `serin migrate` do it",
            api::GROUP,
            api::VERSION
        );
        let canary: Canary = serde_json::from_value(canary).context("its Canary is invalid")?;
        let (namespace, target) = (canary.namespace().unwrap_or_default(), &canary.spec.target_ref);
        ensure!(
            target.kind == TargetKind::Deployment,
            "its Canary targets no Deployment, and the demo releases by changing the image of one"
        );
        let service =
            canary.spec.service.as_ref().context("its Canary has no spec.service to send requests to")?;
        let is_target = |document: &Value| {
            document["kind"] == "Deployment"
                && document["metadata"]["name"] == target.name.as_str()
                && document["metadata"]["namespace"] == namespace.as_str()
        };
        if !documents.iter().any(is_target) {
            let port = match &service.target_port {
                Some(port) => json!(port),
                None => json!(service.port),
            };
            documents.insert(0, default_deployment(&target.name, &namespace, port));
        }
        let deployment =
            documents.iter_mut().find(|document| is_target(document)).context("no Deployment")?;
        let (container, image) = prepare(deployment, image)?;
        Ok(Self {
            namespace,
            canary: canary.name_any(),
            deployment: target.name.clone(),
            container,
            image,
            service: service.name.clone().unwrap_or_else(|| target.name.clone()),
            objects: documents
                .into_iter()
                .map(serde_json::from_value)
                .collect::<Result<_, _>>()
                .context("it contains something that is not a Kubernetes object")?,
        })
    }

    pub fn image_with_tag(&self, tag: &str) -> String {
        format!("{}:{tag}", self.image)
    }
}

/// The CRD of TrafficSplits, which the demo's mesh watches.
pub fn traffic_split() -> anyhow::Result<CustomResourceDefinition> {
    serde_saphyr::from_str(include_str!("traffic_split.yaml")).context("parse the CRD of TrafficSplits")
}

/// Sets the image of the first container to `v1`; returns the container's name
/// and its image without a tag.
fn prepare(deployment: &mut Value, image: Option<&str>) -> anyhow::Result<(String, String)> {
    let parsed: Deployment =
        serde_json::from_value(deployment.clone()).context("its Deployment is invalid")?;
    let pod = parsed.spec.and_then(|spec| spec.template.spec);
    let container = pod.and_then(|pod| pod.containers.into_iter().next());
    let container = container.context("its Deployment has no container")?;
    let image = match (image, &container.image) {
        (Some(image), _) => image,
        (None, Some(image)) => without_tag(image),
        (None, None) => bail!("the container {} has no image", container.name),
    };
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!(format!("{image}:v1"));
    Ok((container.name, image.to_owned()))
}

/// The tag begins after the last colon, unless that begins a port.
pub fn without_tag(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

fn default_deployment(name: &str, namespace: &str, port: Value) -> Value {
    let port = if port.is_string() {
        json!({"name": port, "containerPort": 8080})
    } else {
        json!({"name": "http", "containerPort": port})
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{
                    "name": "app", "image": "app:v1", "ports": [port],
                    "env": [{"name": "LATENCY", "value": "20ms"}],
                    "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
                }]},
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: web}
spec:
  provider: linkerd
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  service: {port: 9898}
  analysis: {stepWeight: 10}
";

    #[test]
    fn the_demos_own_manifests_are_complete() {
        let own = Manifests::builtin(None).unwrap();
        assert_eq!((own.deployment.as_str(), own.service.as_str()), ("shop", "shop"));
        assert_eq!(own.image_with_tag("v2"), "shop:v2");
        assert_eq!(own.objects.len(), 2);
    }

    #[test]
    fn a_canary_alone_gets_a_deployment() {
        let parsed = Manifests::parse(CANARY, Some("team/web")).unwrap();
        assert_eq!(
            parsed.objects[0].data["spec"]["template"]["spec"]["containers"][0]["image"],
            "team/web:v1"
        );
        assert_eq!(parsed.objects[0].name_any(), "web");
        assert_eq!(parsed.namespace, NAMESPACE);
    }

    #[test]
    fn an_unsupported_target_is_refused() {
        let error = |text: &str| Manifests::parse(text, None).err().unwrap().to_string();
        assert!(error("{kind: Service, metadata: {name: web}}").contains("no Canary"));
        assert!(error(&format!("{CANARY}---{CANARY}")).contains("several"));
        assert!(error(&CANARY.replace("kind: Deployment", "kind: DaemonSet")).contains("no Deployment"));
    }

    #[test]
    fn a_port_is_not_a_tag() {
        assert_eq!(without_tag("registry:5000/web"), "registry:5000/web");
        assert_eq!(without_tag("registry:5000/web:v1@sha256:ab"), "registry:5000/web");
    }
}
