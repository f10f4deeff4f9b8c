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

use super::client::{self, Answers, Failure, Points};
use super::query::{MOST, Questions};
use crate::metrics::Window;

/// How long the first waits for others.
const LINGER: Duration = Duration::from_millis(5);

/// Clones are the same.
#[derive(Clone, Default)]
pub struct Batches {
    waiting: Arc<Mutex<HashMap<Window, Vec<Waiting>>>>,
}

/// A question, and who waits for its answer.
struct Waiting {
    questions: Questions,
    asker: oneshot::Sender<Result<Points, Failure>>,
}

impl Batches {
    pub async fn ask(
        &self,
        client: &Client,
        window: Window,
        questions: Questions,
    ) -> Result<Points, Failure> {
        let (asker, answer) = oneshot::channel();
        let first = {
            let mut waiting = self.waiting.lock();
            let beside = waiting.entry(window).or_default();
            beside.push(Waiting { questions, asker });
            beside.len() == 1
        };
        if first {
            let (client, waiting) = (client.clone(), Arc::clone(&self.waiting));
            // Not by the one who asks: he may leave, the others still wait.
            tokio::spawn(async move {
                tokio::time::sleep(LINGER).await;
                let all = waiting.lock().remove(&window).unwrap_or_default();
                join_all(requests(all).into_iter().map(|request| send(&client, window, request))).await;
            });
        }
        answer.await.unwrap_or(Err(Failure::Unanswered))
    }
}

/// Who goes with whom.
fn requests(all: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut requests = Vec::new();
    let (mut open, mut queries) = (Vec::new(), 0);
    for waiting in all {
        if waiting.questions.stand_alone() {
            requests.push(vec![waiting]);
            continue;
        }
        if queries + waiting.questions.count() > MOST {
            requests.push(std::mem::take(&mut open));
            queries = 0;
        }
        queries += waiting.questions.count();
        open.push(waiting);
    }
    requests.push(open);
    requests
}

async fn send(client: &Client, window: Window, request: Vec<Waiting>) {
    let mut requests = vec![request];
    while let Some(mut request) = requests.pop() {
        request.retain(|waiting| !waiting.asker.is_closed());
        if request.is_empty() {
            continue;
        }
        let mut queries = Vec::new();
        let mut answers_at = Vec::new();
        for Waiting { questions, .. } in &request {
            let (own, answer_at) = match questions.stand_alone() {
                true => questions.as_written(),
                false => questions.numbered(queries.len()),
            };
            queries.extend(own);
            answers_at.push(answer_at);
        }
        match client::ask(client, window, queries).await {
            Ok(mut answers) => answer(request, &answers_at, &mut answers),
            Err(Failure::Refused(_)) if request.len() > 1 => {
                let rest = request.split_off(request.len() / 2);
                requests.extend([request, rest]);
            }
            Err(failure) => {
                for Waiting { asker, .. } in request {
                    let _ = asker.send(Err(failure.clone()));
                }
            }
        }
    }
}

/// Whoever has left meanwhile misses nothing.
fn answer(request: Vec<Waiting>, answers_at: &[String], answers: &mut Answers) {
    for (Waiting { questions, asker }, at) in request.into_iter().zip(answers_at) {
        let _ = asker.send(answers.take(at, questions.stand_alone()));
    }
}
