//! The line between one process of Serin and the API server. A process that
//! stands still hears nothing and says nothing: what it asked before is
//! answered when it runs again, and what it would have asked meanwhile it has
//! not asked.

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

use super::onlooker::Onlooker;

pub struct Line {
    pub me: String,
    frozen: AtomicBool,
    thawed: Notify,
    onlooker: Arc<Mutex<Onlooker>>,
}

impl Line {
    pub fn new(me: String, onlooker: Arc<Mutex<Onlooker>>) -> Arc<Self> {
        Arc::new(Self { me, frozen: AtomicBool::new(false), thawed: Notify::new(), onlooker })
    }

    pub async fn freeze(&self, length: Duration) {
        {
            let mut onlooker = self.onlooker.lock();
            onlooker.tell(format!("  {} stands still", self.me));
            onlooker.runs(false);
            onlooker.forget(&self.me);
        }
        self.frozen.store(true, Ordering::Relaxed);
        sleep(length).await;
        {
            let mut onlooker = self.onlooker.lock();
            onlooker.tell(format!("  {} runs again", self.me));
            onlooker.runs(true);
        }
        self.frozen.store(false, Ordering::Relaxed);
        self.thawed.notify_waiters();
    }

    /// At once, unless the process stands still.
    async fn runs(&self) {
        while self.frozen.load(Ordering::Relaxed) {
            self.thawed.notified().await;
        }
    }

    /// A client whose every word goes over this line. `elected` says whether
    /// the process has to hold a Lease to write.
    pub fn client(self: &Arc<Self>, to: Client, elected: bool) -> Client {
        let line = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (line, to) = (Arc::clone(&line), to.clone());
            async move {
                if line.frozen.load(Ordering::Relaxed) {
                    line.runs().await;
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
                    line.onlooker.lock().request(&line.me, elected, &method, &path);
                }
                let answer = to.send(request).await?;
                line.runs().await;
                let listed = method == Method::GET && !watches && answer.status().is_success();
                if let Some(of) = collection.as_ref().filter(|_| listed) {
                    line.onlooker.lock().told(&line.me, of, None);
                }
                if method != Method::GET && !answer.status().is_success() {
                    let status = answer.status().as_u16();
                    line.onlooker.lock().tell(format!("      {}: {method} {path}: {status}", line.me));
                }
                Ok(answer.map(|body| match watches {
                    false => Body::new(body),
                    true => Body::from_stream(body.into_data_stream().then(move |frame| {
                        let (line, of) = (Arc::clone(&line), collection.clone());
                        async move {
                            line.runs().await;
                            if let (Some(of), Ok(frame)) = (of, &frame) {
                                line.onlooker.lock().told(&line.me, &of, Some(version(frame).unwrap_or(0)));
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

/// Of the object that a watch tells of: the first that its JSON names.
fn version(frame: &[u8]) -> Option<u64> {
    const FIELD: &[u8] = b"\"resourceVersion\":\"";
    let at = frame.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len();
    let digits = frame[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}
