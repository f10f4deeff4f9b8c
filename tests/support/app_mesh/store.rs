//! The contents of a mesh, and the validation of App Mesh.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

/// Where something is in its mesh.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    Node(String),
    Router(String),
    Service(String),
    Route { router: String, name: String },
}

pub struct AppMeshError {
    pub code: &'static str,
    pub message: String,
}

impl AppMeshError {
    pub fn bad_request(message: &str) -> Self {
        Self { code: "BadRequestException", message: message.to_owned() }
    }

    fn of(code: &'static str, message: String) -> Self {
        Self { code, message }
    }
}

impl Path {
    /// What follows the mesh in a URL; the name is empty, and the flag false,
    /// where it is for a whole kind.
    pub fn read(segments: &[&str]) -> Option<(Self, bool)> {
        match segments {
            ["virtualRouter", router, "routes", rest @ ..] => {
                let name = one(rest)?;
                Some((Self::Route { router: (*router).to_owned(), name: name.to_owned() }, !name.is_empty()))
            }
            [kind, rest @ ..] => {
                let name = one(rest)?;
                let path = match *kind {
                    "virtualNodes" => Self::Node(name.to_owned()),
                    "virtualRouters" => Self::Router(name.to_owned()),
                    "virtualServices" => Self::Service(name.to_owned()),
                    _ => return None,
                };
                Some((path, !name.is_empty()))
            }
            [] => None,
        }
    }

    /// The same for what a body names.
    pub fn named(&self, body: &Value) -> Result<Self, AppMeshError> {
        let field = match self {
            Self::Node(_) => "virtualNodeName",
            Self::Router(_) => "virtualRouterName",
            Self::Service(_) => "virtualServiceName",
            Self::Route { .. } => "routeName",
        };
        let name = body[field].as_str().filter(|name| (1..=255).contains(&name.len()));
        let name =
            name.ok_or_else(|| AppMeshError::bad_request("the name has not 1 to 255 characters"))?.to_owned();
        Ok(match self {
            Self::Node(_) => Self::Node(name),
            Self::Router(_) => Self::Router(name),
            Self::Service(_) => Self::Service(name),
            Self::Route { router, .. } => Self::Route { router: router.clone(), name },
        })
    }

    pub fn plural(&self) -> &'static str {
        match self {
            Self::Node(_) => "virtualNodes",
            Self::Router(_) => "virtualRouters",
            Self::Service(_) => "virtualServices",
            Self::Route { .. } => "routes",
        }
    }

    fn names(&self) -> Value {
        match self {
            Self::Node(name) => json!({"virtualNodeName": name}),
            Self::Router(name) => json!({"virtualRouterName": name}),
            Self::Service(name) => json!({"virtualServiceName": name}),
            Self::Route { router, name } => json!({"virtualRouterName": router, "routeName": name}),
        }
    }
}

fn one<'a>(rest: &[&'a str]) -> Option<&'a str> {
    match rest {
        [] => Some(""),
        [name] => Some(name),
        _ => None,
    }
}

struct StoredResource {
    spec: Value,
    tags: BTreeMap<String, String>,
    uid: u64,
    version: u64,
    /// The value that is returned until then.
    before: Option<(Instant, Option<(Value, u64)>)>,
}

pub struct Store {
    mesh: &'static str,
    /// The account of the mesh.
    owner: &'static str,
    resources: BTreeMap<Path, StoredResource>,
    /// Requests by client token.
    tokens: BTreeMap<String, (Path, Value)>,
    created: u64,
    /// Every specification that was accepted.
    pub history: Vec<(Path, Value)>,
    pub delay: Duration,
    pub quota: usize,
}

impl Store {
    pub fn new(mesh: &'static str, owner: &'static str) -> Self {
        let (things, tokens) = (BTreeMap::new(), BTreeMap::new());
        Self {
            mesh,
            owner,
            resources: things,
            tokens,
            created: 0,
            history: Vec::new(),
            delay: Duration::ZERO,
            quota: 50,
        }
    }

    pub fn enter(&self, mesh: &str, owner: Option<&str>) -> Result<(), AppMeshError> {
        if owner.is_some_and(|owner| owner != self.owner) {
            let message = format!("the mesh {mesh} is not shared by {}", owner.unwrap_or_default());
            return Err(AppMeshError::of("ForbiddenException", message));
        }
        match mesh == self.mesh {
            true => Ok(()),
            false => Err(AppMeshError::of("NotFoundException", format!("no mesh is called {mesh}"))),
        }
    }

    pub fn arn(&self, path: &Path) -> String {
        let rest = match path {
            Path::Node(name) => format!("virtualNode/{name}"),
            Path::Router(name) => format!("virtualRouter/{name}"),
            Path::Service(name) => format!("virtualService/{name}"),
            Path::Route { router, name } => format!("virtualRouter/{router}/route/{name}"),
        };
        format!("{}/{rest}", self.mesh_arn())
    }

    pub fn mesh_arn(&self) -> String {
        format!("arn:aws:appmesh:eu-west-1:{}:mesh/{}", self.owner, self.mesh)
    }

    /// As ListMeshes returns it.
    pub fn mesh_reference(&self) -> Value {
        json!({"meshName": self.mesh, "meshOwner": self.owner, "resourceOwner": self.owner,
            "arn": self.mesh_arn(), "version": 1, "createdAt": 1_790_000_000, "lastUpdatedAt": 1_790_000_000})
    }

    pub fn latest(&self, path: &Path) -> Option<(Value, BTreeMap<String, String>)> {
        self.resources.get(path).map(|thing| (thing.spec.clone(), thing.tags.clone()))
    }

    pub fn all(&self) -> Vec<Path> {
        self.resources.keys().cloned().collect()
    }

    fn missing(path: &Path) -> AppMeshError {
        AppMeshError::of("NotFoundException", format!("{path:?} does not exist"))
    }

    fn metadata(&self, path: &Path, thing: &StoredResource, version: u64) -> Value {
        json!({"arn": self.arn(path), "uid": format!("uid-{}", thing.uid), "version": version,
            "createdAt": 1_790_000_000 + thing.uid, "lastUpdatedAt": 1_790_000_000 + thing.uid + version,
            "meshOwner": self.owner, "resourceOwner": self.owner})
    }

    fn data(&self, path: &Path, thing: &StoredResource, spec: &Value, version: u64) -> Value {
        let mut data = path.names();
        data["meshName"] = json!(self.mesh);
        data["spec"] = spec.clone();
        data["metadata"] = self.metadata(path, thing, version);
        data["status"] = json!({"status": "ACTIVE"});
        data
    }

    pub fn describe(&self, path: &Path) -> Result<Value, AppMeshError> {
        let thing = self.resources.get(path).ok_or_else(|| Self::missing(path))?;
        match &thing.before {
            Some((until, before)) if Instant::now() < *until => match before {
                Some((spec, version)) => Ok(self.data(path, thing, spec, *version)),
                None => Err(Self::missing(path)),
            },
            _ => Ok(self.data(path, thing, &thing.spec, thing.version)),
        }
    }

    pub fn list(&self, of: &Path) -> Result<Vec<Value>, AppMeshError> {
        if let Path::Route { router, .. } = of {
            let router = Path::Router(router.clone());
            self.resources.get(&router).ok_or_else(|| Self::missing(&router))?;
        }
        let is_meant = |path: &&Path| match (of, path) {
            (Path::Route { router: of, .. }, Path::Route { router, .. }) => router == of,
            (Path::Node(_), Path::Node(_))
            | (Path::Router(_), Path::Router(_))
            | (Path::Service(_), Path::Service(_)) => true,
            _ => false,
        };
        let shown = self.resources.keys().filter(is_meant).filter_map(|path| self.describe(path).ok());
        let reference = |mut data: Value| {
            for (field, value) in data["metadata"].take().as_object().expect("metadata") {
                if field != "uid" {
                    data[field] = value.clone();
                }
            }
            let fields = data.as_object_mut().expect("data");
            fields.retain(|field, _| !["metadata", "spec", "status"].contains(&field.as_str()));
            data
        };
        Ok(shown.map(reference).collect())
    }

    /// The same token with the same request is idempotent; with another request it
    /// is refused.
    fn token_was_used(&mut self, path: &Path, body: &Value) -> Result<bool, AppMeshError> {
        let Some(token) = body["clientToken"].as_str() else { return Ok(false) };
        if token.len() > 36
            || !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            return Err(AppMeshError::bad_request("clientToken has not up to 36 letters, digits, - and _"));
        }
        let what = (path.clone(), body["spec"].clone());
        match self.tokens.get(token) {
            Some(used) if *used == what => Ok(true),
            Some(_) => {
                let message = "the clientToken was used for another specification".to_owned();
                Err(AppMeshError::of("ConflictException", message))
            }
            None => {
                self.tokens.insert(token.to_owned(), what);
                Ok(false)
            }
        }
    }

    pub fn create(&mut self, path: &Path, body: &Value) -> Result<Value, AppMeshError> {
        let tags = tags_of(body)?;
        self.validate(path, &body["spec"])?;
        if self.token_was_used(path, body)? && self.resources.contains_key(path) {
            return self.answer(path);
        }
        if self.resources.contains_key(path) {
            return Err(AppMeshError::of("ConflictException", format!("{path:?} exists already")));
        }
        if let Path::Route { router, .. } = path {
            let of_router = |path: &&Path| matches!(path, Path::Route { router: of, .. } if of == router);
            if self.resources.keys().filter(of_router).count() >= self.quota {
                let message = format!("{router} has {} routes", self.quota);
                return Err(AppMeshError::of("LimitExceededException", message));
            }
        }
        self.created += 1;
        self.history.push((path.clone(), body["spec"].clone()));
        let before = self.until().map(|until| (until, None));
        let thing =
            StoredResource { spec: body["spec"].clone(), tags, uid: self.created, version: 1, before };
        self.resources.insert(path.clone(), thing);
        self.answer(path)
    }

    pub fn update(&mut self, path: &Path, body: &Value) -> Result<Value, AppMeshError> {
        self.resources.get(path).ok_or_else(|| Self::missing(path))?;
        self.validate(path, &body["spec"])?;
        if self.token_was_used(path, body)? {
            return self.answer(path);
        }
        self.history.push((path.clone(), body["spec"].clone()));
        let until = self.until();
        let thing = self.resources.get_mut(path).ok_or_else(|| Self::missing(path))?;
        thing.before = until.map(|until| (until, Some((thing.spec.take(), thing.version))));
        thing.version += 1;
        thing.spec = body["spec"].clone();
        self.answer(path)
    }

    pub fn delete(&mut self, path: &Path) -> Result<Value, AppMeshError> {
        if let Some(user) = self.users(path).first() {
            return Err(AppMeshError::of("ResourceInUseException", format!("{path:?} is used by {user:?}")));
        }
        let mut thing = self.resources.remove(path).ok_or_else(|| Self::missing(path))?;
        let spec = thing.spec.take();
        let mut data = self.data(path, &thing, &spec, thing.version);
        data["status"]["status"] = json!("DELETED");
        Ok(data)
    }

    /// The resources that refer to it.
    pub fn users(&self, path: &Path) -> Vec<Path> {
        let uses = |user: &Path, thing: &StoredResource| match (path, user) {
            (Path::Node(name), Path::Route { .. }) => {
                targets(&thing.spec).iter().any(|target| target["virtualNode"] == json!(name))
            }
            (Path::Node(name), Path::Service(_)) => {
                thing.spec["provider"]["virtualNode"]["virtualNodeName"] == json!(name)
            }
            (Path::Router(name), Path::Route { router, .. }) => router == name,
            (Path::Router(name), Path::Service(_)) => {
                thing.spec["provider"]["virtualRouter"]["virtualRouterName"] == json!(name)
            }
            _ => false,
        };
        self.resources
            .iter()
            .filter(|(user, thing)| uses(user, thing))
            .map(|(user, _)| user.clone())
            .collect()
    }

    fn until(&self) -> Option<Instant> {
        (self.delay > Duration::ZERO).then(|| Instant::now() + self.delay)
    }

    /// The response to a write, which has the new value at once.
    fn answer(&self, path: &Path) -> Result<Value, AppMeshError> {
        let thing = self.resources.get(path).ok_or_else(|| Self::missing(path))?;
        Ok(self.data(path, thing, &thing.spec, thing.version))
    }

    fn by_arn(&mut self, arn: &str) -> Result<&mut StoredResource, AppMeshError> {
        let path = self.resources.keys().find(|path| self.arn(path) == arn).cloned();
        let missing = || AppMeshError::of("NotFoundException", format!("{arn} does not exist"));
        path.and_then(|path| self.resources.get_mut(&path)).ok_or_else(missing)
    }

    pub fn tags(&mut self, arn: &str) -> Result<BTreeMap<String, String>, AppMeshError> {
        Ok(self.by_arn(arn)?.tags.clone())
    }

    pub fn tag(&mut self, arn: &str, tags: BTreeMap<String, String>) -> Result<(), AppMeshError> {
        let thing = self.by_arn(arn)?;
        let mut all = thing.tags.clone();
        all.extend(tags);
        if all.len() > 50 {
            return Err(AppMeshError::of(
                "TooManyTagsException",
                format!("{arn} would have {} tags", all.len()),
            ));
        }
        thing.tags = all;
        Ok(())
    }

    pub fn untag(&mut self, arn: &str, keys: &[&str]) -> Result<(), AppMeshError> {
        self.by_arn(arn)?.tags.retain(|key, _| !keys.contains(&key.as_str()));
        Ok(())
    }

    fn validate(&self, path: &Path, spec: &Value) -> Result<(), AppMeshError> {
        let needs = |needed: Path| match self.resources.contains_key(&needed) {
            true => Ok(()),
            false => Err(Self::missing(&needed)),
        };
        match path {
            Path::Node(_) | Path::Router(_) => {
                for listener in spec["listeners"].as_array().into_iter().flatten() {
                    let port = &listener["portMapping"];
                    let known = ["http", "http2", "grpc", "tcp"].map(Value::from).contains(&port["protocol"]);
                    if !known || !port["port"].as_u64().is_some_and(|port| (1..=65535).contains(&port)) {
                        return Err(AppMeshError::bad_request("a listener has no such port"));
                    }
                }
                Ok(())
            }
            Path::Service(_) => {
                let provider = &spec["provider"];
                let node = provider["virtualNode"]["virtualNodeName"].as_str();
                let router = provider["virtualRouter"]["virtualRouterName"].as_str();
                match (node, router) {
                    (Some(node), None) => needs(Path::Node(node.to_owned())),
                    (None, Some(router)) => needs(Path::Router(router.to_owned())),
                    (None, None) => Ok(()),
                    (Some(_), Some(_)) => {
                        Err(AppMeshError::bad_request("a virtual service has one provider"))
                    }
                }
            }
            Path::Route { router, .. } => {
                needs(Path::Router(router.clone()))?;
                validate_route(spec)?;
                for target in targets(spec) {
                    needs(Path::Node(target["virtualNode"].as_str().unwrap_or_default().to_owned()))?;
                }
                Ok(())
            }
        }
    }
}

const KINDS: [&str; 4] = ["httpRoute", "http2Route", "grpcRoute", "tcpRoute"];

fn targets(route: &Value) -> Vec<Value> {
    let of = |kind: &&str| route[*kind]["action"]["weightedTargets"].as_array().cloned();
    KINDS.iter().filter_map(of).flatten().collect()
}

fn validate_route(spec: &Value) -> Result<(), AppMeshError> {
    let kinds: Vec<_> = KINDS.iter().filter(|kind| spec[**kind].is_object()).collect();
    let [kind] = kinds[..] else { return Err(AppMeshError::bad_request("a route is of one kind")) };
    let targets = targets(spec);
    let weights: Option<Vec<u64>> =
        targets.iter().map(|target| target["weight"].as_u64().filter(|weight| *weight <= 100)).collect();
    let total = weights
        .ok_or_else(|| AppMeshError::bad_request("a weight is not from 0 to 100"))?
        .iter()
        .sum::<u64>();
    let priority = &spec["priority"];
    let route = &spec[*kind];
    let headers = ["headers", "metadata"].map(|field| route["match"][field].as_array().map_or(0, Vec::len));
    let needs_prefix = kind.starts_with("http") && route["match"]["path"].is_null();
    match () {
        () if !(1..=10).contains(&targets.len()) => {
            Err(AppMeshError::bad_request("a route has 1 to 10 targets"))
        }
        () if total > 100 => Err(AppMeshError::bad_request("the weights are more than 100 together")),
        () if !priority.is_null() && priority.as_u64().is_none_or(|priority| priority > 1000) => {
            Err(AppMeshError::bad_request("a priority is from 0 to 1000"))
        }
        () if needs_prefix && !route["match"]["prefix"].as_str().is_some_and(|at| at.starts_with('/')) => {
            Err(AppMeshError::bad_request("a prefix begins with /"))
        }
        () if headers.into_iter().any(|headers| headers > 10) => {
            Err(AppMeshError::bad_request("more than 10 headers"))
        }
        () => Ok(()),
    }
}

pub fn tags_of(body: &Value) -> Result<BTreeMap<String, String>, AppMeshError> {
    let mut tags = BTreeMap::new();
    for tag in body["tags"].as_array().into_iter().flatten() {
        let (key, value) =
            (tag["key"].as_str().unwrap_or_default(), tag["value"].as_str().unwrap_or_default());
        let allowed = |c: char| c.is_alphanumeric() || c == ' ' || "_.:/=+-@".contains(c);
        let is_well = (1..=128).contains(&key.len()) && value.len() <= 256;
        if !is_well || !key.chars().chain(value.chars()).all(allowed) {
            return Err(AppMeshError::bad_request(
                "a tag is too long, or has characters that tags cannot have",
            ));
        }
        tags.insert(key.to_owned(), value.to_owned());
    }
    Ok(tags)
}
