//! Clicks on the buttons of an approval in Slack.
//!
//! ```text
//!   Slack ── POST /api/v1/slack/interactions ──▶ signature ▶ user table ▶ SubjectAccessReview ▶ annotation
//!         ◀── POST response_url: the result, for the person who clicked ──
//! ```
//!
//! Slack's protocol as documented at docs.slack.dev: "Verifying requests from Slack" (the
//! signature), "Handling user interaction" (the form field `payload`, an acknowledgement
//! within three seconds, `response_url`) and "block_actions payload".
//!
//! Guarantees:
//!
//! - before anything else is read, the signature is verified, in constant time, and its time
//!   is at most five minutes from now;
//! - a click counts as the Kubernetes user that the table names for the Slack user, who
//!   needs the right to update canaries/approve; without an entry nothing happens;
//! - a click answers the question that its button was sent with, and no later one, so a
//!   request that is sent again changes nothing;
//! - the result is sent to Slack only.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{FromRequest as _, Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use serde::Deserialize;
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};

use super::command_api::check_name;
use crate::{
    gates::{
        commands::{self, Caller, CommandError},
        question::{Question, SecretFile, mac},
    },
    notify::slack::{APPROVE, REJECT},
};
use hmac::Mac as _;

/// A payload contains the whole message.
const MAX_BODY_BYTES: usize = 512 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Others are turned away.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// How far the time of a signature may be from now, in seconds.
const MAX_CLOCK_DIFFERENCE: i64 = 300;
/// Of the answer to the request; the work continues after it.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(2500);
/// Of the work.
const WORK_TIMEOUT: Duration = Duration::from_secs(30);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Slack's hosts for `response_url`.
const RESPONSE_HOSTS: [&str; 2] = ["https://hooks.slack.com/", "https://hooks.slack-gov.com/"];

/// Settings of the interactivity endpoint.
#[derive(Clone, Debug)]
pub struct SlackOptions {
    /// The signing secret of the Slack app.
    pub signing_secret: SecretFile,
    /// YAML: Slack's member IDs and the users of the cluster that they are.
    pub users: SecretFile,
    /// Where results may be sent to; empty: Slack's hosts.
    pub response_prefixes: Vec<String>,
}

/// A user of the cluster, as in the table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum TableEntry {
    Name(String),
    #[serde(rename_all = "camelCase")]
    User {
        user: String,
        #[serde(default)]
        groups: Vec<String>,
    },
}

#[derive(Clone)]
struct SlackState {
    client: Client,
    /// Empty: all.
    namespaces: Arc<[String]>,
    options: Arc<SlackOptions>,
    http: reqwest::Client,
    permits: Arc<Semaphore>,
}

/// For Canaries in these namespaces; empty: in all.
pub fn slack_router(
    client: Client,
    namespaces: &[String],
    options: SlackOptions,
) -> Result<Router, reqwest::Error> {
    crate::tls::install_crypto_provider();
    let http = reqwest::Client::builder()
        .user_agent(concat!("serin/", env!("CARGO_PKG_VERSION")))
        .timeout(RESPONSE_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let state = SlackState {
        client,
        namespaces: namespaces.into(),
        options: Arc::new(options),
        http,
        permits: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
    };
    Ok(Router::new()
        .route("/api/v1/slack/interactions", post(handle))
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(state))
}

#[derive(Debug, thiserror::Error)]
enum SlackError {
    #[error("too many requests at the same time")]
    Busy,
    #[error("the body was not received in time, or is too large")]
    Body,
    #[error("cannot read the signing secret of Slack: {0}")]
    Secret(std::io::Error),
    #[error("the request is not signed by Slack")]
    BadSignature,
    #[error("the request is older than five minutes, or this machine's clock is wrong")]
    Stale,
    #[error("the request has no payload of an interaction")]
    BadPayload,
}

impl IntoResponse for SlackError {
    fn into_response(self) -> Response {
        let code = match self {
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Body | Self::BadPayload => StatusCode::BAD_REQUEST,
            Self::Secret(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::BadSignature | Self::Stale => StatusCode::UNAUTHORIZED,
        };
        tracing::warn!("a request to /api/v1/slack/interactions is refused: {self}");
        // The reason is for the log: the client may be anybody.
        (code, code.canonical_reason().unwrap_or_default()).into_response()
    }
}

/// Parts of the payload of a block action.
#[derive(Debug, Deserialize)]
struct Interaction {
    #[serde(rename = "type")]
    kind: String,
    user: SlackUser,
    #[serde(default)]
    actions: Vec<Action>,
    response_url: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SlackUser {
    id: String,
}

#[derive(Debug, Deserialize)]
struct Action {
    action_id: String,
    #[serde(default)]
    value: String,
}

async fn handle(State(state): State<SlackState>, request: Request) -> Result<StatusCode, SlackError> {
    let permit = Arc::clone(&state.permits).try_acquire_owned().map_err(|_| SlackError::Busy)?;
    let headers = request.headers().clone();
    let body = timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await;
    let body = body.map_err(|_| SlackError::Body)?.map_err(|_| SlackError::Body)?;
    let secret = state.options.signing_secret.read().map_err(SlackError::Secret)?;
    verify(&secret, &headers, &body, Timestamp::now())?;
    let interaction = parse(&body).ok_or(SlackError::BadPayload)?;
    let work = tokio::spawn(async move {
        let _permit = permit;
        let done = timeout(WORK_TIMEOUT, state.answer(&interaction)).await;
        if let Some(text) = done.unwrap_or_else(|_| Some("Not done in time; try again.".to_owned())) {
            state.respond(&interaction, &text).await;
        }
    });
    // Slack shows an error to the user if the acknowledgement is late.
    let _ = timeout(ACKNOWLEDGE_WITHIN, work).await;
    Ok(StatusCode::OK)
}

/// `v0=` and the HMAC of `v0:TIMESTAMP:BODY`.
fn verify(secret: &[u8], headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), SlackError> {
    let header =
        |name| headers.get(name).and_then(|value| value.to_str().ok()).ok_or(SlackError::BadSignature);
    let timestamp = header("x-slack-request-timestamp")?;
    let signature = header("x-slack-signature")?.strip_prefix("v0=").and_then(from_hex);
    let signed = mac(secret, format!("v0:{timestamp}:").as_bytes()).chain_update(body);
    // An empty secret would accept what anybody can compute.
    if secret.is_empty() || signed.verify_slice(&signature.unwrap_or_default()).is_err() {
        return Err(SlackError::BadSignature);
    }
    let at: i64 = timestamp.parse().map_err(|_| SlackError::BadSignature)?;
    match now.as_second().abs_diff(at) <= MAX_CLOCK_DIFFERENCE.unsigned_abs() {
        true => Ok(()),
        false => Err(SlackError::Stale),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
    if is_hex { (0..text.len()).step_by(2).map(byte).collect() } else { None }
}

/// The form field `payload`.
fn parse(body: &[u8]) -> Option<Interaction> {
    let query = std::str::from_utf8(body).ok()?;
    let mut url = reqwest::Url::parse("http://form.invalid/").ok()?;
    url.set_query(Some(query));
    let payload = url.query_pairs().find(|(name, _)| name == "payload")?.1.into_owned();
    serde_json::from_str(&payload).ok()
}

impl SlackState {
    /// The sentence for the person who clicked; none if the click is on nothing of ours.
    async fn answer(&self, interaction: &Interaction) -> Option<String> {
        if interaction.kind != "block_actions" {
            return None;
        }
        let ours = |action: &&Action| [APPROVE, REJECT].contains(&action.action_id.as_str());
        let action = interaction.actions.iter().find(ours)?;
        let approve = action.action_id == APPROVE;
        Some(match self.write_answer(&interaction.user.id, action, approve).await {
            Ok((question, user)) => {
                let Question { namespace, name, gate, .. } = question;
                let did = if approve { "approved" } else { "rejected" };
                tracing::info!(canary = name, namespace, by = user, "accepted from Slack: {did}");
                format!("{user} {did} {gate} of {name} in {namespace}.")
            }
            Err(why) => format!("Nothing is changed: {why}"),
        })
    }

    async fn write_answer(
        &self,
        member: &str,
        action: &Action,
        approve: bool,
    ) -> Result<(Question, String), String> {
        let unknown = |_| "the button is of another version of Serin".to_owned();
        let question: Question = serde_json::from_str(&action.value).map_err(unknown)?;
        check_name(&question.namespace, "a namespace").map_err(|error| error.to_string())?;
        check_name(&question.name, "a Canary").map_err(|error| error.to_string())?;
        if !self.namespaces.is_empty() && !self.namespaces.contains(&question.namespace) {
            return Err(format!("the namespace {} is not served here", question.namespace));
        }
        let user = self.user(member)?;
        let name = user.username.clone().unwrap_or_default();
        match commands::answer(&self.client, &Caller::User(user), &question, approve, None).await {
            Ok(_) => Ok((question, name)),
            Err(CommandError::Api { doing, source }) => {
                tracing::warn!(error = %source, "an answer from Slack failed: cannot {doing}");
                Err(format!("cannot {doing}; try again"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The user of the cluster that a member of the Slack workspace is.
    fn user(&self, member: &str) -> Result<UserInfo, String> {
        let table = self.options.users.read().map_err(|error| {
            tracing::warn!(%error, "the table of Slack's users cannot be read");
            "the table of users cannot be read".to_owned()
        })?;
        let table: BTreeMap<String, TableEntry> = serde_saphyr::from_str(&String::from_utf8_lossy(&table))
            .map_err(|error| {
                tracing::warn!(%error, "the table of Slack's users cannot be parsed");
                "the table of users cannot be parsed".to_owned()
            })?;
        let (user, mut groups) = match table.get(member) {
            Some(TableEntry::Name(user)) => (user.clone(), Vec::new()),
            Some(TableEntry::User { user, groups }) => (user.clone(), groups.clone()),
            None => {
                return Err(format!(
                    "the Slack member {member} is not in the table of users of this cluster"
                ));
            }
        };
        groups.push("system:authenticated".to_owned());
        Ok(UserInfo { username: Some(user), groups: Some(groups), ..UserInfo::default() })
    }

    /// Only the person who clicked sees it.
    async fn respond(&self, interaction: &Interaction, text: &str) {
        let Some(url) = &interaction.response_url else { return };
        let own: Vec<&str> = self.options.response_prefixes.iter().map(String::as_str).collect();
        let prefixes = if own.is_empty() { &RESPONSE_HOSTS[..] } else { &own };
        if !prefixes.iter().any(|prefix| url.starts_with(prefix)) {
            tracing::warn!("the response_url of an interaction is not one of Slack's");
            return;
        }
        let body = json!({"response_type": "ephemeral", "replace_original": false, "text": text});
        if let Err(error) = self.http.post(url).json(&body).send().await {
            tracing::warn!(error = %error.without_url(), "the result of an interaction cannot be sent to Slack");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Slack's page "Verifying requests from Slack".
    const SECRET: &[u8] = b"8f742231b10e8888abcd99yyyzzz85a5";
    const AT: i64 = 1_531_420_618;
    const SIGNATURE: &str = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    const BODY: &str = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";

    fn headers(timestamp: &str, signature: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-slack-request-timestamp", timestamp.parse().expect("a header"));
        headers.insert("x-slack-signature", signature.parse().expect("a header"));
        headers
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    #[test]
    fn slack_s_documented_example_is_accepted() {
        let headers = headers(&AT.to_string(), SIGNATURE);
        assert!(verify(SECRET, &headers, BODY.as_bytes(), at(AT)).is_ok());
        assert!(verify(SECRET, &headers, BODY.as_bytes(), at(AT + 300)).is_ok());
    }

    #[test]
    fn a_request_that_slack_did_not_sign_or_signed_long_ago_is_refused() {
        let good = headers(&AT.to_string(), SIGNATURE);
        let refused = |secret: &[u8], headers: &HeaderMap, body: &str| {
            matches!(verify(secret, headers, body.as_bytes(), at(AT)), Err(SlackError::BadSignature))
        };
        assert!(refused(SECRET, &good, &format!("{BODY}&x=y")));
        assert!(refused(b"another secret", &good, BODY));
        assert!(refused(SECRET, &headers(&(AT + 1).to_string(), SIGNATURE), BODY));
        assert!(refused(SECRET, &headers(&AT.to_string(), &SIGNATURE[3..]), BODY));
        assert!(refused(SECRET, &headers(&AT.to_string(), "v0="), BODY));
        assert!(refused(SECRET, &headers(&AT.to_string(), "v0=zz"), BODY));
        assert!(refused(SECRET, &HeaderMap::new(), BODY));
        let empty = mac(b"", format!("v0:{AT}:{BODY}").as_bytes()).finalize().into_bytes();
        let forged: String = empty.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(refused(b"", &headers(&AT.to_string(), &format!("v0={forged}")), BODY));
        for late in [AT + 301, AT - 301] {
            assert!(matches!(verify(SECRET, &good, BODY.as_bytes(), at(late)), Err(SlackError::Stale)));
        }
    }
}
