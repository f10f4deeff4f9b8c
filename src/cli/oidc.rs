//! Flags about signing in at an OpenID provider, named as those of kube-apiserver.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use reqwest::{Certificate, Url};

use crate::gates::question::SecretFile;
use crate::server::{OidcOptions, is_private};

#[derive(clap::Args)]
#[command(next_help_heading = "Sign-in")]
pub(super) struct OidcArgs {
    /// URL of an OpenID provider at which users of the dashboard sign in; their rights are
    /// those that the cluster gives to the names from it. Its redirect URI is
    /// --dashboard-url with /api/v1/oidc/callback
    #[arg(long, env = "SERIN_OIDC_ISSUER_URL", value_name = "URL")]
    oidc_issuer_url: Option<String>,

    /// Client ID of Serin at the provider
    #[arg(long, env = "SERIN_OIDC_CLIENT_ID", value_name = "ID")]
    oidc_client_id: Option<String>,

    /// File with the client secret [default: a public client, without one]
    #[arg(long, env = "SERIN_OIDC_CLIENT_SECRET", value_name = "FILE")]
    oidc_client_secret: Option<PathBuf>,

    /// File with a random key of at least 32 bytes, the same for all replicas: it encrypts
    /// the cookies
    #[arg(long, env = "SERIN_OIDC_SESSION_KEY", value_name = "FILE")]
    oidc_session_key: Option<PathBuf>,

    /// Scopes to ask for beside openid
    #[arg(long, env = "SERIN_OIDC_SCOPES", value_name = "NAMES", value_delimiter = ',')]
    oidc_scopes: Vec<String>,

    /// Claim of the ID token that is the name of the user
    #[arg(long, env = "SERIN_OIDC_USERNAME_CLAIM", value_name = "NAME", default_value = "sub")]
    oidc_username_claim: String,

    /// Prefix of names of users; - is none [default: the issuer's URL and #, and none for
    /// the claim email]
    #[arg(long, env = "SERIN_OIDC_USERNAME_PREFIX", value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_username_prefix: Option<String>,

    /// Claim of the ID token that has the groups of the user [default: no groups]
    #[arg(long, env = "SERIN_OIDC_GROUPS_CLAIM", value_name = "NAME")]
    oidc_groups_claim: Option<String>,

    /// Prefix of names of groups
    #[arg(long, env = "SERIN_OIDC_GROUPS_PREFIX", value_name = "PREFIX", default_value = "")]
    oidc_groups_prefix: String,

    /// File with the authorities of the provider's certificate, PEM [default: those of the
    /// system]
    #[arg(long, env = "SERIN_OIDC_CA_FILE", value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,

    /// Hours after which users sign in again
    #[arg(long, env = "SERIN_OIDC_SESSION_HOURS", value_name = "HOURS", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=168))]
    oidc_session_hours: u32,
}

impl OidcArgs {
    /// None without a provider. `serves` is false without --api-listen.
    pub fn options(self, dashboard_url: Option<&str>, serves: bool) -> anyhow::Result<Option<OidcOptions>> {
        let Some(issuer) = self.oidc_issuer_url else {
            let given = [
                ("--oidc-client-id", self.oidc_client_id.is_some()),
                ("--oidc-client-secret", self.oidc_client_secret.is_some()),
                ("--oidc-session-key", self.oidc_session_key.is_some()),
                ("--oidc-scopes", !self.oidc_scopes.is_empty()),
                ("--oidc-username-prefix", self.oidc_username_prefix.is_some()),
                ("--oidc-groups-claim", self.oidc_groups_claim.is_some()),
                ("--oidc-ca-file", self.oidc_ca_file.is_some()),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => bail!("{flag}: it is about a provider: add --oidc-issuer-url"),
                None => Ok(None),
            };
        };
        ensure!(serves, "--oidc-issuer-url: users sign in at the dashboard, so it needs --api-listen");
        let is_private_url = |url: &str| Url::parse(url).is_ok_and(|url| is_private(&url));
        ensure!(
            is_private_url(&issuer),
            "--oidc-issuer-url: {issuer} is not an https URL; write it as the provider's discovery document has it"
        );
        let needs = |flag: &str| {
            format!("--oidc-issuer-url: {flag} is missing; docs/dashboard.md has an example with all of them")
        };
        let client_id = self.oidc_client_id.with_context(|| needs("--oidc-client-id"))?;
        let session_key = SecretFile(self.oidc_session_key.with_context(|| needs("--oidc-session-key"))?);
        let base_url = dashboard_url.with_context(|| needs("--dashboard-url"))?;
        ensure!(
            is_private_url(base_url),
            "--dashboard-url: users sign in there, so it must be an https URL; {base_url} is none"
        );
        let claim = self.oidc_username_claim;
        let username_prefix = match self.oidc_username_prefix {
            Some(prefix) if prefix == "-" => String::new(),
            Some(prefix) => prefix,
            None if claim == "email" => String::new(),
            None => format!("{issuer}#"),
        };
        let authorities = match &self.oidc_ca_file {
            None => Vec::new(),
            Some(file) => authorities(file).with_context(|| {
                format!("--oidc-ca-file: cannot read certificates from {}", file.display())
            })?,
        };
        Ok(Some(OidcOptions {
            issuer,
            client_id,
            client_secret: self.oidc_client_secret.map(SecretFile),
            session_key,
            scopes: self.oidc_scopes,
            username_claim: claim,
            username_prefix,
            groups_claim: self.oidc_groups_claim,
            groups_prefix: self.oidc_groups_prefix,
            authorities,
            base_url: base_url.to_owned(),
            session_lifetime: Duration::from_secs(3_600 * u64::from(self.oidc_session_hours)),
        }))
    }
}

fn authorities(file: &Path) -> anyhow::Result<Vec<Certificate>> {
    let certificates = Certificate::from_pem_bundle(&std::fs::read(file)?)?;
    ensure!(!certificates.is_empty(), "there is none in it");
    Ok(certificates)
}
