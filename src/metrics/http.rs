//! What all requests of ours have in common.

use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, Error, Response};

/// Follows nobody elsewhere: credentials are meant for one server.
pub fn client() -> ClientBuilder {
    crate::tls::choose_cryptography();
    ClientBuilder::new().redirect(Policy::none())
}

/// Why a body was not read.
pub enum Unread {
    TooLong,
    Broken(Error),
}

/// The body, unless it is longer than `limit`.
pub async fn body(mut response: Response, limit: usize) -> Result<Vec<u8>, Unread> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Unread::Broken)? {
        if body.len() + chunk.len() > limit {
            return Err(Unread::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The cause of all causes. Those around it name the address, which people know
/// and which may hold a password.
pub fn cause(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<Error>() {
        Some(_) => "the request failed".to_owned(),
        None => cause.to_string(),
    }
}
