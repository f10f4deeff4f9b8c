//! Questions about the same time, asked at the same time, go out together.
//!
//! Whoever asks first waits a moment for others. Then all of them are one
//! request, or as few as the API's limit allows, each query under a number of
//! its own. When CloudWatch refuses a request, those in it are asked in halves,
//! so that nobody pays for the mistake of another. Nothing waits, and no task
//! runs, while nobody asks.

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

/// How long the first waits for others.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// Clones are the same.
#[derive(Clone, Default)]
pub struct Batcher {
    pending: Arc<Mutex<HashMap<Window, Vec<PendingQuery>>>>,
}

/// A question, and who waits for its answer.
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
        let (reply, answer) = oneshot::channel();
        let first = {
            let mut pending = self.pending.lock();
            let beside = pending.entry(window).or_default();
            beside.push(PendingQuery { query_set, reply });
            beside.len() == 1
        };
        if first {
            let (client, pending) = (client.clone(), Arc::clone(&self.pending));
            // Not by the one who asks: he may leave, the others still wait.
            tokio::spawn(async move {
                tokio::time::sleep(BATCH_DELAY).await;
                let all = pending.lock().remove(&window).unwrap_or_default();
                join_all(group_into_requests(all).into_iter().map(|request| send(&client, window, request)))
                    .await;
            });
        }
        answer.await.unwrap_or(Err(CloudWatchError::MissingResult))
    }
}

/// Who goes with whom.
fn group_into_requests(all: Vec<PendingQuery>) -> Vec<Vec<PendingQuery>> {
    let mut requests = Vec::new();
    let (mut open, mut queries) = (Vec::new(), 0);
    for pending in all {
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
        let mut answers_at = Vec::new();
        for PendingQuery { query_set, .. } in &request {
            let (own, answer_at) = match query_set.must_run_alone() {
                true => query_set.with_own_ids(),
                false => query_set.with_unique_ids(queries.len()),
            };
            queries.extend(own);
            answers_at.push(answer_at);
        }
        match client::get_metric_data(client, window, queries).await {
            Ok(mut answers) => deliver_results(request, &answers_at, &mut answers),
            Err(CloudWatchError::Rejected(_)) if request.len() > 1 => {
                let rest = request.split_off(request.len() / 2);
                requests.extend([request, rest]);
            }
            Err(failure) => {
                for PendingQuery { reply, .. } in request {
                    let _ = reply.send(Err(failure.clone()));
                }
            }
        }
    }
}

/// Whoever has left meanwhile misses nothing.
fn deliver_results(request: Vec<PendingQuery>, answers_at: &[String], answers: &mut QueryResults) {
    for (PendingQuery { query_set, reply }, at) in request.into_iter().zip(answers_at) {
        let _ = reply.send(answers.take(at, query_set.must_run_alone()));
    }
}
