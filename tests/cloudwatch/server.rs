//! CloudWatch and STS on loopback, over the protocols that Amazon's SDK speaks:
//! `rpc-v2-cbor` and XML.
//!
//! It keeps datapoints and computes every response from them: statistics by
//! period, metric math, pages. It validates as CloudWatch documents it, checks
//! signatures, and can be set to fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::cbor;
use crate::math::{EvalContext, Series, evaluate};

/// Keys that anybody knows.
pub const KEY: &str = "AKIATEST";
pub const ROLE: &str = "arn:aws:iam::123456789012:role/watcher";
pub const EXTERNAL_ID: &str = "between-us";

pub struct Server {
    pub url: String,
    state: Arc<Mutex<ServerState>>,
    _task: AbortOnDropHandle<()>,
}

/// Its data, and the faults to inject.
#[derive(Default)]
pub struct ServerState {
    data: Vec<Datum>,
    requests: Vec<Request>,
    assumed: usize,
    /// Number of requests to reject with Throttling.
    pub throttle: usize,
    /// Results about this metric have this status.
    pub status: Option<(String, &'static str)>,
    /// Datapoints per page.
    pub page: Option<usize>,
    /// Every page has one after it.
    pub endless: bool,
}

struct Datum {
    metric: String,
    at: i64,
    value: f64,
}

/// A valid request for data.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
    /// Who signed it, for which region.
    pub key: String,
    pub region: String,
}

impl Request {
    pub fn queries(&self) -> &Vec<Value> {
        self.body["MetricDataQueries"].as_array().expect("queries")
    }
}

struct ErrorReply {
    status: u16,
    code: &'static str,
    message: String,
}

fn error_reply(status: u16, code: &'static str, message: impl Into<String>) -> ErrorReply {
    ErrorReply { status, code, message: message.into() }
}

fn invalid(message: impl Into<String>) -> ErrorReply {
    error_reply(400, "ValidationError", message)
}

impl Server {
    pub async fn start() -> Server {
        let state = Arc::new(Mutex::new(ServerState::default()));
        let app = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serve = async move { axum::serve(listener, app).await.expect("a server") };
        Server { url, state, _task: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }

    /// A datapoint of a metric: namespace, name and dimensions in the order of
    /// their names, such as `shop/errors{TargetGroup=canary}`.
    pub fn put(&self, metric: &str, at: i64, value: f64) {
        self.state.lock().data.push(Datum { metric: metric.to_owned(), at, value });
    }

    pub fn configure(&self, change: impl FnOnce(&mut ServerState)) {
        change(&mut self.state.lock());
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.clone()
    }

    /// How often a role was assumed.
    pub fn assumed(&self) -> usize {
        self.state.lock().assumed
    }
}

async fn handle(
    State(state): State<Arc<Mutex<ServerState>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let mut state = state.lock();
    let signed = signer(&headers);
    if uri.path() == "/" {
        return sts(&mut state, &String::from_utf8_lossy(&body));
    }
    let (status, content, error) = match metric_data(&mut state, &uri, headers, &body, signed) {
        Ok(content) => (200, content, None),
        Err(ErrorReply { status, code, message }) => {
            let content = json!({"__type": format!("com.amazonaws.cloudwatch#{code}"), "message": message});
            (status, content, Some(format!("{code};Sender")))
        }
    };
    let mut response = Response::builder().status(status).header("smithy-protocol", "rpc-v2-cbor");
    response = response.header("content-type", "application/cbor");
    if let Some(error) = error {
        response = response.header("x-amzn-query-error", error);
    }
    response.body(cbor::encode(&content).into()).expect("a response")
}

/// Key and region of `AWS4-HMAC-SHA256 Credential=KEY/DEFAULT_MAX_AGE_SECS/REGION/SERVICE/…`.
fn signer(headers: &HeaderMap) -> Option<(String, String)> {
    let authorization = headers.get("authorization")?.to_str().ok()?;
    let mut parts = authorization.strip_prefix("AWS4-HMAC-SHA256 Credential=")?.split('/');
    Some((parts.next()?.to_owned(), parts.nth(1)?.to_owned()))
}

fn sts(state: &mut ServerState, form: &str) -> Response<Body> {
    let encoded_role = ROLE.replace(':', "%3A").replace('/', "%2F");
    let right = [
        "Action=AssumeRole".to_owned(),
        format!("RoleArn={encoded_role}"),
        format!("ExternalId={EXTERNAL_ID}"),
    ];
    let given: Vec<&str> = form.split('&').collect();
    if !right.iter().all(|field| given.contains(&field.as_str())) {
        let xml = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>you may not</Message></Error></ErrorResponse>";
        return Response::builder().status(403).body(xml.into()).expect("a response");
    }
    state.assumed += 1;
    let xml = format!(
        "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
         <AccessKeyId>ASIA{}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
         <Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>",
        state.assumed
    );
    Response::builder().header("content-type", "text/xml").body(xml.into()).expect("a response")
}

fn metric_data(
    state: &mut ServerState,
    uri: &Uri,
    headers: HeaderMap,
    body: &[u8],
    signed: Option<(String, String)>,
) -> Result<Value, ErrorReply> {
    if uri.path() != "/service/GraniteServiceVersion20100801/operation/GetMetricData" {
        return Err(error_reply(404, "UnknownOperationException", uri.path()));
    }
    let Some((key, region)) = signed else {
        return Err(error_reply(403, "MissingAuthenticationToken", "who are you?"));
    };
    if key != KEY && !key.starts_with("ASIA") {
        return Err(error_reply(
            403,
            "InvalidClientTokenId",
            "The security token included in the request is invalid.",
        ));
    }
    let body = cbor::decode(body);
    state.requests.push(Request { path: uri.path().to_owned(), headers, body: body.clone(), key, region });
    if state.throttle > 0 {
        state.throttle -= 1;
        return Err(error_reply(400, "Throttling", "Rate exceeded"));
    }
    let time = |field: &str| {
        body[field].as_f64().map(|at| at as i64).ok_or_else(|| invalid(format!("{field} is missing")))
    };
    let (start, end) = (time("StartTime")?, time("EndTime")?);
    if start >= end {
        return Err(invalid("The parameter StartTime must be less than the parameter EndTime."));
    }
    let queries = body["MetricDataQueries"].as_array().cloned().unwrap_or_default();
    if queries.is_empty() || queries.len() > 500 {
        return Err(invalid("The collection MetricDataQueries must not have a size greater than 500."));
    }
    let results = results(state, &queries, start, end)?;
    Ok(page(state, &body, results))
}

/// Every series that is to be returned, by its query.
fn results(
    state: &ServerState,
    queries: &[Value],
    start: i64,
    end: i64,
) -> Result<Vec<(Value, Series)>, ErrorReply> {
    let mut ids = BTreeMap::new();
    let mut metrics = Vec::new();
    let mut shortest = i64::MAX;
    for query in queries.iter().filter(|query| !query["MetricStat"].is_null()) {
        let stat = &query["MetricStat"];
        let period = stat["Period"].as_i64().ok_or_else(|| invalid("Period is missing"))?;
        if ![1, 5, 10, 20, 30].contains(&period) && period % 60 != 0 {
            return Err(invalid("Period must be 1, 5, 10, 20, 30 or a multiple of 60"));
        }
        shortest = shortest.min(period);
        let series = statistic(state, query, period, start, end)?;
        metrics.push(series.clone());
        insert(&mut ids, query, series)?;
    }
    let periods = (start..end).step_by(usize::try_from(shortest.clamp(1, 86_400)).unwrap_or(60)).collect();
    let known = EvalContext { ids: &ids.clone(), metrics, periods };
    for query in queries.iter().filter(|query| !query["Expression"].is_null()) {
        let expression = query["Expression"].as_str().unwrap_or_default();
        if expression.len() > 2048 {
            return Err(invalid("Expression is too long"));
        }
        insert(&mut ids, query, evaluate(expression, &known).map_err(invalid)?)?;
    }
    let returned = queries.iter().filter(|query| query["ReturnData"] != json!(false));
    let series = |query: &Value| ids[query["Id"].as_str().unwrap_or_default()].clone();
    Ok(returned.map(|query| (query.clone(), series(query))).collect())
}

fn insert(ids: &mut BTreeMap<String, Series>, query: &Value, series: Series) -> Result<(), ErrorReply> {
    let id = query["Id"].as_str().unwrap_or_default();
    let lower = id.starts_with(|c: char| c.is_ascii_lowercase());
    if !lower || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(invalid(format!("{id:?} is no valid Id")));
    }
    match ids.insert(id.to_owned(), series) {
        None => Ok(()),
        Some(_) => {
            Err(invalid(format!("The values for parameter id in MetricDataQueries are not unique: {id}")))
        }
    }
}

/// `namespace/name{dimensions}` as [`Server::put`] has it.
fn metric_of(query: &Value) -> String {
    let metric = &query["MetricStat"]["Metric"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut dimensions: Vec<String> = metric["Dimensions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|dimension| format!("{}={}", text(&dimension["Name"]), text(&dimension["Value"])))
        .collect();
    dimensions.sort();
    let account = query["AccountId"].as_str().map(|account| format!("{account}:")).unwrap_or_default();
    format!(
        "{account}{}/{}{{{}}}",
        text(&metric["Namespace"]),
        text(&metric["MetricName"]),
        dimensions.join(",")
    )
}

fn statistic(
    state: &ServerState,
    query: &Value,
    period: i64,
    start: i64,
    end: i64,
) -> Result<Series, ErrorReply> {
    let metric = metric_of(query);
    let stat = query["MetricStat"]["Stat"].as_str().unwrap_or_default();
    let mut by_period: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for datum in state.data.iter().filter(|datum| datum.metric == metric) {
        let began = datum.at.div_euclid(period) * period;
        if (start..end).contains(&began) {
            by_period.entry(began).or_default().push(datum.value);
        }
    }
    by_period
        .into_iter()
        .map(|(at, mut values)| {
            values.sort_by(f64::total_cmp);
            let (sum, count) = (values.iter().sum::<f64>(), values.len() as f64);
            let within = |bound: &str| {
                let (from, to) = bound.split_once(':')?;
                let number = |text: &str, default: f64| {
                    if text.is_empty() { Some(default) } else { text.parse().ok() }
                };
                let (from, to) = (number(from, f64::NEG_INFINITY)?, number(to, f64::INFINITY)?);
                Some(values.iter().filter(|value| **value > from && **value <= to).count() as f64)
            };
            let value = match stat {
                "Sum" => Some(sum),
                "SampleCount" => Some(count),
                "Average" => Some(sum / count),
                "Minimum" => values.first().copied(),
                "Maximum" => values.last().copied(),
                _ => match (
                    stat.strip_prefix('p'),
                    stat.strip_prefix("TC(").and_then(|rest| rest.strip_suffix(')')),
                ) {
                    (Some(percent), _) => percent.parse().ok().map(|percent: f64| {
                        let rank = (percent / 100.0 * count).ceil().max(1.0) as usize;
                        values[rank.min(values.len()) - 1]
                    }),
                    (None, Some(bounds)) => within(bounds),
                    (None, None) => None,
                },
            };
            value.map(|value| (at, value)).ok_or_else(|| invalid(format!("{stat:?} is no statistic")))
        })
        .collect()
}

/// The datapoints from the page token on, newest first.
fn page(state: &ServerState, body: &Value, results: Vec<(Value, Series)>) -> Value {
    let from: usize = body["NextToken"].as_str().map_or(0, |token| token.parse().expect("a token of ours"));
    let until = state.page.map_or(usize::MAX, |page| from + page);
    let (mut at, mut page) = (0, Vec::new());
    for (query, series) in results {
        let begins = at;
        let points: Vec<(i64, f64)> = series
            .into_iter()
            .rev()
            .filter(|_| {
                at += 1;
                (from..until).contains(&(at - 1))
            })
            .collect();
        if (at <= from && from > 0 && begins != at) || begins >= until {
            continue;
        }
        let metric = metric_of(&query);
        let forced =
            state.status.as_ref().filter(|(of, _)| metric.contains(of.as_str())).map(|(_, status)| *status);
        let status = forced.unwrap_or(if at > until { "PartialData" } else { "Complete" });
        let (timestamps, values): (Vec<i64>, Vec<f64>) = points.into_iter().unzip();
        page.push(json!({
            "Id": query["Id"], "Label": query["Label"].as_str().unwrap_or("a label"),
            "Timestamps": timestamps, "Values": values, "StatusCode": status,
        }));
    }
    let mut answer = json!({"MetricDataResults": page, "Messages": []});
    if at > until || state.endless {
        answer["NextToken"] = json!(until.min(at).to_string());
    }
    answer
}
