//! The OpenID provider: its discovery document, its keys, and the exchange of a code for an
//! ID token (OpenID Connect Discovery 1.0, RFC 8414, RFC 6749, RFC 7636).
//!
//! Answers are bounded in size and time. What is read is read again after [`LIFETIME`]; keys
//! also when a token names one that is not known, at most every [`KEYS_PAUSE`]. A code is
//! sent once: it is of no use a second time.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::header;
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{OidcError, OidcOptions, id_token::Keys};
use crate::error_chain::error_chain;

const LIFETIME: Duration = Duration::from_secs(3_600);
const KEYS_PAUSE: Duration = Duration::from_secs(10);
/// Of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Of documents, and the delay between them.
const ATTEMPTS: u32 = 2;
const RETRY_DELAY: Duration = Duration::from_millis(300);
const MAX_BODY_BYTES: usize = 256 * 1024;

pub struct Provider {
    options: Arc<OidcOptions>,
    http: reqwest::Client,
    endpoints: Mutex<Option<(Instant, Arc<Endpoints>)>>,
    keys: Mutex<Option<(Instant, Arc<Keys>)>>,
}

/// Parts of the discovery document.
#[derive(Debug, Deserialize)]
pub struct Endpoints {
    issuer: String,
    pub authorization_endpoint: Url,
    token_endpoint: Url,
    jwks_uri: Url,
    code_challenge_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: Option<String>,
}

#[derive(Default, Deserialize)]
struct TokenRefusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

impl Provider {
    pub fn new(options: Arc<OidcOptions>) -> reqwest::Result<Self> {
        crate::tls::install_crypto_provider();
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("serin/", env!("CARGO_PKG_VERSION")))
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        if !options.authorities.is_empty() {
            http = http.tls_certs_only(options.authorities.clone());
        }
        Ok(Self { options, http: http.build()?, endpoints: Mutex::default(), keys: Mutex::default() })
    }

    pub async fn endpoints(&self) -> Result<Arc<Endpoints>, OidcError> {
        let mut known = self.endpoints.lock().await;
        if let Some((_, endpoints)) = known.as_ref().filter(|(at, _)| at.elapsed() < LIFETIME) {
            return Ok(Arc::clone(endpoints));
        }
        let issuer = self.options.issuer.trim_end_matches('/');
        let address = format!("{issuer}/.well-known/openid-configuration");
        let text = self.get(&address).await?;
        let endpoints: Endpoints = serde_json::from_slice(&text)
            .map_err(|error| OidcError::Provider(format!("its discovery document: {error}")))?;
        endpoints.check(&self.options.issuer)?;
        let endpoints = Arc::new(endpoints);
        *known = Some((Instant::now(), Arc::clone(&endpoints)));
        Ok(endpoints)
    }

    /// With `again` keys that were read a moment ago are read again.
    pub async fn keys(&self, again: bool) -> Result<Arc<Keys>, OidcError> {
        let lifetime = if again { KEYS_PAUSE } else { LIFETIME };
        let endpoints = self.endpoints().await?;
        let mut known = self.keys.lock().await;
        if let Some((_, keys)) = known.as_ref().filter(|(at, _)| at.elapsed() < lifetime) {
            return Ok(Arc::clone(keys));
        }
        let text = self.get(endpoints.jwks_uri.as_str()).await?;
        let keys = Keys::parse(&text).map_err(|error| OidcError::Provider(format!("its keys: {error}")))?;
        if keys.is_empty() {
            return Err(OidcError::Provider("it lists no key for RS256 or ES256".to_owned()));
        }
        let keys = Arc::new(keys);
        *known = Some((Instant::now(), Arc::clone(&keys)));
        Ok(keys)
    }

    /// The ID token for a code.
    pub async fn exchange(&self, code: &str, verifier: &str) -> Result<String, OidcError> {
        let endpoints = self.endpoints().await?;
        let redirect = self.options.redirect_uri();
        let client = self.options.client_id.as_str();
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &redirect),
            ("code_verifier", verifier),
            ("client_id", client),
        ];
        let secret = match &self.options.client_secret {
            None => None,
            Some(file) => {
                let secret = file.read().map_err(OidcError::ClientSecret)?;
                Some(String::from_utf8_lossy(&secret).into_owned())
            }
        };
        let mut request = self.http.post(endpoints.token_endpoint.clone());
        if let Some(secret) = &secret {
            if endpoints.takes_basic() {
                // Each is encoded as in a form before (RFC 6749, 2.3.1).
                let both = format!("{}:{}", form_encoded_value(client), form_encoded_value(secret));
                let mut basic =
                    http::HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(both)))
                        .map_err(|error| OidcError::Provider(error.to_string()))?;
                basic.set_sensitive(true);
                request = request.header(header::AUTHORIZATION, basic);
                form.pop();
            } else {
                form.push(("client_secret", secret));
            }
        }
        let request = request
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json")
            .body(form_encoded(&form));
        let (status, text) = self.answer(request).await?;
        if !status.is_success() {
            let TokenRefusal { error, error_description } = serde_json::from_slice(&text).unwrap_or_default();
            let why: String = format!("{status} {error} {error_description}").chars().take(200).collect();
            return Err(OidcError::CodeRefused(why.trim_end().to_owned()));
        }
        let answer: TokenAnswer = serde_json::from_slice(&text)
            .map_err(|error| OidcError::Provider(format!("its answer to the code: {error}")))?;
        answer
            .id_token
            .ok_or_else(|| OidcError::Provider("its answer to the code has no ID token".to_owned()))
    }

    async fn get(&self, address: &str) -> Result<Vec<u8>, OidcError> {
        let mut attempts_left = ATTEMPTS;
        loop {
            attempts_left -= 1;
            let request = self.http.get(address).header(header::ACCEPT, "application/json");
            let failed = match self.answer(request).await {
                Ok((status, text)) if status.is_success() => return Ok(text),
                Ok((status, _)) => OidcError::Provider(format!("it answers {status} for {address}")),
                Err(error) => error,
            };
            if attempts_left == 0 {
                return Err(failed);
            }
            sleep(RETRY_DELAY).await;
        }
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<(StatusCode, Vec<u8>), OidcError> {
        let failed = |error: reqwest::Error| OidcError::Provider(error_chain(&error.without_url()));
        let mut response = request.send().await.map_err(failed)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_BODY_BYTES {
                let sentence = format!("it answers with more than {MAX_BODY_BYTES} bytes");
                return Err(OidcError::Provider(sentence));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status(), body))
    }
}

impl Endpoints {
    fn check(&self, issuer: &str) -> Result<(), OidcError> {
        if self.issuer != issuer {
            let found: String = self.issuer.chars().take(200).collect();
            let sentence = format!("it calls itself {found}; set --oidc-issuer-url to exactly that");
            return Err(OidcError::Provider(sentence));
        }
        for (name, url) in [
            ("authorization_endpoint", &self.authorization_endpoint),
            ("token_endpoint", &self.token_endpoint),
            ("jwks_uri", &self.jwks_uri),
        ] {
            if !is_private(url) {
                return Err(OidcError::Provider(format!("its {name} is not an https URL")));
            }
        }
        // Many providers that support it do not say so.
        match &self.code_challenge_methods_supported {
            Some(methods) if !methods.iter().any(|method| method == "S256") => {
                Err(OidcError::Provider("it does not support PKCE with S256".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The default, unless the provider takes the secret in the form only.
    fn takes_basic(&self) -> bool {
        match &self.token_endpoint_auth_methods_supported {
            Some(methods) => {
                methods.iter().any(|method| method == "client_secret_basic")
                    || !methods.iter().any(|method| method == "client_secret_post")
            }
            None => true,
        }
    }
}

/// Nobody between here and there reads along: TLS, or this machine.
pub fn is_private(url: &Url) -> bool {
    let loopback = match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback()),
        None => false,
    };
    url.scheme() == "https" || url.scheme() == "http" && loopback
}

fn form_encoded(pairs: &[(&str, &str)]) -> String {
    let mut url = Url::parse("form:").expect("a URL");
    url.query_pairs_mut().extend_pairs(pairs);
    url.query().unwrap_or_default().to_owned()
}

fn form_encoded_value(text: &str) -> String {
    form_encoded(&[("", text)]).split_off(1)
}
