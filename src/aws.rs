//! Our way into Amazon's cloud: as whom, in which region, at which address.
//!
//! What talks to one of its services makes a client of it from
//! [`Accounts::config`]. The same [`Account`] always gets the same
//! configuration, and with it the same connections and the same credentials:
//! a role is assumed once and again shortly before it ends, however many
//! clients there are.
//!
//! A request is tried three times and ends in bounded time. Connections belong
//! to the runtime that made them, hence no global: who starts a runtime makes
//! its [`Accounts`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_cloudwatch::config::{Credentials, SharedCredentialsProvider, SharedHttpClient};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// One try.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// All tries together, and the pauses between them.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(15);

const MAX_ATTEMPTS: u32 = 3;

/// More accounts than this are not kept at a time.
const MAX_CACHED_CONFIGS: usize = 256;

/// Who asks, and where. What is left out is found as all of Amazon's tools find
/// it: in the environment, in the ServiceAccount's token, at the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Account {
    pub region: Option<String>,
    /// Assumed before anything is asked.
    pub role_arn: Option<String>,
    /// What the owner of the role may demand to hear.
    pub external_id: Option<String>,
    /// Where the service is, if not at its public address.
    pub endpoint: Option<String>,
    /// Where the role is assumed, if not at the public address.
    pub sts_endpoint: Option<String>,
    pub keys: Option<Keys>,
}

/// Credentials that were given to us.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Keys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

/// No service can be asked without one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no region is known; name one, or set AWS_REGION of the controller")]
pub struct NoRegion;

/// Every account in use. Clones are the same.
#[derive(Clone)]
pub struct Accounts {
    http: SharedHttpClient,
    configs: Arc<Mutex<HashMap<Account, Arc<OnceCell<SdkConfig>>>>>,
}

impl Default for Accounts {
    /// Costs nothing until an account is asked for.
    fn default() -> Self {
        let http = aws_smithy_http_client::Builder::new();
        Self {
            http: http.tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https(),
            configs: Arc::default(),
        }
    }
}

impl Accounts {
    /// What every client of a service is made from:
    /// `Client::new(&accounts.config(&account).await?)`.
    pub async fn config(&self, account: &Account) -> Result<SdkConfig, NoRegion> {
        let cell = {
            let mut known = self.configs.lock();
            if known.len() >= MAX_CACHED_CONFIGS && !known.contains_key(account) {
                known.clear();
            }
            known.entry(account.clone()).or_default().clone()
        };
        cell.get_or_try_init(|| self.load(account)).await.cloned()
    }

    async fn load(&self, account: &Account) -> Result<SdkConfig, NoRegion> {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .operation_timeout(OPERATION_TIMEOUT);
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(self.http.clone())
            .identity_cache(IdentityCache::lazy().build())
            .retry_config(RetryConfig::standard().with_max_attempts(MAX_ATTEMPTS))
            .timeout_config(timeouts.build());
        if let Some(region) = &account.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(Keys { access_key_id, secret_access_key, session_token }) = &account.keys {
            let keys =
                Credentials::new(access_key_id, secret_access_key, session_token.clone(), None, "keys");
            loader = loader.credentials_provider(keys);
        }
        let config = loader.load().await;
        if config.region().is_none() {
            return Err(NoRegion);
        }
        let mut config = match &account.role_arn {
            Some(role) => {
                let role = assume_role_provider(role, account, &config).await;
                config.into_builder().credentials_provider(role)
            }
            None => config.into_builder(),
        };
        if let Some(endpoint) = &account.endpoint {
            config.set_endpoint_url(Some(endpoint.clone()));
        }
        Ok(config.build())
    }
}

/// Credentials of the role, asked for by whoever `config` says we are. The
/// endpoint of a service is none of STS.
async fn assume_role_provider(
    role: &str,
    account: &Account,
    config: &SdkConfig,
) -> SharedCredentialsProvider {
    let mut sts = config.clone().into_builder();
    if let Some(endpoint) = &account.sts_endpoint {
        sts.set_endpoint_url(Some(endpoint.clone()));
    }
    let mut provider = AssumeRoleProvider::builder(role).session_name("serin").configure(&sts.build());
    if let Some(id) = &account.external_id {
        provider = provider.external_id(id);
    }
    SharedCredentialsProvider::new(provider.build().await)
}
