//! Who is asked: programs over real HTTP, and people on both API servers.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{conditions, wait::await_condition};
use kube::{Client, CustomResourceExt as _};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::api::canary::{HookType, Phase, Severity, Webhook};
use serin::engine::action::{Moment, Question};
use serin::engine::command::Verb;
use serin::engine::observed::Reply;
use serin::gates::annotations::{APPROVALS, COMMANDS, answers, commands, malformed, waiting};
use serin::gates::people::{self, Name, Refused, Who};
use serin::gates::webhook::{Event, SIGNATURE, Subject, Webhooks};
use serin::local::access::Grant;
use serin::local::{Local, Options};
use sha2::Sha256;
use support::receiver::{Receiver, answer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

// Programs.

#[tokio::test]
async fn a_webhook_is_asked_as_flagger_asks() {
    let receiver = Receiver::start([]).await;
    let hook =
        Webhook { metadata: [("team".to_owned(), "web".to_owned())].into(), ..hook("gate", &receiver.url) };
    assert_eq!(webhooks().ask(&hook, &subject(), None).await, Reply::Yes { by: None });
    let got = receiver.got().remove(0);
    let expected = json!({
        "name": "web", "namespace": "prod", "phase": "Progressing", "checksum": "1-abc",
        "metadata": {"team": "web"},
    });
    assert_eq!(got.json(), expected);
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(got.header(SIGNATURE), "", "nobody gave a key");
}

#[tokio::test]
async fn an_event_says_what_happened_and_when() {
    let receiver = Receiver::start([]).await;
    let metadata =
        [("team", "web"), ("eventType", "Mine")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let hook = Webhook { metadata: metadata.into(), ..hook("events", &receiver.url) };
    let at = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
    let event = Event { message: "It is rolled back.", severity: Severity::Error, at };
    webhooks().tell(&hook, &subject(), &event, None).await;
    let expected = json!({
        "team": "web", "eventMessage": "It is rolled back.", "eventType": "Warning", "timestamp": "1700000000123",
    });
    assert_eq!(receiver.got()[0].json()["metadata"], expected);
}

#[tokio::test]
async fn up_to_202_is_a_yes_and_all_else_a_no_with_its_reason() {
    for (status, body, expected) in [
        (200, "", None),
        (201, "made", None),
        (202, "", None),
        (204, "", Some("204 No Content")),
        (302, "", Some("302 Found")),
        (403, "\n  closed for today.\r\nsecond line", Some("403 Forbidden: closed for today")),
        (500, "", Some("500 Internal Server Error")),
    ] {
        let receiver = Receiver::start([answer(status, body).header("location", "/elsewhere")]).await;
        let hook = Webhook { retries: Some(3), ..hook("gate", &receiver.url) };
        let expected = match expected {
            None => Reply::Yes { by: None },
            Some(why) => Reply::No { by: None, why: why.to_owned() },
        };
        assert_eq!(webhooks().ask(&hook, &subject(), None).await, expected);
        assert_eq!(receiver.got().len(), 1, "an answer is an answer: {status}");
    }
}

#[tokio::test]
async fn no_answer_is_silence_and_tells_no_secret() {
    let url = format!("http://user:hunter2@127.0.0.1:{}/T0/hunter2?token=hunter2", support::free_port());
    let Reply::Silence { why } = webhooks().ask(&hook("gate", &url), &subject(), None).await else {
        panic!("nobody is there")
    };
    assert!(why.starts_with("no answer: ") && why.contains("refused"), "{why}");
    assert!(!why.contains("hunter2"), "{why}");
    let Reply::Silence { why } = webhooks().ask(&hook("gate", "hunter2"), &subject(), None).await else {
        panic!("that is no URL")
    };
    assert!(why.starts_with("cannot ask") && !why.contains("hunter2"), "{why}");
}

#[tokio::test]
async fn a_slow_answer_is_silence() {
    let receiver = Receiver::start([answer(200, "").after(Duration::from_secs(30))]).await;
    let hook = Webhook { timeout: Some("200ms".parse().unwrap()), ..hook("gate", &receiver.url) };
    let began = Instant::now();
    let reply = webhooks().ask(&hook, &subject(), None).await;
    assert_eq!(reply, Reply::Silence { why: "no answer within 200ms".to_owned() });
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn silence_is_tried_again_as_often_as_asked() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        for _ in 0..2 {
            drop(listener.accept().await.unwrap());
        }
        say_yes(listener.accept().await.unwrap().0).await;
        listener
    });
    let patient = Webhook { retries: Some(2), ..hook("gate", &url) };
    assert_eq!(webhooks().ask(&patient, &subject(), None).await, Reply::Yes { by: None });

    let listener = server.await.unwrap();
    tokio::spawn(async move {
        for _ in 0..2 {
            drop(listener.accept().await.unwrap());
        }
        say_yes(listener.accept().await.unwrap().0).await;
    });
    let hasty = Webhook { retries: Some(1), ..hook("gate", &url) };
    assert!(matches!(webhooks().ask(&hasty, &subject(), None).await, Reply::Silence { .. }));
}

#[tokio::test]
async fn an_endless_answer_is_cut() {
    let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1024])));
    let receiver = Receiver::start([answer(500, Body::from_stream(endless))]).await;
    let began = Instant::now();
    let Reply::No { why, .. } = webhooks().ask(&hook("gate", &receiver.url), &subject(), None).await else {
        panic!("it said no")
    };
    assert!(why.starts_with("500 Internal Server Error: xxx") && why.len() < 300, "{why}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn the_receiver_can_tell_that_it_was_us() {
    let receiver = Receiver::start([]).await;
    webhooks().ask(&hook("gate", &receiver.url), &subject(), Some(b"the key")).await;
    let got = receiver.got().remove(0);
    let digits = got.header(SIGNATURE).strip_prefix("sha256=").expect("a signature");
    let bytes: Vec<u8> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
    let verify = |key: &[u8], body: &[u8]| {
        let mut hmac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        hmac.update(body);
        hmac.verify_slice(&bytes).is_ok()
    };
    assert!(verify(b"the key", &got.body));
    assert!(!verify(b"another", &got.body) && !verify(b"the key", b"{}"));
}

#[tokio::test]
async fn a_certificate_is_verified_unless_told_not_to() {
    let webhooks = webhooks();
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                say_yes(stream).await;
            }
        }
    });
    let strict = hook("gate", &url);
    let Reply::Silence { why } = webhooks.ask(&strict, &subject(), None).await else {
        panic!("nobody vouches for it")
    };
    assert!(why.to_lowercase().contains("certificate"), "{why}");
    let lax = Webhook { disable_tls: true, ..strict };
    assert_eq!(webhooks.ask(&lax, &subject(), None).await, Reply::Yes { by: None });
}

// What people said.

#[test]
fn what_cannot_be_read_is_told_and_the_rest_counts() {
    let canary = noted(&[
        (
            APPROVALS,
            r#"[{"release": "three"}, {"release": 3, "gate": "go", "answer": "yes", "at": "1970-01-01T00:00:00Z"}, 7]"#,
        ),
        (COMMANDS, "promote!"),
    ]);
    let said = answers(&canary);
    assert_eq!(said.len(), 1);
    let question = Question { release: 3, gate: "go".to_owned(), kind: None, moment: Moment::Release };
    assert_eq!((&said[0].question, &said[0].reply), (&question, &Reply::Yes { by: None }));
    assert!(commands(&canary).is_empty());
    let told: Vec<String> = malformed(&canary).iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("entry 1 of the annotation serin.dev/approvals is ignored: "), "{}", told[0]);
    assert!(told[1].starts_with("entry 3 of"), "{}", told[1]);
    assert!(
        told[2].starts_with("the whole of the annotation serin.dev/commands is ignored: "),
        "{}",
        told[2]
    );
}

#[test]
fn what_was_said_to_another_canary_does_not_count() {
    let yes = |uid: &str| {
        format!(
            r#"{{"uid": "{uid}", "release": 1, "gate": "go", "answer": "yes", "at": "1970-01-01T00:00:00Z"}}"#
        )
    };
    let order = |uid: &str| format!(r#"{{"uid": "{uid}", "id": "{uid}", "verb": "abort"}}"#);
    let canary = noted(&[
        (APPROVALS, &format!("[{}, {}]", yes("mine"), yes("another"))),
        (COMMANDS, &format!("[{}, {}]", order("another"), order("mine"))),
    ]);
    assert_eq!(answers(&canary).len(), 1);
    let orders = commands(&canary);
    assert_eq!((orders.len(), orders[0].id.as_str(), orders[0].verb), (1, "mine", Verb::Abort));
    assert!(malformed(&canary).is_empty());
}

/// Makes a test of each law on each server.
macro_rules! laws {
    ($($law:ident)*) => {
        mod real { $(#[tokio::test] async fn $law() { super::$law(super::World::real().await).await })* }
        mod local { $(#[tokio::test] async fn $law() { super::$law(super::World::local().await).await })* }
    };
}

laws! {
    an_approval_answers_the_question_that_waits
    who_may_not_approve_is_refused_and_nothing_is_written
    people_who_write_at_once_are_all_heard
    who_answers_again_has_changed_their_mind
    only_what_waits_can_be_approved
    a_webhook_can_be_opened_by_hand_but_not_refused
    what_is_over_is_forgotten_when_somebody_writes
    a_command_is_meant_for_the_present_revision
    the_command_line_says_yes_and_says_what_is_wrong
}

async fn an_approval_answers_the_question_that_waits(world: World) {
    world.asks(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let question = world.approve("alice", None).await.expect("alice may");
    assert_eq!(waiting(&before), [question.clone()]);
    let after = world.canary().await;
    let said = answers(&after);
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].question, question);
    assert_eq!(said[0].reply, Reply::Yes { by: Some("alice".to_owned()) });
    assert_eq!((after.metadata.generation, after.spec), (before.metadata.generation, before.spec));

    world.asks(&[gate("go-live", None, Some(2))]).await;
    let who = world.who("bob");
    people::deny(&world.client, &who, world.name(), None, " too risky. ").await.expect("bob may");
    let said = answers(&world.canary().await);
    let no = Reply::No { by: Some("bob".to_owned()), why: "too risky".to_owned() };
    assert_eq!(said.last().map(|answer| &answer.reply), Some(&no));
}

async fn who_may_not_approve_is_refused_and_nothing_is_written(world: World) {
    world.asks(&[gate("go-live", None, Some(2))]).await;
    let before = world.canary().await;
    let mallory = Who::Person { user: "mallory".to_owned(), groups: vec!["system:authenticated".to_owned()] };
    for refused in [
        people::approve(&world.client, &mallory, world.name(), None).await.expect_err("may not"),
        people::deny(&world.client, &mallory, world.name(), None, "").await.expect_err("may not"),
        people::command(&world.client, &mallory, world.name(), Verb::Promote, None)
            .await
            .expect_err("may not"),
    ] {
        assert!(matches!(refused, Refused::NotAllowed { .. }), "{refused:?}");
        let beginning = format!(
            "mallory may not do that to web in the namespace {}: it takes the right to update canaries/approve",
            world.namespace
        );
        assert!(refused.to_string().starts_with(&beginning), "{refused}");
    }
    let elsewhere = Name { namespace: "default", name: "web" };
    let refused = people::approve(&world.client, &world.who("alice"), elsewhere, None).await;
    assert!(
        matches!(refused, Err(Refused::NotAllowed { .. })),
        "a right ends with its namespace: {refused:?}"
    );
    assert_eq!(world.canary().await.metadata, before.metadata);
}

async fn people_who_write_at_once_are_all_heard(world: World) {
    world.asks(&[gate("go-live", None, Some(2))]).await;
    let crowd: Vec<String> = (0..6).map(|at| format!("person-{at}")).collect();
    let approve = crowd.iter().map(|user| async { world.approve(user, None).await });
    let pause = crowd.iter().map(|user| async {
        people::command(&world.client, &world.who(user), world.name(), Verb::Pause, None).await
    });
    let (approved, paused) =
        tokio::join!(futures::future::join_all(approve), futures::future::join_all(pause));
    approved.into_iter().for_each(|result| drop(result.expect("approved")));
    let ids: Vec<String> = paused.into_iter().map(|result| result.expect("paused").id).collect();
    let canary = world.canary().await;
    let mut heard: Vec<String> = answers(&canary)
        .into_iter()
        .filter_map(|answer| match answer.reply {
            Reply::Yes { by } => by,
            Reply::No { .. } | Reply::Silence { .. } => None,
        })
        .collect();
    heard.sort();
    assert_eq!(heard, crowd);
    let orders = commands(&canary);
    assert_eq!(orders.len(), crowd.len());
    assert!(ids.iter().all(|id| orders.iter().filter(|order| order.id == *id).count() == 1));
}

async fn who_answers_again_has_changed_their_mind(world: World) {
    world.asks(&[gate("go-live", None, Some(2))]).await;
    world.approve("alice", None).await.expect("alice may");
    people::deny(&world.client, &world.who("alice"), world.name(), None, "").await.expect("alice may");
    world.approve("bob", None).await.expect("bob may");
    let said: Vec<Reply> = answers(&world.canary().await).into_iter().map(|answer| answer.reply).collect();
    let no = Reply::No { by: Some("alice".to_owned()), why: String::new() };
    assert_eq!(said, [no, Reply::Yes { by: Some("bob".to_owned()) }]);
}

async fn only_what_waits_can_be_approved(world: World) {
    let told = |result: Result<Question, Refused>| result.expect_err("nothing to approve").to_string();
    let refused = told(world.approve("alice", None).await);
    assert_eq!(refused, "nothing waits for approval: the controller has not seen this Canary yet");
    let mut open = gate("go-live", None, Some(2));
    open["state"] = json!("Open");
    world.asks(&[open, gate("tests", Some("pre-rollout"), None)]).await;
    let refused = told(world.approve("alice", None).await);
    assert_eq!(refused, "nothing waits for approval: Judging.");
    world.asks(&[gate("first", None, Some(1)), gate("second", None, Some(2))]).await;
    let refused = told(world.approve("alice", None).await);
    assert_eq!(refused, "several gates wait for approval: name one of first, second");
    let refused = told(world.approve("alice", Some("third")).await);
    assert_eq!(refused, "no gate named third waits for approval; these do: first, second");
    assert_eq!(world.approve("alice", Some("second")).await.expect("it waits").moment, Moment::Step(2));
    let gone = Name { namespace: &world.namespace, name: "gone" };
    let refused = told(people::approve(&world.client, &world.who("alice"), gone, None).await);
    assert_eq!(refused, format!("there is no Canary gone in the namespace {}", world.namespace));
}

async fn a_webhook_can_be_opened_by_hand_but_not_refused(world: World) {
    world.asks(&[gate("closed", Some("confirm-promotion"), None)]).await;
    let refused = people::deny(&world.client, &world.who("alice"), world.name(), None, "").await;
    assert!(matches!(refused, Err(Refused::NotForPeople(_))), "{refused:?}");
    world.approve("alice", None).await.expect("alice may");
    let question = answers(&world.canary().await).remove(0).question;
    let kind = Some(HookType::ConfirmPromotion);
    assert_eq!(question, Question { release: 3, gate: "closed".to_owned(), kind, moment: Moment::Release });
}

async fn what_is_over_is_forgotten_when_somebody_writes(world: World) {
    world.asks(&[gate("go-live", None, Some(2))]).await;
    world.approve("alice", None).await.expect("alice may");
    let command = |verb| {
        let (world, who) = (&world, world.who("alice"));
        async move { people::command(&world.client, &who, world.name(), verb, None).await.expect("alice may") }
    };
    let (pause, resume) = (command(Verb::Pause).await, command(Verb::Resume).await);
    let answered =
        json!({"id": resume.id, "verb": "resume", "obeyed": true, "message": "done", "at": Timestamp::now()});
    world.status(json!({"releases": 4, "lastCommand": answered})).await;
    let abort = command(Verb::Abort).await;
    let canary = world.canary().await;
    let ids: Vec<String> = commands(&canary).into_iter().map(|command| command.id).collect();
    assert_eq!(ids, [resume.id, abort.id], "the last one answered stays, {} does not", pause.id);
    world.approve("bob", None).await.expect("bob may");
    let releases: Vec<u64> =
        answers(&world.canary().await).iter().map(|answer| answer.question.release).collect();
    assert_eq!(releases, [4]);
    for _ in 1..16 {
        command(Verb::Abort).await;
    }
    let refused = people::command(&world.client, &world.who("alice"), world.name(), Verb::Abort, None).await;
    assert!(matches!(refused, Err(Refused::TooMany(16))), "{refused:?}");
}

async fn a_command_is_meant_for_the_present_revision(world: World) {
    world.asks(&[]).await;
    let revisions = json!({"revisions": {"primary": "1-old", "rejected": "1-bad"}});
    world.status(revisions).await;
    let meant = |verb, revision| {
        let (world, who) = (&world, world.who("alice"));
        async move {
            people::command(&world.client, &who, world.name(), verb, revision)
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

async fn the_command_line_says_yes_and_says_what_is_wrong(world: World) {
    let (code, _, error) = world.serin(&["approve", "gone"]).await;
    assert_eq!(
        (code, error),
        (1, format!("serin: there is no Canary gone in the namespace {}\n", world.namespace))
    );
    world.asks(&[]).await;
    let (code, _, error) = world.serin(&["approve", "web"]).await;
    assert_eq!((code, error.as_str()), (1, "serin: nothing waits for approval: Judging.\n"));
    world.asks(&[gate("first", None, Some(1)), gate("second", None, Some(2))]).await;
    let (code, text, error) = world.serin(&["approve", "web", "--gate", "second", "--wait", "0s"]).await;
    assert_eq!((code, text.as_str()), (0, "Approved: second.\n"), "{error}");
    assert_eq!(answers(&world.canary().await).remove(0).question.gate, "second");

    let answers = async {
        loop {
            let canary = world.canary().await;
            if let Some(command) = commands(&canary).pop() {
                let last = json!({"id": command.id, "verb": "promote", "obeyed": false,
                    "message": "the canary is not ready", "at": Timestamp::now()});
                return world.status(json!({"lastCommand": last})).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ((code, _, error), ()) = tokio::join!(world.serin(&["promote", "web", "--wait", "30s"]), answers);
    assert_eq!((code, error.as_str()), (1, "serin: refused to promote: the canary is not ready\n"));
    let (code, text, error) = world.serin(&["abort", "web", "--wait", "100ms"]).await;
    assert_eq!((code, text.as_str()), (0, "Asked to abort.\n"), "{error}");
    assert!(error.starts_with("The controller has not answered"), "{error}");
}

/// A namespace with a Canary in it, where alice, bob and a crowd may approve.
struct World {
    client: Client,
    namespace: String,
    kubeconfig: std::path::PathBuf,
    /// Keeps the server and its kubeconfig.
    _kept: Option<(serin::local::serve::Serving, support::Folder)>,
}

impl World {
    async fn real() -> World {
        let cluster = support::real().await;
        let (client, namespace) = (cluster.client().await, cluster.namespace("gates").await);
        let role: Role = serde_json::from_value(json!({
            "metadata": {"name": "approver"},
            "rules": [{"apiGroups": ["serin.dev"], "resources": ["canaries/approve"], "verbs": ["update"]}],
        }))
        .unwrap();
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "approvers"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "approver"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "approvers"}],
        }))
        .unwrap();
        let create = PostParams::default();
        Api::namespaced(client.clone(), &namespace).create(&create, &role).await.expect("a role");
        Api::namespaced(client.clone(), &namespace).create(&create, &binding).await.expect("a binding");
        let world = World { client, namespace, kubeconfig: cluster.kubeconfig(), _kept: None };
        // The authorizer learns of a new binding a moment later.
        world.begin().await
    }

    async fn local() -> World {
        support::install_crypto();
        let namespace = "gates".to_owned();
        let grant = Grant {
            to: "approvers".to_owned(),
            verb: "update".to_owned(),
            group: "serin.dev".to_owned(),
            resource: "canaries/approve".to_owned(),
            namespace: namespace.clone(),
        };
        let local = Local::new(Options { grants: vec![grant], ..Options::default() });
        let serving = local.serve(([127, 0, 0, 1], 0).into()).await.expect("served");
        let folder = support::Folder::new("gates");
        let kubeconfig = folder.join("kubeconfig");
        serving.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
        let made = Namespace {
            metadata: ObjectMeta { name: Some(namespace.clone()), ..Default::default() },
            ..Default::default()
        };
        let client = local.client();
        Api::all(client.clone()).create(&PostParams::default(), &made).await.expect("a namespace");
        World { client, namespace, kubeconfig, _kept: Some((serving, folder)) }.begin().await
    }

    /// Defines Canaries, makes one, and waits until alice may approve it.
    async fn begin(self) -> World {
        let definitions = Api::<CustomResourceDefinition>::all(self.client.clone());
        let apply = PatchParams::apply("test").force();
        let name = Canary::crd_name();
        definitions.patch(name, &apply, &Patch::Apply(Canary::crd())).await.expect("defined");
        await_condition(definitions, name, conditions::is_crd_established()).await.expect("established");
        let canary: Canary = serde_json::from_value(json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "web"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "service": {"port": 80}, "analysis": {"iterations": 1},
            },
        }))
        .expect("a Canary");
        let began = Instant::now();
        // Established, and yet served only a moment later.
        while let Err(error) = self.canaries().create(&PostParams::default(), &canary).await {
            assert!(began.elapsed() < Duration::from_secs(30), "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        while matches!(self.approve("alice", None).await, Err(Refused::NotAllowed { .. })) {
            assert!(began.elapsed() < Duration::from_secs(30), "alice may still not approve");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self
    }

    fn canaries(&self) -> Api<Canary> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn canary(&self) -> Canary {
        self.canaries().get("web").await.expect("the Canary")
    }

    fn name(&self) -> Name<'_> {
        Name { namespace: &self.namespace, name: "web" }
    }

    fn who(&self, user: &str) -> Who {
        Who::Person { user: user.to_owned(), groups: vec!["approvers".to_owned()] }
    }

    async fn approve(&self, user: &str, gate: Option<&str>) -> Result<Question, Refused> {
        people::approve(&self.client, &self.who(user), self.name(), gate).await
    }

    /// The controller's part: the third release waits for these.
    async fn asks(&self, gates: &[Value]) {
        let now = Timestamp::now();
        self.status(json!({
            "phase": "Progressing", "message": "Judging.", "releases": 3, "gates": gates,
            "failedChecks": 0, "canaryWeight": 5, "iterations": 0,
            "release": {"revision": "1-abc", "trigger": "PodTemplate", "startedAt": now, "lastProgressAt": now},
        }))
        .await
    }

    async fn status(&self, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.canaries().patch_status("web", &PatchParams::default(), &patch).await.expect("a status");
    }

    /// Runs the real program as the administrator.
    async fn serin(&self, args: &[&str]) -> (i32, String, String) {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_serin"))
            .args(args)
            .args(["--namespace", &self.namespace])
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .await
            .expect("serin runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
    }
}

fn gate(name: &str, kind: Option<&str>, step: Option<u32>) -> Value {
    let mut gate = json!({"name": name, "state": "Waiting", "since": Timestamp::now()});
    if let Some(kind) = kind {
        gate["type"] = json!(kind);
    }
    if let Some(step) = step {
        gate["step"] = json!(step);
    }
    gate
}

fn noted(annotations: &[(&str, &str)]) -> Canary {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    serde_json::from_value(json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
        "metadata": {"name": "web", "uid": "mine", "annotations": annotations},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "analysis": {}},
    }))
    .expect("a Canary")
}

fn webhooks() -> Webhooks {
    support::install_crypto();
    Webhooks::new().expect("a client")
}

fn hook(name: &str, url: &str) -> Webhook {
    Webhook { name: name.to_owned(), url: url.to_owned(), ..Webhook::default() }
}

fn subject() -> Subject {
    Subject {
        name: "web".to_owned(),
        namespace: "prod".to_owned(),
        phase: Phase::Progressing,
        checksum: "1-abc".to_owned(),
    }
}

/// An HTTP server of one answer.
async fn say_yes(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request).await;
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let _ = stream.shutdown().await;
}
