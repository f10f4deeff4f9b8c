//! One question of one release: an answer to it counts for no other.
//!
//! Buttons and links carry the question that they answer, so that a click on an old message
//! does not approve a later step.

use std::path::PathBuf;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// The waiting gate of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Question {
    pub namespace: String,
    /// Of the Canary.
    pub name: String,
    pub uid: Option<String>,
    pub release: u64,
    pub gate: String,
    /// Index of the step.
    pub step: Option<u32>,
}

/// A file with a secret, such as a key of a mounted Secret. It is read at each use, so that a
/// rotated secret needs no restart.
#[derive(Clone, Debug)]
pub struct SecretFile(pub PathBuf);

impl SecretFile {
    /// Without white space at its end.
    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut secret = std::fs::read(&self.0)?;
        secret.truncate(secret.trim_ascii_end().len());
        Ok(secret)
    }
}

/// Signs links that answer a question, and verifies them.
///
/// ```text
///   BASE/api/v1/answers/CLAIMS.SIGNATURE    claims in JSON, HMAC-SHA256, both in base64url
/// ```
///
/// A link expires, and works once: its nonce, which both links of a question share, is
/// recorded with the answer in the Canary.
#[derive(Clone, Debug)]
pub struct LinkSigner {
    pub key: SecretFile,
    /// Where browsers reach the API of the controller, without a slash at the end.
    pub base_url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkClaims {
    pub question: Question,
    pub approve: bool,
    /// Seconds since 1970.
    pub expires: i64,
    pub nonce: String,
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot read the key of links")]
    Key(#[source] std::io::Error),
    #[error("the key of links is shorter than {MIN_KEY_BYTES} bytes; make one with `openssl rand -hex 32`")]
    ShortKey,
    #[error("this link is not valid: copy it again from its message")]
    Invalid,
    #[error("this link has expired; approve with the command in its message")]
    Expired,
}

const MIN_KEY_BYTES: usize = 32;

/// How long a link works.
pub const LINK_LIFETIME: SignedDuration = SignedDuration::from_hours(24);

impl LinkSigner {
    /// The links that approve and reject.
    pub fn links(&self, question: &Question, now: Timestamp) -> Result<[String; 2], LinkError> {
        let key = self.read_key()?;
        let expires = now.saturating_add(LINK_LIFETIME).map_or(i64::MAX, |at| at.as_second());
        let nonce = nonce(&key, question);
        let link = |approve| {
            let claims = LinkClaims { question: question.clone(), approve, expires, nonce: nonce.clone() };
            // Strings and numbers: this does not fail.
            let claims = BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap_or_default());
            let signature =
                BASE64_URL_SAFE_NO_PAD.encode(mac(&key, claims.as_bytes()).finalize().into_bytes());
            format!("{}/api/v1/answers/{claims}.{signature}", self.base_url)
        };
        Ok([link(true), link(false)])
    }

    /// The claims of the part after the last slash.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<LinkClaims, LinkError> {
        let key = self.read_key()?;
        let (claims, signature) = token.split_once('.').ok_or(LinkError::Invalid)?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| LinkError::Invalid)?;
        mac(&key, claims.as_bytes()).verify_slice(&signature).map_err(|_| LinkError::Invalid)?;
        let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).map_err(|_| LinkError::Invalid)?;
        let claims: LinkClaims = serde_json::from_slice(&claims).map_err(|_| LinkError::Invalid)?;
        if now.as_second() >= claims.expires { Err(LinkError::Expired) } else { Ok(claims) }
    }

    fn read_key(&self) -> Result<Vec<u8>, LinkError> {
        let key = self.key.read().map_err(LinkError::Key)?;
        if key.len() < MIN_KEY_BYTES { Err(LinkError::ShortKey) } else { Ok(key) }
    }
}

/// The same for all links of a question, whatever message they are in.
fn nonce(key: &[u8], question: &Question) -> String {
    let text = serde_json::to_vec(question).unwrap_or_default();
    let digest = mac(key, &[b"nonce:", text.as_slice()].concat()).finalize().into_bytes();
    digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

/// The HMAC of a text, which accepts keys of any length.
pub fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes any key").chain_update(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            namespace: "prod".to_owned(),
            name: "web".to_owned(),
            uid: Some("u-1".to_owned()),
            release: 3,
            gate: "go-live".to_owned(),
            step: Some(2),
        }
    }

    fn signer(name: &str, key: &str) -> LinkSigner {
        let path = std::env::temp_dir().join(format!("serin-link-key-{}-{name}", std::process::id()));
        std::fs::write(&path, key).expect("a key file");
        LinkSigner { key: SecretFile(path), base_url: "https://serin.example.com".to_owned() }
    }

    #[test]
    fn a_link_is_valid_until_it_expires_and_only_as_it_was_signed() {
        let signer = signer("valid", &"k".repeat(32));
        let now = Timestamp::UNIX_EPOCH;
        let [approve, reject] = signer.links(&question(), now).expect("two links");
        let token = |link: &str| link.rsplit('/').next().unwrap_or_default().to_owned();
        let (yes, no) = (signer.verify(&token(&approve), now), signer.verify(&token(&reject), now));
        let (yes, no) = (yes.expect("valid"), no.expect("valid"));
        assert_eq!((yes.approve, no.approve, &yes.question), (true, false, &question()));
        assert_eq!(yes.nonce, no.nonce, "whichever is used first");
        let late = now.checked_add(LINK_LIFETIME).expect("a time");
        assert!(matches!(signer.verify(&token(&approve), late), Err(LinkError::Expired)));
        let (claims, _) = token(&approve).split_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let (_, signature) =
            token(&reject).split_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        for forged in [format!("{claims}.{signature}"), claims.clone(), format!("{claims}."), String::new()] {
            assert!(matches!(signer.verify(&forged, now), Err(LinkError::Invalid)), "{forged}");
        }
        let other = self::signer("other", &"l".repeat(32));
        assert!(matches!(other.verify(&token(&approve), now), Err(LinkError::Invalid)));
        let next = Question { step: Some(3), ..question() };
        let [later, _] = signer.links(&next, now).expect("two links");
        assert_ne!(signer.verify(&token(&later), now).expect("valid").nonce, yes.nonce);
    }

    #[test]
    fn a_short_key_signs_nothing() {
        let short = signer("short", "secret");
        assert!(matches!(short.links(&question(), Timestamp::UNIX_EPOCH), Err(LinkError::ShortKey)));
    }
}
