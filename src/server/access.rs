//! Who calls an API of the controller, and what they may, as reviewed by the API server.
//!
//! [`Access::by_token`] is for a controller in a cluster: callers send a token of the
//! cluster, or with [`Access::by_token_or_cookie`] the cookie of who signed in in a browser;
//! either way the API server reviews each right. [`Access::of_session`] is for `serin dashboard`: a caller with the secret of the
//! session has the rights of the client's own credentials.
//!
//! Answers of the API server are reused for [`REUSE`] for reads. Tokens are neither stored
//! nor logged; answers are kept under a hash of the token.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use http::{HeaderMap, header};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{SelfSubjectReview, TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
        SubjectAccessReviewSpec,
    },
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    command_api::CommandApiError,
    oidc::session::{Cookies, SESSION_HEADER, session_cookie},
};
use crate::{api::GROUP, gates::commands::Caller};

/// How long an answer of the API server is reused.
const REUSE: Duration = Duration::from_secs(5);
/// Answers that are kept.
const MAX_KEPT: usize = 4_096;
/// Reviews at a time; others wait.
const MAX_CONCURRENT_REVIEWS: usize = 16;

/// A right on resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Right<'a> {
    pub group: &'static str,
    pub verb: &'static str,
    pub resource: &'static str,
    pub subresource: Option<&'static str>,
    /// None: in all namespaces.
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
}

impl<'a> Right<'a> {
    /// On resources of the group serin.dev.
    pub fn on_ours(verb: &'static str, resource: &'static str, namespace: Option<&'a str>) -> Self {
        Self { group: GROUP, verb, resource, subresource: None, namespace, name: None }
    }
}

impl From<Right<'_>> for ResourceAttributes {
    fn from(right: Right<'_>) -> Self {
        Self {
            group: Some(right.group.to_owned()),
            resource: Some(right.resource.to_owned()),
            subresource: right.subresource.map(str::to_owned),
            verb: Some(right.verb.to_owned()),
            namespace: right.namespace.map(str::to_owned),
            name: right.name.map(str::to_owned),
            ..Self::default()
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub struct User {
    info: UserInfo,
    key: Digested,
}

type Digested = [u8; 32];
/// Of a user, and the JSON of the attributes.
type RightKey = (Digested, String);

pub struct Access {
    client: Client,
    way: Way,
    reviews: Semaphore,
    users: Mutex<Kept<Digested, UserInfo>>,
    rights: Mutex<Kept<RightKey, bool>>,
}

enum Way {
    Tokens { audiences: Vec<String>, cookies: Option<Cookies> },
    Session { secret: Digested },
}

impl Access {
    /// Callers send a token of the cluster; with `audiences` one that is meant for them.
    pub fn by_token(client: Client, audiences: Vec<String>) -> Arc<Self> {
        Self::new(client, Way::Tokens { audiences, cookies: None })
    }

    /// As [`Access::by_token`]; requests without a token count as who signed in.
    pub fn by_token_or_cookie(client: Client, audiences: Vec<String>, cookies: Cookies) -> Arc<Self> {
        Self::new(client, Way::Tokens { audiences, cookies: Some(cookies) })
    }

    /// Callers who send this secret have the rights of the client.
    pub fn of_session(client: Client, secret: &str) -> Arc<Self> {
        Self::new(client, Way::Session { secret: digest(secret) })
    }

    fn new(client: Client, way: Way) -> Arc<Self> {
        let reviews = Semaphore::new(MAX_CONCURRENT_REVIEWS);
        Arc::new(Self { client, way, reviews, users: Mutex::default(), rights: Mutex::default() })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// True for the API of `serin dashboard`.
    pub fn is_session(&self) -> bool {
        matches!(self.way, Way::Session { .. })
    }

    /// Asks the API server each time: for commands.
    pub(super) async fn authenticate(&self, headers: &HeaderMap) -> Result<User, CommandApiError> {
        if let Some(user) = self.signed_in(headers)? {
            return Ok(user);
        }
        let token = bearer_token(headers).ok_or(CommandApiError::Unauthenticated)?;
        self.review_token(token).await
    }

    /// May reuse an answer of the API server: for reads.
    pub(super) async fn recognise(&self, headers: &HeaderMap) -> Result<User, CommandApiError> {
        if let Some(user) = self.signed_in(headers)? {
            return Ok(user);
        }
        let token = bearer_token(headers).ok_or(CommandApiError::Unauthenticated)?;
        let key = digest(token);
        if let Some(info) = self.users.lock().get(&key) {
            return Ok(User { info, key });
        }
        let user = self.review_token(token).await?;
        self.users.lock().set(key, user.info.clone());
        Ok(user)
    }

    /// By the cookie, if there is no token.
    fn signed_in(&self, headers: &HeaderMap) -> Result<Option<User>, CommandApiError> {
        let Way::Tokens { cookies: Some(cookies), .. } = &self.way else { return Ok(None) };
        let Some(text) = session_cookie(cookies, headers) else { return Ok(None) };
        if headers.contains_key(header::AUTHORIZATION) {
            return Ok(None);
        }
        if !headers.contains_key(SESSION_HEADER) {
            return Err(CommandApiError::CookieWithoutHeader);
        }
        let session = cookies.session(headers)?;
        let session = session.filter(|session| session.expires > Timestamp::now().as_second());
        let session = session.ok_or(CommandApiError::SessionEnded)?;
        let groups = session.groups.into_iter().chain(["system:authenticated".to_owned()]).collect();
        let info = UserInfo { username: Some(session.user), groups: Some(groups), ..UserInfo::default() };
        Ok(Some(User { info, key: digest(text) }))
    }

    async fn review_token(&self, token: &str) -> Result<User, CommandApiError> {
        let _turn = self.reviews.acquire().await;
        let failed = |error| CommandApiError::TokenReviewFailed(Box::new(error));
        let key = digest(token);
        let info = match &self.way {
            Way::Session { secret } if *secret == key => {
                let reviews = Api::<SelfSubjectReview>::all(self.client.clone());
                let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
                let info = match review {
                    Ok(review) => review.status.and_then(|status| status.user_info).unwrap_or_default(),
                    // Before Kubernetes 1.28, or not served.
                    Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => UserInfo::default(),
                    Err(error) => return Err(failed(error)),
                };
                UserInfo { username: info.username.or(Some("you".to_owned())), ..info }
            }
            Way::Session { .. } => return Err(CommandApiError::NotOfSession),
            Way::Tokens { audiences, .. } => {
                let wanted = (!audiences.is_empty()).then(|| audiences.clone());
                let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: wanted };
                let review = TokenReview { spec, ..TokenReview::default() };
                let reviews = Api::<TokenReview>::all(self.client.clone());
                let status = reviews.create(&PostParams::default(), &review).await.map_err(failed)?.status;
                let is_for_us = |given: Option<&Vec<String>>| {
                    audiences.is_empty()
                        || given.is_some_and(|given| given.iter().any(|one| audiences.contains(one)))
                };
                let status = status.filter(|status| status.authenticated == Some(true));
                let status = status.filter(|status| is_for_us(status.audiences.as_ref()));
                let user = status.and_then(|status| status.user);
                user.filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty()))
                    .ok_or(CommandApiError::Unauthenticated)?
            }
        };
        Ok(User { info, key })
    }

    /// May reuse an answer of the API server: for reads.
    pub async fn allows(&self, user: &User, right: Right<'_>) -> kube::Result<bool> {
        let attributes = ResourceAttributes::from(right);
        let key = (user.key, serde_json::to_string(&attributes).unwrap_or_default());
        if let Some(allowed) = self.rights.lock().get(&key) {
            return Ok(allowed);
        }
        let _turn = self.reviews.acquire().await;
        let allowed = self.review(user, attributes).await?;
        self.rights.lock().set(key, allowed);
        Ok(allowed)
    }

    async fn review(&self, user: &User, attributes: ResourceAttributes) -> kube::Result<bool> {
        let status = match self.way {
            Way::Session { .. } => {
                let spec = SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                };
                let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
                Api::all(self.client.clone()).create(&PostParams::default(), &review).await?.status
            }
            Way::Tokens { .. } => return is_allowed(&self.client, user.info.clone(), attributes).await,
        };
        Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }

    /// As the author of commands.
    pub fn caller(&self, user: &User) -> Caller {
        match self.way {
            Way::Session { .. } => Caller::Current,
            Way::Tokens { .. } => Caller::User(user.info.clone()),
        }
    }
}

impl User {
    pub fn name(&self) -> &str {
        self.info.username.as_deref().unwrap_or_default()
    }
}

/// Asks the API server each time.
pub async fn is_allowed(
    client: &Client,
    user: UserInfo,
    attributes: impl Into<ResourceAttributes>,
) -> kube::Result<bool> {
    let UserInfo { username, uid, groups, extra } = user;
    let spec = SubjectAccessReviewSpec {
        user: username,
        uid,
        groups,
        extra,
        resource_attributes: Some(attributes.into()),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let status = Api::all(client.clone()).create(&PostParams::default(), &review).await?.status;
    Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
}

/// Answers, for [`REUSE`].
struct Kept<K, V>(HashMap<K, (Instant, V)>);

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V: Clone> Kept<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.0.get(key).filter(|(at, _)| at.elapsed() < REUSE).map(|(_, value)| value.clone())
    }

    fn set(&mut self, key: K, value: V) {
        if self.0.len() >= MAX_KEPT {
            self.0.retain(|_, (at, _)| at.elapsed() < REUSE);
        }
        if self.0.len() < MAX_KEPT {
            self.0.insert(key, (Instant::now(), value));
        }
    }
}

fn digest(text: &str) -> Digested {
    Sha256::digest(text.as_bytes()).into()
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The namespaces in which a caller may list Canaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visible {
    All,
    Some(BTreeMap<String, bool>),
}

impl Visible {
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(reviewed) => reviewed.get(namespace) == Some(&true),
        }
    }
}
