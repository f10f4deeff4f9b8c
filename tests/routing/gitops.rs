//! A route that is in Git: between releases it is as it is there, nothing of it is
//! Serin's, and a change of it is kept. Each law holds for a manager that applies on the
//! server, as Flux and Argo CD's `ServerSideApply=true` do, and for one that computes a
//! three-way merge, as Argo CD does by default: the real kubectl apply.

use std::process::Stdio;

use kube::ResourceExt as _;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use serin::engine::action::Split;
use tokio::io::AsyncWriteExt as _;

use crate::routers::{self, RouterCase};
use crate::support::{self, Part, program};
use crate::world::{World, user_fields};

#[derive(Clone, Copy, Debug)]
enum Manager {
    ServerSide,
    ThreeWay,
}

/// A router, the manifest in Git, and the manifest after a change of it.
struct InGit {
    world: World,
    before: Value,
    after: Value,
}

impl InGit {
    async fn new(case: RouterCase, spec: Value, change: impl Fn(&mut Value)) -> InGit {
        let world = World::new(support::real().await, case).await;
        let route = world.route();
        let before = json!({
            "apiVersion": route.kind.api_version, "kind": route.kind.kind,
            "metadata": {"name": route.name, "namespace": route.namespace, "labels": {"from": "git"}},
            "spec": spec,
        });
        let mut after = before.clone();
        change(&mut after);
        InGit { world, before, after }
    }

    async fn apply(&self, by: Manager, manifest: &Value) -> Result<(), String> {
        match by {
            Manager::ServerSide => {
                // Without force: another owner of a field is a conflict.
                let params = PatchParams::apply("kustomize-controller");
                let route = self.world.route();
                let routes = self.world.api(&route);
                let written = routes.patch(&route.name, &params, &Patch::Apply(manifest)).await;
                written.map(drop).map_err(|error| error.to_string())
            }
            Manager::ThreeWay => kubectl(&["apply", "-f", "-"], manifest).await,
        }
    }

    /// As the manager looks for drift.
    async fn differs(&self, by: Manager, manifest: &Value) -> Option<String> {
        match by {
            Manager::ServerSide => {
                let params =
                    PatchParams { dry_run: true, ..PatchParams::apply("kustomize-controller").force() };
                let route = self.world.route();
                let trial = self.world.api(&route).patch(&route.name, &params, &Patch::Apply(manifest)).await;
                let (trial, live) = (trial.expect("a trial"), self.world.get(&route).await);
                (user_fields(&trial) != user_fields(&live)).then(|| format!("{trial:?} is not {live:?}"))
            }
            Manager::ThreeWay => kubectl(&["diff", "-f", "-"], manifest).await.err(),
        }
    }

    async fn is_at_rest(&self, by: Manager, manifest: &Value) {
        assert_eq!(self.differs(by, manifest).await, None, "it is as in Git");
        let live = self.world.get(&self.world.route()).await;
        assert!(!managers(&live).contains(&"serin".to_owned()), "{:?}", live.metadata.managed_fields);
        let ours = |key: &String| key.contains("serin.dev") || key.contains("toolkit.fluxcd.io");
        assert!(!live.annotations().keys().any(ours), "{:?}", live.annotations());
        assert_eq!(self.world.split().await, Some(Split::all_primary()));
    }

    async fn a_change_between_releases_is_kept(self, by: Manager) {
        let world = &self.world;
        let some = Split::weight(world.partial_weight());
        self.apply(by, &self.before).await.expect("applied");
        world.set(&Split::all_primary()).await;
        self.is_at_rest(by, &self.before).await;

        world.set(&some).await;
        let live = world.get(&world.route()).await;
        assert!(managers(&live).contains(&"serin".to_owned()));
        let flux = live.annotations().get("kustomize.toolkit.fluxcd.io/reconcile").map(String::as_str);
        assert_eq!(flux, Some("disabled"), "Flux leaves a release alone");
        world.set(&Split::all_primary()).await;
        self.is_at_rest(by, &self.before).await;

        self.apply(by, &self.after).await.expect("no conflict");
        self.is_at_rest(by, &self.after).await;
        world.set(&some).await;
        world.set(&Split::all_primary()).await;
        self.is_at_rest(by, &self.after).await;
        world.restore().await;
        assert_eq!(self.differs(by, &self.after).await, None, "after the deletion of the Canary");
    }
}

fn managers(object: &DynamicObject) -> Vec<String> {
    object.managed_fields().iter().filter_map(|entry| entry.manager.clone()).collect()
}

/// The error is what it printed.
async fn kubectl(arguments: &[&str], manifest: &Value) -> Result<(), String> {
    let kubectl = program(Part::Kubernetes, "kubectl").unwrap_or_else(|error| panic!("{error}"));
    let mut process = tokio::process::Command::new(kubectl)
        .args(arguments)
        .env("KUBECONFIG", support::real().await.kubeconfig())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl");
    let mut input = process.stdin.take().expect("a pipe");
    input.write_all(manifest.to_string().as_bytes()).await.expect("kubectl reads");
    drop(input);
    let output = process.wait_with_output().await.expect("kubectl ends");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    output.status.success().then_some(()).ok_or_else(|| text(&output.stdout) + &text(&output.stderr))
}

/// A route to the apex Service, beside one of somebody else.
async fn gateway() -> InGit {
    let case = routers::gateway();
    let list = case.list.as_ref().expect("a list");
    let spec = json!({
        "parentRefs": [{"name": "public"}, {"name": "internal", "namespace": "infra", "sectionName": "https"}],
        "hostnames": ["shop.example.com"],
        "rules": [list.foreign_entry, list.apex_entry],
    });
    InGit::new(case, spec, |manifest| {
        manifest["spec"]["rules"][1]["timeouts"] = json!({"request": "3s"});
        manifest["spec"]["rules"][0]["matches"][0]["path"]["value"] = json!("/older");
    })
    .await
}

/// The weights of a route at rest are in Git.
async fn istio() -> InGit {
    let case = routers::istio();
    let list = case.list.as_ref().expect("a list");
    let spec = json!({"hosts": ["web"], "http": [list.foreign_entry, list.apex_entry]});
    InGit::new(case, spec, |manifest| {
        manifest["spec"]["http"][1]["retries"]["attempts"] = json!(5);
        manifest["spec"]["http"][0]["match"][0]["uri"]["prefix"] = json!("/older");
    })
    .await
}

async fn smi() -> InGit {
    let backends = json!([{"service": "web-canary", "weight": 0}, {"service": "web-primary", "weight": 100}]);
    let spec = json!({"service": "web", "backends": backends});
    InGit::new(routers::smi_v1alpha4(), spec, |manifest| {
        manifest["metadata"]["labels"]["from"] = json!("git-2");
    })
    .await
}

/// Makes a test of each router and manager.
macro_rules! kept {
    ($($router:ident: $server_side:ident $three_way:ident;)*) => {
        $(
            #[tokio::test]
            async fn $server_side() {
                $router().await.a_change_between_releases_is_kept(Manager::ServerSide).await;
            }

            #[tokio::test]
            async fn $three_way() {
                $router().await.a_change_between_releases_is_kept(Manager::ThreeWay).await;
            }
        )*
    };
}

kept! {
    gateway: a_change_of_an_http_route_is_kept_by_flux a_change_of_an_http_route_is_kept_by_argo_cd;
    istio: a_change_of_a_virtual_service_is_kept_by_flux a_change_of_a_virtual_service_is_kept_by_argo_cd;
    smi: a_change_of_a_traffic_split_is_kept_by_flux a_change_of_a_traffic_split_is_kept_by_argo_cd;
}
