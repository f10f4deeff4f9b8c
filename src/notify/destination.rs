//! Receivers of notifications and their message formats.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;

use super::{Notification, cloud_event, discord, google_chat, rocket, slack, teams};
use crate::api::{AlertProviderSpec, alert_provider::AlertProviderType};

/// An AlertProvider with the secrets it refers to.
#[derive(Clone, PartialEq, Eq)]
pub struct Destination {
    pub kind: AlertProviderType,
    pub address: String,
    pub channel: Option<String>,
    pub username: Option<String>,
    pub proxy: Option<String>,
    /// Of a Slack bot.
    pub token: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    #[error("the AlertProvider has no address, and its Secret has no key 'address'")]
    NoAddress,
    #[error("the key {0} of the AlertProvider's Secret is not text")]
    NotText(&'static str),
    #[error("a Slack bot needs the name of a channel: set spec.channel of the AlertProvider")]
    NoChannel,
}

impl Destination {
    /// `secret` is the data of the Secret that `spec.secretRef` names, or
    /// nothing; it wins over the spec.
    pub fn new(
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
        let bot_address = is_bot.then(|| slack::BOT_ADDRESS.to_owned());
        let address = read("address")?.or_else(|| spec.address.clone()).or(bot_address);
        if is_bot && spec.channel.is_none() {
            return Err(DestinationError::NoChannel);
        }
        Ok(Self {
            kind: spec.type_,
            address: address.ok_or(DestinationError::NoAddress)?,
            channel: spec.channel.clone(),
            username: spec.username.clone(),
            proxy: spec.proxy.clone().filter(|proxy| !proxy.is_empty()),
            token,
        })
    }

    pub(super) fn username(&self) -> &str {
        self.username.as_deref().unwrap_or("serin")
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

    /// The message in the form that this kind of receiver takes.
    pub fn message(&self, notification: &Notification) -> serde_json::Value {
        match self.kind {
            AlertProviderType::Slack => slack::message(notification, self),
            AlertProviderType::Msteams => teams::message(notification),
            AlertProviderType::Discord => discord::message(notification, self),
            AlertProviderType::Rocket => rocket::message(notification, self),
            AlertProviderType::Gchat => google_chat::message(notification),
            AlertProviderType::Webhook => cloud_event::message(notification),
        }
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
