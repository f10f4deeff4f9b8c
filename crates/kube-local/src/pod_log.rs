//! `pods/NAME/log`, as kubectl reads it: from the node of this process.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode, Uri, header};
use jiff::SignedDuration;
use serde::Deserialize;
use tokio::time::sleep;

use super::node::log::Excerpt;
use super::server::{Call, Server};
use super::status_error::StatusError;

/// Between two looks at a log that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LogOptions {
    container: Option<String>,
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<usize>,
    since_seconds: Option<i64>,
}

pub fn log(server: &Server, call: &Call, uri: &Uri) -> Result<Response<Body>, StatusError> {
    let Query(options) = Query::<LogOptions>::try_from_uri(uri)
        .map_err(|error| StatusError::bad_request(error.body_text()))?;
    let key = call.key();
    let pod = server.store.get(&call.resource.collection(), &key);
    let pod = pod.ok_or_else(|| StatusError::not_found(&call.resource, &key.name))?;
    let containers = pod.value["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<&str> = containers.iter().filter_map(|container| container["name"].as_str()).collect();
    let container = match (&options.container, names.as_slice()) {
        (Some(named), names) if names.contains(&named.as_str()) => named.clone(),
        (Some(named), _) => {
            let why = format!("container {named} is not valid for pod {}", key.name);
            return Err(StatusError::bad_request(why));
        }
        (None, [only]) => (*only).to_owned(),
        (None, names) => {
            let why = format!(
                "a container name must be specified for pod {}, choose one of: [{}]",
                key.name,
                names.join(" ")
            );
            return Err(StatusError::bad_request(why));
        }
    };
    let Some(node) = server.node() else {
        return Err(StatusError::bad_request("this server runs no node, whose pods would log"));
    };
    let since = options.since_seconds.map(SignedDuration::from_secs);
    let excerpt = Excerpt {
        previous: options.previous,
        after: 0,
        tail: options.tail_lines,
        since: since.and_then(|since| server.clock.now().checked_sub(since).ok()),
        timestamps: options.timestamps,
    };
    let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
    let read = move |excerpt| node.logs().read((&namespace, &name, &container), excerpt);
    let Some((text, next)) = read(excerpt) else {
        let why = match options.previous {
            true => format!("previous terminated container in pod {} not found", key.name),
            false => format!("container in pod {} is waiting to start", key.name),
        };
        return Err(StatusError::bad_request(why));
    };
    let body = match options.follow {
        false => Body::from(text),
        true => {
            let later = stream::unfold((read, next), move |(read, next)| async move {
                sleep(FOLLOW_INTERVAL).await;
                // The pod is gone.
                let (text, next) = read(Excerpt { after: next, tail: None, since: None, ..excerpt })?;
                Some((Ok::<_, Infallible>(Bytes::from(text)), (read, next)))
            });
            let first = stream::iter([Ok(Bytes::from(text))]);
            Body::from_stream(futures::StreamExt::chain(first, later))
        }
    };
    let response = Response::builder().status(StatusCode::OK).header(header::CONTENT_TYPE, "text/plain");
    response.body(body).map_err(StatusError::internal)
}
