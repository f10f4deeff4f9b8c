//! Any HTTP service that answers in JSON: one number, at a place in the answer.
//!
//! With GET the query is the rest of the address, with POST it is the body. The
//! number may be written as text; `null` there is how a service says that it
//! knows nothing.

use std::sync::Arc;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::Value;

use super::{
    Abilities, Ask, Credentials, Form, MetricSource, Query, View,
    http::{self, BadServer, Unanswered},
    in_flight::InFlight,
};
use crate::{
    analysis::measurement::Measurement,
    api::analysis_template::{MetricProvider, WebMethod},
};

pub const ABILITIES: Abilities = Abilities::of(&[Form::Scalar]);

/// One such service.
pub struct Web {
    client: reqwest::Client,
    address: String,
    /// As it may be shown: without user and password.
    shown: String,
    in_flight: InFlight<Request, Result<Arc<Value>, Failure>>,
}

/// What makes one request another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Request {
    address: String,
    body: Option<String>,
}

/// Why there is no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
    #[error("gave no answer in JSON: {0}")]
    Garbled(String),
    #[error("answered with nothing {at}; correct provider.web.valueAt: there is {has}")]
    Nowhere { at: String, has: String },
    #[error("answered {found} {at}, which is no number; correct provider.web.valueAt")]
    NoNumber { at: String, found: &'static str },
}

impl Web {
    /// The service that a provider names.
    pub fn new(provider: &MetricProvider, credentials: &Credentials) -> Result<Self, BadServer> {
        Ok(Self {
            client: http::client_of(provider, credentials)?,
            address: provider.address.clone().unwrap_or_default(),
            shown: http::shown(provider)?,
            in_flight: InFlight::default(),
        })
    }

    async fn answer(&self, query: &str, provider: &MetricProvider) -> Result<Measurement, Failure> {
        let web = provider.web.clone().unwrap_or_default();
        let request = match web.method.unwrap_or(WebMethod::Get) {
            WebMethod::Get => Request { address: joined(&self.address, query), body: None },
            WebMethod::Post => Request { address: self.address.clone(), body: Some(query.to_owned()) },
        };
        let asking = ask(self.client.clone(), request.clone());
        let answer = self.in_flight.ask(request, asking).await?;
        number(&answer, web.value_at.as_deref().unwrap_or_default())
    }
}

#[async_trait]
impl MetricSource for Web {
    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    async fn measure(&self, ask: &Ask, _: &View<'_>) -> Measurement {
        let Query::Scalar(query) = &ask.query else {
            return Measurement::Unavailable { why: "a web service is asked for one number only".to_owned() };
        };
        let answer = self.answer(query, &ask.provider).await;
        answer.unwrap_or_else(|failure| Measurement::Unavailable { why: format!("{} {failure}", self.shown) })
    }
}

/// The query goes on where the address ends.
fn joined(address: &str, query: &str) -> String {
    let query = query.trim();
    match query.strip_prefix('/') {
        _ if query.starts_with('?') => format!("{address}{query}"),
        Some(path) => format!("{}/{path}", address.trim_end_matches('/')),
        None => format!("{}/{query}", address.trim_end_matches('/')),
    }
}

async fn ask(client: reqwest::Client, request: Request) -> Result<Arc<Value>, Failure> {
    let may_pass =
        |failure: &Failure| matches!(failure, Failure::Unanswered(unanswered) if unanswered.may_pass());
    http::patiently(|| try_once(&client, &request), may_pass).await.map(Arc::new)
}

async fn try_once(client: &reqwest::Client, request: &Request) -> Result<Value, Failure> {
    let builder = match &request.body {
        None => client.get(&request.address),
        Some(body) => {
            client.post(&request.address).header(CONTENT_TYPE, "application/json").body(body.clone())
        }
    };
    let sent = builder.header(ACCEPT, "application/json").send().await;
    let response = sent.map_err(|error| Unanswered::from(&error))?;
    let status = response.status();
    let body = http::whole(response).await?;
    if !status.is_success() {
        return Err(Unanswered::status(status, None).into());
    }
    serde_json::from_slice(&body).map_err(|error| Failure::Garbled(error.to_string()))
}

fn number(answer: &Value, pointer: &str) -> Result<Measurement, Failure> {
    let at = || match pointer {
        "" => "as a whole".to_owned(),
        pointer => format!("at {pointer}"),
    };
    let Some(found) = answer.pointer(pointer) else {
        return Err(Failure::Nowhere { at: at(), has: contents(answer) });
    };
    let number = match found {
        Value::Null => return Ok(Measurement::NoData),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    match number {
        // What is not a number is how a division by no requests looks.
        Some(number) if number.is_nan() => Ok(Measurement::NoData),
        Some(number) => Ok(Measurement::Scalar(number)),
        None => Err(Failure::NoNumber { at: at(), found: kind(found) }),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// What an answer has at its top, for somebody who looks for the way in.
fn contents(answer: &Value) -> String {
    match answer {
        Value::Object(fields) if !fields.is_empty() => {
            let names: Vec<String> = fields.keys().take(8).map(|name| format!("/{name}")).collect();
            names.join(", ")
        }
        Value::Array(items) if !items.is_empty() => format!("/0 to /{}", items.len() - 1),
        other => format!("{} only", kind(other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_query_goes_on_where_the_address_ends() {
        assert_eq!(joined("http://a/api/", "/score?app=web"), "http://a/api/score?app=web");
        assert_eq!(joined("http://a/api", "score"), "http://a/api/score");
        assert_eq!(joined("http://a/api", "?app=web\n"), "http://a/api?app=web");
    }

    #[test]
    fn a_number_is_found_wherever_it_is() {
        let answer = json!({"data": [{"value": "1.5"}, {"value": null}, {"value": []}]});
        assert_eq!(number(&answer, "/data/0/value"), Ok(Measurement::Scalar(1.5)));
        assert_eq!(number(&answer, "/data/1/value"), Ok(Measurement::NoData));
        assert_eq!(number(&json!(7), ""), Ok(Measurement::Scalar(7.0)));
        assert_eq!(number(&json!("NaN"), ""), Ok(Measurement::NoData));
    }

    #[test]
    fn a_wrong_way_in_says_what_there_is() {
        let answer = json!({"data": [1], "status": "ok"});
        let lost = number(&answer, "/result/0").unwrap_err().to_string();
        assert_eq!(
            lost,
            "answered with nothing at /result/0; correct provider.web.valueAt: there is /data, /status"
        );
        let list = number(&answer, "/data").unwrap_err().to_string();
        assert_eq!(list, "answered a list at /data, which is no number; correct provider.web.valueAt");
    }
}
