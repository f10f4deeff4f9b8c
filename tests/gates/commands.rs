//! Approvals and commands, written to annotations.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use serin::api::canary::HookType;
use serin::engine::action::{GateCall, GateScope};
use serin::engine::command::Verb;
use serin::engine::observed::GateReply;
use serin::gates::annotations::{answers, commands, pending_approvals};
use serin::gates::commands::{self, CanaryRef, CommandError};

use crate::world::{World, gate, user_in_group};

pub async fn an_approval_answers_the_waiting_gate(world: World) {
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let question = world.approve("alice", None).await.expect("alice may");
    assert_eq!(pending_approvals(&before), std::slice::from_ref(&question));
    let after = world.canary().await;
    let approvals = answers(&after);
    assert_eq!(approvals.len(), 1);
    assert_eq!(approvals[0].call, question);
    assert_eq!(approvals[0].reply, GateReply::Yes { by: Some("alice".to_owned()) });
    assert_eq!((after.metadata.generation, after.spec), (before.metadata.generation, before.spec));

    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let who = world.caller("bob");
    commands::reject(&world.client, &who, world.name(), None, " too risky. ").await.expect("bob may");
    let approvals = answers(&world.canary().await);
    let no = GateReply::No { by: Some("bob".to_owned()), why: "too risky".to_owned() };
    assert_eq!(approvals.last().map(|answer| &answer.reply), Some(&no));
}

pub async fn an_approval_without_permission_is_refused_and_not_written(world: World) {
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let mallory = user_in_group("mallory", "system:authenticated");
    for refused in [
        commands::approve(&world.client, &mallory, world.name(), None).await.expect_err("may not"),
        commands::reject(&world.client, &mallory, world.name(), None, "").await.expect_err("may not"),
        commands::command(&world.client, &mallory, world.name(), Verb::Promote, None)
            .await
            .expect_err("may not"),
    ] {
        assert!(matches!(refused, CommandError::NotAllowed { .. }), "{refused:?}");
        let beginning = format!(
            "mallory may not do that to web in the namespace {}: it takes the right to update canaries/approve",
            world.namespace
        );
        assert!(refused.to_string().starts_with(&beginning), "{refused}");
    }
    let elsewhere = CanaryRef { namespace: "default", name: "web" };
    let refused = commands::approve(&world.client, &world.caller("alice"), elsewhere, None).await;
    assert!(
        matches!(refused, Err(CommandError::NotAllowed { .. })),
        "a right ends with its namespace: {refused:?}"
    );
    assert_eq!(world.canary().await.metadata, before.metadata);
}

pub async fn concurrent_approvals_are_all_recorded(world: World) {
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    let crowd: Vec<String> = (0..6).map(|at| format!("person-{at}")).collect();
    let approve = crowd.iter().map(|user| async { world.approve(user, None).await });
    let pause = crowd.iter().map(|user| async {
        commands::command(&world.client, &world.caller(user), world.name(), Verb::Pause, None).await
    });
    let (approved, paused) =
        tokio::join!(futures::future::join_all(approve), futures::future::join_all(pause));
    approved.into_iter().for_each(|result| drop(result.expect("approved")));
    let ids: Vec<String> = paused.into_iter().map(|result| result.expect("paused").id).collect();
    let canary = world.canary().await;
    let mut heard: Vec<String> = answers(&canary)
        .into_iter()
        .filter_map(|answer| match answer.reply {
            GateReply::Yes { by } => by,
            GateReply::No { .. } | GateReply::Unreachable { .. } => None,
        })
        .collect();
    heard.sort();
    assert_eq!(heard, crowd);
    let orders = commands(&canary);
    assert_eq!(orders.len(), crowd.len());
    assert!(ids.iter().all(|id| orders.iter().filter(|order| order.id == *id).count() == 1));
}

pub async fn a_second_answer_replaces_the_first(world: World) {
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    world.approve("alice", None).await.expect("alice may");
    commands::reject(&world.client, &world.caller("alice"), world.name(), None, "").await.expect("alice may");
    world.approve("bob", None).await.expect("bob may");
    let approvals: Vec<GateReply> =
        answers(&world.canary().await).into_iter().map(|answer| answer.reply).collect();
    let no = GateReply::No { by: Some("alice".to_owned()), why: String::new() };
    assert_eq!(approvals, [no, GateReply::Yes { by: Some("bob".to_owned()) }]);
}

pub async fn only_a_waiting_gate_can_be_approved(world: World) {
    let refusal =
        |result: Result<GateCall, CommandError>| result.expect_err("nothing to approve").to_string();
    let refused = refusal(world.approve("alice", None).await);
    assert_eq!(refused, "nothing waits for approval: the controller has not seen this Canary yet");
    let mut open = gate("go-live", None, Some(2));
    open["state"] = json!("Open");
    world.set_waiting_gates(&[open, gate("tests", Some("pre-rollout"), None)]).await;
    let refused = refusal(world.approve("alice", None).await);
    assert_eq!(refused, "nothing waits for approval: Judging.");
    world.set_waiting_gates(&[gate("first", None, Some(1)), gate("second", None, Some(2))]).await;
    let refused = refusal(world.approve("alice", None).await);
    assert_eq!(refused, "several gates wait for approval: name one of first, second");
    let refused = refusal(world.approve("alice", Some("third")).await);
    assert_eq!(refused, "no gate named third waits for approval; these do: first, second");
    assert_eq!(world.approve("alice", Some("second")).await.expect("it waits").scope, GateScope::Step(2));
    let gone = CanaryRef { namespace: &world.namespace, name: "gone" };
    let refused = refusal(commands::approve(&world.client, &world.caller("alice"), gone, None).await);
    assert_eq!(refused, format!("there is no Canary gone in the namespace {}", world.namespace));
}

pub async fn a_webhook_can_be_opened_by_hand_but_not_refused(world: World) {
    world.set_waiting_gates(&[gate("closed", Some("confirm-promotion"), None)]).await;
    let refused = commands::reject(&world.client, &world.caller("alice"), world.name(), None, "").await;
    assert!(matches!(refused, Err(CommandError::NotRejectable(_))), "{refused:?}");
    world.approve("alice", None).await.expect("alice may");
    let question = answers(&world.canary().await).remove(0).call;
    let kind = Some(HookType::ConfirmPromotion);
    assert_eq!(question, GateCall { release: 3, gate: "closed".to_owned(), kind, scope: GateScope::Release });
}

pub async fn entries_of_past_releases_are_pruned_on_write(world: World) {
    world.set_waiting_gates(&[gate("go-live", None, Some(2))]).await;
    world.approve("alice", None).await.expect("alice may");
    let command = |verb| {
        let (world, who) = (&world, world.caller("alice"));
        async move { commands::command(&world.client, &who, world.name(), verb, None).await.expect("alice may") }
    };
    let (pause, resume) = (command(Verb::Pause).await, command(Verb::Resume).await);
    let answered = json!({"id": resume.id, "verb": "resume", "accepted": true, "message": "done", "at": Timestamp::now()});
    world.status(json!({"releases": 4, "lastCommand": answered})).await;
    let abort = command(Verb::Abort).await;
    let canary = world.canary().await;
    let ids: Vec<String> = commands(&canary).into_iter().map(|command| command.id).collect();
    assert_eq!(ids, [resume.id, abort.id], "the last one answered stays, {} does not", pause.id);
    world.approve("bob", None).await.expect("bob may");
    let releases: Vec<u64> =
        answers(&world.canary().await).iter().map(|answer| answer.call.release).collect();
    assert_eq!(releases, [4]);
    for _ in 1..16 {
        command(Verb::Abort).await;
    }
    let refused =
        commands::command(&world.client, &world.caller("alice"), world.name(), Verb::Abort, None).await;
    assert!(matches!(refused, Err(CommandError::TooManyPending(16))), "{refused:?}");
}

pub async fn a_command_applies_to_the_current_revision_only(world: World) {
    world.set_waiting_gates(&[]).await;
    let revisions = json!({"revisions": {"primary": "1-old", "rejected": "1-bad"}});
    world.status(revisions).await;
    let meant = |verb, revision| {
        let (world, who) = (&world, world.caller("alice"));
        async move {
            commands::command(&world.client, &who, world.name(), verb, revision)
                .await
                .expect("alice may")
                .revision
        }
    };
    assert_eq!(meant(Verb::Promote, None).await.as_deref(), Some("1-abc"));
    assert_eq!(meant(Verb::Retry, None).await.as_deref(), Some("1-bad"));
    assert_eq!(meant(Verb::Rollback, None).await.as_deref(), Some("1-old"));
    assert_eq!(meant(Verb::Abort, Some("1-mine")).await.as_deref(), Some("1-mine"));
}

pub async fn the_command_line_approves_and_reports_errors(world: World) {
    let (code, _, error) = world.serin(&["approve", "gone"]).await;
    assert_eq!(
        (code, error),
        (1, format!("serin: namespace {} has no Canary gone, only web\n", world.namespace))
    );
    world.set_waiting_gates(&[]).await;
    let (code, _, error) = world.serin(&["approve", "web"]).await;
    assert_eq!((code, error.as_str()), (1, "serin: nothing waits for approval: Judging.\n"));
    world.set_waiting_gates(&[gate("first", None, Some(1)), gate("second", None, Some(2))]).await;
    let (code, text, error) = world.serin(&["approve", "web", "--gate", "second", "--wait", "0s"]).await;
    assert_eq!((code, text.as_str()), (0, "Approved: second.\n"), "{error}");
    assert_eq!(answers(&world.canary().await).remove(0).call.gate, "second");

    let answers = async {
        loop {
            let canary = world.canary().await;
            if let Some(command) = commands(&canary).pop() {
                let last = json!({"id": command.id, "verb": "promote", "accepted": false,
                    "message": "the canary is not ready", "at": Timestamp::now()});
                return world.status(json!({"lastCommand": last})).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ((code, _, error), ()) = tokio::join!(world.serin(&["promote", "web", "--wait", "30s"]), answers);
    assert_eq!((code, error.as_str()), (1, "serin: refused to promote: the canary is not ready\n"));
    let (code, text, error) = world.serin(&["abort", "web", "--wait", "100ms"]).await;
    assert_eq!((code, text.as_str()), (0, "Requested: abort.\n"), "{error}");
    assert!(error.starts_with("The controller has not processed it"), "{error}");
}
