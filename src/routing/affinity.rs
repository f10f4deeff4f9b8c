//! Session affinity by cookies that the router sets and matches.
//!
//! While the canary has a weight, its responses set its cookie, and requests with
//! that cookie go to the canary. The cookie is the one that the status records for the
//! release, so cookies of an earlier one match nothing. While the canary has no weight, the cookie is
//! expired on the next response.

use std::fmt::Write as _;

use crate::{
    api::{
        Canary, Duration, Weight,
        canary::{SessionAffinity, analysis::SameSite},
    },
    engine::action::Split,
};

const DEFAULT_MAX_AGE_SECS: u64 = 86_400;

/// How a route treats cookies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    None,
    /// Set cookies and match them.
    Sticky {
        canary: Cookie,
        primary: Option<Cookie>,
    },
    /// Expire the canary's cookie.
    Expire(Cookie),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Matches the whole header `Cookie` of a request that has it.
    pub match_regex: String,
    /// The value of `Set-Cookie`.
    pub set_cookie: String,
}

impl Affinity {
    pub fn of(canary: &Canary, split: &Split) -> Self {
        let Some(spec) = &canary.spec.analysis.session_affinity else { return Self::None };
        if split.canary == Weight::ZERO {
            return Self::Expire(Cookie {
                match_regex: cookie_regex(&spec.cookie_name, "[^;]*"),
                set_cookie: set_cookie_header(spec, &spec.cookie_name, "", 0),
            });
        }
        let status = canary.status.as_ref();
        // No release has started that the cookies could be of.
        let recorded = status.and_then(|status| status.session_affinity_cookie.as_deref()?.split_once('='));
        let Some(recorded) = recorded else { return Self::None };
        let cookie = |(name, value): (&str, &str), seconds| Cookie {
            match_regex: cookie_regex(name, &regex::escape(value)),
            set_cookie: set_cookie_header(spec, name, value, seconds),
        };
        // Zero is the default, as for Flagger: a cookie of no duration would hold nobody.
        let age = spec.max_age.filter(|age| *age > 0).map_or(DEFAULT_MAX_AGE_SECS, u64::from);
        let interval_seconds =
            canary.spec.analysis.interval.unwrap_or(Duration::from_secs(60)).get().as_secs();
        // At full weight the primary may be about to change.
        let primary = status
            .and_then(|status| status.primary_session_affinity_cookie.as_deref()?.split_once('='))
            .filter(|_| split.canary < Weight::FULL);
        Self::Sticky {
            canary: cookie(recorded, age),
            // Users of the primary may move to the canary with the next step.
            primary: primary.map(|primary| cookie(primary, interval_seconds)),
        }
    }
}

fn cookie_regex(name: &str, value: &str) -> String {
    format!("^(.*;[ ]*)?{}={value}(;.*)?$", regex::escape(name))
}

fn set_cookie_header(spec: &SessionAffinity, name: &str, value: &str, seconds: u64) -> String {
    let mut cookie = format!("{name}={value}");
    let mut push_attribute = |attribute: &str| {
        let _ = write!(cookie, "; {attribute}");
    };
    if let Some(domain) = &spec.domain {
        push_attribute(&format!("Domain={domain}"));
    }
    if spec.http_only {
        push_attribute("HttpOnly");
    }
    push_attribute(&format!("Max-Age={seconds}"));
    if spec.partitioned {
        push_attribute("Partitioned");
    }
    if let Some(path) = &spec.path {
        push_attribute(&format!("Path={path}"));
    }
    match spec.same_site {
        Some(SameSite::Strict) => push_attribute("SameSite=Strict"),
        Some(SameSite::Lax) => push_attribute("SameSite=Lax"),
        Some(SameSite::None) => push_attribute("SameSite=None"),
        None => {}
    }
    if spec.secure {
        push_attribute("Secure");
    }
    cookie
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_and_not_in_their_values() {
        let cookie = regex::Regex::new(&cookie_regex("side", "canary-7")).unwrap();
        for cookies in ["side=canary-7", "a=b; side=canary-7", "side=canary-7; a=b", "a=b;side=canary-7;c=d"]
        {
            assert!(cookie.is_match(cookies), "{cookies}");
        }
        for cookies in ["side=canary-70", "inside=canary-7", "a=side=canary-7", "side=canary-6"] {
            assert!(!cookie.is_match(cookies), "{cookies}");
        }
    }

    #[test]
    fn cookie_attributes_are_those_of_the_canary() {
        let spec = SessionAffinity {
            path: Some("/shop".to_owned()),
            same_site: Some(SameSite::Lax),
            secure: true,
            http_only: true,
            ..Default::default()
        };
        let header = set_cookie_header(&spec, "side", "canary-7", DEFAULT_MAX_AGE_SECS);
        assert_eq!(header, "side=canary-7; HttpOnly; Max-Age=86400; Path=/shop; SameSite=Lax; Secure");
    }
}
