//! Every source there is, made when first asked and kept for the next time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    analysis::measurement::Measurement,
    api::{
        analysis_template::{MetricProvider, MetricProviderType},
        cloudwatch::AwsRole,
    },
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

/// More servers than this are not kept at a time.
const MAX_SOURCES: usize = 256;

/// Clones are the same sources.
#[derive(Clone)]
pub struct Sources {
    sources: Arc<Mutex<HashMap<SourceKey, Arc<dyn MetricSource>>>>,
    scrape: Arc<Scrape>,
    #[cfg(feature = "aws")]
    accounts: crate::aws::Accounts,
}

/// What makes one server, and our way to it, another.
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
    /// Pods are read through `fetch`.
    pub fn new(fetch: Arc<dyn Fetch>) -> Self {
        Self {
            sources: Arc::default(),
            scrape: Arc::new(Scrape::new(fetch)),
            #[cfg(feature = "aws")]
            accounts: Default::default(),
        }
    }

    /// What the source says about [`MetricQuery::available_window`] of the window. `credentials`
    /// are what [`MetricQuery::secret`] names.
    pub async fn measure(
        &self,
        metric_query: &MetricQuery,
        credentials: Option<&Credentials>,
        context: &MeasureContext<'_>,
    ) -> Measurement {
        let known = MeasureContext { window: metric_query.available_window(context.window), ..*context };
        if metric_query.periods.is_some() && known.window.since == known.window.until {
            return Measurement::NoData;
        }
        let measured = match self.source(metric_query, credentials) {
            Ok(source) => source.measure(metric_query, &known).await,
            Err(why) => Measurement::Unavailable { why },
        };
        match (metric_query.reduce, measured) {
            (Some(Reduce::Quantile(share)), Measurement::Histogram(arms)) => {
                arms.canary.quantile(share).map_or(Measurement::NoData, Measurement::Scalar)
            }
            (_, measured) => measured,
        }
    }

    /// A window opens at `context.window.until`.
    pub async fn open_window(&self, metric_query: &MetricQuery, context: &MeasureContext<'_>) {
        if metric_query.reads_pods() {
            self.scrape.open_window(metric_query, context).await;
        }
    }

    /// The Canary is gone, and what was remembered for it.
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
                return Err(format!("the Secret {} in {} is not there", secret.name, secret.namespace));
            }
        };
        match metric_query.provider.type_ {
            MetricProviderType::Scrape => Ok(self.scrape.clone()),
            MetricProviderType::Prometheus => {
                self.cached_source(&metric_query.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(Prometheus::new(provider, credentials)?))
                })
            }
            MetricProviderType::Web => {
                self.cached_source(&metric_query.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(Web::new(provider, credentials)?))
                })
            }
            #[cfg(feature = "aws")]
            MetricProviderType::Cloudwatch => {
                self.cached_source(&metric_query.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(CloudWatch::new(self.accounts.clone(), provider, credentials)?))
                })
            }
            other => Err(format!("{other:?} cannot be asked by this version")),
        }
    }

    fn cached_source(
        &self,
        provider: &MetricProvider,
        credentials: Credentials,
        new: impl FnOnce(&MetricProvider, &Credentials) -> Result<Arc<dyn MetricSource>, ClientConfigError>,
    ) -> Result<Arc<dyn MetricSource>, String> {
        let server = SourceKey {
            kind: provider.type_,
            address: provider.address.clone().unwrap_or_default(),
            headers: provider.headers.clone(),
            insecure: provider.insecure_skip_verify,
            region: provider.region.clone(),
            role: provider.role.clone(),
            credentials,
        };
        let mut known = self.sources.lock();
        if let Some(source) = known.get(&server) {
            return Ok(source.clone());
        }
        let source = new(provider, &server.credentials).map_err(|error| error.to_string())?;
        if known.len() >= MAX_SOURCES {
            known.clear();
        }
        known.insert(server, source.clone());
        Ok(source)
    }
}
