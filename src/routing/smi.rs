//! The Service Mesh Interface: a TrafficSplit over the primary and the canary
//! Service, in a version that the cluster serves.
//!
//! Weights are relative: a share finer than a percent is written in thousandths
//! or ten-thousandths. Conditions are in an HTTPRouteGroup that the split names;
//! requests that do not match go to the apex Service, that is to the stable side.
//! So a split either has weights or conditions, never both.
//!
//! SMI has no status: a split is in force when it is written.

use kube::{ResourceExt, api::ApiResource};
use serde_json::{Value, json};

use super::{
    Capabilities, ObjectKey, RouteContext, object::DesiredObject, object_router::ObjectRouter,
    services::ServiceNames, split_annotation, to_regex, weight_ratio,
};
use crate::{
    api::{
        Canary, Weight,
        canary::{HttpMatch, service::Metadata},
    },
    engine::action::Split,
};

/// A version of `split.smi-spec.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SplitVersion {
    /// Weights are quantities.
    V1Alpha1,
    /// Weights are integers.
    V1Alpha2,
    /// A split may refer to HTTPRouteGroups.
    V1Alpha3,
    V1Alpha4,
}

impl SplitVersion {
    pub fn parse(version: &str) -> Option<Self> {
        [Self::V1Alpha1, Self::V1Alpha2, Self::V1Alpha3, Self::V1Alpha4]
            .into_iter()
            .find(|known| known.as_str() == version)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Alpha2 => "v1alpha2",
            Self::V1Alpha3 => "v1alpha3",
            Self::V1Alpha4 => "v1alpha4",
        }
    }
}

/// Writes a TrafficSplit.
#[derive(Clone, Debug)]
pub struct Smi {
    version: SplitVersion,
    /// None where the cluster serves none, or none that the split can refer to.
    route_groups: Option<ApiResource>,
}

impl Smi {
    pub fn new(version: SplitVersion, route_groups: Option<ApiResource>) -> Self {
        Self { version, route_groups: route_groups.filter(|_| version >= SplitVersion::V1Alpha3) }
    }

    fn route_group_key(&self, canary: &Canary) -> Option<ObjectKey> {
        let kind = self.route_groups.clone()?;
        let namespace = canary.namespace().unwrap_or_default();
        Some(ObjectKey { kind, namespace, name: ServiceNames::of(canary).canary })
    }

    fn weights(&self, canary: Weight) -> [Value; 2] {
        weight_ratio(canary).map(|part| match self.version {
            SplitVersion::V1Alpha1 => json!(part.to_string()),
            SplitVersion::V1Alpha2 | SplitVersion::V1Alpha3 | SplitVersion::V1Alpha4 => json!(part),
        })
    }
}

impl ObjectRouter for Smi {
    fn name(&self) -> String {
        let version = self.version.as_str();
        match self.route_groups {
            None if self.version >= SplitVersion::V1Alpha3 => {
                format!("smi ({version}, on a cluster without HTTPRouteGroups)")
            }
            _ => format!("smi ({version})"),
        }
    }

    fn capabilities(&self, _: &Canary) -> Capabilities {
        let finest_weight = Weight::from_hundredths(1).unwrap_or(Weight::FULL);
        Capabilities { finest_weight, matches: self.route_groups.is_some(), ..Capabilities::SWITCH }
    }

    fn supports_match(&self, condition: &HttpMatch) -> Result<(), &'static str> {
        let HttpMatch {
            name: _,
            uri: _,
            scheme,
            method,
            authority,
            headers: _,
            without_headers,
            query_params,
            ignore_uri_case: _,
            port,
            source_labels,
            source_namespace,
            gateways,
            other,
        } = condition;
        let unknown = [
            ("scheme", scheme.is_some()),
            (
                "a method other than an exact one",
                method.as_ref().is_some_and(|method| method.exact.is_none()),
            ),
            ("authority", authority.is_some()),
            ("withoutHeaders", !without_headers.is_empty()),
            ("queryParams", !query_params.is_empty()),
            ("port", port.is_some()),
            ("sourceLabels", !source_labels.is_empty()),
            ("sourceNamespace", source_namespace.is_some()),
            ("gateways", !gateways.is_empty()),
            ("a field of another mesh", !other.is_empty()),
        ];
        unknown.into_iter().find(|(_, present)| *present).map_or(Ok(()), |(condition, _)| Err(condition))
    }

    fn route_object(&self, canary: &Canary) -> ObjectKey {
        let version = self.version.as_str();
        let kind = ApiResource {
            group: "split.smi-spec.io".to_owned(),
            version: version.to_owned(),
            api_version: format!("split.smi-spec.io/{version}"),
            kind: "TrafficSplit".to_owned(),
            plural: "trafficsplits".to_owned(),
        };
        ObjectKey {
            kind,
            namespace: canary.namespace().unwrap_or_default(),
            name: ServiceNames::of(canary).apex,
        }
    }

    fn other_objects(&self, canary: &Canary) -> Vec<ObjectKey> {
        self.route_group_key(canary).into_iter().collect()
    }

    fn desired(&self, on: &RouteContext<'_>, split: &Split) -> Vec<DesiredObject> {
        let canary = on.canary;
        let names = ServiceNames::of(canary);
        let hosts = canary.spec.service.as_ref().map(|service| &service.hosts[..]).unwrap_or_default();
        let root = hosts.first().unwrap_or(&names.apex);
        let group = self.route_group_key(canary).filter(|_| !split.matches.is_empty());
        let share = if group.is_some() { Weight::FULL } else { split.canary };
        let [candidate, stable] = self.weights(share);
        let mut spec = json!({
            "service": root,
            "backends": [
                {"service": names.canary, "weight": candidate},
                {"service": names.primary, "weight": stable},
            ],
        });
        let group = group.map(|group| {
            spec["matches"] = json!([{"kind": "HTTPRouteGroup", "name": group.name}]);
            let matches = conditions(&split.matches);
            // v1alpha2 has no `spec`.
            let body = match group.kind.version.as_str() {
                "v1alpha2" => json!({"matches": matches}),
                _ => json!({"spec": {"matches": matches}}),
            };
            DesiredObject::new(canary, group, Metadata::default(), body)
        });
        let split = DesiredObject::new(
            canary,
            self.route_object(canary),
            split_annotation::annotation(split),
            json!({"spec": spec}),
        );
        group.into_iter().chain([split]).collect()
    }
}

/// As in an HTTPRouteGroup, where every value is a regular expression.
fn conditions(matches: &[HttpMatch]) -> Vec<Value> {
    let condition = |(at, condition): (usize, &HttpMatch)| {
        let name = condition.name.clone().unwrap_or_else(|| format!("match-{at}"));
        let mut group = json!({"name": name});
        if let Some(uri) = &condition.uri {
            let case = if condition.ignore_uri_case { "(?i)" } else { "" };
            group["pathRegex"] = json!(format!("{case}{}", to_regex(uri)));
        }
        if let Some(method) = condition.method.as_ref().and_then(|method| method.exact.as_ref()) {
            group["methods"] = json!([method]);
        }
        if !condition.headers.is_empty() {
            group["headers"] =
                condition.headers.iter().map(|(name, value)| json!({name: to_regex(value)})).collect();
        }
        group
    };
    matches.iter().enumerate().map(condition).collect()
}
