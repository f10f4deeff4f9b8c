//! The implementations behind the Gateways of a Canary, by the classes of these.

use kube::{
    Client, ResourceExt as _,
    api::{Api, ApiResource, DynamicObject},
};

use crate::api::{Canary, canary::service::GatewayRef};

const GROUP: &str = "gateway.networking.k8s.io";

/// `spec.controllerName` of each GatewayClass. A Gateway or class that does not exist or
/// may not be read has none: nothing is refused for it.
pub async fn controllers(client: &Client, canary: &Canary) -> Vec<String> {
    let own = canary.namespace().unwrap_or_default();
    let is_gateway = |reference: &&GatewayRef| {
        reference.kind.as_deref().is_none_or(|kind| kind == "Gateway")
            && reference.group.as_deref().is_none_or(|group| group == GROUP)
    };
    let mut controllers = Vec::new();
    let references = canary.spec.service.iter().flat_map(|service| &service.gateway_refs);
    for reference in references.filter(is_gateway) {
        let namespace = reference.namespace.as_ref().unwrap_or(&own);
        let gateways =
            Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind("Gateway", "gateways"));
        let Some(class) = field(&gateways, &reference.name, "gatewayClassName").await else { continue };
        let classes = Api::<DynamicObject>::all_with(client.clone(), &kind("GatewayClass", "gatewayclasses"));
        controllers.extend(field(&classes, &class, "controllerName").await);
    }
    controllers
}

async fn field(objects: &Api<DynamicObject>, name: &str, field: &str) -> Option<String> {
    match objects.get_opt(name).await {
        Ok(found) => found?.data["spec"][field].as_str().map(str::to_owned),
        Err(error) => {
            tracing::debug!(name, field, %error, "the implementation behind a Gateway is not known");
            None
        }
    }
}

fn kind(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{GROUP}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
