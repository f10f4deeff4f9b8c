//! AWS client configuration: credentials, region, endpoint.
//!
//! Clients of AWS services are built from [`Accounts::config`]. Equal
//! [`Account`]s share one configuration, and with it connections and
//! credentials: a role is assumed once, and again shortly before its session
//! expires, however many clients there are.
//!
//! A request is tried three times and ends in bounded time. Connections belong
//! to the tokio runtime that opened them, so there is no global: each runtime
//! has its own [`Accounts`].

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

/// Of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Of all attempts and the delays between them.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(15);

const MAX_ATTEMPTS: u32 = 3;

/// The cache is cleared when it would grow beyond this.
const MAX_CACHED_CONFIGS: usize = 256;

/// Identity and endpoint of requests. Unset fields follow the default chain of
/// the AWS SDK: environment, ServiceAccount token, instance metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Account {
    pub region: Option<String>,
    /// Assumed before the first request.
    pub role_arn: Option<String>,
    /// Required by the trust policy of some roles.
    pub external_id: Option<String>,
    /// Of the service, if not the public one.
    pub endpoint: Option<String>,
    /// Of STS, if not the public one.
    pub sts_endpoint: Option<String>,
    pub keys: Option<Keys>,
}

/// Static credentials.
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no AWS region is set: name one, or set AWS_REGION of the controller")]
pub struct NoRegion;

/// Cached configurations, one per account. Clones share the cache.
#[derive(Clone)]
pub struct Accounts {
    http: SharedHttpClient,
    configs: Arc<Mutex<HashMap<Account, Arc<OnceCell<SdkConfig>>>>>,
}

impl Default for Accounts {
    /// Opens no connection.
    fn default() -> Self {
        let http = aws_smithy_http_client::Builder::new();
        Self {
            http: http.tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https(),
            configs: Arc::default(),
        }
    }
}

impl Accounts {
    /// The configuration of every client of this account:
    /// `Client::new(&accounts.config(&account).await?)`.
    pub async fn config(&self, account: &Account) -> Result<SdkConfig, NoRegion> {
        let cell = {
            let mut configs = self.configs.lock();
            if configs.len() >= MAX_CACHED_CONFIGS && !configs.contains_key(account) {
                configs.clear();
            }
            configs.entry(account.clone()).or_default().clone()
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

/// Assumes the role with the credentials of `config`, at the endpoint of STS,
/// not of the service.
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
