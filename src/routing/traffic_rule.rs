//! A split as a mesh has to put it: who goes where, the first that fits counts.
//!
//! ```text
//!   chosen requests    ▶ canary
//!   canary's cookie    ▶ canary        or, while the canary has no share,
//!   primary's cookie   ▶ primary       canary's cookie ▶ primary, taken back
//!   all the others     ▶ by weight
//! ```

use super::affinity::Affinity;
use crate::{
    api::{Canary, Weight, canary::HttpMatch},
    engine::action::Split,
};

/// Some of the requests, and where they go.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficRule<'a> {
    pub matcher: RequestMatcher<'a>,
    /// The canary's share of them.
    pub share: Weight,
    /// The share of them of which the canary gets a copy.
    pub mirror: Weight,
    /// `Set-Cookie` in answers of the primary.
    pub primary_set_cookie: Option<String>,
    /// `Set-Cookie` in answers of the canary.
    pub canary_set_cookie: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestMatcher<'a> {
    /// Any of these conditions holds.
    Conditions(&'a [HttpMatch]),
    /// The whole of the header `Cookie` matches this regular expression.
    Cookie(String),
    CatchAll,
}

/// The last is for everybody.
pub fn traffic_rules<'a>(canary: &Canary, split: &'a Split) -> Vec<TrafficRule<'a>> {
    let to = |who: RequestMatcher<'a>, share: Weight| {
        let mirror = if share == Weight::FULL { Weight::ZERO } else { split.mirror };
        TrafficRule { matcher: who, share, mirror, primary_set_cookie: None, canary_set_cookie: None }
    };
    let mut all = Vec::new();
    if !split.matches.is_empty() {
        all.push(to(RequestMatcher::Conditions(&split.matches), Weight::FULL));
    }
    let mut everybody = to(RequestMatcher::CatchAll, split.canary);
    match Affinity::of(canary, split) {
        Affinity::None => {}
        Affinity::Sticky { canary, primary } => {
            all.push(to(RequestMatcher::Cookie(canary.match_regex), Weight::FULL));
            everybody.canary_set_cookie = Some(canary.set_cookie);
            if let Some(primary) = primary {
                all.push(to(RequestMatcher::Cookie(primary.match_regex), Weight::ZERO));
                everybody.primary_set_cookie = Some(primary.set_cookie);
            }
        }
        Affinity::Expire(stale) => {
            let holders = to(RequestMatcher::Cookie(stale.match_regex), split.canary);
            all.push(TrafficRule { primary_set_cookie: Some(stale.set_cookie), ..holders });
        }
    }
    all.push(everybody);
    all
}
