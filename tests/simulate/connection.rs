//! The connection of one process of Serin to the API server. A frozen process
//! sends and receives nothing: responses to earlier requests arrive when it runs
//! again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::recorder::Recorder;

pub struct FlakyConnection {
    pub process: String,
    frozen: AtomicBool,
    thawed: Notify,
    recorder: Arc<Mutex<Recorder>>,
}

impl FlakyConnection {
    pub fn new(me: String, recorder: Arc<Mutex<Recorder>>) -> Arc<Self> {
        Arc::new(Self { process: me, frozen: AtomicBool::new(false), thawed: Notify::new(), recorder })
    }

    pub async fn freeze(&self, length: Duration) {
        {
            let mut recorder = self.recorder.lock();
            recorder.log(format!("  {} is frozen", self.process));
            recorder.lag.set_running(false);
            recorder.remove_process(&self.process);
        }
        self.frozen.store(true, Ordering::Relaxed);
        sleep(length).await;
        {
            let mut recorder = self.recorder.lock();
            recorder.log(format!("  {} runs again", self.process));
            recorder.lag.set_running(true);
        }
        self.frozen.store(false, Ordering::Relaxed);
        self.thawed.notify_waiters();
    }

    /// At once, unless the process is frozen.
    async fn wait_until_running(&self) {
        while self.frozen.load(Ordering::Relaxed) {
            self.thawed.notified().await;
        }
    }

    /// A client over this connection. With `elected` the process must hold a Lease
    /// to write.
    pub fn client(self: &Arc<Self>, to: Client, elected: bool) -> Client {
        let connection = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (connection, to) = (Arc::clone(&connection), to.clone());
            async move {
                if connection.frozen.load(Ordering::Relaxed) {
                    connection.wait_until_running().await;
                    return Err(kube::Error::Service(Box::new(io::Error::from(
                        io::ErrorKind::ConnectionReset,
                    ))));
                }
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let collection = match path.rsplit('/').next() {
                    Some(plural @ ("deployments" | "daemonsets")) => Some(format!("{plural}.apps")),
                    _ => None,
                };
                let free = path.contains("/leases") || path.contains("/events");
                if method != Method::GET && !free {
                    connection.recorder.lock().record_request(&connection.process, elected, &method, &path);
                }
                let refused = connection.recorder.lock().find_refusal(&method, &path);
                if let Some(planned) = refused {
                    let object = object_name(request, &path).await;
                    connection.recorder.lock().record_refusal(&planned, &object);
                    return Ok(planned.refusal.response());
                }
                let answer = to.send(request).await?;
                connection.wait_until_running().await;
                let listed = method == Method::GET && !watches && answer.status().is_success();
                if let Some(of) = collection.as_ref().filter(|_| listed) {
                    connection.recorder.lock().lag.record_delivery(&connection.process, of, None);
                }
                if method != Method::GET && !answer.status().is_success() {
                    let status = answer.status().as_u16();
                    connection
                        .recorder
                        .lock()
                        .log(format!("      {}: {method} {path}: {status}", connection.process));
                }
                Ok(answer.map(|body| match watches {
                    false => Body::new(body),
                    true => Body::from_stream(body.into_data_stream().then(move |frame| {
                        let (connection, of) = (Arc::clone(&connection), collection.clone());
                        async move {
                            connection.wait_until_running().await;
                            if let (Some(of), Ok(frame)) = (of, &frame) {
                                connection.recorder.lock().lag.record_delivery(
                                    &connection.process,
                                    &of,
                                    Some(resource_version(frame).unwrap_or(0)),
                                );
                            }
                            frame
                        }
                    })),
                }))
            }
        });
        Client::new(service, "default")
    }
}

/// The object that a request is about; empty for a collection.
async fn object_name(request: Request<kube::client::Body>, path: &str) -> String {
    if request.method() != Method::POST {
        let segments = path.trim_end_matches("/status").rsplit('/');
        return segments.take(1).filter(|_| request.method() != Method::GET).collect();
    }
    let body = request.into_body().collect_bytes().await.unwrap_or_default();
    let object: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Of a watch event's object: the first in its JSON.
fn resource_version(frame: &[u8]) -> Option<u64> {
    const FIELD: &[u8] = b"\"resourceVersion\":\"";
    let at = frame.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len();
    let digits = frame[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}
