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
    Ask, Credentials, MetricSource, Reduce, View,
    http::BadServer,
    prometheus::Prometheus,
    scrape::{Fetch, Scrape},
    web::Web,
};

/// More servers than this are not kept at a time.
const KEPT: usize = 256;

/// Clones are the same sources.
#[derive(Clone)]
pub struct Sources {
    servers: Arc<Mutex<HashMap<Server, Arc<dyn MetricSource>>>>,
    scrape: Arc<Scrape>,
    #[cfg(feature = "aws")]
    accounts: crate::aws::Accounts,
}

/// What makes one server, and our way to it, another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Server {
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
            servers: Arc::default(),
            scrape: Arc::new(Scrape::new(fetch)),
            #[cfg(feature = "aws")]
            accounts: Default::default(),
        }
    }

    /// What the source says about [`Ask::known`] of the window. `credentials`
    /// are what [`Ask::secret`] names.
    pub async fn measure(
        &self,
        ask: &Ask,
        credentials: Option<&Credentials>,
        view: &View<'_>,
    ) -> Measurement {
        let known = View { window: ask.known(view.window), ..*view };
        if ask.periods.is_some() && known.window.since == known.window.until {
            return Measurement::NoData;
        }
        let measured = match self.source(ask, credentials) {
            Ok(source) => source.measure(ask, &known).await,
            Err(why) => Measurement::Unavailable { why },
        };
        match (ask.reduce, measured) {
            (Some(Reduce::Quantile(share)), Measurement::Histogram(arms)) => {
                arms.canary.quantile(share).map_or(Measurement::NoData, Measurement::Scalar)
            }
            (_, measured) => measured,
        }
    }

    /// A window opens at `view.window.until`.
    pub async fn begin(&self, ask: &Ask, view: &View<'_>) {
        if ask.reads_pods() {
            self.scrape.begin(ask, view).await;
        }
    }

    /// The Canary is gone, and what was remembered for it.
    pub fn forget(&self, namespace: &str, canary: &str) {
        self.scrape.forget(namespace, canary);
    }

    fn source(&self, ask: &Ask, credentials: Option<&Credentials>) -> Result<Arc<dyn MetricSource>, String> {
        let credentials = match (&ask.secret, credentials) {
            (None, _) => Credentials::default(),
            (Some(_), Some(credentials)) => credentials.clone(),
            (Some(secret), None) => {
                return Err(format!("the Secret {} in {} is not there", secret.name, secret.namespace));
            }
        };
        match ask.provider.type_ {
            MetricProviderType::Scrape => Ok(self.scrape.clone()),
            MetricProviderType::Prometheus => {
                self.server(&ask.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(Prometheus::new(provider, credentials)?))
                })
            }
            MetricProviderType::Web => self.server(&ask.provider, credentials, |provider, credentials| {
                Ok(Arc::new(Web::new(provider, credentials)?))
            }),
            #[cfg(feature = "aws")]
            MetricProviderType::Cloudwatch => {
                self.server(&ask.provider, credentials, |provider, credentials| {
                    Ok(Arc::new(CloudWatch::new(self.accounts.clone(), provider, credentials)?))
                })
            }
            other => Err(format!("{other:?} cannot be asked by this version")),
        }
    }

    fn server(
        &self,
        provider: &MetricProvider,
        credentials: Credentials,
        new: impl FnOnce(&MetricProvider, &Credentials) -> Result<Arc<dyn MetricSource>, BadServer>,
    ) -> Result<Arc<dyn MetricSource>, String> {
        let server = Server {
            kind: provider.type_,
            address: provider.address.clone().unwrap_or_default(),
            headers: provider.headers.clone(),
            insecure: provider.insecure_skip_verify,
            region: provider.region.clone(),
            role: provider.role.clone(),
            credentials,
        };
        let mut known = self.servers.lock();
        if let Some(source) = known.get(&server) {
            return Ok(source.clone());
        }
        let source = new(provider, &server.credentials).map_err(|error| error.to_string())?;
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(server, source.clone());
        Ok(source)
    }
}
