//! A split as a list of rules for a mesh; the first that matches a request
//! applies.
//!
//! ```text
//!   matched requests   ▶ canary
//!   canary's cookie    ▶ canary        or, while the canary has no weight,
//!   primary's cookie   ▶ primary       canary's cookie ▶ primary, expired
//!   all other requests ▶ by weight
//! ```

use serde_json::Value;

use super::affinity::Affinity;
use crate::{
    api::{Canary, Weight, canary::HttpMatch},
    engine::action::Split,
};

/// A set of requests and their destination.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficRule<'a> {
    pub matcher: RequestMatcher<'a>,
    /// The canary's weight.
    pub share: Weight,
    /// The percentage that is mirrored to the canary.
    pub mirror: Weight,
    /// `Set-Cookie` in responses of the primary.
    pub primary_set_cookie: Option<String>,
    /// `Set-Cookie` in responses of the canary.
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

/// The last one is the catch-all.
pub fn traffic_rules<'a>(canary: &Canary, split: &'a Split) -> Vec<TrafficRule<'a>> {
    let to = |matcher: RequestMatcher<'a>, share: Weight| {
        let mirror = if share == Weight::FULL { Weight::ZERO } else { split.mirror };
        TrafficRule { matcher, share, mirror, primary_set_cookie: None, canary_set_cookie: None }
    };
    let mut all = Vec::new();
    if !split.matches.is_empty() {
        all.push(to(RequestMatcher::Conditions(&split.matches), Weight::FULL));
    }
    let mut catch_all = to(RequestMatcher::CatchAll, split.canary);
    match Affinity::of(canary, split) {
        Affinity::None => {}
        Affinity::Sticky { canary, primary } => {
            all.push(to(RequestMatcher::Cookie(canary.match_regex), Weight::FULL));
            catch_all.canary_set_cookie = Some(canary.set_cookie);
            if let Some(primary) = primary {
                all.push(to(RequestMatcher::Cookie(primary.match_regex), Weight::ZERO));
                catch_all.primary_set_cookie = Some(primary.set_cookie);
            }
        }
        Affinity::Expire(stale) => {
            let holders = to(RequestMatcher::Cookie(stale.match_regex), split.canary);
            all.push(TrafficRule { primary_set_cookie: Some(stale.set_cookie), ..holders });
        }
    }
    all.push(catch_all);
    all
}

/// Two conditions in the form of an HTTPMatchRequest in one. For the same field the narrow
/// one wins.
pub fn merge_conditions(narrow: &Value, wide: &Value) -> Value {
    let mut both = wide.clone();
    for (field, value) in narrow.as_object().into_iter().flatten() {
        let by_name = ["headers", "withoutHeaders", "queryParams", "sourceLabels"].contains(&field.as_str());
        match (both.get_mut(field), value) {
            (Some(Value::Object(wide)), Value::Object(narrow)) if by_name => wide.extend(narrow.clone()),
            _ => both[field] = value.clone(),
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_conditions_are_merged() {
        let wide = json!({"uri": {"prefix": "/shop"}, "headers": {"x-zone": {"exact": "eu"}}});
        let narrow = json!({"uri": {"exact": "/shop/new"}, "headers": {"x-team": {"exact": "ours"}}});
        assert_eq!(
            merge_conditions(&narrow, &wide),
            json!({"uri": {"exact": "/shop/new"},
                "headers": {"x-zone": {"exact": "eu"}, "x-team": {"exact": "ours"}}})
        );
    }
}
