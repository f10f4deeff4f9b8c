//! The objects follow the files of the folder.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::json;
use serin::api::EndpointGroup;
use tokio::time::{Instant, sleep};

use crate::stage::{LIMIT, Stage};

const GROUP: &str = "apiVersion: serin.dev/v1alpha1\nkind: EndpointGroup\nmetadata: {name: NAME}\nspec:\n  \
                     port: 80\n  version: VERSION\n  endpoints: [{address: 127.0.0.1, version: v1}]\n";

fn group(name: &str, version: &str) -> String {
    GROUP.replace("NAME", name).replace("VERSION", version)
}

async fn eventually(what: &str, stage: &Stage, mut is: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is().await {
        assert!(began.elapsed() < LIMIT, "{what}\n{}", stage.log());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_follow_the_files() {
    let mut stage = Stage::new(&[]);
    stage.dir.write("groups.yaml", &format!("{}---\n{}", group("one", "v1"), group("two", "v1")));
    stage.start();
    let client = stage.client().await;
    let groups: Api<EndpointGroup> = Api::default_namespaced(client.clone());
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let version_of =
        async |name: &str| groups.get_opt(name).await.expect("an answer").map(|group| group.spec.version);
    eventually("both are there", &stage, async || {
        version_of("one").await.is_some() && version_of("two").await.is_some()
    })
    .await;
    let mode = std::fs::metadata(stage.kubeconfig()).expect("a kubeconfig").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let own = serde_json::from_value(json!({"metadata": {"name": "of-a-person"}})).expect("a ConfigMap");
    maps.create(&PostParams::default(), &own).await.expect("it is created");

    // A document that is refused does not keep the others from being applied.
    let refused = group("three", "v1").replace("port: 80", "port: 80\n  prot: http");
    stage
        .dir
        .write("groups.yaml", &format!("{}---\n{refused}---\n{}", group("one", "v2"), group("two", "v2")));
    eventually("both are changed", &stage, async || {
        version_of("one").await.as_deref() == Some("v2") && version_of("two").await.as_deref() == Some("v2")
    })
    .await;
    eventually("the refusal is reported", &stage, async || {
        let log = stage.log();
        log.contains("groups.yaml, document 2") && log.contains("prot")
    })
    .await;

    // A file that cannot be read deletes nothing.
    stage.dir.write("groups.yaml", "a: [1,\nb: 2\n");
    eventually("it is reported", &stage, async || stage.log().contains("groups.yaml, line")).await;
    assert_eq!(version_of("two").await.as_deref(), Some("v2"));

    stage.dir.write("groups.yaml", &group("one", "v3"));
    eventually("the one that is gone is deleted", &stage, async || {
        version_of("one").await.as_deref() == Some("v3") && version_of("two").await.is_none()
    })
    .await;
    assert!(
        maps.get_opt("of-a-person").await.expect("an answer").is_some(),
        "it did not come from the folder"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_disappeared_while_it_did_not_run_is_deleted() {
    let mut stage = Stage::new(&[]);
    stage.dir.write("one.yaml", &group("one", "v1"));
    stage.dir.write("two.yaml", &group("two", "v1"));
    stage.start();
    let groups: Api<EndpointGroup> = Api::default_namespaced(stage.client().await);
    eventually("both are there", &stage, async || {
        groups.get_opt("two").await.expect("an answer").is_some()
            && groups.get_opt("one").await.expect("an answer").is_some()
    })
    .await;
    stage.kill();
    std::fs::remove_file(stage.dir.join("two.yaml")).expect("it is removed");
    stage.start();
    let groups: Api<EndpointGroup> = Api::default_namespaced(stage.client().await);
    eventually("it is deleted", &stage, async || groups.get_opt("two").await.expect("an answer").is_none())
        .await;
    assert!(groups.get_opt("one").await.expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_are_explained() {
    let mut stage = Stage::new(&[]);
    stage.start();
    stage.client().await;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_serin"));
        command.arg("standalone").args(arguments);
        let done = command.output().expect("serin runs");
        assert!(!done.status.success());
        String::from_utf8(done.stderr).expect("a text")
    };
    let dir = stage.dir.path().display().to_string();
    let second = run(&[&dir, "--xds-listen", "127.0.0.1:0"]);
    assert!(second.contains("state.redb is in use by another process"), "{second}");
    let far = run(&[&dir, "--kube-listen", "0.0.0.0:6443"]);
    assert!(far.contains("--kube-listen 0.0.0.0:6443 is not a loopback address"), "{far}");
    let missing = run(&["/nonexistent"]);
    assert!(missing.contains("/nonexistent is no folder"), "{missing}");
}
