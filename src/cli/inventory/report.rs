//! A listing as text.

use std::fmt::Write as _;

use serde_json::json;

use super::table::{Cell, Style, Tone, paint, plain, table, toned};
use crate::discovery::kubernetes::{Listing, Unread};
use crate::discovery::model::{
    Fact, Inventory, Mesh, Outcome, RouteStanding, Scope, Service, Strength, Workload,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Wide,
    Json,
    Yaml,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    Table(Selection, Option<String>),
    Why(Subject),
}

impl View {
    /// The one workload that is shown.
    pub fn workload(&self) -> Option<&str> {
        match self {
            Self::Table(Selection::Workloads, name) => name.as_deref(),
            Self::Why(subject) if subject.kind == Selection::Workloads => Some(&subject.name),
            Self::Table(..) | Self::Why(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    All,
    Meshes,
    Workloads,
    Services,
}

/// The object that `why` explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub kind: Selection,
    pub namespace: Option<String>,
    pub name: String,
}

impl Subject {
    /// `workload/shop/web`, or `workload/web` in this namespace.
    pub fn parse(text: &str, namespace: Option<&str>) -> anyhow::Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, place, name) = match parts[..] {
            ["mesh", ref name @ ..] if !name.is_empty() => (Selection::Meshes, None, name.join("/")),
            [kind, name] => (kind_of(kind, text)?, namespace, name.to_owned()),
            [kind, namespace, name] => (kind_of(kind, text)?, Some(namespace), name.to_owned()),
            _ => anyhow::bail!("{text} is not of the form KIND/NAMESPACE/NAME, such as workload/shop/web"),
        };
        Ok(Self { kind, namespace: place.map(str::to_owned), name })
    }
}

fn kind_of(kind: &str, text: &str) -> anyhow::Result<Selection> {
    match kind {
        "workload" => Ok(Selection::Workloads),
        "service" => Ok(Selection::Services),
        _ => anyhow::bail!("{text}: the kind {kind} is none of mesh, workload and service"),
    }
}

/// For stdout, and for stderr.
#[derive(Debug)]
pub struct Report {
    pub text: String,
    pub notes: String,
}

/// An inventory, and what could not be read for it.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    pub inventory: &'a Inventory,
    pub unread: &'a [Unread],
}

impl<'a> From<&'a Listing> for Shown<'a> {
    fn from(listing: &'a Listing) -> Self {
        Self { inventory: &listing.inventory, unread: &listing.unread }
    }
}

pub fn report<'a>(
    shown: impl Into<Shown<'a>>,
    view: &View,
    namespace: Option<&str>,
    format: Option<Format>,
    style: Style,
) -> anyhow::Result<Report> {
    let Shown { inventory, unread } = shown.into();
    let inside = |of: &str| namespace.is_none_or(|namespace| namespace == of);
    let mut meshes = inventory.meshes();
    let mut workloads: Vec<&Workload> = inventory.workloads().filter(|w| inside(&w.key.namespace)).collect();
    let mut services: Vec<&Service> = inventory.services().filter(|s| inside(&s.key.namespace)).collect();
    let (selection, name) = match view {
        View::Table(selection, name) => (*selection, name.as_deref()),
        View::Why(subject) => (subject.kind, Some(subject.name.as_str())),
    };
    if let Some(name) = name {
        meshes.retain(|mesh| mesh.name == name);
        workloads.retain(|workload| workload.key.name == name);
        services.retain(|service| service.key.name == name);
    }
    let shows = |which: Selection| selection == Selection::All || selection == which;
    let missing = match selection {
        Selection::All => false,
        Selection::Meshes => meshes.is_empty(),
        Selection::Workloads => workloads.is_empty(),
        Selection::Services => services.is_empty(),
    };
    if let Some(name) = name.filter(|_| missing) {
        anyhow::bail!("nothing called {name} was found{}", place(namespace));
    }
    let text = match (view, format) {
        (View::Why(_), _) => match selection {
            Selection::Meshes | Selection::All => {
                meshes.iter().map(|mesh| why_mesh(mesh, style)).collect::<String>()
            }
            Selection::Workloads => workloads.iter().map(|workload| why_workload(workload, style)).collect(),
            Selection::Services => services.iter().map(|service| why_service(service, style)).collect(),
        },
        (View::Table(..), Some(Format::Json | Format::Yaml)) => {
            let mut data = json!({});
            let mut put = |which, name: &str, value| {
                if shows(which) {
                    data[name] = value;
                }
            };
            put(Selection::Meshes, "meshes", json!(meshes));
            put(Selection::Workloads, "workloads", json!(workloads));
            put(Selection::Services, "services", json!(services));
            data["unread"] = json!(unread);
            match format {
                Some(Format::Yaml) => serde_saphyr::to_string(&data)?,
                _ => format!("{data:#}\n"),
            }
        }
        (View::Table(..), None | Some(Format::Wide)) => {
            let mut parts = Vec::new();
            if shows(Selection::Meshes) {
                parts.push(mesh_table(&meshes, style));
            }
            if shows(Selection::Workloads) {
                parts.push(workload_table(&workloads, namespace, style));
            }
            if shows(Selection::Services) {
                parts.push(service_table(&services, namespace, style));
            }
            parts.join("\n")
        }
    };
    Ok(Report { text, notes: notes(unread) })
}

fn place(namespace: Option<&str>) -> String {
    namespace.map(|namespace| format!(" in namespace {namespace}; -A searches all")).unwrap_or_default()
}

fn notes(unread: &[Unread]) -> String {
    let mut text = String::new();
    for unread in unread {
        let place = unread.namespace.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
        let _ = writeln!(text, "Not read: {}{place}: {}", unread.resource, unread.why);
    }
    text
}

fn mesh_table(meshes: &[Mesh], style: Style) -> String {
    if meshes.is_empty() {
        return "No mesh or gateway was found.\n".to_owned();
    }
    let mut headers =
        vec!["MESH", "VERSION", "CONTROL PLANE", "READY", "MODES", "MTLS", "NAMESPACES", "WORKLOADS", "SKEW"];
    if style.wide {
        headers.extend(["TAGS", "TRUST DOMAIN"]);
    }
    let row = |mesh: &Mesh| {
        let plane = mesh.control_plane.as_ref();
        let healthy = plane.is_some_and(|plane| plane.ready > 0 && plane.ready >= plane.desired);
        let modes: Vec<String> = mesh.modes.iter().map(ToString::to_string).collect();
        let skew: Vec<String> =
            mesh.skew.iter().map(|skew| format!("{} on {}", skew.version, skew.workloads)).collect();
        let mut row = vec![
            plain(&mesh.name),
            plain(plane.and_then(|plane| plane.version.clone()).unwrap_or_default()),
            plain(plane.map(|p| format!("{}/{}", p.workload.namespace, p.workload.name)).unwrap_or_default()),
            toned(
                plane.map(|plane| format!("{}/{}", plane.ready, plane.desired)).unwrap_or_default(),
                if plane.is_none() {
                    Tone::Dim
                } else if healthy {
                    Tone::Good
                } else {
                    Tone::Bad
                },
            ),
            plain(modes.join(", ")),
            plain(mesh.mtls.clone().unwrap_or_default()),
            plain(mesh.namespaces.len().to_string()),
            plain(mesh.workloads.to_string()),
            toned(skew.join(", "), Tone::Bad),
        ];
        if style.wide {
            row.push(plain(plane.map(|plane| plane.tags.join(", ")).unwrap_or_default()));
            row.push(plain(mesh.trust_domain.clone().unwrap_or_default()));
        }
        row
    };
    table(&headers, meshes.iter().map(row).collect(), style)
}

fn workload_table(workloads: &[&Workload], namespace: Option<&str>, style: Style) -> String {
    if workloads.is_empty() {
        return format!("No workloads{}.\n", place(namespace));
    }
    let mut headers = vec!["NAMESPACE", "WORKLOAD", "READY", "MESH", "STRENGTH", "VERSION", "RELEASE"];
    if style.wide {
        headers.extend(["ROLE", "IDENTITY", "IMAGES"]);
    }
    let row = |workload: &&Workload| {
        let ready = workload.ready > 0 && workload.ready >= workload.desired;
        let strength = workload.meshes.first().map(|member| member.strength);
        let mut row = vec![
            plain(&workload.key.namespace),
            plain(format!("{}/{}", workload.key.kind.name().to_lowercase(), workload.key.name)),
            toned(
                format!("{}/{}", workload.ready, workload.desired),
                if ready { Tone::Good } else { Tone::Bad },
            ),
            toned(mesh_of(workload), if workload.meshes.len() > 1 { Tone::Bad } else { Tone::Plain }),
            plain(strength.map(|strength| strength.to_string()).unwrap_or_default()),
            plain(workload.version.clone().unwrap_or_default()),
            releasable(workload),
        ];
        if style.wide {
            let images: Vec<&str> = workload.images.iter().map(|image| image.image.as_str()).collect();
            row.push(plain(format!("{:?}", workload.role).to_lowercase()));
            row.push(plain(workload.spiffe.clone().unwrap_or_else(|| workload.service_account.clone())));
            row.push(plain(images.join(", ")));
        }
        row
    };
    table(&headers, workloads.iter().map(row).collect(), style)
}

/// `istio, ambient by shop/waypoint`.
fn mesh_of(workload: &Workload) -> String {
    let member = |member: &crate::discovery::model::Membership| {
        let mode = member.mode.map(|mode| format!(", {mode}")).unwrap_or_default();
        let waypoint = member.waypoint.as_ref().map(|name| format!(" by {name}")).unwrap_or_default();
        format!("{}{mode}{waypoint}", member.mesh.name())
    };
    let members: Vec<String> = workload.meshes.iter().map(member).collect();
    members.join(" and ")
}

/// The providers that can; else the reason against the one that its mesh suggests.
fn releasable(workload: &Workload) -> Cell {
    let yes: Vec<&str> = workload.releasable.iter().filter(|r| r.yes).map(|r| r.provider.name()).collect();
    match &yes[..] {
        [] => {
            let why = workload.releasable.iter().find_map(|answer| answer.why.clone());
            toned(format!("no: {}", why.unwrap_or_default()), Tone::Bad)
        }
        providers => toned(providers.join(", "), Tone::Good),
    }
}

fn service_table(services: &[&Service], namespace: Option<&str>, style: Style) -> String {
    if services.is_empty() {
        return format!("No services{}.\n", place(namespace));
    }
    let mut headers = vec!["NAMESPACE", "SERVICE", "PORTS", "WORKLOADS", "SUBSETS", "ROUTE THAT WINS"];
    if style.wide {
        headers.push("ALL ROUTES, IN ORDER");
    }
    let row = |service: &&Service| {
        let ports: Vec<String> =
            service.ports.iter().map(|port| format!("{}/{}", port.port, port.protocol)).collect();
        let workloads: Vec<&str> = service.workloads.iter().map(|key| key.name.as_str()).collect();
        let subsets: Vec<&str> = service.subsets.iter().map(|subset| subset.version.as_str()).collect();
        let note = match (service.headless, service.external) {
            (true, _) => " (headless)",
            (_, true) => " (external name)",
            _ => "",
        };
        let mut row = vec![
            plain(&service.key.namespace),
            plain(format!("{}{note}", service.key.name)),
            plain(ports.join(", ")),
            plain(workloads.join(", ")),
            plain(subsets.join(", ")),
            winner(service),
        ];
        if style.wide {
            let routes: Vec<String> =
                service.routes.iter().map(|route| format!("{} {}", route.route, verdict(route))).collect();
            row.push(plain(routes.join("; ")));
        }
        row
    };
    table(&headers, services.iter().map(row).collect(), style)
}

fn winner(service: &Service) -> Cell {
    let gateway = service.routes.iter().find(|route| route.outcome.wins());
    match service.winner().or(gateway) {
        Some(route) => plain(route.route.to_string()),
        None => match service.routes.iter().find_map(|route| route.outcome.why()) {
            Some(why) => toned(format!("none: {why}"), Tone::Bad),
            None => plain(""),
        },
    }
}

fn verdict(route: &RouteStanding) -> String {
    let scope = match &route.scope {
        Scope::Mesh => "for calls in the mesh".to_owned(),
        Scope::Gateway(gateway) => format!("through {gateway}"),
        Scope::Backend => "as a backend of another Service".to_owned(),
    };
    match &route.outcome {
        Outcome::Wins => format!("wins {scope}"),
        Outcome::Merged => format!("is merged {scope}"),
        Outcome::Elsewhere => format!("sends requests here {scope}"),
        Outcome::Loses(why) => format!("loses {scope}: {why}"),
        Outcome::Ignored(why) => format!("has no effect {scope}: {why}"),
        Outcome::Undefined(why) => format!("is undefined {scope}: {why}"),
    }
}

fn why_mesh(mesh: &Mesh, style: Style) -> String {
    let mut text = format!("{} in cluster {}\n", mesh.name, mesh.cluster);
    mesh.facts.iter().for_each(|fact| text.push_str(&evidence(fact, style)));
    text
}

fn why_workload(workload: &Workload, style: Style) -> String {
    let mesh = match workload.meshes.is_empty() {
        true => "is in no mesh".to_owned(),
        false => mesh_of(workload),
    };
    let mut text = format!("{}: {mesh}\n", workload.key);
    workload.facts.iter().for_each(|fact| text.push_str(&evidence(fact, style)));
    for answer in &workload.releasable {
        let (word, tone) = if answer.yes { ("yes", Tone::Good) } else { ("no ", Tone::Bad) };
        let why = answer.why.as_ref().map(|why| format!("  {why}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "  release by {:<11} {}{why}",
            answer.provider.name(),
            paint(word, tone, style.colours)
        );
    }
    text
}

fn why_service(service: &Service, style: Style) -> String {
    let mut text = format!("{}\n", service.key);
    if service.routes.is_empty() {
        text.push_str("  no route object touches it\n");
    }
    for (at, route) in service.routes.iter().enumerate() {
        let tone = if route.outcome.wins() { Tone::Good } else { Tone::Plain };
        let owner = route
            .application
            .as_ref()
            .map(|name| format!(" (Argo CD application {name})"))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "  {}. {}{owner} {}",
            at + 1,
            route.route,
            paint(&verdict(route), tone, style.colours)
        );
    }
    text
}

/// `participating  istio, sidecar  metadata.annotations[…] of Pod shop/web-1 and 2 more`.
fn evidence(fact: &Fact, style: Style) -> String {
    let tone = if fact.strength == Strength::Participating { Tone::Good } else { Tone::Plain };
    let mode = fact.mode.map(|mode| format!(", {mode}")).unwrap_or_default();
    let revision = fact.revision.as_ref().map(|name| format!(", revision {name}")).unwrap_or_default();
    let more = if fact.count > 1 { format!(" and {} more", fact.count - 1) } else { String::new() };
    let at = fact.evidence.generation.map(|at| format!(", generation {at}")).unwrap_or_default();
    let strength = paint(&format!("{:<13}", fact.strength.to_string()), tone, style.colours);
    format!(
        "  {strength} {}{mode}{revision}: {} of {}{more}{at}\n",
        fact.mesh.name(),
        fact.evidence.field,
        fact.evidence.object
    )
}
