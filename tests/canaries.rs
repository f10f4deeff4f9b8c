//! `serin get`, `status`, `history` and `wait`, as a person runs them: the real program
//! beside `serin local` and `serin run`.

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use support::{Child, Folder, definitions};

/// Enough for a machine that also compiles.
const TIMEOUT: Duration = Duration::from_secs(120);

const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");

struct World {
    folder: Folder,
    kubeconfig: PathBuf,
    _local: Child,
    /// None until the controller is started.
    run: Option<Child>,
}

struct Output {
    code: i32,
    stdout: String,
    stderr: String,
}

impl World {
    async fn new() -> Self {
        Self::with_local(&[]).await
    }

    async fn with_local(more: &[&str]) -> Self {
        let folder = Folder::new("canaries");
        let kubeconfig = folder.join("kubeconfig");
        let arguments = ["local".as_ref(), "--kubeconfig".as_ref(), kubeconfig.as_os_str()];
        let arguments = arguments.into_iter().chain(more.iter().map(|argument| argument.as_ref()));
        let mut local = Child::start(folder.path(), PROGRAM.as_ref(), arguments);
        let began = Instant::now();
        while !local.tail().contains("export KUBECONFIG=") {
            assert!(!local.has_ended() && began.elapsed() < TIMEOUT, "serin local: {}", local.tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Self { folder, kubeconfig, _local: local, run: None }
    }

    fn start_controller(&mut self) {
        let arguments = ["run".as_ref(), "--kubeconfig".as_ref(), self.kubeconfig.as_os_str()];
        self.run = Some(Child::start(self.folder.path(), PROGRAM.as_ref(), arguments));
    }

    async fn serin(&self, arguments: &str) -> Output {
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(arguments.split_whitespace()).env("KUBECONFIG", &self.kubeconfig).env("NO_COLOR", "1");
        let output =
            tokio::time::timeout(TIMEOUT, command.output()).await.expect("it ends").expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Output {
            code: output.status.code().expect("an exit code"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Until the output of a command has this in it.
    async fn until(&self, arguments: &str, text: &str) -> String {
        let began = Instant::now();
        loop {
            let output = self.serin(arguments).await.stdout;
            if output.contains(text) {
                return output;
            }
            let log = self.run.as_ref().map(Child::tail).unwrap_or_default();
            assert!(began.elapsed() < TIMEOUT, "no {text:?} in\n{output}\n{log}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn client(&self) -> Client {
        support::client(&std::fs::read_to_string(&self.kubeconfig).expect("a kubeconfig")).await
    }

    async fn apply(&self, object: Value) {
        let text = |field: &str| object[field].as_str().expect("a field").to_owned();
        let (group, version) = match text("apiVersion").split_once('/') {
            Some((group, version)) => (group.to_owned(), version.to_owned()),
            None => (String::new(), text("apiVersion")),
        };
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, &version, &text("kind")));
        let objects: Api<DynamicObject> = Api::default_namespaced_with(self.client().await, &kind);
        let name = object["metadata"]["name"].as_str().expect("a name");
        objects
            .patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&object))
            .await
            .expect("applied");
    }

    async fn apply_web(&self, image: &str) {
        self.apply(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{
                        "name": "web", "image": image, "ports": [{ "name": "http", "containerPort": 8080 }],
                    }] },
                },
            },
        }))
        .await;
    }
}

/// Blue/Green whose second step waits for a person.
fn canary() -> Value {
    json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": { "name": "web" },
        "spec": {
            "provider": "kubernetes",
            "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "service": { "port": 80, "targetPort": "http" },
            "analysis": { "interval": "1s", "steps": [
                { "name": "look", "pause": { "duration": "1s" } },
                { "name": "go", "approval": {} },
            ] },
        },
    })
}

#[tokio::test]
async fn a_release_is_watched_approved_and_waited_for() {
    let mut world = World::new().await;
    let without = world.serin("get").await;
    assert_eq!((without.code, without.stdout.as_str()), (1, ""));
    assert!(
        without.stderr.contains("knows no Canaries: run `serin crds | kubectl apply -f -`"),
        "{}",
        without.stderr
    );

    definitions::install(&world.client().await, definitions::ours()).await;
    assert_eq!(world.serin("get").await.stderr, "No Canaries in namespace default.\n");
    world.apply_web("registry.example.com/team/web:v1").await;
    world.apply(canary()).await;
    let unseen = world.serin("status web").await.stdout;
    assert!(unseen.contains("Unseen") && unseen.contains("is `serin run` running"), "{unseen}");
    let misspelt = world.serin("status wbe").await;
    assert_eq!(misspelt.stderr, "serin: namespace default has no Canary wbe; did you mean web?\n");

    world.start_controller();
    let first = world.until("get", "Initialized").await;
    assert!(first.contains("web:v1") && !first.contains("registry"), "{first}");

    world.apply_web("registry.example.com/team/web:v2").await;
    let waiting = world.until("get", "AwaitingApproval").await;
    assert!(waiting.contains("web:v1 → v2"), "{waiting}");
    let status = world.serin("status web").await.stdout;
    for shown in ["AwaitingApproval", "canary web:v2 0 %", "✓ look  ● go  ○ promote", "serin approve web"]
    {
        assert!(status.contains(shown), "no {shown:?} in\n{status}");
    }
    assert_eq!(world.serin("wait web --timeout 1s --settle 0s").await.code, 4);

    let (waited, approved) = tokio::join!(world.serin("wait web --timeout 100s"), world.serin("approve web"));
    assert_eq!(approved.code, 0, "{}", approved.stderr);
    assert_eq!(waited.code, 0, "{}{}", waited.stdout, waited.stderr);
    assert!(
        waited.stdout.lines().last().is_some_and(|line| line.starts_with("Succeeded: ")),
        "{}",
        waited.stdout
    );
    let history = world.serin("history web").await.stdout;
    assert!(
        history.lines().nth(1).is_some_and(|line| line.contains("promoted") && line.contains("web:v2")),
        "{history}"
    );
    let events = world.serin("events web").await.stdout;
    assert!(events.contains("web:v2 is promoted") && !events.contains("v1-"), "{events}");
    let object: Value = serde_json::from_str(&world.serin("status web -o json").await.stdout).unwrap();
    assert_eq!(object["status"]["phase"], "Succeeded");

    // Whose pods never become ready: named, and aborted.
    world.apply_web("registry.example.com/team/web:v3-crash").await;
    let crashing = world.until("status web", "CrashLoopBackOff").await;
    assert!(crashing.contains("pod ✗    web-"), "{crashing}");
    // The controller names it too, without a look at pods by hand.
    world.until("get", "container web is in CrashLoopBackOff, exit code 1").await;
    let logs = world.serin("logs web").await.stdout;
    assert!(logs.contains("this version crashes when it starts"), "{logs}");
    let (waited, aborted) = tokio::join!(world.serin("wait web --timeout 100s"), world.serin("abort web"));
    assert_eq!(aborted.code, 0, "{}", aborted.stderr);
    assert_eq!(waited.code, 2, "{}{}", waited.stdout, waited.stderr);

    let mut refused = canary();
    refused["spec"]["analysis"]["metrics"] = json!([{ "name": "x", "templateRef": { "name": "nowhere" } }]);
    world.apply(refused).await;
    world.until("get", "Refused").await;
    assert_eq!(world.serin("wait web --timeout 100s").await.code, 3);
}

/// The path of the README: its Canary, with a shorter interval, on the objects that it
/// names, in the order that it gives.
#[tokio::test]
async fn the_readme_s_example_is_released_on_a_local_mesh() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    let canary = read("examples/canary.yaml");
    let (_comment, manifest) = canary.split_once('\n').expect("lines");
    assert!(read("README.md").contains(&format!("```yaml\n{manifest}```")), "the README shows another one");
    assert!(canary.contains("interval: 30s"), "{canary}");
    let canary = canary.replace("interval: 30s", "interval: 2s\n    warmup: 0s");

    let mut world = World::with_local(&["--mesh", "--rps", "200"]).await;
    world.start_controller();
    let example: Vec<Value> = serde_saphyr::from_multiple(&read("examples/podinfo.yaml")).expect("YAML");
    let mut deployment = example[0].clone();
    for object in example {
        world.apply(object).await;
    }
    world.apply(serde_saphyr::from_str(&canary).expect("YAML")).await;
    world.until("get", "Initialized").await;

    let image = |deployment: &mut Value, tag: &str| {
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!(format!("app:{tag}"));
        deployment.clone()
    };
    world.apply(image(&mut deployment, "v2")).await;
    world.until("get", "app:v2 is promoted").await;
    world.apply(image(&mut deployment, "v3-errors-20")).await;
    let failed = world.until("get", "app:v3-errors-20 is rolled back").await;
    assert!(failed.contains("Failed") && failed.contains("app:v2 → v3-errors-20"), "{failed}");

    // What the pods answered, as `kubectl logs` reads it.
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::default_namespaced(world.client().await);
    let of_primary = kube::api::ListParams::default().labels("app=podinfo-primary");
    let pod = pods.list(&of_primary).await.expect("pods").items.remove(0);
    let name = pod.metadata.name.expect("a name");
    let tail = kube::api::LogParams { tail_lines: Some(2), ..Default::default() };
    let log = pods.logs(&name, &tail).await.expect("a log");
    assert!(log.lines().count() == 2 && log.lines().all(|line| line.starts_with("GET / 200 ")), "{log}");
    let none = kube::api::LogParams { previous: true, ..Default::default() };
    assert!(pods.logs(&name, &none).await.is_err_and(|error| error.to_string().contains("previous")));
}
