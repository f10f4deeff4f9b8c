//! Argo CD and Flux on the objects that the real controller writes: Argo CD's health checks
//! and actions of `gitops/argocd` in the Lua that Argo CD embeds, Flux' readiness by the rules
//! of kstatus.

use std::fmt::Write as _;
use std::process::Command;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::api::canary::{CanaryStatus, Phase};
use serin::api::condition::ConditionStatus;

use crate::support::receiver::Receiver;
use crate::support::{Folder, Part, program};
use crate::world::World;

/// Argo CD opens the base, package and table libraries, and of `os` two functions.
const SANDBOX: &str = "local print, os_date, os_time = print, os.date, os.time
string, io, math, debug, coroutine, channel = nil, nil, nil, nil, nil, nil
os = {date = os_date, time = os_time}
";

/// The customizations, as Argo CD reads them from its ConfigMap.
struct ArgoCd {
    health: String,
    actions: Value,
}

impl ArgoCd {
    fn read() -> Self {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/gitops/argocd/argocd-cm.yaml");
        let text = std::fs::read_to_string(file).expect("the ConfigMap");
        let map: Value = serde_saphyr::from_str(&text).expect("YAML");
        let data = |key: &str| map["data"][key].as_str().unwrap_or_else(|| panic!("no {key}")).to_owned();
        Self {
            health: data("resource.customizations.health.serin.dev_Canary"),
            actions: serde_saphyr::from_str(&data("resource.customizations.actions.serin.dev_Canary"))
                .expect("YAML"),
        }
    }

    /// Status and message.
    fn health(&self, canary: &Value) -> (String, String) {
        let lines = run_lua(canary, &self.health, "print(result.status) print(result.message)");
        let (status, message) = lines.split_once('\n').expect("two lines");
        (status.to_owned(), message.trim().to_owned())
    }

    /// The names of the actions that are offered.
    fn enabled_actions(&self, canary: &Value) -> Vec<String> {
        let script = self.actions["discovery.lua"].as_str().expect("a script");
        let show = "for name, action in pairs(result) do if not action.disabled then print(name) end end";
        let mut names: Vec<String> = run_lua(canary, script, show).lines().map(str::to_owned).collect();
        names.sort_unstable();
        names
    }

    /// The annotations and `spec.suspend` that an action leaves.
    fn act(&self, canary: &Value, name: &str) -> Value {
        let definitions = self.actions["definitions"].as_array().expect("actions");
        let action = definitions.iter().find(|action| action["name"] == name).expect("the action");
        let show = "local a = result.metadata.annotations or {}
            print(a['serin.dev/commands'] or '') print(a['serin.dev/approvals'] or '') print(result.spec.suspend)";
        let lines = run_lua(canary, action["action.lua"].as_str().expect("a script"), show);
        let mut lines = lines.lines();
        let mut annotations = json!({});
        for key in ["serin.dev/commands", "serin.dev/approvals"] {
            let text = lines.next().unwrap_or_default();
            if !text.is_empty() {
                annotations[key] = json!(text);
            }
        }
        json!({"metadata": {"annotations": annotations}, "spec": {"suspend": lines.next() == Some("true")}})
    }
}

/// What `show` prints of the `result` of a script about the object `obj`.
fn run_lua(object: &Value, script: &str, show: &str) -> String {
    let folder = Folder::new("lua");
    let mut text = String::from("obj = ");
    write_lua(&mut text, object);
    let _ =
        write!(text, "\n{SANDBOX}local function script()\n{script}\nend\nlocal result = script()\n{show}\n");
    folder.write("script.lua", &text);
    let glua = program(Part::Glua, "glua").unwrap_or_else(|error| panic!("{error}"));
    let output = Command::new(glua).arg(folder.join("script.lua")).output().expect("glua runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}\n{script}");
    String::from_utf8(output.stdout).expect("text")
}

/// As Argo CD decodes an object: null is no value.
fn write_lua(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("nil"),
        Value::Bool(_) | Value::Number(_) => _ = write!(out, "{value}"),
        Value::String(text) => {
            out.push('"');
            text.bytes().for_each(|byte| _ = write!(out, "\\{byte:03}"));
            out.push('"');
        }
        Value::Array(values) => {
            out.push('{');
            values.iter().for_each(|value| {
                write_lua(out, value);
                out.push(',');
            });
            out.push('}');
        }
        Value::Object(fields) => {
            out.push('{');
            fields.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, value)| {
                out.push('[');
                write_lua(out, &json!(key));
                out.push_str("]=");
                write_lua(out, value);
                out.push(',');
            });
            out.push('}');
        }
    }
}

/// The status that kstatus computes for an object of an unknown kind, by the rules in the
/// README of sigs.k8s.io/cli-utils/pkg/kstatus: deletion, observedGeneration, the conditions
/// Reconciling and Stalled, then Ready.
fn kstatus(object: &Value) -> &'static str {
    let condition = |kind: &str| {
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.clone().find(|condition| condition["type"] == kind).and_then(|it| it["status"].as_str())
    };
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let observed = &object["status"]["observedGeneration"];
    if !observed.is_null() && *observed != object["metadata"]["generation"] {
        return "InProgress";
    }
    match (condition("Reconciling"), condition("Stalled"), condition("Ready")) {
        (Some("True"), _, _) => "InProgress",
        (_, Some("True"), _) => "Failed",
        (_, _, Some("False" | "Unknown")) => "InProgress",
        _ => "Current",
    }
}

async fn object(world: &World) -> Value {
    json!(world.api::<Canary>().get("web").await.expect("the Canary"))
}

/// The object once its status is as wanted.
async fn becomes(world: &World, what: &str, wanted: impl Fn(&CanaryStatus) -> bool) -> Value {
    let began = std::time::Instant::now();
    loop {
        let canary = world.api::<Canary>().get("web").await.expect("the Canary");
        if canary.status.as_ref().is_some_and(&wanted) {
            return json!(canary);
        }
        assert!(began.elapsed().as_secs() < 240, "never {what}: {:#?}", canary.status);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn is_ready(status: &CanaryStatus) -> bool {
    status.conditions.iter().any(|it| it.type_ == "Ready" && it.status == ConditionStatus::True)
}

async fn apply(world: &World, patch: &Value) {
    let patched = world.api::<Canary>().patch("web", &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.expect("a patch");
}

#[tokio::test]
async fn argo_cd_and_flux_understand_a_release_and_argo_cd_steers_it() {
    let argo = ArgoCd::read();
    let world = World::new().await;
    let fresh = json!({"metadata": {"name": "web", "generation": 1}, "spec": {}});
    assert_eq!(argo.health(&fresh).0, "Progressing");
    let _serin = world.start().await;
    let steps = json!([{"weight": 10, "pause": {}}, {"name": "go-live", "approval": {}}, {"weight": 50}]);
    let reverts = Receiver::start([]).await;
    let webhooks = json!([{"name": "open-revert", "type": "target-rejected", "url": reverts.url}]);
    let analysis = json!({"stepWeights": null, "steps": steps, "webhooks": webhooks});
    world.canary("web", json!({"analysis": analysis})).await;
    world.reaches("web", Phase::Initialized).await;
    let rested =
        becomes(&world, "ready", |status| is_ready(status) && status.phase == Phase::Initialized).await;
    assert_eq!((argo.health(&rested).0.as_str(), kstatus(&rested)), ("Healthy", "Current"));
    assert_eq!(argo.enabled_actions(&rested), ["suspend"]);

    let _traffic = world.traffic();
    world.push("web:v2").await;
    let paused =
        becomes(&world, "pausing", |status| status.conditions.iter().any(|it| it.type_ == "Paused")).await;
    assert_eq!((argo.health(&paused).0.as_str(), kstatus(&paused)), ("Suspended", "InProgress"));
    assert_eq!(argo.enabled_actions(&paused), ["abort", "pause", "promote", "resume", "suspend"]);
    apply(&world, &argo.act(&paused, "resume")).await;

    let asks =
        becomes(&world, "asking", |status| status.gates.iter().any(|gate| gate.name == "go-live")).await;
    assert_eq!((argo.health(&asks).0.as_str(), kstatus(&asks)), ("Suspended", "InProgress"));
    assert!(argo.health(&asks).1.contains("waiting for approval"), "{:?}", argo.health(&asks));
    assert!(argo.enabled_actions(&asks).contains(&"approve".to_owned()));
    apply(&world, &argo.act(&asks, "approve")).await;
    world.reaches("web", Phase::Succeeded).await;
    let promoted =
        becomes(&world, "ready again", |status| is_ready(status) && status.phase == Phase::Succeeded).await;
    assert_eq!((argo.health(&promoted).0.as_str(), kstatus(&promoted)), ("Healthy", "Current"));

    world.push("web:v3").await;
    let paused =
        becomes(&world, "pausing", |status| status.conditions.iter().any(|it| it.type_ == "Paused")).await;
    apply(&world, &argo.act(&paused, "abort")).await;
    let over = |status: &CanaryStatus| status.phase == Phase::Failed && status.release.is_none();
    let failed = becomes(&world, "rolled back", over).await;
    assert_eq!((argo.health(&failed).0.as_str(), kstatus(&failed)), ("Degraded", "Failed"));
    assert!(argo.enabled_actions(&failed).contains(&"retry".to_owned()));
    let ahead =
        failed["status"]["conditions"].as_array().unwrap().iter().find(|it| it["type"] == "TargetRejected");
    let ahead = ahead.expect("the condition")["message"].as_str().unwrap().to_owned();
    assert!(ahead.contains("Applying the same manifest again starts no release"), "{ahead}");

    let called = reverts.await_received(1).await.remove(0).json();
    let revisions = &failed["status"]["revisions"];
    assert_eq!(called["metadata"]["rejectedRevision"], revisions["rejected"]);
    assert_eq!(called["metadata"]["promotedRevision"], revisions["primary"]);
    assert_eq!(called["metadata"]["eventMessage"], ahead);

    // The same commit again: nothing starts.
    world.push("web:v3").await;
    apply(&world, &json!({"metadata": {"annotations": {"synced": "again"}}})).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(object(&world).await["status"]["releases"], 2);
    assert_eq!(reverts.received().len(), 1);
    // The commit is reverted.
    world.push("web:v2").await;
    let reverted =
        becomes(&world, "reverted", |status| is_ready(status) && status.phase == Phase::Succeeded).await;
    assert_eq!((argo.health(&reverted).0.as_str(), kstatus(&reverted)), ("Healthy", "Current"));
    let conditions = reverted["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().all(|it| it["type"] != "TargetRejected"), "{conditions:#?}");
    apply(&world, &argo.act(&reverted, "suspend")).await;
    let suspended = becomes(&world, "suspended", |status| {
        status.conditions.iter().any(|it| it.type_ == "Paused" && it.reason == "Suspended")
    })
    .await;
    assert_eq!(argo.health(&suspended).0, "Suspended");
    assert!(argo.enabled_actions(&suspended).contains(&"unsuspend".to_owned()));
}
