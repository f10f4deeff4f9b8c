//! Any HTTP service with JSON responses: one number, at a JSON pointer.
//!
//! With GET the query is appended to the address, with POST it is the body. The
//! number may be a string; `null` is no data. Of the response only the path to the
//! number is parsed.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Credentials, MeasureContext, MeasurementKind, MetricQuery, MetricSource, Query, SupportedForms,
    http::{self, BodyError, ClientConfigError, HttpError},
    single_flight::SingleFlight,
};
use crate::{
    analysis::measurement::Measurement,
    api::analysis_template::{MetricProvider, WebMethod},
    tenancy::TenantAddresses,
};

pub const SUPPORTED_FORMS: SupportedForms = SupportedForms::of(&[MeasurementKind::Scalar]);

/// Of the name of a field in a message, in characters.
const MAX_SHOWN_FIELD: usize = 40;

/// In bytes: one number is wanted.
const MAX_ANSWER: usize = 256 << 10;

pub struct Web {
    client: reqwest::Client,
    address: String,
    /// For messages: without user and password.
    redacted_url: String,
    single_flight: SingleFlight<JsonRequest, Result<Arc<[u8]>, WebError>>,
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
    #[error("responded with more than {} KiB; query for less than all of it", MAX_ANSWER >> 10)]
    TooLarge,
    #[error("returned invalid JSON: {0}")]
    InvalidResponse(String),
    #[error("returned nothing {at}; correct provider.web.valueAt: there is {has}")]
    PathNotFound { at: String, has: String },
    #[error("returned {found} {at}, which is not a number; correct provider.web.valueAt")]
    NotANumber { at: String, found: &'static str },
}

impl Web {
    pub fn new(
        provider: &MetricProvider,
        credentials: &Credentials,
        addresses: &TenantAddresses,
    ) -> Result<Self, ClientConfigError> {
        Ok(Self {
            client: http::client_of(provider, credentials, addresses)?,
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

async fn send_with_retries(client: reqwest::Client, request: JsonRequest) -> Result<Arc<[u8]>, WebError> {
    let is_transient =
        |failure: &WebError| matches!(failure, WebError::Http(http_error) if http_error.is_transient());
    http::with_retries(|| send_once(&client, &request), is_transient).await.map(Arc::from)
}

async fn send_once(client: &reqwest::Client, request: &JsonRequest) -> Result<Vec<u8>, WebError> {
    let builder = match &request.body {
        None => client.get(&request.address),
        Some(body) => {
            client.post(&request.address).header(CONTENT_TYPE, "application/json").body(body.clone())
        }
    };
    let sent = builder.header(ACCEPT, "application/json").send().await;
    let response = sent.map_err(|error| HttpError::from(&error))?;
    let status = response.status();
    if !status.is_success() {
        return Err(HttpError::status(status, None).into());
    }
    http::body(response, MAX_ANSWER).await.map_err(|error| match error {
        BodyError::TooLarge => WebError::TooLarge,
        BodyError::Connection(error) => HttpError::from(&error).into(),
    })
}

/// One level of a response; its parts are not parsed.
type Fields<'r> = BTreeMap<Cow<'r, str>, &'r RawValue>;
type Items<'r> = Vec<&'r RawValue>;

fn parse_number(response: &[u8], pointer: &str) -> Result<Measurement, WebError> {
    let at = || match pointer {
        "" => "as a whole".to_owned(),
        pointer => format!("at {pointer}"),
    };
    let response: &RawValue =
        serde_json::from_slice(response).map_err(|error| WebError::InvalidResponse(error.to_string()))?;
    let Some(value) = find(response, pointer) else {
        return Err(WebError::PathNotFound { at: at(), has: describe_fields(response) });
    };
    let number = match value.get().as_bytes() {
        b"null" => return Ok(Measurement::NoData),
        [b'"', ..] => parse::<Cow<'_, str>>(value).and_then(|text| text.trim().parse().ok()),
        _ => parse::<f64>(value),
    };
    match number {
        // The result of a division by zero requests.
        Some(number) if number.is_nan() => Ok(Measurement::NoData),
        Some(number) => Ok(Measurement::Scalar(number)),
        None => Err(WebError::NotANumber { at: at(), found: json_type(value) }),
    }
}

/// By a JSON pointer (RFC 6901).
fn find<'r>(response: &'r RawValue, pointer: &str) -> Option<&'r RawValue> {
    let mut value = response;
    let mut tokens = pointer.split('/');
    if !tokens.next().unwrap_or_default().is_empty() {
        return None;
    }
    for token in tokens {
        let token = token.replace("~1", "/").replace("~0", "~");
        value = match value.get().as_bytes().first()? {
            b'{' => parse::<Fields<'r>>(value)?.remove(token.as_str())?,
            b'[' => parse::<Items<'r>>(value)?.get(token.parse::<usize>().ok()?).copied()?,
            _ => return None,
        };
    }
    Some(value)
}

fn parse<'r, T: Deserialize<'r>>(value: &'r RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

fn json_type(value: &RawValue) -> &'static str {
    match value.get().as_bytes() {
        b"null" => "null",
        b"true" | b"false" => "true or false",
        [b'"', ..] => "a text",
        [b'[', ..] => "a list",
        [b'{', ..] => "an object",
        _ => "a number",
    }
}

/// The top level of a response, for the error message.
fn describe_fields(response: &RawValue) -> String {
    let fields = parse::<Fields<'_>>(response).unwrap_or_default();
    if !fields.is_empty() {
        let short = |name: &str| name.chars().take(MAX_SHOWN_FIELD).collect::<String>();
        let names: Vec<String> = fields.keys().take(8).map(|name| format!("/{}", short(name))).collect();
        return names.join(", ");
    }
    match parse::<Items<'_>>(response).unwrap_or_default().len() {
        0 => format!("{} only", json_type(response)),
        items => format!("/0 to /{}", items - 1),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse_number(response: &Value, pointer: &str) -> Result<Measurement, WebError> {
        super::parse_number(response.to_string().as_bytes(), pointer)
    }

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
        let odd = json!({"a/b": {"": {"~x": [-2]}}});
        assert_eq!(parse_number(&odd, "/a~1b//~0x/0"), Ok(Measurement::Scalar(-2.0)));
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
