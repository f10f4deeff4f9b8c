//! From a DaemonSet to a pod on each node.

use serde_json::{Value, json};

use crate::deployments::{eventually_pods, is_ready, pods};
use crate::session::*;
use crate::support::NODE;

const DAEMONS: &str = "/apis/apps/v1/namespaces/{ns}/daemonsets";
const AGENT: &str = "/apis/apps/v1/namespaces/{ns}/daemonsets/agent";

pub async fn a_daemon_runs_on_the_node(t: Session) {
    t.post(DAEMONS, agent()).await.created();
    let done = settled(&t).await;
    assert_eq!(done["status"]["currentNumberScheduled"], 1);
    assert_eq!(done["status"]["numberReady"], 1);
    assert_eq!(done["status"]["numberMisscheduled"], 0);
    assert_eq!(done["status"]["numberUnavailable"], Value::Null);
    let pod = pods(&t).await.remove(0);
    assert_eq!(pod["spec"]["nodeName"], NODE);
    assert!(pod["metadata"]["labels"]["controller-revision-hash"].is_string());
    assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "DaemonSet");
}

pub async fn a_changed_daemon_is_replaced(t: Session) {
    t.post(DAEMONS, agent()).await.created();
    settled(&t).await;
    let before = pods(&t).await.remove(0);
    let containers = json!([{"name": "app", "image": "app:v2"}]);
    t.patch(Patch::Strategic, AGENT, json!({"spec": {"template": {"spec": {"containers": containers}}}}))
        .await
        .ok();
    settled(&t).await;
    let after = eventually_pods(&t, "one new", |pods| pods.len() == 1 && is_ready(&pods[0])).await.remove(0);
    assert_eq!(after["spec"]["containers"][0]["image"], "app:v2");
    let hash = |pod: &Value| pod["metadata"]["labels"]["controller-revision-hash"].clone();
    assert_ne!(hash(&before), hash(&after));
}

pub async fn a_daemon_without_nodes_runs_nowhere(t: Session) {
    t.post(DAEMONS, agent()).await.created();
    settled(&t).await;
    let nowhere =
        json!({"spec": {"template": {"spec": {"nodeSelector": {"example.dev/scale-to-zero": "true"}}}}});
    t.patch(Patch::Merge, AGENT, nowhere).await.ok();
    eventually_pods(&t, "none", |pods| pods.is_empty()).await;
    t.eventually(AGENT, "unwanted", |set| set["status"]["desiredNumberScheduled"] == 0 && observed(set))
        .await;
    let anywhere = json!({"spec": {"template": {"spec": {"nodeSelector": null}}}});
    t.patch(Patch::Merge, AGENT, anywhere).await.ok();
    settled(&t).await;
}

fn agent() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}, "spec": {
        "selector": {"matchLabels": {"app": "agent"}},
        "template": {
            "metadata": {"labels": {"app": "agent"}},
            "spec": {"containers": [{"name": "app", "image": "app:v1"}]},
        },
    }})
}

fn observed(set: &Value) -> bool {
    set["status"]["observedGeneration"] == set["metadata"]["generation"]
}

async fn settled(t: &Session) -> Value {
    let done = |set: &Value| {
        let status = &set["status"];
        observed(set)
            && status["desiredNumberScheduled"] == 1
            && status["updatedNumberScheduled"] == 1
            && status["numberAvailable"] == 1
    };
    t.eventually(AGENT, "rolled out", done).await
}
