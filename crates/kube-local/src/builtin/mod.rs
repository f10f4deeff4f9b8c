//! The built-in kinds, with the API server's defaults, validation and columns beyond their schema.

mod columns;
mod decode;
mod defaults;
mod pod_columns;
mod pod_defaults;
mod quantity;
mod validate;

use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds::{Column, Origin, Resource, ScalePaths};
use super::schema::{FieldError, Reason, Schema, kubernetes};

/// Every built-in resource.
pub fn all() -> Vec<Resource> {
    KINDS.iter().map(BuiltinKind::resource).collect()
}

/// Fills in defaults, as the API server does on admission. Addresses are no
/// defaults: the server assigns a Service's clusterIP and node ports.
pub fn default(kind: &Resource, object: &mut Value) {
    kind.schema.apply_defaults(object);
    if kind.origin == Origin::Builtin {
        defaults::apply(&kind.kind, object);
    }
}

/// The error of Go's decoder for an object of a built-in kind: the text after
/// `… cannot be handled as a …: ` in a bad request.
pub fn decode_error(kind: &Resource, object: &Value) -> Option<String> {
    // The parsed schema quickly rules out an error.
    let suspect = kind.schema.validate(object, None).iter().any(|error| match error.reason {
        Reason::TypeInvalid | Reason::Invalid => true,
        Reason::Required
        | Reason::NotSupported
        | Reason::NotFound
        | Reason::Forbidden
        | Reason::Duplicate
        | Reason::TooLong
        | Reason::TooMany => false,
    });
    if suspect { decode::type_mismatch(kind, object) } else { None }
}

/// The API server's hand-written validation, with its messages. Of custom kinds
/// only the metadata is checked here, the rest by their schema.
pub fn validate(kind: &Resource, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    validate::object(kind, object, old)
}

struct BuiltinKind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    scope: Scope,
    subresources: Subresources,
    columns: fn() -> Vec<Column>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Cluster,
    Namespaced,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subresources {
    None,
    Status,
    StatusAndScale,
}

use Scope::{Cluster, Namespaced};
use Subresources::{None as Bare, Status, StatusAndScale};

#[rustfmt::skip]
const KINDS: &[BuiltinKind] = &[
    builtin_kind("", "v1", "Namespace", "namespaces", &["ns"], &[], Cluster, Status, columns::namespace),
    builtin_kind("", "v1", "Node", "nodes", &["no"], &[], Cluster, Status, columns::node),
    builtin_kind("", "v1", "Pod", "pods", &["po"], &["all"], Namespaced, Status, columns::pod),
    builtin_kind("", "v1", "Service", "services", &["svc"], &["all"], Namespaced, Status, columns::service),
    builtin_kind("", "v1", "ConfigMap", "configmaps", &["cm"], &[], Namespaced, Bare, columns::config_map),
    builtin_kind("", "v1", "Secret", "secrets", &[], &[], Namespaced, Bare, columns::secret),
    builtin_kind("", "v1", "Event", "events", &["ev"], &[], Namespaced, Bare, columns::event),
    builtin_kind("", "v1", "Endpoints", "endpoints", &["ep"], &[], Namespaced, Bare, columns::endpoints),
    builtin_kind("", "v1", "ServiceAccount", "serviceaccounts", &["sa"], &[], Namespaced, Bare, columns::name_and_age),
    builtin_kind("apps", "v1", "Deployment", "deployments", &["deploy"], &["all"], Namespaced, StatusAndScale, columns::deployment),
    builtin_kind("apps", "v1", "ReplicaSet", "replicasets", &["rs"], &["all"], Namespaced, StatusAndScale, columns::replica_set),
    builtin_kind("apps", "v1", "DaemonSet", "daemonsets", &["ds"], &["all"], Namespaced, Status, columns::daemon_set),
    builtin_kind("apps", "v1", "StatefulSet", "statefulsets", &["sts"], &["all"], Namespaced, StatusAndScale, columns::stateful_set),
    builtin_kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", &["hpa"], &["all"], Namespaced, Status, columns::autoscaler),
    builtin_kind("networking.k8s.io", "v1", "Ingress", "ingresses", &["ing"], &[], Namespaced, Status, columns::ingress),
    builtin_kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", &["pdb"], &[], Namespaced, Status, columns::disruption_budget),
    builtin_kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", &[], &[], Namespaced, Bare, columns::endpoint_slice),
    builtin_kind("coordination.k8s.io", "v1", "Lease", "leases", &[], &[], Namespaced, Bare, columns::lease),
    builtin_kind("events.k8s.io", "v1", "Event", "events", &["ev"], &[], Namespaced, Bare, columns::event),
    builtin_kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", &["crd", "crds"], &["api-extensions"], Cluster, Status, columns::definition),
    builtin_kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", &[], &[], Cluster, Bare, columns::name_and_age),
    builtin_kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", &[], &[], Cluster, Bare, columns::name_and_age),
    builtin_kind("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", &[], &[], Cluster, Bare, columns::name_and_age),
];

#[allow(clippy::too_many_arguments, reason = "one line of a table")]
const fn builtin_kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    scope: Scope,
    subresources: Subresources,
    columns: fn() -> Vec<Column>,
) -> BuiltinKind {
    BuiltinKind { group, version, kind, plural, short_names, categories, scope, subresources, columns }
}

impl BuiltinKind {
    fn resource(&self) -> Resource {
        let component = component(self.group, self.version, self.kind);
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Resource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
            singular: self.kind.to_lowercase(),
            short_names: owned(self.short_names),
            categories: owned(self.categories),
            namespaced: self.scope == Namespaced,
            has_status: self.subresources != Bare,
            scale: (self.subresources == StatusAndScale).then(|| ScalePaths {
                spec_replicas: ".spec.replicas".to_owned(),
                status_replicas: ".status.replicas".to_owned(),
                label_selector: Some(".spec.selector".to_owned()),
            }),
            columns: (self.columns)(),
            schema: kubernetes::schema(&component).unwrap_or_else(|| Arc::new(Schema::anything())),
            open_api: Arc::new(json!({"$ref": format!("#/components/schemas/{component}")})),
            origin: Origin::Builtin,
        }
    }
}

/// The name of a kind's schema in k8s-openapi and in the API server.
pub(super) fn component(group: &str, version: &str, kind: &str) -> String {
    match group {
        "apiextensions.k8s.io" => {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}")
        }
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        group => format!("io.k8s.api.{}.{version}.{kind}", group.trim_end_matches(".k8s.io")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_schema() {
        for resource in all() {
            let component = component(&resource.group, &resource.version, &resource.kind);
            assert!(kubernetes::schema(&component).is_some(), "{component}");
            let known = resource.schema.field("metadata").is_some();
            assert!(known, "{component} knows its metadata");
        }
    }
}
