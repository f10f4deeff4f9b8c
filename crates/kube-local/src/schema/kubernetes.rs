//! The schemas of built-in types, from k8s-openapi, completed by the types of
//! lists and maps and the defaults of list keys.
//!
//! Required fields are left out of the parsed schemas: the API server decodes
//! these kinds into Go structs and checks required fields by hand, as `builtin`
//! does.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::{
    apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
    autoscaling::v1 as autoscaling_v1, autoscaling::v2 as autoscaling, coordination::v1 as coordination,
    core::v1 as core, discovery::v1 as discovery, events::v1 as events, networking::v1 as networking,
    policy::v1 as policy,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::format::Format;
use super::{Schema, SchemaType, parse};

/// OpenAPI v3 by component name (`io.k8s.api.core.v1.Pod`), as published.
pub fn components() -> &'static BTreeMap<String, Value> {
    static COMPONENTS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(generate);
    &COMPONENTS
}

/// The parsed schema of a component; `None` if there is no such component.
pub fn schema(component: &str) -> Option<Arc<Schema>> {
    static SCHEMAS: LazyLock<BTreeMap<String, Arc<Schema>>> = LazyLock::new(|| {
        let mut parsed = SchemaCache { components: components(), schemas: BTreeMap::new() };
        for name in components().keys() {
            parsed.get(name);
        }
        parsed.schemas
    });
    SCHEMAS.get(component).cloned()
}

/// `metadata`, with the names restricted as in a CRD.
pub(super) fn metadata(narrowed: Option<&Schema>) -> Arc<Schema> {
    let Some(metadata) = schema(OBJECT_META) else { return Arc::new(Schema::anything()) };
    let Some(narrowed) = narrowed.filter(|narrowed| !narrowed.properties.is_empty()) else { return metadata };
    let mut properties = metadata.properties.clone();
    properties.extend(narrowed.properties.iter().map(|(name, schema)| (name.clone(), schema.clone())));
    let mut schema = Schema { properties, ..Schema::of(SchemaType::Object) };
    schema.summarize_children();
    Arc::new(schema)
}

/// The component that a `$ref` names, alone or wrapped to carry a description.
pub(crate) fn referenced(json: &Value) -> Option<&str> {
    let reference = json.get("$ref").or_else(|| json.pointer("/allOf/0/$ref"))?;
    reference.as_str()?.strip_prefix("#/components/schemas/")
}

/// Parsed components; each is parsed once and shared.
pub(super) struct SchemaCache<'a> {
    components: &'a BTreeMap<String, Value>,
    schemas: BTreeMap<String, Arc<Schema>>,
}

impl SchemaCache<'_> {
    pub(super) fn get(&mut self, name: &str) -> Arc<Schema> {
        if let Some(known) = self.schemas.get(name) {
            return known.clone();
        }
        let schema = match self.components.get(name) {
            // Recursive, and stored as written.
            Some(_) if name.ends_with(".JSONSchemaProps") => Schema::anything(),
            Some(json) if name.ends_with(".Quantity") => {
                Schema { format: Some(Format::quantity()), ..parse::parse_builtin(json, self) }
            }
            Some(json) => parse::parse_builtin(json, self),
            None => Schema::anything(),
        };
        let schema = Arc::new(schema);
        self.schemas.insert(name.to_owned(), schema.clone());
        schema
    }
}

fn generate() -> BTreeMap<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    macro_rules! register {
        ($($kind:ty),* $(,)?) => { $( let _ = generator.subschema_for::<$kind>(); )* };
    }
    register!(
        core::Namespace,
        core::Node,
        core::Pod,
        core::Service,
        core::ConfigMap,
        core::Secret,
        core::Event,
        core::Endpoints,
        core::ServiceAccount,
        apps::Deployment,
        apps::ReplicaSet,
        apps::DaemonSet,
        apps::StatefulSet,
        discovery::EndpointSlice,
        coordination::Lease,
        events::Event,
        autoscaling::HorizontalPodAutoscaler,
        autoscaling_v1::Scale,
        networking::Ingress,
        policy::PodDisruptionBudget,
        apiextensions::CustomResourceDefinition,
        authentication::TokenReview,
        authorization::SubjectAccessReview,
        authorization::SelfSubjectAccessReview,
        meta::ObjectMeta,
        meta::ListMeta,
        meta::Status,
        meta::DeleteOptions,
        meta::Patch,
    );
    let mut components: BTreeMap<String, Value> = generator.take_definitions(false).into_iter().collect();
    for component in components.values_mut() {
        wrap_references(component);
    }
    for (component, field, keys) in LISTS {
        if let Some(field) = property(&mut components, component, field) {
            match keys {
                [] => field.insert("x-kubernetes-list-type".to_owned(), "set".into()),
                keys => {
                    field.insert("x-kubernetes-list-type".to_owned(), "map".into());
                    field.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
                    field.insert("x-kubernetes-patch-merge-key".to_owned(), json!(keys[0]))
                }
            };
            field.insert("x-kubernetes-patch-strategy".to_owned(), "merge".into());
        }
    }
    for (component, field, strategy) in STRATEGIES {
        if let Some(field) = property(&mut components, component, field) {
            field.insert("x-kubernetes-patch-strategy".to_owned(), (*strategy).into());
        }
    }
    for name in ATOMIC_TYPES {
        if let Some(component) = components.get_mut(*name).and_then(Value::as_object_mut) {
            component.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
        }
    }
    for (component, field) in ATOMIC_MAPS {
        if let Some(field) = property(&mut components, component, field) {
            field.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
        }
    }
    for (component, field, default) in DEFAULTS {
        if let Some(field) = property(&mut components, component, field) {
            field.insert("default".to_owned(), (*default).into());
        }
    }
    components
}

fn property<'a>(
    components: &'a mut BTreeMap<String, Value>,
    component: &str,
    field: &str,
) -> Option<&'a mut Map<String, Value>> {
    components.get_mut(component)?.get_mut("properties")?.get_mut(field)?.as_object_mut()
}

/// OpenAPI v3 ignores siblings of a `$ref`, so it is wrapped.
fn wrap_references(json: &mut Value) {
    match json {
        Value::Object(fields) => {
            if fields.len() > 1
                && let Some(reference) = fields.get("$ref").filter(|reference| reference.is_string()).cloned()
            {
                fields.remove("$ref");
                fields.insert("allOf".to_owned(), json!([{"$ref": reference}]));
                return;
            }
            fields.values_mut().for_each(wrap_references);
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Lists of type map, with their keys, or (no keys) of type set. All others are atomic.
const LISTS: &[(&str, &str, &[&str])] = &[
    (OBJECT_META, "finalizers", &[]),
    (OBJECT_META, "ownerReferences", &["uid"]),
    ("io.k8s.api.apps.v1.DaemonSetStatus", "conditions", &["type"]),
    ("io.k8s.api.apps.v1.DeploymentStatus", "conditions", &["type"]),
    ("io.k8s.api.apps.v1.ReplicaSetStatus", "conditions", &["type"]),
    ("io.k8s.api.apps.v1.StatefulSetStatus", "conditions", &["type"]),
    ("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerStatus", "conditions", &["type"]),
    ("io.k8s.api.core.v1.Container", "env", &["name"]),
    ("io.k8s.api.core.v1.Container", "ports", &["containerPort", "protocol"]),
    ("io.k8s.api.core.v1.Container", "volumeDevices", &["devicePath"]),
    ("io.k8s.api.core.v1.Container", "volumeMounts", &["mountPath"]),
    ("io.k8s.api.core.v1.ContainerStatus", "allocatedResourcesStatus", &["name"]),
    ("io.k8s.api.core.v1.ContainerStatus", "volumeMounts", &["mountPath"]),
    ("io.k8s.api.core.v1.EphemeralContainer", "env", &["name"]),
    ("io.k8s.api.core.v1.EphemeralContainer", "ports", &["containerPort", "protocol"]),
    ("io.k8s.api.core.v1.EphemeralContainer", "volumeDevices", &["devicePath"]),
    ("io.k8s.api.core.v1.EphemeralContainer", "volumeMounts", &["mountPath"]),
    ("io.k8s.api.core.v1.NamespaceStatus", "conditions", &["type"]),
    ("io.k8s.api.core.v1.NodeSpec", "podCIDRs", &[]),
    ("io.k8s.api.core.v1.NodeStatus", "addresses", &["type"]),
    ("io.k8s.api.core.v1.NodeStatus", "conditions", &["type"]),
    ("io.k8s.api.core.v1.PersistentVolumeClaimStatus", "conditions", &["type"]),
    ("io.k8s.api.core.v1.PodSpec", "containers", &["name"]),
    ("io.k8s.api.core.v1.PodSpec", "ephemeralContainers", &["name"]),
    ("io.k8s.api.core.v1.PodSpec", "hostAliases", &["ip"]),
    ("io.k8s.api.core.v1.PodSpec", "imagePullSecrets", &["name"]),
    ("io.k8s.api.core.v1.PodSpec", "initContainers", &["name"]),
    ("io.k8s.api.core.v1.PodSpec", "resourceClaims", &["name"]),
    ("io.k8s.api.core.v1.PodSpec", "schedulingGates", &["name"]),
    ("io.k8s.api.core.v1.PodSpec", "topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("io.k8s.api.core.v1.PodSpec", "volumes", &["name"]),
    ("io.k8s.api.core.v1.PodStatus", "conditions", &["type"]),
    ("io.k8s.api.core.v1.PodStatus", "podIPs", &["ip"]),
    ("io.k8s.api.core.v1.PodStatus", "resourceClaimStatuses", &["name"]),
    ("io.k8s.api.core.v1.ResourceRequirements", "claims", &["name"]),
    ("io.k8s.api.core.v1.ServiceAccount", "secrets", &["name"]),
    ("io.k8s.api.core.v1.ServiceSpec", "ports", &["port", "protocol"]),
    ("io.k8s.api.core.v1.ServiceStatus", "conditions", &["type"]),
    ("io.k8s.api.discovery.v1.Endpoint", "addresses", &[]),
    ("io.k8s.api.policy.v1.PodDisruptionBudgetStatus", "conditions", &["type"]),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus",
        "conditions",
        &["type"],
    ),
];

/// Types that are owned and replaced as a whole.
const ATOMIC_TYPES: &[&str] = &[
    "io.k8s.api.core.v1.ConfigMapKeySelector",
    "io.k8s.api.core.v1.EndpointAddress",
    "io.k8s.api.core.v1.EndpointPort",
    "io.k8s.api.core.v1.LocalObjectReference",
    "io.k8s.api.core.v1.NodeSelector",
    "io.k8s.api.core.v1.NodeSelectorTerm",
    "io.k8s.api.core.v1.ObjectFieldSelector",
    "io.k8s.api.core.v1.ObjectReference",
    "io.k8s.api.core.v1.ResourceFieldSelector",
    "io.k8s.api.core.v1.SecretKeySelector",
    "io.k8s.api.core.v1.TypedLocalObjectReference",
    "io.k8s.api.discovery.v1.EndpointPort",
    "io.k8s.api.networking.v1.ServiceBackendPort",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector",
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
];

const ATOMIC_MAPS: &[(&str, &str)] =
    &[("io.k8s.api.core.v1.PodSpec", "nodeSelector"), ("io.k8s.api.core.v1.ServiceSpec", "selector")];

/// Defaults of list keys that may be omitted.
const DEFAULTS: &[(&str, &str, &str)] = &[
    ("io.k8s.api.core.v1.ContainerPort", "protocol", "TCP"),
    ("io.k8s.api.core.v1.ServicePort", "protocol", "TCP"),
];

/// Strategies of kubectl's strategic merge patches other than plain merging:
/// unions drop the members that a patch does not name.
const STRATEGIES: &[(&str, &str, &str)] = &[
    ("io.k8s.api.apps.v1.DeploymentSpec", "strategy", "retainKeys"),
    ("io.k8s.api.core.v1.PodSpec", "resourceClaims", "merge,retainKeys"),
    ("io.k8s.api.core.v1.PodSpec", "volumes", "merge,retainKeys"),
    ("io.k8s.api.core.v1.PodStatus", "resourceClaimStatuses", "merge,retainKeys"),
    ("io.k8s.api.policy.v1.PodDisruptionBudgetSpec", "selector", "replace"),
];

#[cfg(test)]
mod tests {
    use super::super::ListKind;
    use super::*;

    #[test]
    fn every_overlay_names_an_existing_field() {
        let has = |component: &str, field: &str| {
            components()
                .get(component)
                .and_then(|component| component.get("properties")?.get(field))
                .is_some()
        };
        for (component, field, _) in LISTS {
            assert!(has(component, field), "{component}.{field}");
        }
        for (component, field) in ATOMIC_MAPS {
            assert!(has(component, field), "{component}.{field}");
        }
        for (component, field, _) in DEFAULTS.iter().chain(STRATEGIES) {
            assert!(has(component, field), "{component}.{field}");
        }
        for component in ATOMIC_TYPES {
            assert!(components().contains_key(*component), "{component}");
        }
    }

    #[test]
    fn a_deployment_knows_how_its_lists_merge() {
        let deployment = schema("io.k8s.api.apps.v1.Deployment").expect("deployments are served");
        let at = |path: &str| {
            path.split('.').fold(&*deployment, |schema, step| match step {
                "[]" => schema.items().expect("a list"),
                name => schema.field(name).unwrap_or_else(|| panic!("{name} of {path}")),
            })
        };
        assert_eq!(at("spec.template.spec.containers").list_kind(), ListKind::Map(&["name".to_owned()]));
        let ports = at("spec.template.spec.containers.[].ports");
        assert_eq!(ports.merge_key(), Some("containerPort"));
        assert_eq!(ports.items().and_then(|port| port.field("protocol")?.default()), Some(&json!("TCP")));
        assert_eq!(at("spec.template.spec.tolerations").list_kind(), ListKind::Atomic);
        assert_eq!(at("metadata.finalizers").list_kind(), ListKind::Set);
        assert!(at("spec.selector").is_atomic_map());
    }
}
