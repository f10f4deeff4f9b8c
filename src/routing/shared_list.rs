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

use super::{ObjectKey, appmesh, fields::covers, gateway, istio, services::ServiceNames};

/// A list that is not ours alone.
#[derive(Clone, Debug)]
pub struct SharedList {
    /// The fields that lead to it.
    field_path: [&'static str; 2],
    /// Whom an entry leads to: Services in the namespace by their name alone.
    backends: fn(&Value, &str) -> Vec<String>,
    /// Is an entry for every request?
    is_catch_all: fn(&Value) -> bool,
    names: ServiceNames,
    namespace: String,
}

/// What we want in such a list.
pub struct ManagedEntries {
    pub list: SharedList,
    /// Our entries, in place of one that people had. The last of them is for
    /// everything that is left.
    build_entries: Box<BuildEntries>,
}

type BuildEntries = dyn Fn(Option<&Value>) -> Vec<Value> + Send + Sync;

impl SharedList {
    /// Of an object that is called like the apex Service.
    pub fn new(
        object: &ObjectKey,
        at: [&'static str; 2],
        backends: fn(&Value, &str) -> Vec<String>,
        is_catch_all: fn(&Value) -> bool,
    ) -> Self {
        let ObjectKey { namespace, name, kind: _ } = object.clone();
        Self { field_path: at, backends, is_catch_all, names: ServiceNames::from_apex(name), namespace }
    }

    /// Every list of an object in which a router has entries.
    pub fn all_of(object: &ObjectKey) -> Vec<Self> {
        match (object.kind.group.as_str(), object.kind.kind.as_str()) {
            ("gateway.networking.k8s.io", _) => vec![gateway::shared_list(object)],
            ("networking.istio.io", "VirtualService") => istio::shared_lists(object).into(),
            ("appmesh.k8s.aws", "VirtualRouter") => vec![appmesh::shared_list(object)],
            _ => Vec::new(),
        }
    }

    fn entries<'a>(&self, object: &'a Value) -> &'a [Value] {
        let [outer, inner] = self.field_path;
        object[outer][inner].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn is_managed(&self, entry: &Value) -> bool {
        let to = (self.backends)(entry, &self.namespace);
        let ServiceNames { primary, canary, apex: _ } = &self.names;
        to.contains(primary) && to.contains(canary) && to.iter().all(|name| name == primary || name == canary)
    }

    pub fn has_managed(&self, object: &Value) -> bool {
        self.entries(object).iter().any(|entry| self.is_managed(entry))
    }

    /// Puts another list in its place.
    pub fn set_in(&self, object: &mut Value, list: Value) {
        let [outer, inner] = self.field_path;
        object[outer][inner] = list;
    }

    /// The object as if it had no such list.
    pub fn strip_from(&self, mut object: Value) -> Value {
        let [outer, inner] = self.field_path;
        if let Some(fields) = object[outer].as_object_mut() {
            fields.remove(inner);
        }
        object
    }

    /// The list with what people had in the place of ours; null if nothing is
    /// left.
    pub fn restore_replaced(&self, object: &Value, originals: &[Value]) -> Value {
        let groups = originals.iter().map(|original| vec![original.clone()]).collect();
        let list = self.replace_managed(object, groups);
        if list.is_empty() { Value::Null } else { json!(list) }
    }

    /// The list with these groups of entries in the place of ours, of which as
    /// many stand for each group.
    fn replace_managed(&self, object: &Value, groups: Vec<Vec<Value>>) -> Vec<Value> {
        let list = self.entries(object);
        let ours = list.iter().filter(|entry| self.is_managed(entry)).count();
        let each = (ours / groups.len().max(1)).max(1);
        let (mut groups, mut met) = (groups.into_iter(), 0);
        let mut exchanged = Vec::new();
        for entry in list {
            if !self.is_managed(entry) {
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

impl ManagedEntries {
    pub fn new(
        list: SharedList,
        make: impl Fn(Option<&Value>) -> Vec<Value> + Send + Sync + 'static,
    ) -> Self {
        Self { list, build_entries: Box::new(make) }
    }

    /// Ours in place of each of these.
    fn groups(&self, originals: &[Value]) -> Vec<Vec<Value>> {
        match originals {
            [] => vec![(self.build_entries)(None)],
            originals => originals.iter().map(|original| (self.build_entries)(Some(original))).collect(),
        }
    }

    /// Ours alone.
    pub fn build(&self, originals: &[Value]) -> Vec<Value> {
        self.groups(originals).concat()
    }

    /// Are ours in the object as they should be?
    pub fn is_in_sync(&self, object: &Value, originals: &[Value]) -> bool {
        let found: Vec<_> =
            self.list.entries(object).iter().filter(|entry| self.list.is_managed(entry)).collect();
        let desired = self.build(originals);
        found.len() == desired.len()
            && found.iter().zip(&desired).all(|(found, desired)| covers(found, desired))
    }

    /// The entries that ours stand in for, if they are not there yet.
    pub fn replaced_entries(&self, object: &Value) -> Vec<Value> {
        let list = self.list.entries(object);
        match self.insert_at(list) {
            InsertAt::Replace(entries) => entries.into_iter().map(|at| list[at].clone()).collect(),
            InsertAt::Existing | InsertAt::Before(_) => Vec::new(),
        }
    }

    /// The whole list, with ours in place of `originals`.
    pub fn compose(&self, object: &Value, originals: &[Value]) -> Value {
        let list = self.list.entries(object);
        let mut groups = self.groups(originals).into_iter();
        let mut composed = list.to_vec();
        match self.insert_at(list) {
            InsertAt::Existing => composed = self.list.replace_managed(object, groups.collect()),
            // From the end, so that places hold; what is not remembered stays.
            InsertAt::Replace(entries) if !originals.is_empty() => {
                for (at, group) in entries.into_iter().zip(groups.collect::<Vec<_>>()).rev() {
                    composed.splice(at..=at, group);
                }
            }
            InsertAt::Replace(entries) => {
                let first = entries.first().copied().unwrap_or(list.len());
                composed.splice(first..first, groups.next().unwrap_or_default());
            }
            InsertAt::Before(at) => _ = composed.splice(at..at, groups.flatten()),
        }
        json!(composed)
    }

    fn insert_at(&self, list: &[Value]) -> InsertAt {
        let leads_to_apex =
            |entry: &Value| (self.list.backends)(entry, &self.list.namespace).contains(&self.list.names.apex);
        if list.iter().any(|entry| self.list.is_managed(entry)) {
            return InsertAt::Existing;
        }
        let to_apex: Vec<usize> =
            list.iter().enumerate().filter(|(_, entry)| leads_to_apex(entry)).map(|(at, _)| at).collect();
        if !to_apex.is_empty() {
            return InsertAt::Replace(to_apex);
        }
        let ours_is_for_all = self.build(&[]).last().is_some_and(self.list.is_catch_all);
        match list.iter().position(self.list.is_catch_all) {
            Some(at) if ours_is_for_all => InsertAt::Replace(vec![at]),
            Some(at) => InsertAt::Before(at),
            None => InsertAt::Before(list.len()),
        }
    }
}

/// Where ours go in a list.
enum InsertAt {
    /// Where they are.
    Existing,
    /// In the place of these.
    Replace(Vec<usize>),
    /// Before this one.
    Before(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(entry: &Value, _: &str) -> Vec<String> {
        entry["to"].as_array().into_iter().flatten().map(|to| to.as_str().unwrap().to_owned()).collect()
    }

    fn is_catch_all(entry: &Value) -> bool {
        entry.get("if").is_none()
    }

    fn entries(condition: Option<&'static str>) -> ManagedEntries {
        let names = ServiceNames::from_apex("web".to_owned());
        let list = SharedList {
            field_path: ["spec", "http"],
            backends,
            is_catch_all,
            names,
            namespace: String::new(),
        };
        ManagedEntries::new(list, move |original| {
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
    fn check(entries: &ManagedEntries, before: Value, during: Value) {
        let before = object(before);
        let originals = entries.replaced_entries(&before);
        let composed = entries.compose(&before, &originals);
        assert_eq!(composed, during);
        let during = object(composed);
        assert!(entries.is_in_sync(&during, &originals));
        assert_eq!(entries.compose(&during, &originals), during["spec"]["http"], "once is enough");
        let after = entries.list.restore_replaced(&during, &originals);
        assert_eq!(after, before["spec"]["http"], "put back");
    }

    #[test]
    fn the_entry_that_routes_to_the_apex_is_replaced() {
        let other = json!({"if": "/other", "to": ["other"]});
        check(
            &entries(None),
            json!([other, {"if": "/web", "to": ["web"]}, {"to": ["rest"]}]),
            json!([other, {"if": "/web", "to": ["web-primary", "web-canary"]}, {"to": ["rest"]}]),
        );
    }

    #[test]
    fn every_entry_that_routes_to_the_apex_is_replaced() {
        let [one, other] = ["/api", "/"].map(|path| json!({"if": path, "to": ["web"]}));
        let [ours, others] =
            ["/api", "/"].map(|path| json!({"if": path, "to": ["web-primary", "web-canary"]}));
        let theirs = json!({"if": "/other", "to": ["other"]});
        check(&entries(None), json!([one, theirs, other]), json!([ours, theirs, others]));
    }

    #[test]
    fn removed_managed_entries_are_restored_with_the_others() {
        let [one, other] = ["/api", "/"].map(|path| json!({"if": path, "to": ["web"]}));
        let left = object(json!([{"if": "/api", "to": ["web-primary", "web-canary"]}]));
        assert_eq!(
            entries(None).list.restore_replaced(&left, &[one.clone(), other.clone()]),
            json!([one, other])
        );
    }

    #[test]
    fn without_an_entry_to_the_apex_the_catch_all_is_replaced() {
        let other = json!({"if": "/other", "to": ["other"]});
        let ours = json!({"to": ["web-primary", "web-canary"]});
        check(&entries(None), json!([other, {"to": ["blue"]}]), json!([other, ours]));
    }

    #[test]
    fn a_managed_entry_with_a_condition_precedes_the_catch_all() {
        let rest = json!({"to": ["rest"]});
        let ours = json!({"if": "/shop", "to": ["web-primary", "web-canary"]});
        check(&entries(Some("/shop")), json!([rest]), json!([ours, rest]));
    }

    #[test]
    fn a_users_route_to_only_one_backend_is_not_managed() {
        let debug = json!({"if": "debug", "to": ["web-canary"]});
        let ours = json!({"to": ["web-primary", "web-canary"]});
        check(&entries(None), json!([debug]), json!([debug, ours]));
    }
}
