//! EndpointGroups: the group itself, and one service for each of its versions, which routes
//! name. Requests that no route leads elsewhere go to the version that was promoted; without
//! a route, and so without a Canary, to the one that the group names.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    model::ServiceView,
    objects::{EndpointGroup, Name},
};
use crate::{
    api::{
        EndpointGroupSpec, MeshRouteSpec,
        endpoint_group::{EndpointHealth, GroupEndpoint, GroupProtocol},
    },
    catalog::{self, Endpoint, Health, HealthPolicy, Protocol, ServiceKey},
};

pub fn views(
    cluster: &Arc<str>,
    (namespace, name): &Name,
    EndpointGroup { spec: group, primary, registered: _ }: &EndpointGroup,
    route: Option<(i64, MeshRouteSpec)>,
) -> Vec<ServiceView> {
    let in_force = primary.as_ref().filter(|_| route.is_some()).unwrap_or(&group.version);
    let key = |name: Arc<str>| ServiceKey {
        cluster: Arc::clone(cluster),
        namespace: Arc::clone(namespace),
        name,
        port: group.port,
        protocol: protocol(group.protocol),
    };
    let health = HealthPolicy {
        check: group.health_check.clone(),
        outliers: group.outlier_detection.clone().unwrap_or_default(),
    };
    let versions: BTreeSet<&str> = group.endpoints.iter().map(|endpoint| &*endpoint.version).collect();
    let addresses = |version: &str| group.of_version(version).map(|one| endpoint(group, one)).collect();
    let itself = ServiceView {
        key: key(Arc::clone(name)),
        service: catalog::Service {
            versions: versions.iter().map(|version| Arc::from(*version)).collect(),
            health: health.clone(),
            ..catalog::Service::default()
        },
        addresses: addresses(in_force),
        route,
    };
    let of_version = |version: &&str| ServiceView {
        key: key(ServiceKey::name_of_version(name, version)),
        service: catalog::Service { health: health.clone(), ..catalog::Service::default() },
        addresses: addresses(version),
        route: None,
    };
    std::iter::once(itself).chain(versions.iter().map(of_version)).collect()
}

fn protocol(protocol: GroupProtocol) -> Protocol {
    match protocol {
        GroupProtocol::Http => Protocol::Http1,
        GroupProtocol::Http2 => Protocol::Http2,
        GroupProtocol::Tcp => Protocol::Tcp,
    }
}

fn endpoint(group: &EndpointGroupSpec, endpoint: &GroupEndpoint) -> Endpoint {
    Endpoint {
        weight: endpoint.weight.unwrap_or(1),
        zone: endpoint.zone.as_deref().map(Arc::from),
        health: match endpoint.health {
            EndpointHealth::Healthy => Health::Healthy,
            EndpointHealth::Draining => Health::Draining,
            EndpointHealth::Unhealthy => Health::Unhealthy,
        },
        version: Some(endpoint.version.as_str().into()),
        ..Endpoint::at(group.address(endpoint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn group() -> EndpointGroup {
        let spec = json!({"port": 80, "protocol": "http2", "version": "v2", "healthCheck": {"path": "/"}, "endpoints": [
            {"address": "10.0.0.1", "version": "v1"},
            {"address": "10.0.0.2", "port": 8080, "version": "v2", "zone": "a", "weight": 3, "health": "draining"},
        ]});
        EndpointGroup {
            spec: serde_json::from_value(spec).unwrap(),
            primary: Some("v1".to_owned()),
            registered: Vec::new(),
        }
    }

    fn shown(route: Option<(i64, MeshRouteSpec)>) -> Vec<String> {
        let views = views(&"local".into(), &("shop".into(), "web".into()), &group(), route);
        assert!(views.iter().all(|view| view.service.health.check.is_some()));
        let addresses =
            |view: &ServiceView| view.addresses.iter().map(|one| one.address.to_string()).collect::<Vec<_>>();
        views.iter().map(|view| format!("{} {}", view.key, addresses(view).join(" "))).collect()
    }

    #[test]
    fn a_group_without_a_route_serves_the_version_that_it_names() {
        let all = ["shop/web:80 10.0.0.2:8080", "shop/web@v1:80 10.0.0.1:80", "shop/web@v2:80 10.0.0.2:8080"];
        assert_eq!(shown(None), all);
    }

    #[test]
    fn with_a_route_what_no_rule_matches_goes_to_the_version_that_was_promoted() {
        assert_eq!(shown(Some((1, MeshRouteSpec::default())))[0], "shop/web:80 10.0.0.1:80");
    }

    #[test]
    fn an_endpoint_keeps_what_its_writer_knows() {
        let views = views(&"local".into(), &("shop".into(), "web".into()), &group(), None);
        let Endpoint { weight, zone, health, version, .. } = &views[0].addresses[0];
        assert_eq!(
            (*weight, zone.as_deref(), *health, version.as_deref()),
            (3, Some("a"), Health::Draining, Some("v2"))
        );
        assert_eq!(views[0].key.protocol, Protocol::Http2);
        assert_eq!(views[0].service.versions, [Arc::from("v1"), Arc::from("v2")]);
    }
}
