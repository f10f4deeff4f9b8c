//! Flags about what messages in chats show, and about answers that come from there.

use std::path::PathBuf;

use anyhow::Context as _;
use axum::Router;
use kube::Client;

use crate::controller::NotificationOptions;
use crate::gates::question::{LinkSigner, SecretFile};
use crate::notify::Site;
use crate::server::{self, LinkOptions, SlackOptions};

#[derive(clap::Args)]
#[command(next_help_heading = "Chats")]
pub(super) struct ChatArgs {
    /// URL where browsers reach this controller's API and dashboard, such as
    /// https://serin.example.com; messages in chats link to it
    #[arg(long, env = "SERIN_DASHBOARD_URL", value_name = "URL", value_parser = url)]
    dashboard_url: Option<String>,

    /// File with the signing secret of a Slack app: approvals in Slack have buttons. The
    /// interactivity URL of the app is --dashboard-url with /api/v1/slack/interactions
    #[arg(long, env = "SERIN_SLACK_SIGNING_SECRET", value_name = "FILE", requires = "slack_users")]
    slack_signing_secret: Option<PathBuf>,

    /// File with a table in YAML: Slack's member IDs and the users of the cluster that they
    /// are, such as `U0123ABC: {user: alice@example.com, groups: [sre]}`
    #[arg(long, env = "SERIN_SLACK_USERS", value_name = "FILE", requires = "slack_signing_secret")]
    slack_users: Option<PathBuf>,

    /// File with a random key of at least 32 bytes: messages about approvals have links,
    /// which expire after a day and work once
    #[arg(long, env = "SERIN_LINK_KEY", value_name = "FILE", requires = "dashboard_url")]
    link_key: Option<PathBuf>,

    /// User of the cluster that an answer by link counts as; it needs the right to update
    /// canaries/approve
    #[arg(long, env = "SERIN_LINK_USER", value_name = "NAME", default_value = "serin:link")]
    link_user: String,
}

impl ChatArgs {
    /// `serves` is false without --api-listen.
    pub fn check(&self, serves: bool) -> anyhow::Result<()> {
        let needs = [("--slack-signing-secret", &self.slack_signing_secret), ("--link-key", &self.link_key)];
        match needs.into_iter().find(|(_, file)| file.is_some() && !serves) {
            Some((flag, _)) => anyhow::bail!("{flag}: answers arrive at the API, so it needs --api-listen"),
            None => Ok(()),
        }
    }

    pub fn dashboard_url(&self) -> Option<&str> {
        self.dashboard_url.as_deref()
    }

    pub fn notifications(&self, cluster: &str) -> NotificationOptions {
        NotificationOptions {
            site: Site {
                cluster: Some(cluster.to_owned()),
                dashboard: self.dashboard_url.clone(),
                buttons: self.slack_signing_secret.is_some(),
            },
            links: self.signer(),
        }
    }

    /// Adds the endpoints that these flags ask for.
    pub fn serve(&self, mut api: Router, client: &Client, namespaces: &[String]) -> anyhow::Result<Router> {
        if let (Some(secret), Some(users)) = (self.slack_signing_secret.clone(), self.slack_users.clone()) {
            let options = SlackOptions {
                signing_secret: SecretFile(secret),
                users: SecretFile(users),
                response_prefixes: Vec::new(),
            };
            let slack = server::slack_router(client.clone(), namespaces, options);
            api = api.merge(slack.context("set up the HTTP client for Slack")?);
        }
        if let Some(signer) = self.signer() {
            let options = LinkOptions { signer, user: self.link_user.clone() };
            api = api.merge(server::link_router(client.clone(), namespaces, options));
        }
        Ok(api)
    }

    fn signer(&self) -> Option<LinkSigner> {
        let (key, base_url) = (self.link_key.clone()?, self.dashboard_url.clone()?);
        Some(LinkSigner { key: SecretFile(key), base_url })
    }
}

/// Without a slash at the end.
fn url(text: &str) -> Result<String, String> {
    let is_http = text.starts_with("https://") || text.starts_with("http://");
    match reqwest::Url::parse(text) {
        Ok(_) if is_http => Ok(text.trim_end_matches('/').to_owned()),
        _ => Err(format!("{text} is not a URL; write one such as https://serin.example.com")),
    }
}
