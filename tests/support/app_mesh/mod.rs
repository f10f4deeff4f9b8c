//! App Mesh, as its API is documented: every operation that Serin uses, at
//! its true path (a route is under the singular `virtualRouter`), with its true
//! errors and statuses. Contents and validation are in [`store`].

mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::aws::{Account, Keys};
use serin::routing::AppMeshOptions;
use tokio_util::task::AbortOnDropHandle;

pub use store::Path;
use store::{AppMeshError, Store};

/// The mesh that is there; others are not.
pub const MESH: &str = "shop-mesh";

/// The account of the mesh.
pub const OWNER: &str = "123456789012";

/// Answers until it is dropped.
pub struct AppMeshServer {
    shared: Arc<Shared>,
    pub url: String,
    _serving: AbortOnDropHandle<()>,
}

struct Shared {
    store: Mutex<Store>,
    /// Requests, as `GET virtualNodes/web`.
    requests: Mutex<Vec<String>>,
    /// Errors for the next requests, or for those whose path has this suffix.
    faults: Mutex<Vec<Fault>>,
    /// The page size of lists.
    page: Mutex<usize>,
    /// Accepted access key IDs; empty: any.
    access_keys: Mutex<Vec<&'static str>>,
    /// Requests are not answered.
    hangs: AtomicBool,
}

#[derive(Clone)]
pub struct Fault {
    pub method: Method,
    pub path: &'static str,
    pub code: &'static str,
    pub times: u32,
}

impl AppMeshServer {
    pub fn start() -> Self {
        Self::start_as(MESH, OWNER)
    }

    /// With another mesh of another account.
    pub fn start_as(mesh: &'static str, owner: &'static str) -> Self {
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new(mesh, owner)),
            requests: Mutex::default(),
            faults: Mutex::default(),
            page: Mutex::new(100),
            access_keys: Mutex::default(),
            hangs: AtomicBool::new(false),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener of tokio's");
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.expect("serve") });
        Self { shared, url, _serving: AbortOnDropHandle::new(serving) }
    }

    /// Options to call this server, without caching.
    pub fn options(&self) -> AppMeshOptions {
        let (access_key_id, secret_access_key) = ("AKIATEST".to_owned(), "secret".to_owned());
        let keys = Some(Keys { access_key_id, secret_access_key, session_token: None });
        let (region, endpoint) = (Some("eu-west-1".to_owned()), Some(self.url.clone()));
        AppMeshOptions {
            mesh: Some(MESH.to_owned()),
            cache_ttl: Duration::ZERO,
            account: Account { region, endpoint, keys, ..Account::default() },
            ..AppMeshOptions::default()
        }
    }

    /// How long a write takes to show.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.store.lock().delay = delay;
    }

    /// Other access key IDs are refused from now on.
    pub fn accept_only(&self, access_key_id: &'static str) {
        *self.shared.access_keys.lock() = vec![access_key_id];
    }

    pub fn hang(&self, hangs: bool) {
        self.shared.hangs.store(hangs, Ordering::Relaxed);
    }

    pub fn set_page(&self, page: usize) {
        *self.shared.page.lock() = page;
    }

    /// How many routes a router may have.
    pub fn set_quota(&self, routes: usize) {
        self.shared.store.lock().quota = routes;
    }

    pub fn fail(&self, fault: Fault) {
        self.shared.faults.lock().push(fault);
    }

    /// No more of those.
    pub fn clear_faults(&self) {
        self.shared.faults.lock().clear();
    }

    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().clone()
    }

    /// How many of them were writes.
    pub fn writes(&self) -> usize {
        self.requests().iter().filter(|request| !request.starts_with("GET")).count()
    }

    /// A change by a user outside this API.
    pub fn as_user<T>(&self, work: impl FnOnce(&mut MeshUser<'_>) -> T) -> T {
        work(&mut MeshUser(&mut self.shared.store.lock()))
    }
}

pub struct MeshUser<'a>(&'a mut Store);

impl MeshUser<'_> {
    pub fn find(&self, path: &Path) -> Option<(Value, BTreeMap<String, String>)> {
        self.0.latest(path)
    }

    /// Everything that is there.
    pub fn all(&self) -> Vec<Path> {
        self.0.all()
    }

    /// Everything that it has been.
    pub fn history(&self, path: &Path) -> Vec<Value> {
        self.0.history.iter().filter(|(of, _)| of == path).map(|(_, spec)| spec.clone()).collect()
    }

    pub fn create(&mut self, path: &Path, spec: Value, tags: BTreeMap<String, String>) {
        let body = json!({"spec": spec, "tags": tags.iter().map(|(key, value)| json!({"key": key, "value": value})).collect::<Vec<_>>()});
        self.0.create(path, &body).unwrap_or_else(|refusal| panic!("{path:?}: {}", refusal.message));
    }

    pub fn update(&mut self, path: &Path, spec: Value) {
        let written = self.0.update(path, &json!({ "spec": spec }));
        written.unwrap_or_else(|refusal| panic!("{path:?}: {}", refusal.message));
    }

    pub fn tag(&mut self, path: &Path, tags: &BTreeMap<String, String>) {
        let arn = self.0.arn(path);
        self.0.tag(&arn, tags.clone()).unwrap_or_else(|refusal| panic!("{path:?}: {}", refusal.message));
    }

    /// With whatever leads to it, which goes first.
    pub fn delete(&mut self, path: &Path) {
        for user in self.0.users(path) {
            self.delete(&user);
        }
        if self.0.latest(path).is_some() {
            self.0.delete(path).unwrap_or_else(|refusal| panic!("{path:?}: {}", refusal.message));
        }
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    while shared.hangs.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let signature = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let signer =
        signature.and_then(|text| text.split_once("Credential=")?.1.split('/').next()).unwrap_or_default();
    let known = shared.access_keys.lock().clone();
    let is_known = known.is_empty() || known.contains(&signer);
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap_or_default();
    let body = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body) };
    let answered = match body {
        // As the front end of AWS does.
        Ok(_) if !is_known => Err(AppMeshError {
            code: "UnrecognizedClientException",
            message: "The security token included in the request is invalid.".to_owned(),
        }),
        Ok(body) => shared.answer(&method, &uri.to_string(), &body),
        Err(_) => Err(AppMeshError::bad_request("the body is no JSON")),
    };
    let (status, code, body) = match answered {
        Ok(body) => (StatusCode::OK, None, body),
        Err(AppMeshError { code, message }) => (status(code), Some(code), json!({ "message": message })),
    };
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    if let Some(code) = code {
        response = response.header("x-amzn-errortype", code);
    }
    response.body(Body::from(body.to_string())).expect("a response")
}

fn status(code: &str) -> StatusCode {
    match code {
        "NotFoundException" => StatusCode::NOT_FOUND,
        "ConflictException" | "ResourceInUseException" => StatusCode::CONFLICT,
        "ForbiddenException" | "UnrecognizedClientException" => StatusCode::FORBIDDEN,
        "InternalServerErrorException" => StatusCode::INTERNAL_SERVER_ERROR,
        "ServiceUnavailableException" => StatusCode::SERVICE_UNAVAILABLE,
        "TooManyRequestsException" => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::BAD_REQUEST,
    }
}

impl Shared {
    fn answer(&self, method: &Method, uri: &str, body: &Value) -> Result<Value, AppMeshError> {
        let url = reqwest::Url::parse(&format!("http://appmesh{uri}"))
            .map_err(|_| AppMeshError::bad_request("no URL"))?;
        let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        let segments: Vec<&str> = url.path().trim_start_matches('/').split('/').collect();
        self.requests.lock().push(format!("{method} {}", segments[1..].join("/")));
        for fault in self.faults.lock().iter_mut() {
            let meets = fault.method == *method && url.path().ends_with(fault.path);
            if meets && fault.times > 0 {
                fault.times -= 1;
                return Err(AppMeshError { code: fault.code, message: "as the test wants it".to_owned() });
            }
        }
        let mut store = self.store.lock();
        if segments[0] != "v20190125" {
            return Err(AppMeshError::bad_request("no such version"));
        }
        match (&segments[1..], method) {
            (["meshes"], &Method::GET) => self.page("meshes", vec![store.mesh_reference()], &query),
            (["meshes", mesh, "virtualGateways"], &Method::GET) => {
                store.enter(mesh, query.get("meshOwner").map(String::as_str))?;
                self.page("virtualGateways", Vec::new(), &query)
            }
            (["tags"], &Method::GET) if query["resourceArn"] == store.mesh_arn() => {
                self.page("tags", vec![json!({"key": "team", "value": "shop"})], &query)
            }
            (["tags"], &Method::GET) => {
                let tags = store.tags(&query["resourceArn"])?;
                let tags = tags.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
                self.page("tags", tags, &query)
            }
            (["tag"], &Method::PUT) => {
                store.tag(&query["resourceArn"], store::tags_of(body)?).map(|()| json!({}))
            }
            (["untag"], &Method::PUT) => {
                let keys = body["tagKeys"]
                    .as_array()
                    .ok_or_else(|| AppMeshError::bad_request("tagKeys is missing"))?;
                let keys: Vec<_> = keys.iter().filter_map(Value::as_str).collect();
                store.untag(&query["resourceArn"], &keys).map(|()| json!({}))
            }
            (["meshes", mesh, rest @ ..], method) => {
                store.enter(mesh, query.get("meshOwner").map(String::as_str))?;
                let (path, is_named) =
                    Path::read(rest).ok_or_else(|| AppMeshError::bad_request("no such path"))?;
                match (is_named, method) {
                    (true, &Method::GET) => store.describe(&path),
                    (true, &Method::PUT) => store.update(&path, body),
                    (true, &Method::DELETE) => store.delete(&path),
                    (false, &Method::PUT) => store.create(&path.named(body)?, body),
                    (false, &Method::GET) => self.page(path.plural(), store.list(&path)?, &query),
                    _ => Err(AppMeshError::bad_request("no such operation")),
                }
            }
            _ => Err(AppMeshError::bad_request("no such operation")),
        }
    }

    fn page(
        &self,
        name: &str,
        items: Vec<Value>,
        query: &BTreeMap<String, String>,
    ) -> Result<Value, AppMeshError> {
        let limit = query.get("limit").map_or(Ok(100), |limit| limit.parse::<usize>());
        let limit = limit.ok().filter(|limit| (1..=100).contains(limit));
        let limit = limit
            .ok_or_else(|| AppMeshError::bad_request("limit is not from 1 to 100"))?
            .min(*self.page.lock());
        let from = query.get("nextToken").map_or(Ok(0), |token| token.parse::<usize>());
        let from = from.map_err(|_| AppMeshError::bad_request("nextToken is none of ours"))?;
        let more = items.len() > from + limit;
        let mut page = json!({ name: items.into_iter().skip(from).take(limit).collect::<Vec<_>>() });
        if more {
            page["nextToken"] = json!((from + limit).to_string());
        }
        Ok(page)
    }
}
