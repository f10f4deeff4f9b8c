//! Batches concurrent queries about the same window.
//!
//! The first query of a window waits [`BATCH_DELAY`] for others. All are then sent
//! in one request, or as few as the API's limit allows, with unique query Ids. When
//! CloudWatch rejects a request, it is split in halves and sent again, so that one
//! invalid query fails no other. Without queries no task runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_cloudwatch::Client;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::client::{self, CloudWatchError, Points, QueryResults};
use super::query::{MAX_QUERIES, QuerySet};
use crate::metrics::Window;

const BATCH_DELAY: Duration = Duration::from_millis(5);

/// Clones share the pending queries.
#[derive(Clone, Default)]
pub struct Batcher {
    pending: Arc<Mutex<HashMap<Window, Vec<PendingQuery>>>>,
}

struct PendingQuery {
    query_set: QuerySet,
    reply: oneshot::Sender<Result<Points, CloudWatchError>>,
}

impl Batcher {
    pub async fn query(
        &self,
        client: &Client,
        window: Window,
        query_set: QuerySet,
    ) -> Result<Points, CloudWatchError> {
        let (reply, response) = oneshot::channel();
        let first = {
            let mut pending = self.pending.lock();
            let batch = pending.entry(window).or_default();
            batch.push(PendingQuery { query_set, reply });
            batch.len() == 1
        };
        if first {
            let (client, pending) = (client.clone(), Arc::clone(&self.pending));
            // A task of its own: the first caller may be cancelled while others wait.
            tokio::spawn(async move {
                tokio::time::sleep(BATCH_DELAY).await;
                let batch = pending.lock().remove(&window).unwrap_or_default();
                join_all(
                    group_into_requests(batch).into_iter().map(|request| send(&client, window, request)),
                )
                .await;
            });
        }
        response.await.unwrap_or(Err(CloudWatchError::MissingResult))
    }
}

/// By the limit of queries per request.
fn group_into_requests(batch: Vec<PendingQuery>) -> Vec<Vec<PendingQuery>> {
    let mut requests = Vec::new();
    let (mut open, mut queries) = (Vec::new(), 0);
    for pending in batch {
        if pending.query_set.must_run_alone() {
            requests.push(vec![pending]);
            continue;
        }
        if queries + pending.query_set.count() > MAX_QUERIES {
            requests.push(std::mem::take(&mut open));
            queries = 0;
        }
        queries += pending.query_set.count();
        open.push(pending);
    }
    requests.push(open);
    requests
}

async fn send(client: &Client, window: Window, request: Vec<PendingQuery>) {
    let mut requests = vec![request];
    while let Some(mut request) = requests.pop() {
        request.retain(|pending| !pending.reply.is_closed());
        if request.is_empty() {
            continue;
        }
        let mut queries = Vec::new();
        let mut result_ids = Vec::new();
        for PendingQuery { query_set, .. } in &request {
            let (own, result_id) = match query_set.must_run_alone() {
                true => query_set.with_own_ids(),
                false => query_set.with_unique_ids(queries.len()),
            };
            queries.extend(own);
            result_ids.push(result_id);
        }
        match client::get_metric_data(client, window, queries).await {
            Ok(mut results) => deliver_results(request, &result_ids, &mut results),
            Err(CloudWatchError::Rejected(_)) if request.len() > 1 => {
                let rest = request.split_off(request.len() / 2);
                requests.extend([request, rest]);
            }
            Err(error) => {
                for PendingQuery { reply, .. } in request {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }
}

fn deliver_results(request: Vec<PendingQuery>, result_ids: &[String], results: &mut QueryResults) {
    for (PendingQuery { query_set, reply }, id) in request.into_iter().zip(result_ids) {
        // Fails if the caller was cancelled.
        let _ = reply.send(results.take(id, query_set.must_run_alone()));
    }
}
