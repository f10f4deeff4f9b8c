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
//! In an adopted object ours take the place of the entries that they stand in
//! for, as many of ours for each: all that lead to the apex Service, else the
//! first that is for every request if ours is too. What such an entry says
//! beside its destinations goes on being said. Failing both they come before
//! whatever is for every request.

use serde_json::{Value, json};

use super::{ObjectName, appmesh, fields::covers, gateway, istio, services::Names};

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
    make: Box<Make>,
}

type Make = dyn Fn(Option<&Value>) -> Vec<Value> + Send + Sync;

impl List {
    /// Of an object that is called like the apex Service.
    pub fn new(
        object: &ObjectName,
        at: [&'static str; 2],
        leads_to: fn(&Value, &str) -> Vec<String>,
        for_all: fn(&Value) -> bool,
    ) -> Self {
        let ObjectName { namespace, name, kind: _ } = object.clone();
        Self { at, leads_to, for_all, names: Names::under(name), namespace }
    }

    /// Every list of an object in which a router has entries.
    pub fn all_of(object: &ObjectName) -> Vec<Self> {
        match (object.kind.group.as_str(), object.kind.kind.as_str()) {
            ("gateway.networking.k8s.io", _) => vec![gateway::list(object)],
            ("networking.istio.io", "VirtualService") => istio::lists(object).into(),
            ("appmesh.k8s.aws", "VirtualRouter") => vec![appmesh::list(object)],
            _ => Vec::new(),
        }
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
    pub fn put_back(&self, object: &Value, originals: &[Value]) -> Value {
        let groups = originals.iter().map(|original| vec![original.clone()]).collect();
        let list = self.exchanged(object, groups);
        if list.is_empty() { Value::Null } else { json!(list) }
    }

    /// The list with these groups of entries in the place of ours, of which as
    /// many stand for each group.
    fn exchanged(&self, object: &Value, groups: Vec<Vec<Value>>) -> Vec<Value> {
        let list = self.of(object);
        let ours = list.iter().filter(|entry| self.is_ours(entry)).count();
        let each = (ours / groups.len().max(1)).max(1);
        let (mut groups, mut met) = (groups.into_iter(), 0);
        let mut exchanged = Vec::new();
        for entry in list {
            if !self.is_ours(entry) {
                exchanged.push(entry.clone());
                continue;
            }
            if met % each == 0 {
                exchanged.extend(groups.next().into_iter().flatten());
            }
            met += 1;
            // Somebody took some of ours away.
            if met == ours {
                exchanged.extend(groups.by_ref().flatten());
            }
        }
        exchanged
    }
}

impl Entries {
    pub fn new(list: List, make: impl Fn(Option<&Value>) -> Vec<Value> + Send + Sync + 'static) -> Self {
        Self { list, make: Box::new(make) }
    }

    /// Ours in place of each of these.
    fn groups(&self, originals: &[Value]) -> Vec<Vec<Value>> {
        match originals {
            [] => vec![(self.make)(None)],
            originals => originals.iter().map(|original| (self.make)(Some(original))).collect(),
        }
    }

    /// Ours alone.
    pub fn made(&self, originals: &[Value]) -> Vec<Value> {
        self.groups(originals).concat()
    }

    /// Are ours in the object as they should be?
    pub fn stand(&self, object: &Value, originals: &[Value]) -> bool {
        let found: Vec<_> = self.list.of(object).iter().filter(|entry| self.list.is_ours(entry)).collect();
        let wanted = self.made(originals);
        found.len() == wanted.len() && found.iter().zip(&wanted).all(|(found, wanted)| covers(found, wanted))
    }

    /// The entries that ours stand in for, if they are not there yet.
    pub fn replaced(&self, object: &Value) -> Vec<Value> {
        let list = self.list.of(object);
        match self.place(list) {
            Place::Of(entries) => entries.into_iter().map(|at| list[at].clone()).collect(),
            Place::Ours | Place::Before(_) => Vec::new(),
        }
    }

    /// The whole list, with ours in place of `originals`.
    pub fn compose(&self, object: &Value, originals: &[Value]) -> Value {
        let list = self.list.of(object);
        let mut groups = self.groups(originals).into_iter();
        let mut composed = list.to_vec();
        match self.place(list) {
            Place::Ours => composed = self.list.exchanged(object, groups.collect()),
            // From the end, so that places hold; what is not remembered stays.
            Place::Of(entries) if !originals.is_empty() => {
                for (at, group) in entries.into_iter().zip(groups.collect::<Vec<_>>()).rev() {
                    composed.splice(at..=at, group);
                }
            }
            Place::Of(entries) => {
                let first = entries.first().copied().unwrap_or(list.len());
                composed.splice(first..first, groups.next().unwrap_or_default());
            }
            Place::Before(at) => _ = composed.splice(at..at, groups.flatten()),
        }
        json!(composed)
    }

    fn place(&self, list: &[Value]) -> Place {
        let leads_to_apex =
            |entry: &Value| (self.list.leads_to)(entry, &self.list.namespace).contains(&self.list.names.apex);
        if list.iter().any(|entry| self.list.is_ours(entry)) {
            return Place::Ours;
        }
        let to_apex: Vec<usize> =
            list.iter().enumerate().filter(|(_, entry)| leads_to_apex(entry)).map(|(at, _)| at).collect();
        if !to_apex.is_empty() {
            return Place::Of(to_apex);
        }
        let ours_is_for_all = self.made(&[]).last().is_some_and(self.list.for_all);
        match list.iter().position(self.list.for_all) {
            Some(at) if ours_is_for_all => Place::Of(vec![at]),
            Some(at) => Place::Before(at),
            None => Place::Before(list.len()),
        }
    }
}

/// Where ours go in a list.
enum Place {
    /// Where they are.
    Ours,
    /// In the place of these.
    Of(Vec<usize>),
    /// Before this one.
    Before(usize),
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
        let names = Names::under("web".to_owned());
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
        let originals = entries.replaced(&before);
        let composed = entries.compose(&before, &originals);
        assert_eq!(composed, during);
        let during = object(composed);
        assert!(entries.stand(&during, &originals));
        assert_eq!(entries.compose(&during, &originals), during["spec"]["http"], "once is enough");
        let after = entries.list.put_back(&during, &originals);
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
    fn every_entry_that_leads_to_the_apex_is() {
        let [one, other] = ["/api", "/"].map(|path| json!({"if": path, "to": ["web"]}));
        let [ours, others] =
            ["/api", "/"].map(|path| json!({"if": path, "to": ["web-primary", "web-canary"]}));
        let theirs = json!({"if": "/other", "to": ["other"]});
        check(&entries(None), json!([one, theirs, other]), json!([ours, theirs, others]));
    }

    #[test]
    fn what_somebody_took_away_of_ours_comes_back_with_the_rest() {
        let [one, other] = ["/api", "/"].map(|path| json!({"if": path, "to": ["web"]}));
        let left = object(json!([{"if": "/api", "to": ["web-primary", "web-canary"]}]));
        assert_eq!(entries(None).list.put_back(&left, &[one.clone(), other.clone()]), json!([one, other]));
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
