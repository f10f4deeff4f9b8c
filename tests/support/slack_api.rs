//! Slack's Web API as far as a bot uses it, on loopback, after the pages of docs.slack.dev:
//! `chat.postMessage`, `chat.update`, "Block Kit: blocks" and "Block Kit: block elements"
//! (button), and "Legacy secondary attachments". A message that breaks a documented limit or
//! has an unknown argument is answered as Slack does, with `"ok": false`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::slack_rules::{check_known_fields, check_message};

pub const TOKEN: &str = "xoxb-1-2-abc";
/// ID of the channel `releases`.
pub const CHANNEL: &str = "C0RELEASES";

pub struct SlackApi {
    /// Of `chat.postMessage`.
    pub url: String,
    workspace: Arc<Mutex<Workspace>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Workspace {
    messages: Vec<SlackMessage>,
    refusals: Vec<String>,
    calls: usize,
}

/// A message as people see it.
#[derive(Clone, Debug)]
pub struct SlackMessage {
    pub ts: String,
    /// Of the message that it is below.
    pub thread: Option<String>,
    pub body: Value,
    /// How often it was updated.
    pub updates: usize,
}

impl SlackApi {
    pub async fn start() -> Self {
        let workspace = Arc::<Mutex<Workspace>>::default();
        let router = Router::new()
            .route("/api/{method}", axum::routing::post(call))
            .with_state(Arc::clone(&workspace));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let url = format!("http://{}/api/chat.postMessage", listener.local_addr().expect("a bound listener"));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("serving") });
        Self { url, workspace, _task: AbortOnDropHandle::new(task) }
    }

    /// In the channel, not in threads.
    pub fn messages(&self) -> Vec<SlackMessage> {
        let workspace = self.workspace.lock();
        workspace.messages.iter().filter(|message| message.thread.is_none()).cloned().collect()
    }

    pub fn thread_of(&self, ts: &str) -> Vec<SlackMessage> {
        let workspace = self.workspace.lock();
        workspace.messages.iter().filter(|message| message.thread.as_deref() == Some(ts)).cloned().collect()
    }

    /// Errors that were returned.
    pub fn refusals(&self) -> Vec<String> {
        self.workspace.lock().refusals.clone()
    }

    pub fn calls(&self) -> usize {
        self.workspace.lock().calls
    }

    /// As a person deletes it.
    pub fn delete(&self, ts: &str) {
        self.workspace.lock().messages.retain(|message| message.ts != ts);
    }
}

async fn call(
    State(workspace): State<Arc<Mutex<Workspace>>>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> axum::Json<Value> {
    let mut workspace = workspace.lock();
    workspace.calls += 1;
    let reply = answer(&mut workspace, &method, &headers, &body);
    let reply = reply.unwrap_or_else(|error| {
        workspace.refusals.push(error.clone());
        json!({"ok": false, "error": error})
    });
    axum::Json(reply)
}

fn answer(
    workspace: &mut Workspace,
    method: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Value, String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if header("authorization") != format!("Bearer {TOKEN}") {
        return Err("invalid_auth".to_owned());
    }
    if !header("content-type").starts_with("application/json") {
        return Err("missing_post_type".to_owned());
    }
    let body: Value = serde_json::from_slice(body).map_err(|_| "invalid_json".to_owned())?;
    let checked = catch_unwind(AssertUnwindSafe(|| check_call(method, &body)));
    checked.map_err(|panic| {
        let why = panic.downcast_ref::<String>().cloned();
        format!("invalid_arguments: {}", why.unwrap_or_default())
    })?;
    let channel = body["channel"].as_str().unwrap_or_default();
    match method {
        "chat.postMessage" if [CHANNEL, "releases", "#releases"].contains(&channel) => {
            let ts = format!("1700000000.{:06}", workspace.calls);
            let thread = body["thread_ts"].as_str().map(str::to_owned);
            workspace.messages.push(SlackMessage { ts: ts.clone(), thread, body, updates: 0 });
            Ok(json!({"ok": true, "channel": CHANNEL, "ts": ts, "message": {"type": "message"}}))
        }
        // By ID only.
        "chat.update" if channel == CHANNEL => {
            let message = workspace.messages.iter_mut().find(|message| body["ts"] == message.ts.as_str());
            let message = message.ok_or("message_not_found")?;
            message.updates += 1;
            message.body = body.clone();
            Ok(json!({"ok": true, "channel": CHANNEL, "ts": message.ts, "text": body["text"]}))
        }
        "chat.postMessage" | "chat.update" => Err("channel_not_found".to_owned()),
        _ => Err("unknown_method".to_owned()),
    }
}

fn check_call(method: &str, body: &Value) {
    const CONTENT: [&str; 4] = ["channel", "text", "blocks", "attachments"];
    let own: &[&str] = match method {
        "chat.update" => &["ts", "reply_broadcast"],
        _ => &["username", "icon_emoji", "icon_url", "thread_ts", "reply_broadcast"],
    };
    check_known_fields(body, &[&CONTENT, own].concat());
    check_message(body);
    assert!(body.get("reply_broadcast").is_none() || body.get("thread_ts").is_some());
}
