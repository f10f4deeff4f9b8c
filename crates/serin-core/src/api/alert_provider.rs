//! AlertProvider: the destination of notifications.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{condition::PlainStatus, reference::SecretRef};

/// The destination of a Canary's notifications: a chat channel and its webhook
/// or token. A Canary names it in `spec.analysis.alerts[].providerRef`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "serin.dev",
    version = "v1alpha1",
    kind = "AlertProvider",
    namespaced,
    status = "PlainStatus",
    derive = "PartialEq",
    category = "serin",
    shortname = "alp",
    doc = "The destination of a Canary's notifications: a chat channel and its webhook or token.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Channel", type_ = "string", json_path = ".spec.channel", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::tidy)]
#[x_kube(
    validation = ("has(self.address) || has(self.secretRef)",
        "an AlertProvider needs an address or a secretRef: set spec.address to the webhook URL, or spec.secretRef to a Secret with the key 'address'"),
    validation = ("self.type == 'email' ? has(self.from) && has(self.to) : !has(self.from) && !has(self.to)",
        "mail needs spec.from and spec.to, the sender and a list of receivers; the other types have neither"),
    validation = ("self.type != 'email' || !has(self.channel) && !has(self.proxy)",
        "mail has no channel and no proxy: remove spec.channel and spec.proxy"),
    validation = ("self.type != 'email' || !has(self.address) || self.address.matches('^smtps?://[^/@?#]+/?$')",
        "the address of a mail server is smtps://HOST:465, or smtp://HOST:587 for STARTTLS; user and password are keys of the Secret"),
)]
pub struct AlertProviderSpec {
    /// Kind of chat; it decides the format of the message.
    #[serde(rename = "type")]
    pub type_: AlertProviderType,

    /// Channel to write to. Default: the one that the webhook belongs to.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,

    /// Name that the message appears under. Default: serin.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,

    /// Text in place of the sentence that says what happened. Between `{{` and `}}` it
    /// can have name, namespace, cluster, phase, weight, step, revision, image, reason,
    /// severity, sentence, verdict, command and link; those that do not apply are
    /// empty. For example: `{{ image or name }} in {{ cluster }}: {{ sentence }}`.
    #[schemars(length(min = 1, max = 4096))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,

    /// URL of the incoming webhook. It usually contains a token: prefer
    /// `secretRef`. Of a mail server: smtps://HOST:465, or smtp://HOST:587 with STARTTLS.
    #[schemars(length(min = 1, max = 2048))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,

    /// URL of an HTTP proxy. Default: none.
    #[schemars(length(max = 2048))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,

    /// Mail address of the sender; `username` is the name beside it.
    #[schemars(length(min = 3, max = 320), regex(pattern = r"^[^@\s<>]+@[^@\s<>]+$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,

    /// Mail addresses of the receivers.
    #[schemars(
        length(min = 1, max = 20),
        inner(length(min = 3, max = 320), regex(pattern = r"^[^@\s<>]+@[^@\s<>]+$"))
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Vec<String>>,

    /// A Secret in the same namespace with the keys `address` (the webhook
    /// URL) and, for a Slack bot, PagerDuty and Opsgenie, `token`; for a mail server
    /// `username`, `password` and `ca.crt`. Its address takes precedence over
    /// `address`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// Kinds of chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AlertProviderType {
    /// Slack, by incoming webhook or bot token.
    Slack,
    /// Microsoft Teams.
    Msteams,
    /// Discord.
    Discord,
    /// Rocket.Chat.
    Rocket,
    /// Google Chat.
    Gchat,
    /// PagerDuty, by the integration key of a service (Events API v2): rollbacks and
    /// warnings open an incident, the next promotion resolves it.
    Pagerduty,
    /// Opsgenie, by an API key: as PagerDuty.
    Opsgenie,
    /// E-mail, by SMTP over TLS: of a release what matters, as PagerDuty.
    Email,
    /// any receiver of CloudEvents.
    Webhook,
}
