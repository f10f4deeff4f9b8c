//! The header `Retry-After` of a response.

use std::time::Duration;

use http::{HeaderMap, header};
use jiff::Timestamp;

/// Seconds, or the time until a date.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default())
}
