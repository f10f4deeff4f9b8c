//! Instances of Cloud Map, which has no watch either: those of virtual nodes for the
//! inventory, and those of services that EndpointGroups name, with their health.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_servicediscovery::types::{HealthStatus, InstanceSummary, ServiceFilter, ServiceFilterName};

use super::{Error, Listed, Listing, MAX_OBJECTS, MAX_PAGES};
use crate::api::endpoint_group::EndpointHealth;
use crate::discovery::model::{External, Key, Kind, Object, aws_scope};
use crate::discovery::rest::registry::{Instance, Service};

impl Listing {
    /// Instances of the Cloud Map services that virtual nodes name, and of those that
    /// EndpointGroups name, each fetched once. The attributes are those of Amazon's
    /// controller: aws/aws-app-mesh-controller-for-k8s pkg/cloudmap.
    pub(super) async fn instances(
        &self,
        of_nodes: &BTreeSet<(String, String)>,
        of_groups: &BTreeSet<Service>,
    ) -> Result<Listed, Error> {
        let of_groups: BTreeSet<(String, String)> = of_groups
            .iter()
            .filter_map(|service| Some((service.namespace.clone()?, service.name.clone())))
            .collect();
        let (mut objects, mut registered) = (Vec::new(), BTreeMap::<_, Vec<Instance>>::new());
        if of_nodes.is_empty() && of_groups.is_empty() {
            return Ok(Listed { objects, registered: Vec::new() });
        }
        let client = &self.cloud_map;
        let namespaces =
            pages!(self, "list Cloud Map namespaces", max_results, client.list_namespaces(), |page| page
                .namespaces
                .unwrap_or_default());
        for namespace in namespaces {
            let (Some(id), Some(name)) = (namespace.id, namespace.name) else { continue };
            if !of_nodes.iter().chain(&of_groups).any(|(of, _)| *of == name) {
                continue;
            }
            let arn = namespace.arn.unwrap_or_default();
            let scope = aws_scope(arn.split(':').nth(4).unwrap_or_default(), &self.region);
            let filter = ServiceFilter::builder().name(ServiceFilterName::NamespaceId).values(&id).build();
            let filter = filter.map_err(|error| Error::Call {
                doing: "list Cloud Map services",
                region: self.region.clone(),
                why: error.to_string(),
            })?;
            let services = pages!(
                self,
                "list Cloud Map services",
                max_results,
                client.list_services().filters(filter.clone()),
                |page| page.services.unwrap_or_default()
            );
            for service in services {
                let (Some(id), Some(of)) = (service.id, service.name) else { continue };
                let named = (name.clone(), of.clone());
                let (is_node, is_group) = (of_nodes.contains(&named), of_groups.contains(&named));
                if !is_node && !is_group {
                    continue;
                }
                let instances = pages!(
                    self,
                    "list Cloud Map instances",
                    max_results,
                    client.list_instances().service_id(&id),
                    |page| page.instances.unwrap_or_default()
                );
                if is_group {
                    let health = self.health(&id, instances.is_empty()).await?;
                    let all = instances.iter().map(|instance| {
                        let health = instance.id.as_ref().and_then(|id| health.get(id)).copied();
                        registered_instance(instance, health.unwrap_or_default())
                    });
                    // Of two namespaces of a name either may have the service.
                    registered.entry(named).or_default().extend(all);
                }
                if is_node {
                    objects.extend(
                        instances.into_iter().map(|instance| pod_instance(&scope, &name, &of, instance)),
                    );
                }
                if objects.len() > MAX_OBJECTS {
                    return Err(Error::TooLarge { region: self.region.clone() });
                }
            }
        }
        // One that is not there has no instances.
        let registered = of_groups.into_iter().map(|named| {
            let instances = registered.remove(&named).unwrap_or_default();
            let (namespace, name) = named;
            (Service { namespace: Some(namespace), name }, instances)
        });
        Ok(Listed { objects, registered: registered.collect() })
    }

    /// By ID of the instance. An instance without a health check is healthy.
    async fn health(&self, service: &str, is_empty: bool) -> Result<BTreeMap<String, EndpointHealth>, Error> {
        // Of a service without instances it is an error to ask.
        if is_empty {
            return Ok(BTreeMap::new());
        }
        let call = || self.cloud_map.get_instances_health_status().service_id(service);
        let statuses =
            pages!(self, "read the health of Cloud Map instances", max_results, call(), |page| page
                .status
                .unwrap_or_default());
        let health = |status: HealthStatus| match status {
            HealthStatus::Unhealthy => EndpointHealth::Unhealthy,
            _ => EndpointHealth::Healthy,
        };
        Ok(statuses.into_iter().map(|(id, status)| (id, health(status))).collect())
    }
}

fn pod_instance(scope: &str, namespace: &str, service: &str, instance: InstanceSummary) -> Object {
    let attributes = instance.attributes.unwrap_or_default();
    let pair =
        |first: &str, second: &str| Some((attributes.get(first)?.clone(), attributes.get(second)?.clone()));
    let content = External::Instance {
        pod: pair("k8s.io/namespace", "k8s.io/pod"),
        node: pair("appmesh.k8s.aws/mesh", "appmesh.k8s.aws/virtualNode"),
    };
    let path = format!("{service}/{}", instance.id.unwrap_or_default());
    Object::external(Key::new(scope, namespace, Kind::CloudMapInstance, &path), None, content)
}

/// The attributes are those that Cloud Map itself defines, and the zone that ECS adds.
fn registered_instance(instance: &InstanceSummary, health: EndpointHealth) -> Instance {
    let attributes: BTreeMap<String, String> =
        instance.attributes.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    let attribute = |key: &str| attributes.get(key).cloned();
    Instance {
        address: attribute("AWS_INSTANCE_IPV4")
            .or_else(|| attribute("AWS_INSTANCE_IPV6"))
            .unwrap_or_default(),
        port: attribute("AWS_INSTANCE_PORT").and_then(|port| port.parse().ok()),
        zone: attribute("AVAILABILITY_ZONE"),
        weight: None,
        health,
        attributes,
    }
}
