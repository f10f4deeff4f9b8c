//! Any HTTP service with JSON responses: one number, at a JSON pointer.
//!
//! With GET the query is appended to the address, with POST it is the body. The
//! number may be a string; `null` is no data.

use std::sync::Arc;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::Value;

use super::{
    Credentials, MeasureContext, MeasurementKind, MetricQuery, MetricSource, Query, SupportedForms,
    http::{self, ClientConfigError, HttpError},
    single_flight::SingleFlight,
};
use crate::{
    analysis::measurement::Measurement,
    api::analysis_template::{MetricProvider, WebMethod},
};

pub const SUPPORTED_FORMS: SupportedForms = SupportedForms::of(&[MeasurementKind::Scalar]);

pub struct Web {
    client: reqwest::Client,
    address: String,
    /// For messages: without user and password.
    redacted_url: String,
    single_flight: SingleFlight<JsonRequest, Result<Arc<Value>, WebError>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct JsonRequest {
    address: String,
    body: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum WebError {
    #[error("{0}")]
    Http(#[from] HttpError),
    #[error("returned invalid JSON: {0}")]
    InvalidResponse(String),
    #[error("returned nothing {at}; correct provider.web.valueAt: there is {has}")]
    PathNotFound { at: String, has: String },
    #[error("returned {found} {at}, which is not a number; correct provider.web.valueAt")]
    NotANumber { at: String, found: &'static str },
}

impl Web {
    pub fn new(provider: &MetricProvider, credentials: &Credentials) -> Result<Self, ClientConfigError> {
        Ok(Self {
            client: http::client_of(provider, credentials)?,
            address: provider.address.clone().unwrap_or_default(),
            redacted_url: http::redacted_url(provider)?,
            single_flight: SingleFlight::default(),
        })
    }

    async fn try_measure(&self, query: &str, provider: &MetricProvider) -> Result<Measurement, WebError> {
        let web = provider.web.clone().unwrap_or_default();
        let request = match web.method.unwrap_or(WebMethod::Get) {
            WebMethod::Get => JsonRequest { address: join_url(&self.address, query), body: None },
            WebMethod::Post => JsonRequest { address: self.address.clone(), body: Some(query.to_owned()) },
        };
        let response = send_with_retries(self.client.clone(), request.clone());
        let response = self.single_flight.run(request, response).await?;
        parse_number(&response, web.value_at.as_deref().unwrap_or_default())
    }
}

#[async_trait]
impl MetricSource for Web {
    fn supported_forms(&self) -> SupportedForms {
        SUPPORTED_FORMS
    }

    async fn measure(&self, metric_query: &MetricQuery, _: &MeasureContext<'_>) -> Measurement {
        let Query::Scalar(query) = &metric_query.query else {
            return Measurement::Unavailable { why: "provider web supports a single value only".to_owned() };
        };
        let measured = self.try_measure(query, &metric_query.provider).await;
        measured.unwrap_or_else(|failure| Measurement::Unavailable {
            why: format!("{} {failure}", self.redacted_url),
        })
    }
}

/// Appends the query to the address.
fn join_url(address: &str, query: &str) -> String {
    let query = query.trim();
    match query.strip_prefix('/') {
        _ if query.starts_with('?') => format!("{address}{query}"),
        Some(path) => format!("{}/{path}", address.trim_end_matches('/')),
        None => format!("{}/{query}", address.trim_end_matches('/')),
    }
}

async fn send_with_retries(client: reqwest::Client, request: JsonRequest) -> Result<Arc<Value>, WebError> {
    let is_transient =
        |failure: &WebError| matches!(failure, WebError::Http(http_error) if http_error.is_transient());
    http::with_retries(|| send_once(&client, &request), is_transient).await.map(Arc::new)
}

async fn send_once(client: &reqwest::Client, request: &JsonRequest) -> Result<Value, WebError> {
    let builder = match &request.body {
        None => client.get(&request.address),
        Some(body) => {
            client.post(&request.address).header(CONTENT_TYPE, "application/json").body(body.clone())
        }
    };
    let sent = builder.header(ACCEPT, "application/json").send().await;
    let response = sent.map_err(|error| HttpError::from(&error))?;
    let status = response.status();
    let body = http::read_all(response).await?;
    if !status.is_success() {
        return Err(HttpError::status(status, None).into());
    }
    serde_json::from_slice(&body).map_err(|error| WebError::InvalidResponse(error.to_string()))
}

fn parse_number(response: &Value, pointer: &str) -> Result<Measurement, WebError> {
    let at = || match pointer {
        "" => "as a whole".to_owned(),
        pointer => format!("at {pointer}"),
    };
    let Some(value) = response.pointer(pointer) else {
        return Err(WebError::PathNotFound { at: at(), has: describe_fields(response) });
    };
    let number = match value {
        Value::Null => return Ok(Measurement::NoData),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    match number {
        // The result of a division by zero requests.
        Some(number) if number.is_nan() => Ok(Measurement::NoData),
        Some(number) => Ok(Measurement::Scalar(number)),
        None => Err(WebError::NotANumber { at: at(), found: json_type(value) }),
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The top level of a response, for the error message.
fn describe_fields(response: &Value) -> String {
    match response {
        Value::Object(fields) if !fields.is_empty() => {
            let names: Vec<String> = fields.keys().take(8).map(|name| format!("/{name}")).collect();
            names.join(", ")
        }
        Value::Array(items) if !items.is_empty() => format!("/0 to /{}", items.len() - 1),
        other => format!("{} only", json_type(other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_query_is_appended_to_the_address() {
        assert_eq!(join_url("http://a/api/", "/score?app=web"), "http://a/api/score?app=web");
        assert_eq!(join_url("http://a/api", "score"), "http://a/api/score");
        assert_eq!(join_url("http://a/api", "?app=web\n"), "http://a/api?app=web");
    }

    #[test]
    fn a_number_is_found_by_its_json_pointer() {
        let response = json!({"data": [{"value": "1.5"}, {"value": null}, {"value": []}]});
        assert_eq!(parse_number(&response, "/data/0/value"), Ok(Measurement::Scalar(1.5)));
        assert_eq!(parse_number(&response, "/data/1/value"), Ok(Measurement::NoData));
        assert_eq!(parse_number(&json!(7), ""), Ok(Measurement::Scalar(7.0)));
        assert_eq!(parse_number(&json!("NaN"), ""), Ok(Measurement::NoData));
    }

    #[test]
    fn a_wrong_json_path_names_the_existing_fields() {
        let response = json!({"data": [1], "status": "ok"});
        let missing = parse_number(&response, "/result/0").unwrap_err().to_string();
        assert_eq!(
            missing,
            "returned nothing at /result/0; correct provider.web.valueAt: there is /data, /status"
        );
        let list = parse_number(&response, "/data").unwrap_err().to_string();
        assert_eq!(list, "returned a list at /data, which is not a number; correct provider.web.valueAt");
    }
}
