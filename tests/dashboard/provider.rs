//! An OpenID provider: discovery (OpenID Connect Discovery 1.0), authorization and token
//! endpoint (RFC 6749, RFC 7636, OpenID Connect Core 1.0), and its keys (RFC 7517). It refuses
//! what those documents have it refuse, and issues faulty tokens where a test asks for them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::{Engine as _, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
    RsaPublicKeyComponents,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::task::AbortOnDropHandle;

pub const CLIENT_ID: &str = "serin:dashboard";
pub const CLIENT_SECRET: &str = "p@ss word/+&";

/// Of 2048 bits, for this provider only: `openssl genpkey -algorithm RSA`.
const RSA_KEY: &[u8] = include_bytes!("provider_rsa.der");

/// In the next ID tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    OtherNonce,
    NoNonce,
    OtherIssuer,
    OtherAudience,
    SeveralAudiences,
    Expired,
    Future,
    Unsigned,
    /// HMAC with the public key as its secret.
    SignedWithPublicKey,
    ForgedClaims,
    CriticalHeader,
    /// `system:masters` among the groups.
    SystemGroup,
    UnverifiedEmail,
}

/// Which key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    Rsa,
    /// The n-th elliptic key.
    Elliptic(usize),
}

pub struct Provider {
    pub issuer: String,
    inner: Arc<Inner>,
    _task: AbortOnDropHandle<()>,
}

struct Inner {
    issuer: String,
    state: Mutex<Issuing>,
    rsa: RsaKeyPair,
    elliptic: Vec<EcdsaKeyPair>,
}

struct Issuing {
    redirect_uri: String,
    fault: Fault,
    signs: Signs,
    /// In the key set.
    listed: Vec<Signs>,
    key_requests: usize,
    codes: HashMap<String, Grant>,
}

#[derive(Clone)]
struct Grant {
    user: String,
    redirect_uri: String,
    nonce: Option<String>,
    challenge: String,
}

/// E-mail address and groups.
fn groups_of(user: &str) -> Option<&'static [&'static str]> {
    match user {
        "alice" => Some(&["shop-team", "everybody"]),
        "bob" => Some(&["everybody"]),
        _ => None,
    }
}

impl Provider {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address: SocketAddr = listener.local_addr().expect("an address");
        let issuer = format!("http://{address}/realm");
        let elliptic = |_| {
            let random = SystemRandom::new();
            let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).expect("a key")
        };
        let state = Issuing {
            redirect_uri: String::new(),
            fault: Fault::None,
            signs: Signs::Elliptic(0),
            listed: vec![Signs::Rsa, Signs::Elliptic(0)],
            key_requests: 0,
            codes: HashMap::new(),
        };
        let inner = Arc::new(Inner {
            issuer: issuer.clone(),
            state: Mutex::new(state),
            rsa: RsaKeyPair::from_pkcs8(RSA_KEY).expect("a key"),
            elliptic: (0..2).map(elliptic).collect(),
        });
        let router = Router::new()
            .route("/realm/.well-known/openid-configuration", get(discovery))
            .route("/realm/authorize", get(authorize))
            .route("/realm/decide", get(decide))
            .route("/realm/token", post(token))
            .route("/realm/keys", get(keys))
            .with_state(Arc::clone(&inner));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("a server") });
        Self { issuer, inner, _task: AbortOnDropHandle::new(task) }
    }

    /// The one redirect URI that is registered.
    pub fn register(&self, redirect_uri: &str) {
        self.inner.state.lock().redirect_uri = redirect_uri.to_owned();
    }

    pub fn fault(&self, fault: Fault) {
        self.inner.state.lock().fault = fault;
    }

    pub fn sign_with(&self, signs: Signs) {
        self.inner.state.lock().signs = signs;
    }

    pub fn list(&self, keys: &[Signs]) {
        self.inner.state.lock().listed = keys.to_vec();
    }

    pub fn key_requests(&self) -> usize {
        self.inner.state.lock().key_requests
    }

    /// A code that was issued for this user to a sign-in with this challenge.
    pub fn issue(&self, user: &str, nonce: &str, challenge: &str) -> String {
        let redirect_uri = self.inner.state.lock().redirect_uri.clone();
        let grant = Grant {
            user: user.to_owned(),
            redirect_uri,
            nonce: Some(nonce.to_owned()),
            challenge: challenge.to_owned(),
        };
        self.inner.grant(grant)
    }
}

impl Inner {
    fn grant(&self, grant: Grant) -> String {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).expect("random numbers");
        let code = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        self.state.lock().codes.insert(code.clone(), grant);
        code
    }

    fn id_token(&self, grant: &Grant) -> String {
        let (fault, signs) = {
            let state = self.state.lock();
            (state.fault, state.signs)
        };
        let now = Timestamp::now().as_second();
        let mut claims = json!({
            "iss": self.issuer, "sub": grant.user, "aud": CLIENT_ID, "iat": now, "exp": now + 300,
            "nonce": grant.nonce, "email": format!("{}@example.com", grant.user), "email_verified": true,
            "groups": groups_of(&grant.user).expect("a user"),
        });
        let (mut header, kid) = match signs {
            Signs::Rsa => (json!({"alg": "RS256"}), "rsa".to_owned()),
            Signs::Elliptic(number) => (json!({"alg": "ES256"}), format!("elliptic-{number}")),
        };
        header["kid"] = kid.into();
        match fault {
            Fault::OtherNonce => claims["nonce"] = "another".into(),
            Fault::NoNonce => _ = claims.as_object_mut().expect("claims").remove("nonce"),
            Fault::OtherIssuer => claims["iss"] = "https://accounts.example.com".into(),
            Fault::OtherAudience => claims["aud"] = "another-client".into(),
            Fault::SeveralAudiences => claims["aud"] = json!([CLIENT_ID, "another-client"]),
            Fault::Expired => (claims["iat"], claims["exp"]) = ((now - 900).into(), (now - 600).into()),
            Fault::Future => claims["iat"] = (now + 600).into(),
            Fault::SystemGroup => claims["groups"] = json!(["shop-team", "system:masters"]),
            Fault::UnverifiedEmail => claims["email_verified"] = false.into(),
            Fault::Unsigned => header = json!({"alg": "none"}),
            Fault::SignedWithPublicKey => header["alg"] = "HS256".into(),
            Fault::CriticalHeader => (header["crit"], header["exp"]) = (json!(["exp"]), 1.into()),
            Fault::None | Fault::ForgedClaims => {}
        }
        let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let mut signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = match (fault, signs) {
            (Fault::Unsigned, _) => Vec::new(),
            (Fault::SignedWithPublicKey, _) => {
                let secret = self.elliptic[0].public_key().as_ref();
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
                ring::hmac::sign(&key, signed.as_bytes()).as_ref().to_vec()
            }
            (_, Signs::Rsa) => {
                let mut signature = vec![0; self.rsa.public().modulus_len()];
                let random = SystemRandom::new();
                let text = signed.as_bytes();
                self.rsa.sign(&RSA_PKCS1_SHA256, &random, text, &mut signature).expect("a signature");
                signature
            }
            (_, Signs::Elliptic(number)) => {
                let random = SystemRandom::new();
                let signature = self.elliptic[number].sign(&random, signed.as_bytes()).expect("a signature");
                signature.as_ref().to_vec()
            }
        };
        if fault == Fault::ForgedClaims {
            claims["groups"] = json!(["everything"]);
            signed = format!("{}.{}", encode(&header), encode(&claims));
        }
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    fn public(&self, key: Signs) -> Value {
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        match key {
            Signs::Rsa => {
                let RsaPublicKeyComponents { n, e } =
                    RsaPublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
                json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "rsa", "n": encode(&n), "e": encode(&e)})
            }
            Signs::Elliptic(number) => {
                let (x, y) = self.elliptic[number].public_key().as_ref()[1..].split_at(32);
                let kid = format!("elliptic-{number}");
                json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": kid, "x": encode(x), "y": encode(y)})
            }
        }
    }
}

async fn discovery(State(inner): State<Arc<Inner>>) -> Json<Value> {
    let at = |path: &str| format!("{}/{path}", inner.issuer);
    Json(json!({
        "issuer": inner.issuer,
        "authorization_endpoint": at("authorize"),
        "token_endpoint": at("token"),
        "jwks_uri": at("keys"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic"],
    }))
}

async fn keys(State(inner): State<Arc<Inner>>) -> Json<Value> {
    let listed = {
        let mut state = inner.state.lock();
        state.key_requests += 1;
        state.listed.clone()
    };
    let of_another_kind = json!({"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "later"});
    let listed = listed.into_iter().map(|key| inner.public(key)).chain([of_another_kind]);
    Json(json!({"keys": listed.collect::<Vec<_>>()}))
}

type Parameters = HashMap<String, String>;

/// Why a request is refused, if it must be: RFC 6749, 4.1.1, RFC 7636, 4.3, and Core, 3.1.2.1.
fn check_request(inner: &Inner, given: &Parameters) -> Result<(), String> {
    let of = |name: &str| given.get(name).map(String::as_str).unwrap_or_default();
    let is_long = |name: &str| of(name).len() >= 43;
    let checks = [
        (of("client_id") == CLIENT_ID, "client_id"),
        (of("redirect_uri") == inner.state.lock().redirect_uri, "redirect_uri"),
        (of("response_type") == "code", "response_type"),
        (of("scope").split(' ').any(|scope| scope == "openid"), "scope"),
        (is_long("state"), "state"),
        (is_long("nonce"), "nonce"),
        (of("code_challenge_method") == "S256", "code_challenge_method"),
        (of("code_challenge").len() == 43, "code_challenge"),
    ];
    match checks.into_iter().find(|(holds, _)| !holds) {
        Some((_, name)) => Err(format!("invalid_request: {name} {:?}", of(name))),
        None => Ok(()),
    }
}

/// Asks who it is, as a page.
async fn authorize(State(inner): State<Arc<Inner>>, Query(given): Query<Parameters>) -> Response {
    if let Err(why) = check_request(&inner, &given) {
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    let link = |user: &str| {
        let mut url = reqwest::Url::parse(&format!("{}/decide", inner.issuer)).expect("a URL");
        url.query_pairs_mut().extend_pairs(&given).append_pair("user", user);
        format!("<p><a href=\"{}\">{user}</a></p>", url.as_str().replace('&', "&amp;"))
    };
    Html(format!(
        "<!doctype html><title>Sign in</title><link rel=\"icon\" href=\"data:,\"><h1>Who signs in?</h1>{}{}{}",
        link("alice"),
        link("bob"),
        link("nobody")
    ))
    .into_response()
}

async fn decide(State(inner): State<Arc<Inner>>, Query(given): Query<Parameters>) -> Response {
    if let Err(why) = check_request(&inner, &given) {
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    let mut back = reqwest::Url::parse(&given["redirect_uri"]).expect("a URL");
    let mut answer = vec![("state", given["state"].clone())];
    match groups_of(&given["user"]) {
        None => answer.push(("error", "access_denied".to_owned())),
        Some(_) => {
            let grant = Grant {
                user: given["user"].clone(),
                redirect_uri: given["redirect_uri"].clone(),
                nonce: given.get("nonce").cloned(),
                challenge: given["code_challenge"].clone(),
            };
            answer.push(("code", inner.grant(grant)));
        }
    }
    back.query_pairs_mut().extend_pairs(answer);
    (StatusCode::FOUND, [(header::LOCATION, back.to_string())]).into_response()
}

async fn token(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: String) -> Response {
    let given = form(&body).unwrap_or_default();
    let refuse = |code: StatusCode, error: &str| (code, Json(json!({ "error": error }))).into_response();
    if !is_our_client(&headers) {
        return refuse(StatusCode::UNAUTHORIZED, "invalid_client");
    }
    let of = |name: &str| given.get(name).map(String::as_str).unwrap_or_default();
    if of("grant_type") != "authorization_code" {
        return refuse(StatusCode::BAD_REQUEST, "unsupported_grant_type");
    }
    // A code is used once, whatever comes of it.
    let grant = inner.state.lock().codes.remove(of("code"));
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(of("code_verifier")));
    match grant {
        Some(grant)
            if grant.redirect_uri == of("redirect_uri")
                && of("code_verifier").len() >= 43
                && grant.challenge == challenge =>
        {
            let answer = json!({
                "access_token": "opaque", "token_type": "Bearer", "expires_in": 300,
                "id_token": inner.id_token(&grant),
            });
            ([(header::CACHE_CONTROL, "no-store")], Json(answer)).into_response()
        }
        _ => refuse(StatusCode::BAD_REQUEST, "invalid_grant"),
    }
}

/// By HTTP Basic, each half encoded as in a form.
fn is_our_client(headers: &HeaderMap) -> bool {
    let decoded = || {
        let basic = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
        let text = String::from_utf8(BASE64_STANDARD.decode(basic).ok()?).ok()?;
        let (id, secret) = text.split_once(':')?;
        form(&format!("id={id}&secret={secret}"))
    };
    decoded().is_some_and(|pair| pair["id"] == CLIENT_ID && pair["secret"] == CLIENT_SECRET)
}

fn form(text: &str) -> Option<Parameters> {
    let url = reqwest::Url::parse(&format!("form:?{text}")).ok()?;
    Some(url.query_pairs().into_owned().collect())
}
