//! An EndpointGroup as a target: the canary is the version in its spec, the primary the one
//! in its status. A revision is the name of a version. A promotion writes the status, on
//! condition of the resourceVersion, and nothing else: the machines are somebody else's.

use std::collections::BTreeMap;

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::DynamicObject,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{CachedWorkload, Error, Kind, Port, Selectors, UnsupportedTarget, Workload};
use crate::{
    api::{
        EndpointGroupSpec,
        endpoint_group::{EndpointHealth, GroupProtocol, VERSION_LABEL},
    },
    engine::observed::{Pods, Primary, Target},
    patch::merge_params,
};

/// Attempts of a write that conflicts (409).
const MAX_CONFLICTS: u32 = 5;

/// One that cannot be read has no endpoints.
fn spec_of(group: &CachedWorkload) -> EndpointGroupSpec {
    EndpointGroupSpec::deserialize(group.spec()).unwrap_or_default().with_registered(group.registered())
}

pub(super) fn observe_target(group: &CachedWorkload) -> Target {
    let spec = spec_of(group);
    Target {
        pods: endpoints(&spec, &spec.version),
        name: Some(spec.version.clone()),
        revision: spec.version,
        trouble: None,
        configs: BTreeMap::new(),
        scaled_down_after: None,
    }
}

pub(super) fn observe_primary(group: &CachedWorkload) -> Option<Primary> {
    let version = group.primary_version()?;
    let pods = endpoints(&spec_of(group), version);
    Some(Primary {
        revision: Some(version.to_owned()),
        name: Some(version.to_owned()),
        trouble: None,
        pods,
        pinned: false,
        max_replicas: Some(pods.desired),
    })
}

/// The endpoints of a version as if they were pods. A version without endpoints waits for
/// its first.
fn endpoints(spec: &EndpointGroupSpec, version: &str) -> Pods {
    let count = |wanted: bool| {
        let of_health =
            spec.of_version(version).filter(|one| (one.health == EndpointHealth::Healthy) == wanted);
        u32::try_from(of_health.count()).unwrap_or(u32::MAX)
    };
    let (ready, others) = (count(true), count(false));
    let all = ready.saturating_add(others);
    Pods { desired: all.max(1), exist: all > 0, updated: all, ready, older: 0 }
}

pub(super) fn selectors(group: &CachedWorkload) -> Option<Selectors> {
    let version = spec_of(group).version;
    let of = |version: &str| BTreeMap::from([(VERSION_LABEL.to_owned(), version.to_owned())]);
    let primary = group.primary_version().unwrap_or(&version);
    Some(Selectors { canary: of(&version), primary: of(primary), previous: BTreeMap::new() })
}

/// The versions of primary and canary.
pub fn versions(group: &CachedWorkload) -> Option<[String; 2]> {
    let Selectors { mut primary, mut canary, .. } = selectors(group)?;
    Some([primary.remove(VERSION_LABEL)?, canary.remove(VERSION_LABEL)?])
}

pub(super) fn ports(spec: &Value) -> Vec<Port> {
    let spec = EndpointGroupSpec::deserialize(spec).unwrap_or_default();
    let name = match spec.protocol {
        GroupProtocol::Http => "http",
        GroupProtocol::Http2 => "http2",
        GroupProtocol::Tcp => "tcp",
    };
    vec![Port { container: String::new(), name: Some(name.to_owned()), number: spec.port }]
}

impl Workload {
    pub(super) fn check_group_port(
        &self,
        group: &CachedWorkload,
        port: u16,
    ) -> Result<(), UnsupportedTarget> {
        let of_group = spec_of(group).port;
        match of_group == port {
            true => Ok(()),
            false => Err(UnsupportedTarget::GroupPort { target: self.target.clone(), port, of_group }),
        }
    }

    /// Makes this version the primary, if the group still names it.
    pub(super) async fn promote_version(&self, client: &Client, version: &str) -> Result<(), Error> {
        self.record_primary(client, version, |group| {
            let actual = group.data["spec"]["version"].as_str().unwrap_or_default();
            match actual == version {
                true => Ok(()),
                false => Err(Error::TargetChanged {
                    kind: Kind::EndpointGroup.name(),
                    name: self.target.clone(),
                    expected: version.to_owned(),
                    actual: actual.to_owned(),
                }),
            }
        })
        .await
    }

    /// Makes this version the primary again, whatever the group names.
    pub(super) async fn restore_version(&self, client: &Client, version: &str) -> Result<(), Error> {
        self.record_primary(client, version, |_| Ok(())).await
    }

    async fn record_primary(
        &self,
        client: &Client,
        version: &str,
        check: impl Fn(&DynamicObject) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let attempt = format!("make {version} the primary of EndpointGroup {}", self.target);
        let groups: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &self.namespace, Kind::EndpointGroup.resource());
        for _ in 0..MAX_CONFLICTS {
            let group = self.get_required(client, Kind::EndpointGroup, &self.target, &attempt).await?;
            check(&group)?;
            let before = group.data["status"]["primary"].as_str();
            if before == Some(version) {
                return Ok(());
            }
            let patch = json!({
                "metadata": { "resourceVersion": group.metadata.resource_version },
                "status": { "primary": version, "previous": before },
            });
            let params: PatchParams = merge_params();
            match groups.patch_status(&self.target, &params, &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                written => return written.map(drop).map_err(Error::api(&attempt)),
            }
        }
        Err(self.conflict_error(&attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(version: &str, primary: Option<&str>) -> CachedWorkload {
        let group = json!({
            "metadata": {"name": "web", "generation": 1, "uid": "1"},
            "spec": {"port": 80, "version": version, "endpoints": [
                {"address": "10.0.0.1", "version": "v1"},
                {"address": "10.0.0.2", "version": "v1", "health": "unhealthy"},
                {"address": "10.0.0.3", "version": "v2"},
            ]},
            "status": {"primary": primary},
        });
        serde_json::from_str(&group.to_string()).unwrap()
    }

    #[test]
    fn endpoints_of_a_version_count_as_its_pods() {
        let target = observe_target(&group("v2", None));
        assert_eq!((target.revision.as_str(), target.pods.desired, target.pods.ready), ("v2", 1, 1));
        let primary = observe_primary(&group("v2", Some("v1"))).unwrap();
        assert_eq!(
            (primary.revision.as_deref(), primary.pods.desired, primary.pods.ready),
            (Some("v1"), 2, 1)
        );
        assert_eq!(observe_primary(&group("v2", None)), None);
    }

    #[test]
    fn a_version_without_endpoints_is_not_ready() {
        let pods = observe_target(&group("v3", None)).pods;
        assert!(!pods.are_ready(100) && !pods.can_serve(), "{pods:?}");
    }

    #[test]
    fn instances_of_the_registry_count_and_their_change_is_seen() {
        let group = |health: &str| -> CachedWorkload {
            let group = json!({
                "metadata": {"name": "web", "generation": 1, "uid": "1"},
                "spec": {"port": 80, "version": "v2", "registry": {"meshApi": "dc1", "service": "web"}},
                "status": {"endpoints": [{"address": "10.0.0.1", "version": "v2", "health": health}]},
            });
            serde_json::from_str(&group.to_string()).unwrap()
        };
        let (healthy, unhealthy) = (group("healthy"), group("unhealthy"));
        assert_eq!(observe_target(&healthy).pods.ready, 1);
        assert_eq!(observe_target(&unhealthy).pods.ready, 0);
        assert_ne!(healthy.spec_version(), unhealthy.spec_version());
    }

    #[test]
    fn a_promotion_is_another_version_of_the_group_for_those_that_remember_it() {
        let (before, after) = (group("v2", Some("v1")), group("v2", Some("v2")));
        assert_ne!(before.spec_version(), after.spec_version());
        assert_eq!(versions(&before), Some(["v1".to_owned(), "v2".to_owned()]));
        assert_eq!(versions(&after), Some(["v2".to_owned(), "v2".to_owned()]));
    }
}
