//! Our entries of a list that others have entries in as well.
//!
//! The routes of a VirtualService, the rules of an HTTPRoute and the routes of
//! a VirtualRouter are one list in one object, which server-side apply knows
//! only as a whole. So the list is composed from the object as it is, with our
//! entries in their place, and written on condition that the object has not
//! changed since.
//!
//! An entry is ours if it leads to the primary and to the canary Service, to
//! both and to nobody else. That holds whatever the API calls an entry, and a
//! route of people's own to one of the two is left alone.
//!
//! In an adopted object ours take the place of the entry that they stand in
//! for: the first that leads to the apex Service, else the first that is for
//! every request if ours is too. What that entry says beside its destinations
//! goes on being said. Failing both they come before whatever is for every
//! request.

use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{object::covers, services::Names};
use crate::api::Canary;

/// A list that is not ours alone.
#[derive(Clone, Debug)]
pub struct List {
    /// The fields that lead to it.
    at: [&'static str; 2],
    /// Whom an entry leads to: Services in the namespace by their name alone.
    leads_to: fn(&Value, &str) -> Vec<String>,
    /// Is an entry for every request?
    for_all: fn(&Value) -> bool,
    names: Names,
    namespace: String,
}

/// What we want in such a list.
pub struct Entries {
    pub list: List,
    /// Our entries, in place of one that people had. The last of them is for
    /// everything that is left.
    make: Box<dyn Fn(Option<&Value>) -> Vec<Value> + Send + Sync>,
}

impl List {
    pub fn new(
        canary: &Canary,
        at: [&'static str; 2],
        leads_to: fn(&Value, &str) -> Vec<String>,
        for_all: fn(&Value) -> bool,
    ) -> Self {
        let namespace = canary.namespace().unwrap_or_default();
        Self { at, leads_to, for_all, names: Names::of(canary), namespace }
    }

    fn of<'a>(&self, object: &'a Value) -> &'a [Value] {
        let [outer, inner] = self.at;
        object[outer][inner].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn is_ours(&self, entry: &Value) -> bool {
        let to = (self.leads_to)(entry, &self.namespace);
        let Names { primary, canary, apex: _ } = &self.names;
        to.contains(primary) && to.contains(canary) && to.iter().all(|name| name == primary || name == canary)
    }

    pub fn has_ours(&self, object: &Value) -> bool {
        self.of(object).iter().any(|entry| self.is_ours(entry))
    }

    /// Puts another list in its place.
    pub fn put(&self, object: &mut Value, list: Value) {
        let [outer, inner] = self.at;
        object[outer][inner] = list;
    }

    /// The object as if it had no such list.
    pub fn without(&self, mut object: Value) -> Value {
        let [outer, inner] = self.at;
        if let Some(fields) = object[outer].as_object_mut() {
            fields.remove(inner);
        }
        object
    }

    /// The list with what people had in the place of ours; null if nothing is
    /// left.
    pub fn put_back(&self, object: &Value, original: Option<&Value>) -> Value {
        let mut original = original;
        let mut list = Vec::new();
        for entry in self.of(object) {
            if self.is_ours(entry) {
                list.extend(original.take().cloned());
            } else {
                list.push(entry.clone());
            }
        }
        if list.is_empty() { Value::Null } else { json!(list) }
    }
}

impl Entries {
    pub fn new(list: List, make: impl Fn(Option<&Value>) -> Vec<Value> + Send + Sync + 'static) -> Self {
        Self { list, make: Box::new(make) }
    }

    /// Ours alone, in place of `original`.
    pub fn made(&self, original: Option<&Value>) -> Vec<Value> {
        (self.make)(original)
    }

    /// Are ours in the object as they should be?
    pub fn stand(&self, object: &Value, original: Option<&Value>) -> bool {
        let found: Vec<_> = self.list.of(object).iter().filter(|entry| self.list.is_ours(entry)).collect();
        let wanted = self.made(original);
        found.len() == wanted.len() && found.iter().zip(&wanted).all(|(found, wanted)| covers(found, wanted))
    }

    /// The entry that ours stand in for, if they are not there yet.
    pub fn replaced<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        let list = self.list.of(object);
        let (at, replaces) = self.place(list);
        list.get(at).filter(|_| replaces)
    }

    /// The whole list, with ours in place of `original`.
    pub fn compose(&self, object: &Value, original: Option<&Value>) -> Value {
        let list = self.list.of(object);
        let (place, replaces) = self.place(list);
        let gone = |at: usize, entry: &Value| {
            self.list.is_ours(entry) || (replaces && original.is_some() && at == place)
        };
        let mut composed: Vec<Value> = Vec::new();
        for (at, entry) in list.iter().enumerate() {
            if at == place {
                composed.extend(self.made(original));
            }
            if !gone(at, entry) {
                composed.push(entry.clone());
            }
        }
        if place == list.len() {
            composed.extend(self.made(original));
        }
        json!(composed)
    }

    /// Where ours go, and whether they replace what is there.
    fn place(&self, list: &[Value]) -> (usize, bool) {
        let leads_to_apex =
            |entry: &Value| (self.list.leads_to)(entry, &self.list.namespace).contains(&self.list.names.apex);
        if let Some(at) = list.iter().position(|entry| self.list.is_ours(entry)) {
            return (at, false);
        }
        if let Some(at) = list.iter().position(leads_to_apex) {
            return (at, true);
        }
        let ours_is_for_all = self.made(None).last().is_some_and(self.list.for_all);
        match list.iter().position(self.list.for_all) {
            Some(at) => (at, ours_is_for_all),
            None => (list.len(), false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leads_to(entry: &Value, _: &str) -> Vec<String> {
        entry["to"].as_array().into_iter().flatten().map(|to| to.as_str().unwrap().to_owned()).collect()
    }

    fn for_all(entry: &Value) -> bool {
        entry.get("if").is_none()
    }

    fn entries(condition: Option<&'static str>) -> Entries {
        let names = Names {
            apex: "web".to_owned(),
            primary: "web-primary".to_owned(),
            canary: "web-canary".to_owned(),
        };
        let list = List { at: ["spec", "http"], leads_to, for_all, names, namespace: String::new() };
        Entries::new(list, move |original| {
            let mut ours = json!({"to": ["web-primary", "web-canary"]});
            if let Some(condition) = condition {
                ours["if"] = json!(condition);
            } else if let Some(theirs) = original.and_then(|original| original.get("if")) {
                ours["if"] = theirs.clone();
            }
            vec![ours]
        })
    }

    fn object(list: Value) -> Value {
        json!({"spec": {"http": list}})
    }

    #[track_caller]
    fn check(entries: &Entries, before: Value, during: Value) {
        let before = object(before);
        let original = entries.replaced(&before).cloned();
        let composed = entries.compose(&before, original.as_ref());
        assert_eq!(composed, during);
        let during = object(composed);
        assert!(entries.stand(&during, original.as_ref()));
        assert_eq!(entries.compose(&during, original.as_ref()), during["spec"]["http"], "once is enough");
        let after = entries.list.put_back(&during, original.as_ref());
        assert_eq!(after, before["spec"]["http"], "put back");
    }

    #[test]
    fn the_entry_that_leads_to_the_apex_is_stood_in_for() {
        let other = json!({"if": "/other", "to": ["other"]});
        check(
            &entries(None),
            json!([other, {"if": "/web", "to": ["web"]}, {"to": ["rest"]}]),
            json!([other, {"if": "/web", "to": ["web-primary", "web-canary"]}, {"to": ["rest"]}]),
        );
    }

    #[test]
    fn failing_that_the_one_for_every_request_is() {
        let other = json!({"if": "/other", "to": ["other"]});
        let ours = json!({"to": ["web-primary", "web-canary"]});
        check(&entries(None), json!([other, {"to": ["blue"]}]), json!([other, ours]));
    }

    #[test]
    fn ours_with_a_condition_comes_before_the_one_for_every_request() {
        let rest = json!({"to": ["rest"]});
        let ours = json!({"if": "/shop", "to": ["web-primary", "web-canary"]});
        check(&entries(Some("/shop")), json!([rest]), json!([ours, rest]));
    }

    #[test]
    fn a_route_of_people_to_one_of_the_two_is_theirs() {
        let debug = json!({"if": "debug", "to": ["web-canary"]});
        let ours = json!({"to": ["web-primary", "web-canary"]});
        check(&entries(None), json!([debug]), json!([debug, ours]));
    }
}
