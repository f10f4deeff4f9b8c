//! Keeping users where they are, by cookies that the router sets and reads.
//!
//! While the canary has a share of the traffic, whoever it answers gets its
//! cookie and goes there from then on. The cookie's value belongs to one
//! release, so those of an earlier one mean nothing. While the canary has none,
//! the cookie is taken back from whoever still has it.

use std::fmt::Write as _;

use kube::ResourceExt as _;

use crate::{
    api::{
        Canary, Duration, Weight,
        canary::{SessionAffinity, analysis::SameSite},
    },
    engine::action::Split,
};

const DEFAULT_MAX_AGE_SECS: u64 = 86_400;

/// What a route does about cookies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    None,
    /// Hand cookies out and honour them.
    Sticky {
        canary: Cookie,
        primary: Option<Cookie>,
    },
    /// Take the canary's back.
    Expire(Cookie),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// A regular expression for the whole of the header `Cookie` of whoever
    /// has it.
    pub match_regex: String,
    /// The value of `Set-Cookie`.
    pub set_cookie: String,
}

impl Affinity {
    pub fn of(canary: &Canary, split: &Split) -> Self {
        let Some(spec) = &canary.spec.analysis.session_affinity else { return Self::None };
        if split.canary == Weight::ZERO {
            let held = cookie_regex(&spec.cookie_name, "[^;]*");
            return Self::Expire(Cookie {
                match_regex: held,
                set_cookie: set_cookie_header(spec, &spec.cookie_name, "", 0),
            });
        }
        let status = canary.status.as_ref();
        // The release that the cookies belong to has not been seen to begin.
        let Some(value) = status.and_then(|status| status.session_affinity_cookie.as_deref()) else {
            return Self::None;
        };
        // Values are told apart by release; this tells them apart by Canary.
        let whole = |value: &str| match canary.uid() {
            Some(uid) => format!("{value}-{}", uid.split('-').next().unwrap_or_default()),
            None => value.to_owned(),
        };
        let cookie = |name: &str, value: &str, seconds| {
            let value = whole(value);
            Cookie {
                match_regex: cookie_regex(name, &regex::escape(&value)),
                set_cookie: set_cookie_header(spec, name, &value, seconds),
            }
        };
        let age = spec.max_age.map_or(DEFAULT_MAX_AGE_SECS, u64::from);
        let interval_seconds =
            canary.spec.analysis.interval.unwrap_or(Duration::from_secs(60)).get().as_secs();
        // With everything at the canary the primary may be about to change.
        let primary = status
            .and_then(|status| status.primary_session_affinity_cookie.as_deref())
            .filter(|_| split.canary < Weight::FULL);
        Self::Sticky {
            canary: cookie(&spec.cookie_name, value, age),
            // Users of the primary may move on with the next step.
            primary: spec
                .primary_cookie_name
                .as_ref()
                .zip(primary)
                .map(|(name, value)| cookie(name, value, interval_seconds)),
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
        let held = regex::Regex::new(&cookie_regex("side", "canary-7")).unwrap();
        for cookies in ["side=canary-7", "a=b; side=canary-7", "side=canary-7; a=b", "a=b;side=canary-7;c=d"]
        {
            assert!(held.is_match(cookies), "{cookies}");
        }
        for cookies in ["side=canary-70", "inside=canary-7", "a=side=canary-7", "side=canary-6"] {
            assert!(!held.is_match(cookies), "{cookies}");
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
        let said = set_cookie_header(&spec, "side", "canary-7", DEFAULT_MAX_AGE_SECS);
        assert_eq!(said, "side=canary-7; HttpOnly; Max-Age=86400; Path=/shop; SameSite=Lax; Secure");
    }
}
