//! Sign-in with an OpenID provider, for browsers: authorization code flow with PKCE.
//!
//! ```text
//!   GET  /api/v1/oidc/login      begins: to the provider
//!   GET  /api/v1/oidc/callback   comes back: code → ID token → user and groups → session
//!   POST /api/v1/oidc/logout     ends the session of this browser
//! ```
//!
//! Guarantees:
//!
//! - a session has a user and groups, prefixed as kube-apiserver does it, and no right: the
//!   API server reviews each, as for a token ([`super::access`]);
//! - no name of Kubernetes itself (`system:`) comes from a provider;
//! - a sign-in ends in the browser that began it, within [`BEGUN_LIFETIME`], once;
//! - requests by cookie need a header that other sites cannot send; the cookie is not sent
//!   for them either;
//! - neither codes, tokens nor cookies are logged; no token of the provider is kept.

pub(super) mod id_token;
mod provider;
pub(super) mod session;

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Query, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::{Certificate, Url};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, time::Instant};

use super::notice;
use crate::{error_chain::error_chain, gates::question::SecretFile};
use id_token::{Claims, Expected, IdTokenError};
use provider::Provider;
use session::{Begun, Cookies, SESSION_HEADER, Session, SessionError, random_text};

pub use provider::is_private;

/// From the beginning of a sign-in to its end.
const BEGUN_LIFETIME: Duration = Duration::from_secs(600);
/// Others are turned away.
const MAX_CONCURRENT_SIGN_INS: usize = 16;
/// Sign-ins whose repetition is refused here; with more of them, only at the provider, which
/// accepts no code twice.
const MAX_ENDED: usize = 10_000;
const MAX_GROUPS: usize = 1_000;
const CALLBACK: &str = "/api/v1/oidc/callback";

/// Flags of the same names.
#[derive(Clone, Debug)]
pub struct OidcOptions {
    /// As in the provider's discovery document.
    pub issuer: String,
    pub client_id: String,
    /// None: a public client.
    pub client_secret: Option<SecretFile>,
    /// At least 32 random bytes, the same for all replicas.
    pub session_key: SecretFile,
    /// Beside `openid`.
    pub scopes: Vec<String>,
    pub username_claim: String,
    pub username_prefix: String,
    pub groups_claim: Option<String>,
    pub groups_prefix: String,
    /// Of the provider's certificate; none: those of the system.
    pub authorities: Vec<Certificate>,
    /// Where browsers reach this API, without a slash at the end.
    pub base_url: String,
    pub session_lifetime: Duration,
}

impl OidcOptions {
    fn redirect_uri(&self) -> String {
        format!("{}{CALLBACK}", self.base_url)
    }

    fn cookies(&self) -> Cookies {
        Cookies { key: self.session_key.clone(), secure: self.base_url.starts_with("https:") }
    }

    /// For people: the host.
    pub fn provider_name(&self) -> String {
        let url = Url::parse(&self.issuer).ok();
        url.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_else(|| self.issuer.clone())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    #[error("the sign-in provider cannot be used: {0}")]
    Provider(String),
    #[error("the sign-in provider refused: {0}")]
    Refused(String),
    #[error("the sign-in provider refused the code: {0}")]
    CodeRefused(String),
    #[error("cannot read the client secret")]
    ClientSecret(#[source] std::io::Error),
    #[error(
        "this sign-in was not begun in this browser, is over, or took more than ten minutes; begin again"
    )]
    NotBegun,
    #[error("the provider's ID token is not accepted: {0}")]
    IdToken(#[from] IdTokenError),
    #[error("the provider's ID token has no {0}; ask for another scope, or name another claim")]
    NoClaim(String),
    #[error("the provider's ID token has a {0} that is neither a name nor a list of names")]
    BadClaim(String),
    #[error("the provider has not verified this e-mail address")]
    UnverifiedEmail,
    #[error("{0} is a name of Kubernetes itself; set a prefix for the names of this provider")]
    SystemName(String),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("too many people sign in at this moment; try again")]
    Busy,
}

impl OidcError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Provider(_) => StatusCode::BAD_GATEWAY,
            Self::NotBegun => StatusCode::BAD_REQUEST,
            Self::ClientSecret(_) | Self::Session(SessionError::Key(_) | SessionError::ShortKey) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Refused(_)
            | Self::CodeRefused(_)
            | Self::IdToken(_)
            | Self::NoClaim(_)
            | Self::BadClaim(_)
            | Self::UnverifiedEmail
            | Self::SystemName(_)
            | Self::Session(SessionError::TooManyGroups(_)) => StatusCode::FORBIDDEN,
        }
    }
}

impl IntoResponse for OidcError {
    fn into_response(self) -> Response {
        tracing::warn!(error = error_chain(&self), "a sign-in failed");
        notice::page(self.status_code(), &format!("Not signed in: {self}."), notice::BACK)
    }
}

#[derive(Clone)]
struct OidcState {
    options: Arc<OidcOptions>,
    provider: Arc<Provider>,
    permits: Arc<Semaphore>,
    /// By state, until none of them could come back.
    ended: Arc<Mutex<HashMap<String, Instant>>>,
}

/// Sessions for [`super::Access`], and the endpoints that make and end them.
pub struct SignIn {
    pub cookies: Cookies,
    pub router: Router,
}

impl SignIn {
    pub fn new(options: OidcOptions) -> reqwest::Result<Self> {
        let options = Arc::new(options);
        let state = OidcState {
            provider: Arc::new(Provider::new(Arc::clone(&options))?),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SIGN_INS)),
            ended: Arc::default(),
            options: Arc::clone(&options),
        };
        let router = Router::new()
            .route("/api/v1/oidc/login", get(login))
            .route(CALLBACK, get(callback))
            .route("/api/v1/oidc/logout", post(logout))
            .with_state(state);
        Ok(Self { cookies: options.cookies(), router })
    }
}

async fn login(State(state): State<OidcState>) -> Result<Response, OidcError> {
    let _permit = state.permits.try_acquire().map_err(|_| OidcError::Busy)?;
    let options = &state.options;
    let endpoints = state.provider.endpoints().await?;
    let now = Timestamp::now().as_second();
    let begun = Begun {
        state: random_text(),
        nonce: random_text(),
        verifier: random_text(),
        expires: now + BEGUN_LIFETIME.as_secs() as i64,
    };
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(begun.verifier.as_bytes()));
    let scopes: Vec<&str> =
        std::iter::once("openid").chain(options.scopes.iter().map(String::as_str)).collect();
    let mut address = endpoints.authorization_endpoint.clone();
    address.query_pairs_mut().extend_pairs([
        ("response_type", "code"),
        ("client_id", &options.client_id),
        ("redirect_uri", &options.redirect_uri()),
        ("scope", &scopes.join(" ")),
        ("state", &begun.state),
        ("nonce", &begun.nonce),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ]);
    let cookie = options.cookies().set_begun(&begun, now)?;
    Ok(redirect(address.as_str(), [cookie]))
}

#[derive(Deserialize)]
struct Returned {
    #[serde(default)]
    state: String,
    #[serde(default)]
    code: String,
    /// RFC 9207.
    iss: Option<String>,
    error: Option<String>,
    #[serde(default)]
    error_description: String,
}

async fn callback(
    State(state): State<OidcState>,
    Query(returned): Query<Returned>,
    headers: HeaderMap,
) -> Result<Response, OidcError> {
    let _permit = state.permits.try_acquire().map_err(|_| OidcError::Busy)?;
    let cookies = state.options.cookies();
    let now = Timestamp::now().as_second();
    let begun = cookies.begun(&headers)?.ok_or(OidcError::NotBegun)?;
    let is_from_provider = returned.iss.as_ref().is_none_or(|issuer| *issuer == state.options.issuer);
    if begun.expires <= now || begun.state != returned.state || !is_from_provider {
        return Err(OidcError::NotBegun);
    }
    if !state.end(&begun.state) {
        return Err(OidcError::NotBegun);
    }
    if let Some(error) = returned.error {
        let why: String = format!("{error} {}", returned.error_description).chars().take(200).collect();
        return Err(OidcError::Refused(why.trim_end().to_owned()));
    }
    let token = state.provider.exchange(&returned.code, &begun.verifier).await?;
    let claims = state.verified(&token, &begun.nonce, now).await?;
    let (user, groups) = identity(&state.options, &claims)?;
    let expires = now + state.options.session_lifetime.as_secs() as i64;
    let session = Session { user, groups, expires };
    let cookie = cookies.set_session(&session, now)?;
    tracing::info!(user = session.user, groups = session.groups.len(), "signed in");
    Ok(redirect("/#signed-in", [cookie, cookies.clear_begun()]))
}

async fn logout(State(state): State<OidcState>, headers: HeaderMap) -> Response {
    if !headers.contains_key(SESSION_HEADER) {
        return StatusCode::FORBIDDEN.into_response();
    }
    with_cookies(StatusCode::NO_CONTENT.into_response(), [state.options.cookies().clear_session()])
}

impl OidcState {
    /// False if it has ended already.
    fn end(&self, state: &str) -> bool {
        let mut ended = self.ended.lock();
        ended.retain(|_, at| at.elapsed() < BEGUN_LIFETIME);
        if ended.len() >= MAX_ENDED {
            ended.clear();
        }
        ended.insert(state.to_owned(), Instant::now()).is_none()
    }

    async fn verified(&self, token: &str, nonce: &str, now: i64) -> Result<Claims, OidcError> {
        let OidcOptions { issuer, client_id, .. } = &*self.options;
        let expected = Expected { issuer, client_id, nonce, now };
        let keys = self.provider.keys(false).await?;
        match id_token::verify(token, &keys, expected) {
            // Rotated.
            Err(IdTokenError::UnknownKey) => {
                let keys = self.provider.keys(true).await?;
                Ok(id_token::verify(token, &keys, expected)?)
            }
            verified => Ok(verified?),
        }
    }
}

/// User and groups with their prefixes.
fn identity(options: &OidcOptions, claims: &Claims) -> Result<(String, Vec<String>), OidcError> {
    let claim = options.username_claim.as_str();
    let user = match claims.get(claim) {
        Some(Value::String(user)) if !user.is_empty() => user,
        None => return Err(OidcError::NoClaim(claim.to_owned())),
        Some(_) => return Err(OidcError::BadClaim(claim.to_owned())),
    };
    // As kube-apiserver: a claim that is there must be true.
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != true) {
        return Err(OidcError::UnverifiedEmail);
    }
    let mut groups = Vec::new();
    if let Some(claim) = &options.groups_claim {
        let bad = || OidcError::BadClaim(claim.clone());
        match claims.get(claim) {
            None | Some(Value::Null) => {}
            Some(Value::String(one)) => groups.push(one.as_str()),
            Some(Value::Array(several)) if several.len() <= MAX_GROUPS => {
                for group in several {
                    groups.push(group.as_str().ok_or_else(bad)?);
                }
            }
            Some(Value::Array(several)) => return Err(SessionError::TooManyGroups(several.len()).into()),
            Some(_) => return Err(bad()),
        }
    }
    let user = format!("{}{user}", options.username_prefix);
    let groups: Vec<String> =
        groups.into_iter().map(|group| format!("{}{group}", options.groups_prefix)).collect();
    let system_name = groups.iter().chain([&user]).find(|name| name.starts_with("system:"));
    if let Some(name) = system_name {
        return Err(OidcError::SystemName(name.chars().take(100).collect()));
    }
    Ok((user, groups))
}

fn redirect<const N: usize>(address: &str, cookies: [HeaderValue; N]) -> Response {
    let Ok(address) = HeaderValue::from_str(address) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let headers = [
        (header::LOCATION, address),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    with_cookies((StatusCode::SEE_OTHER, headers).into_response(), cookies)
}

fn with_cookies<const N: usize>(mut response: Response, cookies: [HeaderValue; N]) -> Response {
    for cookie in cookies {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}
