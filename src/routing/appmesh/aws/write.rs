//! Everything in the mesh as it should be, and its writing: whoever is led to
//! comes first, and goes last.

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
    api::{Kind, Mesh, Name, Node, Route, Router, Said, Service},
    error::Error,
    hostname,
    routes::{self, Wish},
    service_of,
    state::{self, Held, Names, State, Whose},
};
use crate::{
    api::Canary,
    engine::action::Split,
    routing::{AppMeshOptions, Arms, Subject, Unsupported, services},
};

pub struct Writer<'a> {
    pub mesh: &'a Mesh<'a>,
    pub canary: &'a Canary,
    pub names: Names,
    pub options: &'a AppMeshOptions,
    /// Tells one making of a thing from the next.
    pub moment: String,
}

/// Refuses what belongs to another Canary, and a service of people's that leads
/// past a router.
pub fn check(names: &Names, state: &State) -> Result<(), Error> {
    let nodes = [(&names.primary, &state.primary), (&names.canary, &state.canary)];
    let nodes = nodes.map(|(name, held)| (Node::NOUN, name, held.as_ref().map(|held| &held.whose)));
    let services = [(&names.service, &state.service), (&names.canary_service, &state.canary_service)];
    let services = services.map(|(name, held)| (Service::NOUN, name, held.as_ref().map(|held| &held.whose)));
    let router = (Router::NOUN, &state.router_name, state.router.as_ref().map(|held| &held.whose));
    for (noun, name, whose) in nodes.into_iter().chain(services).chain([router]) {
        if let Some(Whose::Taken(owner)) = whose {
            return Err(Error::Taken { what: format!("the {noun} {name}"), owner: owner.clone() });
        }
    }
    let provider = state.service.as_ref().and_then(|held| held.live.spec.provider.as_ref());
    let theirs = state.service.as_ref().is_some_and(|held| !held.whose.is_ours());
    if theirs && !matches!(provider, Some(VirtualServiceProvider::VirtualRouter(_))) {
        return Err(Error::Unsupported(Unsupported::Field {
            router: super::NAME.to_owned(),
            field: "spec.service.name",
            what: format!("the virtual service {}, which leads to no virtual router", names.service),
            way_out: "let that virtual service lead to a virtual router, or delete it",
        }));
    }
    Ok(())
}

/// Is everything as this split needs it?
pub fn is_in_force(
    on: &Subject<'_>,
    options: &AppMeshOptions,
    names: &Names,
    state: &State,
    split: &Split,
) -> Result<bool, Error> {
    let protocol = Protocol::of(on.canary);
    let wishes = routes::wishes(on.canary, names, &state.routes, split, protocol)?;
    let is_right = |wish: &Wish| {
        let held = state.routes.get(&wish.name);
        held.is_some_and(|held| {
            held.live.active && says_so::<Route>(on.canary, &held.whose) && held.live.spec == wish.spec
        })
    };
    Ok(check(names, state).is_ok()
        && is_so::<Node>(on.canary, &state.primary, |held| node(on, options, names, Side::Primary, held))?
        && is_so::<Node>(on.canary, &state.canary, |held| node(on, options, names, Side::Canary, held))?
        && is_so::<Service>(on.canary, &state.canary_service, |_| canary_service(names))?
        && is_so::<Router>(on.canary, &state.router, |_| router(on))?
        && is_so::<Service>(on.canary, &state.service, |_| service(&state.router_name))?
        && wishes.iter().all(is_right)
        && surplus(state, &wishes).next().is_none())
}

/// What people have is as it should be, whatever it is.
fn is_so<K: Kind>(
    canary: &Canary,
    held: &Option<Held<K::Spec>>,
    wanted: impl FnOnce(Option<&Held<K::Spec>>) -> Result<K::Spec, BuildError>,
) -> Result<bool, BuildError> {
    let Some(known) = held else { return Ok(false) };
    let is_right = known.whose == Whose::Foreign
        || says_so::<K>(canary, &known.whose) && known.live.spec == wanted(Some(known))?;
    Ok(known.live.active && is_right)
}

/// Is it ours, and known to say what the Canary says?
fn says_so<K: Kind>(canary: &Canary, whose: &Whose) -> bool {
    match whose {
        Whose::Owned(said) => *said == state::sayings::<K>(canary),
        Whose::Adopted(_) => true,
        Whose::Foreign | Whose::Taken(_) => false,
    }
}

/// Routes of ours that are for nobody any more.
fn surplus<'a>(state: &'a State, wishes: &'a [Wish]) -> impl Iterator<Item = String> + 'a {
    let wanted = |name: &String| wishes.iter().any(|wish| wish.name == *name);
    let ours = state.routes.iter().filter(|(_, held)| matches!(held.whose, Whose::Owned(_)));
    ours.filter(move |(name, _)| !wanted(name)).map(|(name, _)| name.clone())
}

impl Writer<'_> {
    /// Makes it so; `state` is what there is, as far as it was written too.
    pub async fn write(&self, state: &mut State, arms: &Arms, split: &Split) -> Result<(), Error> {
        let Self { canary, names, options, .. } = self;
        let on = &Subject { canary, arms, stood: None };
        check(names, state)?;
        let wishes = routes::wishes(canary, names, &state.routes, split, Protocol::of(canary))?;
        let primary = |held: Option<&_>| node(on, options, names, Side::Primary, held);
        self.ensure::<Node>(&Name::of(&names.primary), &mut state.primary, primary).await?;
        let candidate = |held: Option<&_>| node(on, options, names, Side::Canary, held);
        self.ensure::<Node>(&Name::of(&names.canary), &mut state.canary, candidate).await?;
        let provider = |_: Option<&_>| canary_service(names);
        self.ensure::<Service>(&Name::of(&names.canary_service), &mut state.canary_service, provider).await?;
        let name = Name::of(&state.router_name);
        self.ensure::<Router>(&name, &mut state.router, |_| router(on)).await?;
        for wish in &wishes {
            self.ensure_route(state, wish, split).await?;
        }
        for name in surplus(state, &wishes).collect::<Vec<_>>() {
            self.mesh.delete::<Route>(&Name::route(&name, &state.router_name)).await?;
            state.routes.remove(&name);
        }
        let provider = |_: Option<&_>| service(&state.router_name);
        self.ensure::<Service>(&Name::of(&names.service), &mut state.service, provider).await
    }

    /// What is ours is made right; what is people's is used as it is.
    async fn ensure<K: Kind>(
        &self,
        name: &Name,
        held: &mut Option<Held<K::Spec>>,
        wanted: impl Fn(Option<&Held<K::Spec>>) -> Result<K::Spec, BuildError>,
    ) -> Result<(), Error> {
        let said = state::sayings::<K>(self.canary);
        let Some(known) = held else {
            let tags = state::marks(self.canary, &said)?;
            let live = self.mesh.create::<K>(name, wanted(None)?, tags, &self.moment).await?;
            *held = Some(Held { live, whose: Whose::Owned(said) });
            return Ok(());
        };
        let is_said = says_so::<K>(self.canary, &known.whose);
        if known.whose == Whose::Foreign || is_said && known.live.spec == wanted(Some(known))? {
            return Ok(());
        }
        // There is no version to write against: what others just wrote is read
        // at the last moment.
        let now = self.mesh.find::<K>(name).await?.filter(|now| now.uid == known.live.uid);
        known.live = now.ok_or_else(|| Error::Changed { what: format!("the {} {name}", K::NOUN) })?;
        // What is said is noted before it is written, and until it is taken away.
        if let Whose::Owned(before) = &mut known.whose
            && !said.is_subset(before)
        {
            before.extend(said.iter().copied());
            self.mesh.tag(&known.live.arn, state::marks(self.canary, before)?).await?;
        }
        let spec = wanted(Some(known))?;
        if spec != known.live.spec {
            known.live = self.mesh.update::<K>(name, &known.live, spec).await?;
        }
        if let Whose::Owned(before) = &mut known.whose
            && *before != said
        {
            self.mesh.tag(&known.live.arn, state::marks(self.canary, &said)?).await?;
            *before = said;
        }
        Ok(())
    }

    async fn ensure_route(&self, state: &mut State, wish: &Wish, split: &Split) -> Result<(), Error> {
        let name = Name::route(&wish.name, &state.router_name);
        let mut held = state.routes.get(&wish.name).cloned();
        match held.as_ref().map(|held| &held.whose) {
            Some(Whose::Taken(owner)) => {
                return Err(Error::Taken { what: format!("the route {name}"), owner: owner.clone() });
            }
            Some(Whose::Foreign) => {
                let theirs = self.adopt(&name).await?;
                state.routes.insert(wish.name.clone(), theirs.clone());
                held = Some(theirs);
            }
            Some(Whose::Owned(_) | Whose::Adopted(_)) | None => {}
        }
        let there = state.routes.clone();
        // The same wish, from what is there by then.
        let wanted = |now: Option<&Held<_>>| {
            let Some(now) = now else { return Ok(wish.spec.clone()) };
            let mut there = there.clone();
            there.insert(wish.name.clone(), now.clone());
            let all = routes::wishes(self.canary, &self.names, &there, split, Protocol::of(self.canary));
            let anew = all.ok().and_then(|all| all.into_iter().find(|again| again.name == wish.name));
            Ok(anew.map_or_else(|| wish.spec.clone(), |again| again.spec))
        };
        self.ensure::<Route>(&name, &mut held, wanted).await?;
        state.routes.extend(held.map(|held| (wish.name.clone(), held)));
        Ok(())
    }

    /// The targets that it had are kept in its tags before they are changed.
    async fn adopt(&self, name: &Name) -> Result<Held<aws_sdk_appmesh::types::RouteSpec>, Error> {
        let changed = || Error::Changed { what: format!("the route {name}") };
        let now = state::held::<Route>(self.mesh, self.canary, name, None).await?.ok_or_else(changed)?;
        match now.whose {
            Whose::Foreign => {
                let original = routes::targets_of(&now.live.spec).to_vec();
                self.mesh.tag(&now.live.arn, state::marks_with(self.canary, &original)?).await?;
                Ok(Held { whose: Whose::Adopted(original), ..now })
            }
            Whose::Taken(owner) => Err(Error::Taken { what: format!("the route {name}"), owner }),
            Whose::Owned(_) | Whose::Adopted(_) => Ok(now),
        }
    }

    pub async fn take_away(&self, state: &State, kept: Option<&Names>) -> Result<(), Error> {
        let is_kept = |name: &String, of: fn(&Names) -> &String| kept.is_some_and(|kept| of(kept) == name);
        let Names { service, canary_service, primary, canary, .. } = &self.names;
        if !is_kept(service, |names| &names.service) {
            self.give_up::<Service>(&Name::of(service), &state.service).await?;
        }
        if !is_kept(canary_service, |names| &names.canary_service) {
            self.give_up::<Service>(&Name::of(canary_service), &state.canary_service).await?;
        }
        // Those for chosen requests are ours, and go before the others.
        let mut routes: Vec<_> = state.routes.iter().filter(|(_, held)| held.whose.is_ours()).collect();
        routes.sort_by_key(|(_, held)| matches!(held.whose, Whose::Adopted(_)));
        let router_is_kept = is_kept(&state.router_name, |names| &names.router);
        for (name, held) in routes.into_iter().filter(|_| !router_is_kept) {
            let name = Name::route(name, &state.router_name);
            match &held.whose {
                Whose::Adopted(original) => self.put_back(&name, held, original).await?,
                Whose::Owned(_) => _ = self.mesh.delete::<Route>(&name).await?,
                Whose::Foreign | Whose::Taken(_) => {}
            }
        }
        if !router_is_kept {
            self.give_up::<Router>(&Name::of(&state.router_name), &state.router).await?;
        }
        if !is_kept(primary, |names| &names.primary) {
            self.give_up::<Node>(&Name::of(primary), &state.primary).await?;
        }
        if !is_kept(canary, |names| &names.canary) {
            self.give_up::<Node>(&Name::of(canary), &state.canary).await?;
        }
        Ok(())
    }

    /// Deletes what we made. What others have come to use is theirs from now on.
    async fn give_up<K: Kind>(&self, name: &Name, held: &Option<Held<K::Spec>>) -> Result<(), Error> {
        match held {
            Some(held) if matches!(held.whose, Whose::Owned(_)) => match self.mesh.delete::<K>(name).await? {
                true => Ok(()),
                false => state::let_go(self.mesh, &held.live.arn).await,
            },
            _ => Ok(()),
        }
    }

    /// The targets first, then the tags that remember them.
    async fn put_back(
        &self,
        name: &Name,
        held: &Held<aws_sdk_appmesh::types::RouteSpec>,
        original: &[aws_sdk_appmesh::types::WeightedTarget],
    ) -> Result<(), Error> {
        let now = self.mesh.find::<Route>(name).await?.filter(|now| now.uid == held.live.uid);
        let Some(now) = now else { return Ok(()) };
        let spec = routes::with_targets(&now.spec, original.to_vec())?;
        if spec != now.spec {
            self.mesh.update::<Route>(name, &now, spec).await?;
        }
        state::let_go(self.mesh, &now.arn).await
    }
}

#[derive(Clone, Copy)]
enum Side {
    Primary,
    Canary,
}

/// A virtual node of ours, with what others added to it.
fn node(
    on: &Subject<'_>,
    options: &AppMeshOptions,
    names: &Names,
    side: Side,
    held: Option<&Held<VirtualNodeSpec>>,
) -> Result<VirtualNodeSpec, BuildError> {
    let canary = on.canary;
    let (service, protocol) = (service_of(canary), Protocol::of(canary));
    let services = services::Names::of(canary);
    let (name, host) = match side {
        Side::Primary => (&names.primary, services.primary),
        Side::Canary => (&names.canary, services.canary),
    };
    let live = held.map(|held| held.live.spec.clone());
    let mut spec = live.unwrap_or_else(|| VirtualNodeSpec::builder().build());
    let was_said =
        |said| matches!(held.map(|held| &held.whose), Some(Whose::Owned(once)) if once.contains(&said));
    let theirs = spec.listeners.as_ref().and_then(|listeners| listeners.first().cloned());
    let mut listener = theirs.unwrap_or_else(|| Listener::builder().build());
    listener.port_mapping = Some(port(on)?);
    if was_said(Said::Timeout) {
        listener.timeout = None;
    }
    if let Some(timeout) = service.timeout {
        let http = || HttpTimeout::builder().per_request(routes::time(timeout)).build();
        listener.timeout = match protocol {
            Protocol::Http => Some(ListenerTimeout::Http(http())),
            Protocol::Http2 => Some(ListenerTimeout::Http2(http())),
            Protocol::Grpc => {
                Some(ListenerTimeout::Grpc(GrpcTimeout::builder().per_request(routes::time(timeout)).build()))
            }
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
            let mut found = AwsCloudMapServiceDiscovery::builder()
                .namespace_name(namespace)
                .service_name(name)
                .build()?;
            if let Some(theirs) = theirs {
                (found.attributes, found.ip_preference) = (theirs.attributes, theirs.ip_preference);
            }
            ServiceDiscovery::AwsCloudMap(found)
        }
        None => {
            let mut found = DnsServiceDiscovery::builder().hostname(hostname(&host, canary)).build()?;
            if let Some(ServiceDiscovery::Dns(theirs)) = spec.service_discovery.take() {
                (found.response_type, found.ip_preference) = (theirs.response_type, theirs.ip_preference);
            }
            ServiceDiscovery::Dns(found)
        }
    });
    if was_said(Said::Backends) {
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

fn port(on: &Subject<'_>) -> Result<PortMapping, BuildError> {
    let protocol = match Protocol::of(on.canary) {
        Protocol::Http => PortProtocol::Http,
        Protocol::Http2 => PortProtocol::Http2,
        Protocol::Grpc => PortProtocol::Grpc,
        Protocol::Tcp => PortProtocol::Tcp,
    };
    let port = container_port(&service_of(on.canary), on.arms);
    PortMapping::builder().port(port.into()).protocol(protocol).build()
}

fn router(on: &Subject<'_>) -> Result<VirtualRouterSpec, BuildError> {
    let listener = VirtualRouterListener::builder().port_mapping(port(on)?).build();
    Ok(VirtualRouterSpec::builder().listeners(listener).build())
}

fn service(router: &str) -> Result<VirtualServiceSpec, BuildError> {
    let router = VirtualRouterServiceProvider::builder().virtual_router_name(router).build()?;
    Ok(VirtualServiceSpec::builder().provider(VirtualServiceProvider::VirtualRouter(router)).build())
}

fn canary_service(names: &Names) -> Result<VirtualServiceSpec, BuildError> {
    let node = VirtualNodeServiceProvider::builder().virtual_node_name(&names.canary).build()?;
    Ok(VirtualServiceSpec::builder().provider(VirtualServiceProvider::VirtualNode(node)).build())
}
