//! Desired mesh resources, and their writes: a resource is created before those
//! that refer to it, and deleted after them.

use aws_sdk_appmesh::{
    error::BuildError,
    types::{
        AwsCloudMapServiceDiscovery, Backend, DnsServiceDiscovery, GrpcTimeout, HttpTimeout, Listener,
        ListenerTimeout, PortMapping, PortProtocol, ServiceDiscovery, VirtualNodeServiceProvider,
        VirtualNodeSpec, VirtualRouterListener, VirtualRouterServiceProvider, VirtualRouterSpec,
        VirtualServiceBackend, VirtualServiceProvider, VirtualServiceSpec,
    },
};

use super::{
    super::{Protocol, container_port},
    api::{
        ManagedField, MeshClient, MeshRoute, ResourceKind, ResourceName, VirtualNode, VirtualRouter,
        VirtualService,
    },
    error::Error,
    hostname,
    routes::{self, DesiredRoute},
    service_of,
    state::{self, MeshNames, MeshOwnership, MeshState, ObservedResource},
};
use crate::{
    api::Canary,
    engine::action::Split,
    routing::{AppMeshOptions, PodSelectors, RouteContext, Unsupported, services},
};

pub struct MeshWriter<'a> {
    pub mesh: &'a MeshClient<'a>,
    pub canary: &'a Canary,
    pub names: MeshNames,
    pub options: &'a AppMeshOptions,
    /// Makes client tokens of two creations differ.
    pub nonce: String,
}

/// Rejects resources of another Canary, and an existing virtual service without a
/// virtual router.
pub fn check(names: &MeshNames, state: &MeshState) -> Result<(), Error> {
    let nodes = [(&names.primary, &state.primary), (&names.canary, &state.canary)];
    let nodes = nodes.map(|(name, observed)| {
        (VirtualNode::NOUN, name, observed.as_ref().map(|observed| &observed.ownership))
    });
    let services = [(&names.service, &state.service), (&names.canary_service, &state.canary_service)];
    let services = services.map(|(name, observed)| {
        (VirtualService::NOUN, name, observed.as_ref().map(|observed| &observed.ownership))
    });
    let router =
        (VirtualRouter::NOUN, &state.router_name, state.router.as_ref().map(|observed| &observed.ownership));
    for (noun, name, ownership) in nodes.into_iter().chain(services).chain([router]) {
        if let Some(MeshOwnership::OwnedByOther(owner)) = ownership {
            return Err(Error::AlreadyOwned { what: format!("the {noun} {name}"), owner: owner.clone() });
        }
    }
    let provider = state.service.as_ref().and_then(|observed| observed.live.spec.provider.as_ref());
    let theirs = state.service.as_ref().is_some_and(|observed| !observed.ownership.is_managed());
    if theirs && !matches!(provider, Some(VirtualServiceProvider::VirtualRouter(_))) {
        return Err(Error::Unsupported(Unsupported::Field {
            router: super::NAME.to_owned(),
            field: "spec.service.name",
            what: format!("the virtual service {}, whose provider is no virtual router", names.service),
            way_out: "set the provider of that virtual service to a virtual router, or delete it",
        }));
    }
    Ok(())
}

/// True if all resources are in sync with this split.
pub fn is_effective(
    on: &RouteContext<'_>,
    options: &AppMeshOptions,
    names: &MeshNames,
    state: &MeshState,
    split: &Split,
) -> Result<bool, Error> {
    let protocol = Protocol::of(on.canary);
    let desired_routes = routes::desired_routes(on.canary, names, &state.routes, split, protocol)?;
    let route_in_sync = |desired_route: &DesiredRoute| {
        let observed = state.routes.get(&desired_route.name);
        observed.is_some_and(|observed| {
            observed.live.active
                && fields_match::<MeshRoute>(on.canary, &observed.ownership)
                && observed.live.spec == desired_route.spec
        })
    };
    Ok(check(names, state).is_ok()
        && is_in_sync::<VirtualNode>(on.canary, &state.primary, |observed| {
            node(on, options, names, Side::Primary, observed)
        })?
        && is_in_sync::<VirtualNode>(on.canary, &state.canary, |observed| {
            node(on, options, names, Side::Canary, observed)
        })?
        && is_in_sync::<VirtualService>(on.canary, &state.canary_service, |_| canary_service(names))?
        && is_in_sync::<VirtualRouter>(on.canary, &state.router, |_| router(on))?
        && is_in_sync::<VirtualService>(on.canary, &state.service, |_| service(&state.router_name))?
        && desired_routes.iter().all(route_in_sync)
        && obsolete_routes(state, &desired_routes).next().is_none())
}

/// Existing resources that we do not manage always are.
fn is_in_sync<K: ResourceKind>(
    canary: &Canary,
    observed: &Option<ObservedResource<K::Spec>>,
    desired: impl FnOnce(Option<&ObservedResource<K::Spec>>) -> Result<K::Spec, BuildError>,
) -> Result<bool, BuildError> {
    let Some(known) = observed else { return Ok(false) };
    let in_sync = known.ownership == MeshOwnership::Unmanaged
        || fields_match::<K>(canary, &known.ownership) && known.live.spec == desired(Some(known))?;
    Ok(known.live.active && in_sync)
}

/// True if it is managed and its tag lists the fields that the Canary sets.
fn fields_match<K: ResourceKind>(canary: &Canary, ownership: &MeshOwnership) -> bool {
    match ownership {
        MeshOwnership::Owned(fields) => *fields == state::managed_fields::<K>(canary),
        MeshOwnership::Adopted(_) => true,
        MeshOwnership::Unmanaged | MeshOwnership::OwnedByOther(_) => false,
    }
}

/// Routes of ours that the split does not need.
fn obsolete_routes<'a>(
    state: &'a MeshState,
    desired_routes: &'a [DesiredRoute],
) -> impl Iterator<Item = String> + 'a {
    let desired = |name: &String| desired_routes.iter().any(|desired_route| desired_route.name == *name);
    let ours =
        state.routes.iter().filter(|(_, observed)| matches!(observed.ownership, MeshOwnership::Owned(_)));
    ours.filter(move |(name, _)| !desired(name)).map(|(name, _)| name.clone())
}

impl MeshWriter<'_> {
    /// Writes the split; `state` is kept current with each write.
    pub async fn write(
        &self,
        state: &mut MeshState,
        pod_selectors: &PodSelectors,
        split: &Split,
    ) -> Result<(), Error> {
        let Self { canary, names, options, .. } = self;
        let on = &RouteContext { canary, pod_selectors, services_memo: None };
        check(names, state)?;
        let desired_routes =
            routes::desired_routes(canary, names, &state.routes, split, Protocol::of(canary))?;
        let primary = |observed: Option<&_>| node(on, options, names, Side::Primary, observed);
        self.ensure::<VirtualNode>(&ResourceName::of(&names.primary), &mut state.primary, primary).await?;
        let candidate = |observed: Option<&_>| node(on, options, names, Side::Canary, observed);
        self.ensure::<VirtualNode>(&ResourceName::of(&names.canary), &mut state.canary, candidate).await?;
        let provider = |_: Option<&_>| canary_service(names);
        self.ensure::<VirtualService>(
            &ResourceName::of(&names.canary_service),
            &mut state.canary_service,
            provider,
        )
        .await?;
        let name = ResourceName::of(&state.router_name);
        self.ensure::<VirtualRouter>(&name, &mut state.router, |_| router(on)).await?;
        for desired_route in &desired_routes {
            self.ensure_route(state, desired_route, split).await?;
        }
        for name in obsolete_routes(state, &desired_routes).collect::<Vec<_>>() {
            self.mesh.delete::<MeshRoute>(&ResourceName::route(&name, &state.router_name)).await?;
            state.routes.remove(&name);
        }
        let provider = |_: Option<&_>| service(&state.router_name);
        self.ensure::<VirtualService>(&ResourceName::of(&names.service), &mut state.service, provider).await
    }

    /// Creates or updates a resource of ours; any other is used as it is.
    async fn ensure<K: ResourceKind>(
        &self,
        name: &ResourceName,
        observed: &mut Option<ObservedResource<K::Spec>>,
        desired: impl Fn(Option<&ObservedResource<K::Spec>>) -> Result<K::Spec, BuildError>,
    ) -> Result<(), Error> {
        let fields = state::managed_fields::<K>(self.canary);
        let Some(known) = observed else {
            let tags = state::owned_tags(self.canary, &fields)?;
            let live = self.mesh.create::<K>(name, desired(None)?, tags, &self.nonce).await?;
            *observed = Some(ObservedResource { live, ownership: MeshOwnership::Owned(fields) });
            return Ok(());
        };
        let fields_match = fields_match::<K>(self.canary, &known.ownership);
        if known.ownership == MeshOwnership::Unmanaged
            || fields_match && known.live.spec == desired(Some(known))?
        {
            return Ok(());
        }
        // There is no version to write against: reading again narrows the window
        // in which the write of another client is lost.
        let now = self.mesh.find::<K>(name).await?.filter(|now| now.uid == known.live.uid);
        known.live = now.ok_or_else(|| Error::Conflict { what: format!("the {} {name}", K::NOUN) })?;
        // The tag lists a field before it is written, and until it is removed.
        if let MeshOwnership::Owned(before) = &mut known.ownership
            && !fields.is_subset(before)
        {
            before.extend(fields.iter().copied());
            self.mesh.tag(&known.live.arn, state::owned_tags(self.canary, before)?).await?;
        }
        let spec = desired(Some(known))?;
        if spec != known.live.spec {
            known.live = self.mesh.update::<K>(name, &known.live, spec).await?;
        }
        if let MeshOwnership::Owned(before) = &mut known.ownership
            && *before != fields
        {
            self.mesh.tag(&known.live.arn, state::owned_tags(self.canary, &fields)?).await?;
            *before = fields;
        }
        Ok(())
    }

    async fn ensure_route(
        &self,
        state: &mut MeshState,
        desired_route: &DesiredRoute,
        split: &Split,
    ) -> Result<(), Error> {
        let name = ResourceName::route(&desired_route.name, &state.router_name);
        let mut observed = state.routes.get(&desired_route.name).cloned();
        match observed.as_ref().map(|observed| &observed.ownership) {
            Some(MeshOwnership::OwnedByOther(owner)) => {
                return Err(Error::AlreadyOwned { what: format!("the route {name}"), owner: owner.clone() });
            }
            Some(MeshOwnership::Unmanaged) => {
                let theirs = self.adopt(&name).await?;
                state.routes.insert(desired_route.name.clone(), theirs.clone());
                observed = Some(theirs);
            }
            Some(MeshOwnership::Owned(_) | MeshOwnership::Adopted(_)) | None => {}
        }
        let existing = state.routes.clone();
        // Computed again from the route as read just before the write.
        let desired = |now: Option<&ObservedResource<_>>| {
            let Some(now) = now else { return Ok(desired_route.spec.clone()) };
            let mut existing = existing.clone();
            existing.insert(desired_route.name.clone(), now.clone());
            let all =
                routes::desired_routes(self.canary, &self.names, &existing, split, Protocol::of(self.canary));
            let current =
                all.ok().and_then(|all| all.into_iter().find(|again| again.name == desired_route.name));
            Ok(current.map_or_else(|| desired_route.spec.clone(), |again| again.spec))
        };
        self.ensure::<MeshRoute>(&name, &mut observed, desired).await?;
        state.routes.extend(observed.map(|observed| (desired_route.name.clone(), observed)));
        Ok(())
    }

    /// Records the targets in tags before they are changed.
    async fn adopt(
        &self,
        name: &ResourceName,
    ) -> Result<ObservedResource<aws_sdk_appmesh::types::RouteSpec>, Error> {
        let changed = || Error::Conflict { what: format!("the route {name}") };
        let now = state::fetch_resource::<MeshRoute>(self.mesh, self.canary, name, None)
            .await?
            .ok_or_else(changed)?;
        match now.ownership {
            MeshOwnership::Unmanaged => {
                let original = routes::targets_of(&now.live.spec).to_vec();
                self.mesh.tag(&now.live.arn, state::adopted_tags(self.canary, &original)?).await?;
                Ok(ObservedResource { ownership: MeshOwnership::Adopted(original), ..now })
            }
            MeshOwnership::OwnedByOther(owner) => {
                Err(Error::AlreadyOwned { what: format!("the route {name}"), owner })
            }
            MeshOwnership::Owned(_) | MeshOwnership::Adopted(_) => Ok(now),
        }
    }

    pub async fn remove(&self, state: &MeshState, kept: Option<&MeshNames>) -> Result<(), Error> {
        let is_kept =
            |name: &String, of: fn(&MeshNames) -> &String| kept.is_some_and(|kept| of(kept) == name);
        let MeshNames { service, canary_service, primary, canary, .. } = &self.names;
        if !is_kept(service, |names| &names.service) {
            self.delete_or_untag::<VirtualService>(&ResourceName::of(service), &state.service).await?;
        }
        if !is_kept(canary_service, |names| &names.canary_service) {
            self.delete_or_untag::<VirtualService>(&ResourceName::of(canary_service), &state.canary_service)
                .await?;
        }
        // Owned routes go first: those for matched requests are among them.
        let mut routes: Vec<_> =
            state.routes.iter().filter(|(_, observed)| observed.ownership.is_managed()).collect();
        routes.sort_by_key(|(_, observed)| matches!(observed.ownership, MeshOwnership::Adopted(_)));
        let router_is_kept = is_kept(&state.router_name, |names| &names.router);
        for (name, observed) in routes.into_iter().filter(|_| !router_is_kept) {
            let name = ResourceName::route(name, &state.router_name);
            match &observed.ownership {
                MeshOwnership::Adopted(original) => self.restore_targets(&name, observed, original).await?,
                MeshOwnership::Owned(_) => _ = self.mesh.delete::<MeshRoute>(&name).await?,
                MeshOwnership::Unmanaged | MeshOwnership::OwnedByOther(_) => {}
            }
        }
        if !router_is_kept {
            self.delete_or_untag::<VirtualRouter>(&ResourceName::of(&state.router_name), &state.router)
                .await?;
        }
        if !is_kept(primary, |names| &names.primary) {
            self.delete_or_untag::<VirtualNode>(&ResourceName::of(primary), &state.primary).await?;
        }
        if !is_kept(canary, |names| &names.canary) {
            self.delete_or_untag::<VirtualNode>(&ResourceName::of(canary), &state.canary).await?;
        }
        Ok(())
    }

    /// Deletes a resource of ours, or gives it up if other resources use it.
    async fn delete_or_untag<K: ResourceKind>(
        &self,
        name: &ResourceName,
        observed: &Option<ObservedResource<K::Spec>>,
    ) -> Result<(), Error> {
        match observed {
            Some(observed) if matches!(observed.ownership, MeshOwnership::Owned(_)) => {
                match self.mesh.delete::<K>(name).await? {
                    true => Ok(()),
                    false => state::untag(self.mesh, &observed.live.arn).await,
                }
            }
            _ => Ok(()),
        }
    }

    /// The targets first, then the tags that record them.
    async fn restore_targets(
        &self,
        name: &ResourceName,
        observed: &ObservedResource<aws_sdk_appmesh::types::RouteSpec>,
        original: &[aws_sdk_appmesh::types::WeightedTarget],
    ) -> Result<(), Error> {
        let now = self.mesh.find::<MeshRoute>(name).await?.filter(|now| now.uid == observed.live.uid);
        let Some(now) = now else { return Ok(()) };
        let spec = routes::with_targets(&now.spec, original.to_vec())?;
        if spec != now.spec {
            self.mesh.update::<MeshRoute>(name, &now, spec).await?;
        }
        state::untag(self.mesh, &now.arn).await
    }
}

#[derive(Clone, Copy)]
enum Side {
    Primary,
    Canary,
}

/// A virtual node of ours, with fields that others added.
fn node(
    on: &RouteContext<'_>,
    options: &AppMeshOptions,
    names: &MeshNames,
    side: Side,
    observed: Option<&ObservedResource<VirtualNodeSpec>>,
) -> Result<VirtualNodeSpec, BuildError> {
    let canary = on.canary;
    let (service, protocol) = (service_of(canary), Protocol::of(canary));
    let services = services::ServiceNames::of(canary);
    let (name, host) = match side {
        Side::Primary => (&names.primary, services.primary),
        Side::Canary => (&names.canary, services.canary),
    };
    let live = observed.map(|observed| observed.live.spec.clone());
    let mut spec = live.unwrap_or_else(|| VirtualNodeSpec::builder().build());
    let was_set = |field| matches!(observed.map(|observed| &observed.ownership), Some(MeshOwnership::Owned(fields)) if fields.contains(&field));
    let theirs = spec.listeners.as_ref().and_then(|listeners| listeners.first().cloned());
    let mut listener = theirs.unwrap_or_else(|| Listener::builder().build());
    listener.port_mapping = Some(port(on)?);
    if was_set(ManagedField::Timeout) {
        listener.timeout = None;
    }
    if let Some(timeout) = service.timeout {
        let http = || HttpTimeout::builder().per_request(routes::to_sdk_duration(timeout)).build();
        listener.timeout = match protocol {
            Protocol::Http => Some(ListenerTimeout::Http(http())),
            Protocol::Http2 => Some(ListenerTimeout::Http2(http())),
            Protocol::Grpc => Some(ListenerTimeout::Grpc(
                GrpcTimeout::builder().per_request(routes::to_sdk_duration(timeout)).build(),
            )),
            Protocol::Tcp => listener.timeout,
        };
    }
    spec.listeners = Some(vec![listener]);
    spec.service_discovery = Some(match &options.cloud_map_namespace {
        Some(namespace) => {
            let theirs = match spec.service_discovery.take() {
                Some(ServiceDiscovery::AwsCloudMap(theirs)) => Some(theirs),
                _ => None,
            };
            let mut discovery = AwsCloudMapServiceDiscovery::builder()
                .namespace_name(namespace)
                .service_name(name)
                .build()?;
            if let Some(theirs) = theirs {
                (discovery.attributes, discovery.ip_preference) = (theirs.attributes, theirs.ip_preference);
            }
            ServiceDiscovery::AwsCloudMap(discovery)
        }
        None => {
            let mut discovery = DnsServiceDiscovery::builder().hostname(hostname(&host, canary)).build()?;
            if let Some(ServiceDiscovery::Dns(theirs)) = spec.service_discovery.take() {
                (discovery.response_type, discovery.ip_preference) =
                    (theirs.response_type, theirs.ip_preference);
            }
            ServiceDiscovery::Dns(discovery)
        }
    });
    if was_set(ManagedField::Backends) {
        spec.backends = None;
    }
    if !service.backends.is_empty() {
        let backend = |name: &String| {
            let name = name.rsplit('/').next().unwrap_or(name);
            Ok(Backend::VirtualService(VirtualServiceBackend::builder().virtual_service_name(name).build()?))
        };
        spec.backends = Some(service.backends.iter().map(backend).collect::<Result<_, BuildError>>()?);
    }
    Ok(spec)
}

fn port(on: &RouteContext<'_>) -> Result<PortMapping, BuildError> {
    let protocol = match Protocol::of(on.canary) {
        Protocol::Http => PortProtocol::Http,
        Protocol::Http2 => PortProtocol::Http2,
        Protocol::Grpc => PortProtocol::Grpc,
        Protocol::Tcp => PortProtocol::Tcp,
    };
    let port = container_port(&service_of(on.canary), on.pod_selectors);
    PortMapping::builder().port(port.into()).protocol(protocol).build()
}

fn router(on: &RouteContext<'_>) -> Result<VirtualRouterSpec, BuildError> {
    let listener = VirtualRouterListener::builder().port_mapping(port(on)?).build();
    Ok(VirtualRouterSpec::builder().listeners(listener).build())
}

fn service(router: &str) -> Result<VirtualServiceSpec, BuildError> {
    let router = VirtualRouterServiceProvider::builder().virtual_router_name(router).build()?;
    Ok(VirtualServiceSpec::builder().provider(VirtualServiceProvider::VirtualRouter(router)).build())
}

fn canary_service(names: &MeshNames) -> Result<VirtualServiceSpec, BuildError> {
    let node = VirtualNodeServiceProvider::builder().virtual_node_name(&names.canary).build()?;
    Ok(VirtualServiceSpec::builder().provider(VirtualServiceProvider::VirtualNode(node)).build())
}
