//! Who signed in, and a sign-in that has begun, as cookies that only this installation can
//! read and make.
//!
//! AES-256-GCM under a key derived from a file that all replicas share, so that a request may
//! reach any of them, and a restart ends no session. A value of one purpose is of no use for
//! the other.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::Mac as _;
use http::{HeaderMap, HeaderValue, header};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom as _, SystemRandom},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::gates::question::{SecretFile, mac};

/// Header of requests that count by the cookie: other sites cannot send it.
pub const SESSION_HEADER: &str = "x-serin-session";

const MIN_KEY_BYTES: usize = 32;
/// Browsers drop longer cookies.
const MAX_COOKIE_BYTES: usize = 4_000;

/// A user as the rights of the cluster name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub user: String,
    pub groups: Vec<String>,
    /// Seconds since 1970.
    pub expires: i64,
}

/// A sign-in at the provider that this browser began.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begun {
    pub state: String,
    pub nonce: String,
    /// Of PKCE.
    pub verifier: String,
    /// Seconds since 1970.
    pub expires: i64,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("cannot read the session key")]
    Key(#[source] std::io::Error),
    #[error("the session key is shorter than {MIN_KEY_BYTES} bytes; make one with `openssl rand -hex 32`")]
    ShortKey,
    #[error(
        "you are in {0} groups, more than a cookie can hold; have the provider send only those that matter here"
    )]
    TooManyGroups(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Session,
    Begun,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "serin-session",
            Self::Begun => "serin-sign-in",
        }
    }
}

/// Reads and makes the cookies.
#[derive(Clone, Debug)]
pub struct Cookies {
    pub key: SecretFile,
    /// Browsers send them over TLS only.
    pub secure: bool,
}

impl Cookies {
    /// The session of a request, whether it is over or not; none if there is no valid cookie.
    pub fn session(&self, headers: &HeaderMap) -> Result<Option<Session>, SessionError> {
        self.open(headers, Purpose::Session)
    }

    pub fn begun(&self, headers: &HeaderMap) -> Result<Option<Begun>, SessionError> {
        self.open(headers, Purpose::Begun)
    }

    /// Sent by the browser to this origin only, and never with a request of another site.
    pub fn set_session(&self, session: &Session, now: i64) -> Result<HeaderValue, SessionError> {
        let cookie = self.seal(Purpose::Session, session)?;
        if cookie.len() > MAX_COOKIE_BYTES {
            return Err(SessionError::TooManyGroups(session.groups.len()));
        }
        Ok(self.cookie(Purpose::Session, &cookie, session.expires - now))
    }

    /// Sent when the provider redirects the browser back, which counts as another site.
    pub fn set_begun(&self, begun: &Begun, now: i64) -> Result<HeaderValue, SessionError> {
        Ok(self.cookie(Purpose::Begun, &self.seal(Purpose::Begun, begun)?, begun.expires - now))
    }

    pub fn clear_session(&self) -> HeaderValue {
        self.cookie(Purpose::Session, "", 0)
    }

    pub fn clear_begun(&self) -> HeaderValue {
        self.cookie(Purpose::Begun, "", 0)
    }

    fn cookie(&self, purpose: Purpose, value: &str, seconds: i64) -> HeaderValue {
        let name = self.cookie_name(purpose);
        let same_site = match purpose {
            Purpose::Session => "Strict",
            Purpose::Begun => "Lax",
        };
        let secure = if self.secure { "; Secure" } else { "" };
        let text =
            format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}");
        // Names, base64url and numbers: this does not fail.
        let mut value = HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }

    /// With the prefix, a browser takes the cookie from this very host only.
    fn cookie_name(&self, purpose: Purpose) -> String {
        format!("{}{}", if self.secure { "__Host-" } else { "" }, purpose.name())
    }

    fn seal(&self, purpose: Purpose, value: &impl Serialize) -> Result<String, SessionError> {
        let key = self.derived_key(purpose)?;
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce);
        // Strings and numbers: this does not fail.
        let mut sealed = serde_json::to_vec(value).unwrap_or_default();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
            .expect("a text of some kilobytes can be sealed");
        Ok(BASE64_URL_SAFE_NO_PAD.encode([nonce.as_slice(), sealed.as_slice()].concat()))
    }

    fn open<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        purpose: Purpose,
    ) -> Result<Option<T>, SessionError> {
        let Some(cookie) = cookie_value(headers, &self.cookie_name(purpose)) else { return Ok(None) };
        let key = self.derived_key(purpose)?;
        let open = || {
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(cookie).ok()?;
            let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut sealed = sealed.to_vec();
            serde_json::from_slice(key.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?).ok()
        };
        Ok(open())
    }

    fn derived_key(&self, purpose: Purpose) -> Result<LessSafeKey, SessionError> {
        let secret = self.key.read().map_err(SessionError::Key)?;
        if secret.len() < MIN_KEY_BYTES {
            return Err(SessionError::ShortKey);
        }
        let bytes = mac(&secret, purpose.name().as_bytes()).finalize().into_bytes();
        let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("SHA-256 has the length of the key");
        Ok(LessSafeKey::new(key))
    }
}

/// Text of the session's cookie, a name for what it holds.
pub fn session_cookie<'a>(cookies: &Cookies, headers: &'a HeaderMap) -> Option<&'a str> {
    cookie_value(headers, &cookies.cookie_name(Purpose::Session))
}

fn cookie_value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let texts = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut cookies = texts.flat_map(|text| text.split(';')).filter_map(|one| one.trim().split_once('='));
    cookies.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// 256 bits in base64url.
pub fn random_text() -> String {
    let mut bytes = [0; 32];
    fill_random(&mut bytes);
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn fill_random(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("the system has random numbers");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookies(name: &str, key: &str) -> Cookies {
        let path = std::env::temp_dir().join(format!("serin-session-key-{}-{name}", std::process::id()));
        std::fs::write(&path, key).expect("a key file");
        Cookies { key: SecretFile(path), secure: true }
    }

    fn session() -> Session {
        Session { user: "alice".to_owned(), groups: vec!["sre".to_owned()], expires: 100 }
    }

    /// The request headers of a browser that got this cookie, under another name if one is given.
    fn sent(set: &HeaderValue, name: Option<&str>) -> HeaderMap {
        let (own, rest) = set.to_str().expect("text").split_once('=').expect("a cookie");
        let value = rest.split(';').next().expect("a value");
        let cookie = format!("theme=dark; {}={value}", name.unwrap_or(own));
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(&cookie).expect("a header"))])
    }

    #[test]
    fn a_session_is_read_with_its_own_key_and_for_its_own_purpose_only() {
        let ours = cookies("ours", &"k".repeat(32));
        let set = ours.set_session(&session(), 10).expect("a cookie");
        let text = set.to_str().expect("text");
        assert!(text.starts_with("__Host-serin-session="), "{text}");
        assert!(text.ends_with("; Path=/; Max-Age=90; HttpOnly; SameSite=Strict; Secure"), "{text}");
        assert!(!text.contains("alice"), "{text}");
        assert_eq!(ours.session(&sent(&set, None)).expect("a key"), Some(session()));

        let others = cookies("others", &"l".repeat(32));
        assert_eq!(others.session(&sent(&set, None)).expect("a key"), None);
        assert!(ours.begun(&sent(&set, Some("__Host-serin-sign-in"))).expect("a key").is_none());
        let begun = Begun { state: "s".into(), nonce: "n".into(), verifier: "v".into(), expires: 100 };
        let begun = ours.set_begun(&begun, 10).expect("a cookie");
        assert_eq!(ours.session(&sent(&begun, Some("__Host-serin-session"))).expect("a key"), None);
        for forged in ["", "x", "AAAA", &"A".repeat(200)] {
            let forged = HeaderValue::from_str(&format!("__Host-serin-session={forged}")).expect("a header");
            assert_eq!(ours.session(&sent(&forged, None)).expect("a key"), None, "{forged:?}");
        }
    }

    #[test]
    fn a_short_key_and_a_thousand_groups_are_refused() {
        let short = cookies("short", "secret");
        assert!(matches!(short.set_session(&session(), 0), Err(SessionError::ShortKey)));
        let groups = (0..1000).map(|number| format!("group-{number}")).collect();
        let many = cookies("many", &"k".repeat(32)).set_session(&Session { groups, ..session() }, 0);
        assert!(matches!(many, Err(SessionError::TooManyGroups(1000))));
    }
}
