//! Receivers of notifications and their message formats.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use serde_json::Value;

use super::{
    Notification, cloud_event, discord, google_chat, incident,
    mail::{MailRoute, MailRouteError},
    rocket, slack, teams, template,
};
use crate::api::{AlertProviderSpec, alert_provider::AlertProviderType};

/// A request to a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    pub url: String,
    pub body: Value,
}

/// An AlertProvider with the secrets it refers to.
#[derive(Clone, PartialEq, Eq)]
pub struct Destination {
    /// `NAMESPACE/NAME` of the AlertProvider.
    pub provider: String,
    pub kind: AlertProviderType,
    pub address: String,
    pub channel: Option<String>,
    pub username: Option<String>,
    /// A template in place of the sentence.
    pub text: Option<String>,
    pub proxy: Option<String>,
    /// Of a Slack bot; the key of PagerDuty and Opsgenie.
    pub token: Option<String>,
    /// Of mail only.
    pub mail: Option<MailRoute>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    #[error("the AlertProvider has no address, and its Secret has no key 'address'")]
    NoAddress,
    #[error("the key {0} of the AlertProvider's Secret is not text")]
    NotText(&'static str),
    #[error(
        "PagerDuty and Opsgenie need a key: put it into the key 'token' of the Secret that spec.secretRef names"
    )]
    NoKey,
    #[error("a Slack bot needs the name of a channel: set spec.channel of the AlertProvider")]
    NoChannel,
    #[error(transparent)]
    Mail(MailRouteError),
}

impl Destination {
    /// `provider` is `NAMESPACE/NAME`; `secret` is the data of the Secret that
    /// `spec.secretRef` names, or nothing; it wins over the spec.
    pub fn new(
        provider: String,
        spec: &AlertProviderSpec,
        secret: &BTreeMap<String, ByteString>,
    ) -> Result<Self, DestinationError> {
        let read = |key: &'static str| {
            let Some(value) = secret.get(key) else { return Ok(None) };
            let text = std::str::from_utf8(&value.0).map_err(|_| DestinationError::NotText(key))?;
            Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
        };
        let token = read("token")?;
        let is_bot = token.is_some() && spec.type_ == AlertProviderType::Slack;
        let known_address = match spec.type_ {
            AlertProviderType::Slack if is_bot => Some(slack::BOT_ADDRESS),
            AlertProviderType::Pagerduty => Some(incident::PAGERDUTY_ADDRESS),
            AlertProviderType::Opsgenie => Some(incident::OPSGENIE_ADDRESS),
            _ => None,
        };
        let address = read("address")?.or_else(|| spec.address.clone()).or(known_address.map(str::to_owned));
        let needs_key = matches!(spec.type_, AlertProviderType::Pagerduty | AlertProviderType::Opsgenie);
        if needs_key && token.is_none() {
            return Err(DestinationError::NoKey);
        }
        if is_bot && spec.channel.is_none() {
            return Err(DestinationError::NoChannel);
        }
        let address = address.ok_or(DestinationError::NoAddress)?;
        let mail = match spec.type_ {
            AlertProviderType::Email => {
                Some(MailRoute::new(spec, &address, secret).map_err(DestinationError::Mail)?)
            }
            _ => None,
        };
        Ok(Self {
            provider,
            kind: spec.type_,
            address,
            channel: spec.channel.clone(),
            username: spec.username.clone(),
            text: spec.text.clone(),
            proxy: spec.proxy.clone().filter(|proxy| !proxy.is_empty()),
            token,
            mail,
        })
    }

    pub(super) fn username(&self) -> &str {
        self.username.as_deref().unwrap_or("serin")
    }

    /// The notification with the text of this destination.
    pub(super) fn reworded(&self, notification: &Notification) -> Notification {
        let mut notification = notification.clone();
        if let Some(text) = &self.text {
            match template::render(text, &notification) {
                Ok(text) => notification.sentence = text,
                Err(error) => tracing::warn!(provider = self.provider, "{error}; the usual text is sent"),
            }
        }
        notification
    }

    /// The URL to post to.
    pub(super) fn url(&self) -> &str {
        match self.kind {
            // Flagger's users append `/slack`; Serin uses Discord's own format.
            AlertProviderType::Discord => self.address.trim_end_matches('/').trim_end_matches("/slack"),
            _ => &self.address,
        }
    }

    pub(super) fn content_type(&self) -> &'static str {
        match self.kind {
            AlertProviderType::Webhook => cloud_event::CONTENT_TYPE,
            _ => "application/json; charset=utf-8",
        }
    }

    /// A Slack bot at Slack's own method, which returns the message's channel and timestamp.
    /// At another address it is a webhook with a token.
    pub(super) fn is_bot(&self) -> bool {
        let is_method = self.address.ends_with(slack::POST_METHOD);
        self.kind == AlertProviderType::Slack && self.token.is_some() && is_method
    }

    /// Of another of Slack's methods.
    pub(super) fn bot_url(&self, method: &str) -> String {
        format!("{}{method}", self.address.trim_end_matches(slack::POST_METHOD))
    }

    /// Value of the header `Authorization`.
    pub(super) fn authorization(&self) -> Option<String> {
        let token = self.token.as_ref()?;
        match self.kind {
            AlertProviderType::Slack => Some(format!("Bearer {token}")),
            AlertProviderType::Opsgenie => Some(format!("GenieKey {token}")),
            AlertProviderType::Msteams
            | AlertProviderType::Discord
            | AlertProviderType::Rocket
            | AlertProviderType::Gchat
            // In the body.
            | AlertProviderType::Pagerduty
            // A part of the dialogue.
            | AlertProviderType::Email
            | AlertProviderType::Webhook => None,
        }
    }

    /// The request that this kind of receiver takes; none if it is of no interest there, or
    /// no HTTP.
    pub fn request(&self, notification: &Notification) -> Option<Outgoing> {
        let body = match self.kind {
            AlertProviderType::Slack => slack::message(notification, self),
            AlertProviderType::Msteams => teams::message(notification),
            AlertProviderType::Discord => discord::message(notification, self),
            AlertProviderType::Rocket => rocket::message(notification, self),
            AlertProviderType::Gchat => google_chat::message(notification),
            AlertProviderType::Pagerduty => return incident::pagerduty(notification, self),
            AlertProviderType::Opsgenie => return incident::opsgenie(notification, self),
            AlertProviderType::Webhook => cloud_event::message(notification),
            AlertProviderType::Email => return None,
        };
        Some(Outgoing { url: self.url().to_owned(), body })
    }
}

/// The host only: the rest of an address is often a secret.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = reqwest::Url::parse(&self.address).ok();
        let host = url.as_ref().and_then(|url| url.host_str()).unwrap_or("an invalid URL");
        write!(f, "{:?} at {host}", self.kind)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
