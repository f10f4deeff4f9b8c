//! The sources, created at their first query and cached.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::{
    analysis::measurement::Measurement,
    api::{
        analysis_template::{MetricProvider, MetricProviderType},
        cloudwatch::AwsRole,
    },
    engine::report::cut,
    tenancy::TenantAddresses,
};

#[cfg(feature = "aws")]
use super::cloudwatch::CloudWatch;
use super::{
    Credentials, MeasureContext, MetricQuery, MetricSource, Reduce,
    http::ClientConfigError,
    prometheus::Prometheus,
    scrape::{Fetch, Scrape},
    web::Web,
};

/// The cache is cleared when it would grow beyond this.
const MAX_SOURCES: usize = 256;

/// How far apart a source that cannot tell reads the pods: the scrape interval of most
/// servers.
const USUAL_READ_LAG: SignedDuration = SignedDuration::from_secs(30);

/// Clones share the sources.
#[derive(Clone)]
pub struct Sources {
    sources: Arc<Mutex<HashMap<SourceKey, Arc<dyn MetricSource>>>>,
    scrape: Arc<Scrape>,
    addresses: TenantAddresses,
    #[cfg(feature = "aws")]
    accounts: crate::aws::Accounts,
}

/// Queries with equal keys share a source and its connections.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SourceKey {
    kind: MetricProviderType,
    address: String,
    headers: BTreeMap<String, Vec<String>>,
    insecure: bool,
    region: Option<String>,
    role: Option<AwsRole>,
    credentials: Credentials,
}

impl Sources {
    /// Pods are scraped through `fetch`.
    pub fn new(fetch: Arc<dyn Fetch>) -> Self {
        Self {
            sources: Arc::default(),
            scrape: Arc::new(Scrape::new(fetch)),
            addresses: TenantAddresses::default(),
            #[cfg(feature = "aws")]
            accounts: Default::default(),
        }
    }

    /// Servers at other addresses are not queried.
    pub fn with_addresses(self, addresses: TenantAddresses) -> Self {
        Self { addresses, ..self }
    }

    /// Measures the [`MetricQuery::available_window`] of the window. `credentials`
    /// are those of [`MetricQuery::secret`].
    pub async fn measure(
        &self,
        metric_query: &MetricQuery,
        credentials: Option<&Credentials>,
        context: &MeasureContext<'_>,
    ) -> Measurement {
        let available = MeasureContext { window: metric_query.available_window(context.window), ..*context };
        if metric_query.periods.is_some() && available.window.since == available.window.until {
            return Measurement::NoData;
        }
        let measurement = match self.source(metric_query, credentials) {
            Ok(source) => source.measure(metric_query, &available).await,
            Err(why) => Measurement::Unavailable { why },
        };
        let measurement = if metric_query.reduce.is_some() { measurement.summed() } else { measurement };
        match (metric_query.reduce, measurement) {
            (Some(Reduce::Quantile(q)), Measurement::Histogram(arms)) => {
                arms.canary.quantile(q).map_or(Measurement::NoData, Measurement::Scalar)
            }
            (_, Measurement::Unavailable { why }) => Measurement::Unavailable { why: cut(why) },
            (_, measurement) => measurement,
        }
    }

    /// Until when a measurement of this window counts requests on all pods of both
    /// arms.
    pub async fn known_until(
        &self,
        metric_query: &MetricQuery,
        credentials: Option<&Credentials>,
        context: &MeasureContext<'_>,
    ) -> Timestamp {
        let window = metric_query.available_window(context.window);
        let known = match self.source(metric_query, credentials) {
            Ok(source) => source.known_until(metric_query, &MeasureContext { window, ..*context }).await,
            Err(_) => None,
        };
        let usual = window.until.checked_sub(USUAL_READ_LAG).unwrap_or(window.until);
        known.unwrap_or(usual).min(window.until)
    }

    /// A window opens at `context.window.until`.
    pub async fn open_window(&self, metric_query: &MetricQuery, context: &MeasureContext<'_>) {
        if metric_query.reads_pods() {
            self.scrape.open_window(metric_query, context).await;
        }
    }

    /// Drops the state of a deleted Canary.
    pub fn forget(&self, namespace: &str, canary: &str) {
        self.scrape.forget(namespace, canary);
    }

    fn source(
        &self,
        metric_query: &MetricQuery,
        credentials: Option<&Credentials>,
    ) -> Result<Arc<dyn MetricSource>, String> {
        let credentials = match (&metric_query.secret, credentials) {
            (None, _) => Credentials::default(),
            (Some(_), Some(credentials)) => credentials.clone(),
            (Some(secret), None) => {
                return Err(format!("the Secret {} in {} does not exist", secret.name, secret.namespace));
            }
        };
        match metric_query.provider.type_ {
            MetricProviderType::Scrape => Ok(self.scrape.clone()),
            MetricProviderType::Prometheus => {
                self.cached_source(&metric_query.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(Prometheus::new(provider, credentials, &self.addresses)?))
                })
            }
            MetricProviderType::Web => {
                self.cached_source(&metric_query.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(Web::new(provider, credentials, &self.addresses)?))
                })
            }
            #[cfg(feature = "aws")]
            MetricProviderType::Cloudwatch => {
                let addresses = [&metric_query.provider.address, &sts_endpoint(&metric_query.provider)];
                addresses
                    .into_iter()
                    .flatten()
                    .try_for_each(|url| self.addresses.check(url))
                    .map_err(|denied| ClientConfigError::from(denied).to_string())?;
                self.cached_source(&metric_query.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(CloudWatch::new(self.accounts.clone(), provider, credentials)?))
                })
            }
            other => Err(format!("{other:?} is not supported by this version")),
        }
    }

    fn cached_source(
        &self,
        provider: &MetricProvider,
        credentials: Credentials,
        new: impl FnOnce(&MetricProvider, &Credentials) -> Result<Arc<dyn MetricSource>, ClientConfigError>,
    ) -> Result<Arc<dyn MetricSource>, String> {
        let key = SourceKey {
            kind: provider.type_,
            address: provider.address.clone().unwrap_or_default(),
            headers: provider.headers.clone(),
            insecure: provider.insecure_skip_verify,
            region: provider.region.clone(),
            role: provider.role.clone(),
            credentials,
        };
        let mut sources = self.sources.lock();
        if let Some(source) = sources.get(&key) {
            return Ok(source.clone());
        }
        let source = new(provider, &key.credentials).map_err(|error| error.to_string())?;
        if sources.len() >= MAX_SOURCES {
            sources.clear();
        }
        sources.insert(key, source.clone());
        Ok(source)
    }
}

#[cfg(feature = "aws")]
fn sts_endpoint(provider: &MetricProvider) -> Option<String> {
    provider.role.as_ref().and_then(|role| role.endpoint.clone())
}
