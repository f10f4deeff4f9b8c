//! ID tokens: JSON Web Signatures with the claims of OpenID Connect Core, section 2, verified
//! as its section 3.1.3.7 demands.
//!
//! Signatures are RS256 or ES256, by a key of the provider that is of that very kind: a token
//! that names another algorithm, `none` among them, has no key. No header but `alg` and `kid`
//! is honoured, and a token that says that another one must be is refused.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Of a provider; further ones are not looked at.
const MAX_KEYS: usize = 32;
/// The provider's clock may be this far from ours, in seconds.
const LEEWAY: i64 = 60;

pub type Claims = Map<String, Value>;

/// The verification that this token must stand.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub issuer: &'a str,
    pub client_id: &'a str,
    /// Of the sign-in that this browser began.
    pub nonce: &'a str,
    /// Seconds since 1970.
    pub now: i64,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdTokenError {
    #[error("it is not a signed token")]
    Malformed,
    #[error("it is signed with {0}, and RS256 and ES256 only are accepted")]
    Algorithm(String),
    #[error("it is signed with a key that the provider does not list")]
    UnknownKey,
    #[error("its signature is not valid")]
    Signature,
    #[error("its header demands an extension: {0}")]
    Critical(String),
    #[error("it is of another issuer")]
    Issuer,
    #[error("it is meant for another client")]
    Audience,
    #[error("it has expired, or a clock is wrong")]
    Expired,
    #[error("it is not valid yet, or a clock is wrong")]
    NotYet,
    #[error("it is not of the sign-in that this browser began")]
    Nonce,
}

/// Those that sign ID tokens.
#[derive(Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    public: PublicKey,
}

#[derive(Debug)]
enum PublicKey {
    Rs256 {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    Es256(Vec<u8>),
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// RFC 7517 and 7518.
#[derive(Deserialize)]
struct JsonWebKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct JoseHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl Keys {
    /// A JSON Web Key Set. Keys of other kinds, for other uses or malformed ones are none.
    pub fn parse(text: &[u8]) -> serde_json::Result<Self> {
        let set: KeySet = serde_json::from_slice(text)?;
        let keys = set.keys.into_iter().take(MAX_KEYS);
        Ok(Self(keys.filter_map(|key| Key::of(serde_json::from_value(key).ok()?)).collect()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Key {
    fn of(key: JsonWebKey) -> Option<Self> {
        let bytes = |text: Option<String>| BASE64_URL_SAFE_NO_PAD.decode(text?).ok();
        if key.usage.is_some_and(|usage| usage != "sig") {
            return None;
        }
        let public = match (key.kty.as_str(), key.crv.as_deref()) {
            ("RSA", _) => PublicKey::Rs256 { n: bytes(key.n)?, e: bytes(key.e)? },
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(key.x)?, bytes(key.y)?);
                PublicKey::Es256([&[4], x.as_slice(), y.as_slice()].concat())
            }
            _ => return None,
        };
        let is_for_it = key.alg.is_none_or(|alg| alg == public.algorithm());
        is_for_it.then_some(Self { id: key.kid, public })
    }
}

impl PublicKey {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rs256 { .. } => "RS256",
            Self::Es256(_) => "ES256",
        }
    }

    fn verifies(&self, text: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rs256 { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, text, signature).is_ok()
            }
            Self::Es256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(text, signature).is_ok()
            }
        }
    }
}

/// The claims of a token that may be relied on.
pub fn verify(token: &str, keys: &Keys, expected: Expected<'_>) -> Result<Claims, IdTokenError> {
    let (signed, signature) = token.rsplit_once('.').ok_or(IdTokenError::Malformed)?;
    let (header, claims) = signed.split_once('.').ok_or(IdTokenError::Malformed)?;
    let decode = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| IdTokenError::Malformed);
    let header: JoseHeader = serde_json::from_slice(&decode(header)?).map_err(|_| IdTokenError::Malformed)?;
    if let Some(critical) = header.crit {
        return Err(IdTokenError::Critical(critical.to_string()));
    }
    if !matches!(header.alg.as_str(), "RS256" | "ES256") {
        return Err(IdTokenError::Algorithm(header.alg.chars().take(20).collect()));
    }
    let signature = decode(signature)?;
    let mut candidates = keys
        .0
        .iter()
        .filter(|key| key.public.algorithm() == header.alg)
        .filter(|key| header.kid.is_none() || header.kid == key.id)
        .peekable();
    if candidates.peek().is_none() {
        return Err(IdTokenError::UnknownKey);
    }
    if !candidates.any(|key| key.public.verifies(signed.as_bytes(), &signature)) {
        return Err(IdTokenError::Signature);
    }
    let claims: Claims = serde_json::from_slice(&decode(claims)?).map_err(|_| IdTokenError::Malformed)?;
    check(&claims, expected)?;
    Ok(claims)
}

fn check(claims: &Claims, expected: Expected<'_>) -> Result<(), IdTokenError> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let time = |name: &str| claims.get(name).and_then(Value::as_f64).map(|seconds| seconds as i64);
    if text("iss") != Some(expected.issuer) {
        return Err(IdTokenError::Issuer);
    }
    let (for_us, for_others) = match claims.get("aud") {
        Some(Value::String(one)) => (one == expected.client_id, false),
        Some(Value::Array(several)) => {
            (several.iter().any(|one| one == expected.client_id), several.len() > 1)
        }
        _ => (false, false),
    };
    // A token for several names the one that asked for it.
    let asked_by_us = match claims.get("azp") {
        Some(party) => party == expected.client_id,
        None => !for_others,
    };
    if !for_us || !asked_by_us {
        return Err(IdTokenError::Audience);
    }
    if time("exp").is_none_or(|at| at.saturating_add(LEEWAY) <= expected.now) {
        return Err(IdTokenError::Expired);
    }
    if ["iat", "nbf"].into_iter().filter_map(time).any(|at| at.saturating_sub(LEEWAY) > expected.now) {
        return Err(IdTokenError::NotYet);
    }
    if text("nonce") != Some(expected.nonce) {
        return Err(IdTokenError::Nonce);
    }
    Ok(())
}
