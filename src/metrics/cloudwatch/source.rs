//! One account and region of CloudWatch.

use async_trait::async_trait;
use aws_sdk_cloudwatch::Client;
use futures::future::try_join_all;
use tokio::sync::OnceCell;

use super::{
    HISTOGRAM_BOUNDS, SUPPORTED_FORMS,
    batch::Batcher,
    client::{CloudWatchError, Points},
    query::{MetricDataQuery, MetricStat, QuerySet, QuerySetError},
};
use crate::{
    analysis::measurement::{Arms, Counts, Histogram, Measurement},
    api::analysis_template::MetricProvider,
    aws::{Account, Accounts, Keys},
    metrics::{
        CountQueries, CountedPart, Credentials, MeasureContext, MetricQuery, MetricSource, Query,
        SupportedForms, Window, http::ClientConfigError,
    },
};

pub struct CloudWatch {
    accounts: Accounts,
    account: Account,
    /// Created at the first query.
    client: OnceCell<Client>,
    batcher: Batcher,
}

#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("{0}")]
    Request(#[from] CloudWatchError),
    /// [`super::periods`] has checked this before.
    #[error("cannot be queried: the query {0}")]
    InvalidQuery(#[from] QuerySetError),
    #[error("returned an invalid distribution: {0}")]
    InvalidHistogram(String),
}

impl CloudWatch {
    pub fn new(
        accounts: Accounts,
        provider: &MetricProvider,
        credentials: &Credentials,
    ) -> Result<Self, ClientConfigError> {
        let key = |name: &str| credentials.text(name).map(str::to_owned);
        let keys = match (key("aws_access_key_id"), key("aws_secret_access_key")) {
            (Some(access_key_id), Some(secret_access_key)) => {
                Some(Keys { access_key_id, secret_access_key, session_token: key("aws_session_token") })
            }
            (None, None) if provider.secret_ref.is_none() => None,
            _ => {
                return Err(ClientConfigError::Credentials(
                    "no aws_access_key_id with an aws_secret_access_key",
                ));
            }
        };
        let role = provider.role.as_ref();
        let account = Account {
            region: provider.region.clone(),
            role_arn: role.map(|role| role.role_arn.clone()),
            external_id: role.and_then(|role| role.external_id.clone()),
            endpoint: provider.address.clone(),
            sts_endpoint: role.and_then(|role| role.endpoint.clone()),
            keys,
        };
        Ok(Self { accounts, account, client: OnceCell::new(), batcher: Batcher::default() })
    }

    async fn query(&self, window: Window, query_set: QuerySet) -> Result<Points, MeasureError> {
        let client = self.client.get_or_try_init(async || {
            let config = self.accounts.config(&self.account).await?;
            Ok::<_, CloudWatchError>(Client::new(&config))
        });
        let points = self.batcher.query(client.await?, window, query_set).await?;
        let in_window = points.into_iter().filter(|(at, _)| (window.since..window.until).contains(at));
        Ok(in_window.collect())
    }

    async fn try_measure(&self, query: &Query, window: Window) -> Result<Measurement, MeasureError> {
        match query {
            // The newest complete period, as in Flagger.
            Query::Scalar(text) => {
                let points = self.query(window, QuerySet::parse(text)?).await?;
                let newest = points.into_values().next_back().filter(|value| !value.is_nan());
                Ok(newest.map_or(Measurement::NoData, Measurement::Scalar))
            }
            Query::Counts(arms) => {
                let (canary, primary) = futures::try_join!(
                    self.count_sums(&arms.canary, window),
                    self.count_sums(&arms.primary, window)
                )?;
                Ok(counts(arms, &Arms { canary, primary }))
            }
            Query::Histogram(arms) => {
                let (canary, primary) = futures::try_join!(
                    self.distribution(&arms.canary, window),
                    self.distribution(&arms.primary, window)
                )?;
                match (canary, primary) {
                    (None, None) => Ok(Measurement::NoData),
                    (canary, primary) => Ok(Measurement::Histogram(Arms {
                        canary: canary.unwrap_or_default(),
                        primary: primary.unwrap_or_default(),
                    })),
                }
            }
            // Not supported, and refused before.
            Query::Values(_) => Ok(Measurement::NoData),
            Query::Samples(arms) => {
                let (canary, primary) = futures::try_join!(
                    self.query(window, QuerySet::parse(&arms.canary)?),
                    self.query(window, QuerySet::parse(&arms.primary)?)
                )?;
                if canary.is_empty() && primary.is_empty() {
                    return Ok(Measurement::NoData);
                }
                let values = |points: Points| points.into_values().collect();
                Ok(Measurement::Samples(Arms { canary: values(canary), primary: values(primary) }))
            }
        }
    }

    async fn count_sums(&self, queries: &CountQueries, window: Window) -> Result<CountSums, MeasureError> {
        let (part, total) = futures::try_join!(
            self.query(window, QuerySet::parse(queries.part.query())?),
            self.query(window, QuerySet::parse(&queries.total)?)
        )?;
        Ok(CountSums { part: sum(part), total: sum(total) })
    }

    /// Requests within each bound; none without a datapoint.
    async fn distribution(&self, text: &str, window: Window) -> Result<Option<Histogram>, MeasureError> {
        let query_set = QuerySet::parse(text)?;
        let (query, metric, per_second) = query_set.durations()?;
        let with_stat = |stat: String| {
            QuerySet::new(vec![MetricDataQuery {
                metric_stat: Some(MetricStat { stat, ..metric.clone() }),
                return_data: Some(true),
                ..query.clone()
            }])
        };
        let mut query_sets = vec![with_stat("SampleCount".to_owned())?];
        for bound in HISTOGRAM_BOUNDS {
            query_sets.push(with_stat(format!("TC(:{})", bound * per_second))?);
        }
        let results =
            try_join_all(query_sets.into_iter().map(|query_set| self.query(window, query_set))).await?;
        let mut counts = results.into_iter().map(sum);
        let Some(total) = counts.next().flatten() else { return Ok(None) };
        let within = HISTOGRAM_BOUNDS.into_iter().zip(counts.map(Option::unwrap_or_default));
        let histogram = Histogram::cumulative(within.chain([(f64::INFINITY, total)]));
        histogram.map(Some).map_err(|error| MeasureError::InvalidHistogram(error.to_string()))
    }
}

#[async_trait]
impl MetricSource for CloudWatch {
    fn supported_forms(&self) -> SupportedForms {
        SUPPORTED_FORMS
    }

    async fn measure(&self, metric_query: &MetricQuery, context: &MeasureContext<'_>) -> Measurement {
        self.try_measure(&metric_query.query, context.window).await.unwrap_or_else(|why| {
            let region = self.account.region.as_deref().map(|region| format!(" in {region}"));
            Measurement::Unavailable { why: format!("CloudWatch{} {why}", region.unwrap_or_default()) }
        })
    }
}

/// Of one arm; none without a datapoint.
#[derive(Clone, Copy)]
struct CountSums {
    part: Option<u64>,
    total: Option<u64>,
}

/// Rounded: requests are whole numbers.
fn sum(points: Points) -> Option<u64> {
    (!points.is_empty()).then(|| {
        points.into_values().filter(|value| *value > 0.0 && value.is_finite()).sum::<f64>().round() as u64
    })
}

/// No datapoint of bad requests: all were good. No datapoint of good requests:
/// all were bad, but only if the other arm has some, which shows that good ones
/// are published.
fn counts(queries: &Arms<CountQueries>, sums: &Arms<CountSums>) -> Measurement {
    let Arms { canary, primary } = sums;
    if canary.total.is_none() && primary.total.is_none() {
        return Measurement::NoData;
    }
    let good = matches!(queries.canary.part, CountedPart::Good(_));
    if good && canary.part.is_none() && primary.part.is_none() {
        return Measurement::NoData;
    }
    let arm = |CountSums { part, total }: &CountSums| {
        let (part, total) = (part.unwrap_or_default(), total.unwrap_or_default());
        if good { Counts::of_good(part, total) } else { Counts::of_bad(part, total) }
    };
    Measurement::Counts(sums.map(arm))
}
