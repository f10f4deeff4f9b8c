//! Sends one notification: attempts, retries, the requests of a bot, and mail.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use reqwest::{StatusCode, header};
use serde_json::Value;

use super::{
    Destination, Notification, Options,
    destination::Outgoing,
    mail::{MailError, MailMemory, MailRoute},
    outbox::increment,
    slack,
    thread::{Thread, ThreadMemory},
};
use crate::api::alert_provider::AlertProviderType;
use crate::error_chain::error_chain;
use crate::retry_after::retry_after;

/// Of one notification.
pub(super) struct Delivery<'a> {
    pub client: &'a reqwest::Client,
    pub to: &'a Destination,
    pub options: &'a Options,
    pub threads: &'a ThreadMemory,
    pub mails: &'a MailMemory,
}

/// The notification is not delivered.
enum Undelivered {
    Refused(String),
    Failed(String),
}

/// What is tried, and tried again.
enum Attempt<'a> {
    Http(&'a Outgoing),
    Mail(&'a MailRoute, &'a lettre::Message),
}

enum AttemptResult {
    /// With the start of the response's body.
    Delivered(String),
    /// Permanent.
    Refused(String),
    /// Transient, with the receiver's `Retry-After`.
    Failed(String, Option<Duration>),
}

/// Slack's errors of `chat.update` after which a new message is posted.
const LOST_MESSAGE: [&str; 4] =
    ["message_not_found", "cant_update_message", "edit_window_closed", "channel_not_found"];

impl Delivery<'_> {
    pub async fn deliver(&self, notification: &Notification) {
        let (to, counters) = (self.to, &self.options.counters);
        let result = if let Some(route) = &to.mail {
            if !self.mails.is_due(&to.provider, notification) {
                return;
            }
            self.send_mail(route, notification).await
        } else if to.is_bot() {
            self.update_message(notification).await
        } else {
            match to.request(notification) {
                Some(request) => self.send(&request).await.map(drop),
                None => return,
            }
        };
        match result {
            Ok(()) => increment(&counters.delivered),
            Err(Undelivered::Refused(why)) => {
                tracing::warn!(%to, why, "a notification was refused");
                increment(&counters.refused);
            }
            Err(Undelivered::Failed(why)) => {
                let attempts = self.options.max_attempts;
                tracing::warn!(%to, why, attempts, "a notification could not be delivered");
                increment(&counters.failed);
            }
        }
    }

    /// Updates the message of the release, and adds a line to its thread; posts it if there
    /// is none.
    async fn update_message(&self, notification: &Notification) -> Result<(), Undelivered> {
        let to = self.to;
        if let Some(thread) = self.threads.find(&to.provider, notification) {
            let update = slack::update(notification, &thread);
            match self.send(&Outgoing { url: to.bot_url("chat.update"), body: update }).await {
                Ok(_) => {
                    let body = slack::reply(notification, &thread);
                    return self.send(&Outgoing { url: to.url().to_owned(), body }).await.map(drop);
                }
                Err(Undelivered::Refused(why)) if LOST_MESSAGE.contains(&why.as_str()) => {}
                Err(error) => return Err(error),
            }
        }
        let post = Outgoing { url: to.url().to_owned(), body: slack::message(notification, to) };
        let reply = self.send(&post).await?;
        let reply: Value = serde_json::from_str(&reply).unwrap_or_default();
        let (Some(channel), Some(ts)) = (reply["channel"].as_str(), reply["ts"].as_str()) else {
            return Ok(());
        };
        let thread = Thread {
            provider: to.provider.clone(),
            uid: notification.uid.clone(),
            release: notification.release,
            channel: channel.to_owned(),
            ts: ts.to_owned(),
        };
        self.threads.remember(notification, thread.clone());
        if let Some(recorder) = &self.options.recorder {
            (recorder.0)(&notification.namespace, &notification.name, &thread);
        }
        Ok(())
    }

    async fn send_mail(&self, route: &MailRoute, notification: &Notification) -> Result<(), Undelivered> {
        let mail = route.mail(notification).map_err(|error| Undelivered::Refused(error.to_string()))?;
        self.with_retries(&Attempt::Mail(route, &mail)).await.map(drop)
    }

    /// With retries; the start of the response's body.
    async fn send(&self, request: &Outgoing) -> Result<String, Undelivered> {
        self.with_retries(&Attempt::Http(request)).await
    }

    async fn with_retries(&self, attempt: &Attempt<'_>) -> Result<String, Undelivered> {
        let (to, options) = (self.to, self.options);
        let mut backoff = options.initial_backoff;
        let mut attempts_left = options.max_attempts.max(1);
        loop {
            attempts_left -= 1;
            let (why, retry_after) = match self.attempt(attempt).await {
                AttemptResult::Delivered(text) => return Ok(text),
                AttemptResult::Refused(why) => return Err(Undelivered::Refused(why)),
                AttemptResult::Failed(why, retry_after) => (why, retry_after),
            };
            if attempts_left == 0 {
                return Err(Undelivered::Failed(why));
            }
            tracing::debug!(%to, why, "a notification is retried");
            // Between half and all of the backoff, so that retries spread.
            let jitter = 0.5 + (RandomState::new().hash_one(attempts_left) % 512) as f64 / 1024.0;
            let wait = retry_after.unwrap_or_else(|| backoff.mul_f64(jitter)).min(options.max_backoff);
            tokio::time::sleep(wait).await;
            backoff = (backoff * 2).min(options.max_backoff);
        }
    }

    async fn attempt(&self, attempt: &Attempt<'_>) -> AttemptResult {
        match attempt {
            Attempt::Http(request) => self.request(request).await,
            Attempt::Mail(route, mail) => {
                let Options { addresses, timeout, .. } = self.options;
                match route.send(mail, addresses, *timeout).await {
                    Ok(()) => AttemptResult::Delivered(String::new()),
                    Err(MailError::Refused(why)) => AttemptResult::Refused(why),
                    Err(MailError::Failed(why)) => AttemptResult::Failed(why, None),
                }
            }
        }
    }

    async fn request(&self, Outgoing { url, body }: &Outgoing) -> AttemptResult {
        let (to, options) = (self.to, self.options);
        for url in [Some(url.as_str()), to.proxy.as_deref()].into_iter().flatten() {
            if let Err(denied) = options.addresses.check(url) {
                return AttemptResult::Refused(format!("its address {denied}"));
            }
        }
        let mut request = self
            .client
            .post(url)
            .header(header::CONTENT_TYPE, to.content_type())
            .timeout(options.timeout)
            .body(body.to_string());
        if let Some(credentials) = to.authorization() {
            request = request.header(header::AUTHORIZATION, credentials);
        }
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_builder() => return AttemptResult::Refused(describe(&error)),
            Err(error) => return AttemptResult::Failed(describe(&error), None),
        };
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let text = read_prefix(&mut response).await;
        let is_transient = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        if is_transient {
            return AttemptResult::Failed(status.to_string(), retry_after);
        }
        if !status.is_success() {
            let line: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
            return AttemptResult::Refused(format!("{status}: {line}"));
        }
        // Slack reports errors of bots in the body of a 200.
        if to.kind == AlertProviderType::Slack
            && let Ok(reply) = serde_json::from_str::<Value>(&text)
            && reply["ok"] == false
        {
            return match reply["error"].as_str() {
                Some(error @ ("ratelimited" | "internal_error" | "service_unavailable")) => {
                    AttemptResult::Failed(error.to_owned(), retry_after)
                }
                error => AttemptResult::Refused(error.unwrap_or("no reason given").to_owned()),
            };
        }
        AttemptResult::Delivered(text)
    }
}

/// Bounds memory; a prefix is enough for an error, or for the reply to a bot.
async fn read_prefix(response: &mut reqwest::Response) -> String {
    const MAX_BYTES: usize = 16 * 1024;
    let mut text = Vec::new();
    while text.len() < MAX_BYTES {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        text.extend_from_slice(&chunk[..chunk.len().min(MAX_BYTES - text.len())]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

pub(super) fn build_client(
    options: &Options,
    proxy: Option<&str>,
) -> Result<reqwest::Client, reqwest::Error> {
    crate::tls::install_crypto_provider();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("serin/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.timeout)
        .redirect(reqwest::redirect::Policy::none());
    if let Some(proxy) = proxy {
        builder = builder.proxy(reqwest::Proxy::all(proxy)?);
    }
    options.addresses.guard(builder).build()
}

/// Without the outermost error, whose text has the URL, which may hold a token.
pub(super) fn describe(error: &reqwest::Error) -> String {
    let text = if error.is_timeout() { "timeout" } else { "no response" };
    match std::error::Error::source(error) {
        Some(source) => format!("{text}: {}", error_chain(source)),
        None => text.to_owned(),
    }
}
