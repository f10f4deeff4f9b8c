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
pub struct Division<'a> {
    pub who: Who<'a>,
    /// The canary's share of them.
    pub share: Weight,
    /// The share of them of which the canary gets a copy.
    pub mirror: Weight,
    /// `Set-Cookie` in answers of the primary.
    pub primary_sets: Option<String>,
    /// `Set-Cookie` in answers of the canary.
    pub canary_sets: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Who<'a> {
    /// Any of these conditions holds.
    Chosen(&'a [HttpMatch]),
    /// The whole of the header `Cookie` matches this regular expression.
    HasCookie(String),
    Everybody,
}

/// The last is for everybody.
pub fn divisions<'a>(canary: &Canary, split: &'a Split) -> Vec<Division<'a>> {
    let to = |who: Who<'a>, share: Weight| {
        let mirror = if share == Weight::FULL { Weight::ZERO } else { split.mirror };
        Division { who, share, mirror, primary_sets: None, canary_sets: None }
    };
    let mut all = Vec::new();
    if !split.matches.is_empty() {
        all.push(to(Who::Chosen(&split.matches), Weight::FULL));
    }
    let mut everybody = to(Who::Everybody, split.canary);
    match Affinity::of(canary, split) {
        Affinity::None => {}
        Affinity::Keep { canary, primary } => {
            all.push(to(Who::HasCookie(canary.held), Weight::FULL));
            everybody.canary_sets = Some(canary.set);
            if let Some(primary) = primary {
                all.push(to(Who::HasCookie(primary.held), Weight::ZERO));
                everybody.primary_sets = Some(primary.set);
            }
        }
        Affinity::Forget(stale) => {
            let holders = to(Who::HasCookie(stale.held), split.canary);
            all.push(Division { primary_sets: Some(stale.set), ..holders });
        }
    }
    all.push(everybody);
    all
}
