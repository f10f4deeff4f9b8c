//! Our entries of a list that others have entries in as well.
//!
//! The routes of a VirtualService, the rules of an HTTPRoute and the routes of
//! a VirtualRouter are one list in one object, atomic for server-side apply. So
//! the whole list is composed from the live object, with our entries replaced,
//! and written with its resourceVersion as precondition.
//!
//! An entry is ours (managed) if its backends are the primary and the canary
//! Service, both and no other. That holds for every API, and a user's route to
//! only one of the two is left alone.
//!
//! In an adopted object our entries replace (1) every entry whose backend is the
//! apex Service, else (2) the first catch-all if ours is one, else (3) are
//! inserted before it. Other fields are copied from the replaced entry. An entry that
//! leads to the apex and elsewhere is not adopted: the traffic of the others would move.

use serde_json::{Value, json};

use super::{ObjectKey, appmesh, fields::covers, gateway, istio, services::ServiceNames};

/// A list that others write to as well.
#[derive(Clone, Debug)]
pub struct SharedList {
    field_path: [&'static str; 2],
    /// The backends of an entry: Services of the same namespace by name alone.
    backends: fn(&Value, &str) -> Vec<String>,
    /// True if an entry matches every request.
    is_catch_all: fn(&Value) -> bool,
    names: ServiceNames,
    namespace: String,
}

/// Our desired entries of such a list.
pub struct ManagedEntries {
    pub list: SharedList,
    /// Our entries, with fields copied from the entry they replace. The last one
    /// is for all requests that the others do not match.
    build_entries: Box<BuildEntries>,
}

type BuildEntries = dyn Fn(Option<&Value>) -> Vec<Value> + Send + Sync;

impl SharedList {
    /// Of an object with the name of the apex Service.
    pub fn new(
        object: &ObjectKey,
        field_path: [&'static str; 2],
        backends: fn(&Value, &str) -> Vec<String>,
        is_catch_all: fn(&Value) -> bool,
    ) -> Self {
        let ObjectKey { namespace, name, kind: _ } = object.clone();
        Self { field_path, backends, is_catch_all, names: ServiceNames::from_apex(name), namespace }
    }

    /// Every list of an object that a router has entries in.
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
        let backends = (self.backends)(entry, &self.namespace);
        let ServiceNames { primary, canary, apex: _ } = &self.names;
        backends.contains(primary)
            && backends.contains(canary)
            && backends.iter().all(|name| name == primary || name == canary)
    }

    pub fn has_managed(&self, object: &Value) -> bool {
        self.entries(object).iter().any(|entry| self.is_managed(entry))
    }

    /// The index of an entry that leads to the apex and elsewhere, and all its backends;
    /// none once ours are in the list.
    pub fn mixed_entry(&self, object: &Value) -> Option<(usize, Vec<String>)> {
        if self.has_managed(object) {
            return None;
        }
        let entries = self.entries(object).iter().map(|entry| (self.backends)(entry, &self.namespace));
        entries.enumerate().find(|(_, backends)| backends.len() > 1 && backends.contains(&self.names.apex))
    }

    /// For messages: `spec.http`.
    pub fn field(&self) -> String {
        self.field_path.join(".")
    }

    pub fn set_in(&self, object: &mut Value, list: Value) {
        let [outer, inner] = self.field_path;
        object[outer][inner] = list;
    }

    /// The object without the list.
    pub fn strip_from(&self, mut object: Value) -> Value {
        let [outer, inner] = self.field_path;
        if let Some(fields) = object[outer].as_object_mut() {
            fields.remove(inner);
        }
        object
    }

    /// The list with the original entries in place of ours; null if empty.
    pub fn restore_replaced(&self, object: &Value, originals: &[Value]) -> Value {
        let groups = originals.iter().map(|original| vec![original.clone()]).collect();
        let list = self.replace_managed(object, groups);
        if list.is_empty() { Value::Null } else { json!(list) }
    }

    /// The list with these groups of entries in place of ours, which are divided
    /// evenly among the groups.
    fn replace_managed(&self, object: &Value, groups: Vec<Vec<Value>>) -> Vec<Value> {
        let list = self.entries(object);
        let ours = list.iter().filter(|entry| self.is_managed(entry)).count();
        let each = (ours / groups.len().max(1)).max(1);
        let (mut groups, mut replaced) = (groups.into_iter(), 0);
        let mut list_after = Vec::new();
        for entry in list {
            if !self.is_managed(entry) {
                list_after.push(entry.clone());
                continue;
            }
            if replaced % each == 0 {
                list_after.extend(groups.next().into_iter().flatten());
            }
            replaced += 1;
            // Another client may have removed some of ours.
            if replaced == ours {
                list_after.extend(groups.by_ref().flatten());
            }
        }
        list_after
    }
}

impl ManagedEntries {
    pub fn new(
        list: SharedList,
        build: impl Fn(Option<&Value>) -> Vec<Value> + Send + Sync + 'static,
    ) -> Self {
        Self { list, build_entries: Box::new(build) }
    }

    /// Our entries for each entry that they replace.
    fn groups(&self, originals: &[Value]) -> Vec<Vec<Value>> {
        match originals {
            [] => vec![(self.build_entries)(None)],
            originals => originals.iter().map(|original| (self.build_entries)(Some(original))).collect(),
        }
    }

    /// Our entries alone.
    pub fn build(&self, originals: &[Value]) -> Vec<Value> {
        self.groups(originals).concat()
    }

    pub fn is_in_sync(&self, object: &Value, originals: &[Value]) -> bool {
        let live: Vec<_> =
            self.list.entries(object).iter().filter(|entry| self.list.is_managed(entry)).collect();
        let desired = self.build(originals);
        live.len() == desired.len() && live.iter().zip(&desired).all(|(live, desired)| covers(live, desired))
    }

    /// True if the entries of others that lead to our Services do what ours would: to the
    /// apex, or divided as ours are.
    pub fn is_needless(&self, object: &Value) -> bool {
        let ServiceNames { apex, primary, canary } = &self.list.names;
        let leads_to_us = |entry: &&Value| {
            let backends = (self.list.backends)(entry, &self.list.namespace);
            [apex, primary, canary].into_iter().any(|name| backends.contains(name))
        };
        let mut entries = self.list.entries(object).iter().filter(leads_to_us).peekable();
        entries.peek().is_some() && entries.all(|entry| self.is_needless_for(entry))
    }

    fn is_needless_for(&self, entry: &Value) -> bool {
        let ours = (self.build_entries)(Some(entry));
        let [ours] = &ours[..] else { return false };
        let backends = |entry: &Value| (self.list.backends)(entry, &self.list.namespace);
        if self.list.is_managed(entry) {
            return covers(entry, ours);
        }
        // Our entry is the same but for the field with the backends.
        let is_same = |(field, value): (&String, &Value)| {
            let mut without = entry.clone();
            without[field] = Value::Null;
            backends(&without).is_empty() || covers(&entry[field], value)
        };
        backends(entry) == [self.list.names.apex.clone()]
            && ours.as_object().into_iter().flatten().all(is_same)
    }

    /// The entries that ours will replace, which may be divided as ours are.
    pub fn replaced_entries(&self, object: &Value) -> Vec<Value> {
        let list = self.list.entries(object);
        match self.insert_at(list) {
            InsertAt::Replace(entries) => entries.into_iter().map(|at| list[at].clone()).collect(),
            InsertAt::Existing => list.iter().filter(|entry| self.list.is_managed(entry)).cloned().collect(),
            InsertAt::Before(_) => Vec::new(),
        }
    }

    /// The whole list, with our entries in place of `originals`.
    pub fn compose(&self, object: &Value, originals: &[Value]) -> Value {
        let list = self.list.entries(object);
        let mut groups = self.groups(originals).into_iter();
        let mut composed = list.to_vec();
        match self.insert_at(list) {
            InsertAt::Existing => composed = self.list.replace_managed(object, groups.collect()),
            // From the end, so that indexes hold; entries that are not recorded stay.
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
        let routes_to_apex =
            |entry: &Value| (self.list.backends)(entry, &self.list.namespace).contains(&self.list.names.apex);
        if list.iter().any(|entry| self.list.is_managed(entry)) {
            return InsertAt::Existing;
        }
        let to_apex: Vec<usize> =
            list.iter().enumerate().filter(|(_, entry)| routes_to_apex(entry)).map(|(at, _)| at).collect();
        if !to_apex.is_empty() {
            return InsertAt::Replace(to_apex);
        }
        let ours_is_catch_all = self.build(&[]).last().is_some_and(self.list.is_catch_all);
        match list.iter().position(self.list.is_catch_all) {
            Some(at) if ours_is_catch_all => InsertAt::Replace(vec![at]),
            Some(at) => InsertAt::Before(at),
            None => InsertAt::Before(list.len()),
        }
    }
}

/// Where our entries go in a list.
enum InsertAt {
    /// Where they are already.
    Existing,
    /// In place of the entries at these indexes.
    Replace(Vec<usize>),
    /// Before the entry at this index.
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
        assert_eq!(
            entries.compose(&during, &originals),
            during["spec"]["http"],
            "composing twice changes nothing"
        );
        let after = entries.list.restore_replaced(&during, &originals);
        assert_eq!(after, before["spec"]["http"], "restored");
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
    fn an_entry_that_also_leads_elsewhere_is_reported_until_ours_are_there() {
        let list = entries(None).list;
        let mixed = json!([{"if": "/other", "to": ["other"]}, {"to": ["web", "legacy"]}]);
        assert_eq!(list.mixed_entry(&object(mixed)), Some((1, vec!["web".to_owned(), "legacy".to_owned()])));
        let elsewhere = json!([{"to": ["blue", "green"]}, {"if": "/web", "to": ["web"]}]);
        assert_eq!(list.mixed_entry(&object(elsewhere)), None);
        let ours = json!([{"to": ["web-primary", "web-canary"]}, {"to": ["web", "legacy"]}]);
        assert_eq!(list.mixed_entry(&object(ours)), None);
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
