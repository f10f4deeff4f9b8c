//! Sets of field paths: the fields of an object that a manager owns.
//!
//! The set is a tree, converted to and from the `fieldsV1` of `managedFields`
//! (`f:` a field, `k:` a list item by its keys, `v:` an item of a set, `i:` an
//! index, `.` the path itself). The schema defines which lists are maps or sets;
//! without a schema a list is one value and a map is its fields.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::schema::{ListKind, Schema};

/// A path in the set, with the paths below it.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct FieldSet {
    /// The path itself is in the set.
    is_member: bool,
    children: BTreeMap<PathElement, FieldSet>,
}

/// One element of a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PathElement {
    Field(String),
    /// An item of a list map, as the JSON of its keys.
    Key(String),
    /// An item of a set, as JSON.
    Item(String),
    Index(usize),
}

impl FieldSet {
    /// Every field of `value`, down to the depth at which fields are owned.
    pub fn of(value: &Value, schema: Option<&Schema>) -> FieldSet {
        match children(value, schema) {
            Some(children) if !children.is_empty() => {
                let is_list = value.is_array();
                let mut fields = FieldSet::default();
                for (step, child, schema) in children {
                    let mut below = FieldSet::of(child, schema);
                    below.is_member |= is_list;
                    fields.children.insert(step, below);
                }
                fields
            }
            _ => FieldSet { is_member: true, children: BTreeMap::new() },
        }
    }

    /// The fields of an added value, including free-form maps such as `labels`,
    /// which are added with their first entry.
    fn added(value: &Value, schema: Option<&Schema>) -> FieldSet {
        let Some(children) = children(value, schema) else { return FieldSet::of(value, schema) };
        let is_list = value.is_array();
        let mut fields = FieldSet {
            is_member: children.is_empty() || schema.is_some_and(Schema::is_free_map),
            children: BTreeMap::new(),
        };
        for (step, child, schema) in children {
            let mut below = FieldSet::added(child, schema);
            below.is_member |= is_list;
            fields.children.insert(step, below);
        }
        fields
    }

    /// The fields of `new` that are not in `old`, or differ there.
    pub fn changed(old: &Value, new: &Value, schema: Option<&Schema>) -> FieldSet {
        if old == new {
            return FieldSet::default();
        }
        let (Some(before), Some(after)) = (children(old, schema), children(new, schema)) else {
            return FieldSet::of(new, schema);
        };
        let is_list = new.is_array();
        let before: BTreeMap<PathElement, &Value> =
            before.into_iter().map(|(step, value, _)| (step, value)).collect();
        let mut fields = FieldSet::default();
        for (step, child, schema) in after {
            let below = match before.get(&step) {
                Some(old) => FieldSet::changed(old, child, schema),
                None => {
                    let mut added = FieldSet::added(child, schema);
                    added.is_member |= is_list;
                    added
                }
            };
            if !below.is_empty() {
                fields.children.insert(step, below);
            }
        }
        fields
    }

    pub fn is_empty(&self) -> bool {
        !self.is_member && self.children.is_empty()
    }

    pub fn add(&mut self, other: &FieldSet) {
        self.is_member |= other.is_member;
        for (step, below) in &other.children {
            self.children.entry(step.clone()).or_default().add(below);
        }
    }

    /// Removes the paths that are in `other`; a path does not include those below it.
    pub fn subtract(&mut self, other: &FieldSet) {
        self.is_member &= !other.is_member;
        for (step, below) in &other.children {
            if let Some(mine) = self.children.get_mut(step) {
                mine.subtract(below);
                if mine.is_empty() {
                    self.children.remove(step);
                }
            }
        }
    }

    pub fn intersect(&self, other: &FieldSet) -> FieldSet {
        let mut both = FieldSet { is_member: self.is_member && other.is_member, children: BTreeMap::new() };
        for (step, below) in &self.children {
            if let Some(theirs) = other.children.get(step) {
                let shared = below.intersect(theirs);
                if !shared.is_empty() {
                    both.children.insert(step.clone(), shared);
                }
            }
        }
        both
    }

    /// Removes the paths that `value` does not have.
    pub fn keep_existing(&mut self, value: &Value, schema: Option<&Schema>) {
        let present: BTreeMap<PathElement, (&Value, Option<&Schema>)> = children(value, schema)
            .unwrap_or_default()
            .into_iter()
            .map(|(step, child, schema)| (step, (child, schema)))
            .collect();
        self.children.retain(|step, below| match present.get(step) {
            Some((child, schema)) => {
                below.keep_existing(child, *schema);
                !below.is_empty()
            }
            None => false,
        });
    }

    pub fn child(&self, step: &PathElement) -> Option<&FieldSet> {
        self.children.get(step)
    }

    pub fn child_mut(&mut self, name: &str) -> Option<&mut FieldSet> {
        self.children.get_mut(&PathElement::Field(name.to_owned()))
    }

    /// Drops branches that hold no path.
    pub fn remove_empty(&mut self) {
        self.children.retain(|_, below| {
            below.remove_empty();
            !below.is_empty()
        });
    }

    pub fn remove_child(&mut self, name: &str) {
        self.children.remove(&PathElement::Field(name.to_owned()));
    }

    /// Keeps only the paths below the named field.
    pub fn keep_only_child(&mut self, name: &str) {
        self.is_member = false;
        self.children.retain(|step, _| matches!(step, PathElement::Field(field) if field == name));
    }

    /// Removes from `value` the paths of this set that are not in `kept`. An item
    /// is removed as a whole, including fields without an owner.
    pub fn remove_from(&self, value: &mut Value, kept: &FieldSet, schema: Option<&Schema>) {
        let mut gone = Vec::new();
        for (step, below) in &self.children {
            let still = kept.child(step);
            if below.is_member && still.is_none() {
                gone.push(step);
            } else if let Some((child, schema)) = child_mut(value, step, schema) {
                let was_empty = is_empty(child);
                below.remove_from(child, still.unwrap_or(&FieldSet::default()), schema);
                if is_empty(child) && !was_empty && still.is_none() {
                    gone.push(step);
                }
            }
        }
        match value {
            Value::Object(map) => {
                map.retain(|name, _| !gone.iter().any(|s| matches!(s, PathElement::Field(f) if f == name)))
            }
            Value::Array(items) => {
                let kind = schema.map_or(ListKind::Atomic, Schema::list_kind);
                items.retain(|item| {
                    item_path_element(item, &kind, schema).is_none_or(|step| !gone.contains(&&step))
                });
            }
            _ => {}
        }
    }

    /// Each path as text: `.spec.containers[name="app"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        if self.is_member {
            paths.push(prefix.to_owned());
        }
        for (step, below) in &self.children {
            below.collect_paths(&format!("{prefix}{step}"), paths);
        }
    }

    pub fn to_v1(&self) -> Value {
        let mut map = Map::new();
        if self.is_member && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (step, below) in &self.children {
            map.insert(step.to_v1(), below.to_v1());
        }
        Value::Object(map)
    }

    pub fn from_v1(value: &Value) -> FieldSet {
        let mut fields = FieldSet::root_from_v1(value);
        // `{}` at the top is the empty set, below it is a leaf.
        if fields.children.is_empty() {
            fields.is_member = false;
        }
        fields
    }

    fn root_from_v1(value: &Value) -> FieldSet {
        let Some(map) = value.as_object() else { return FieldSet::default() };
        let mut fields = FieldSet { is_member: map.is_empty(), children: BTreeMap::new() };
        for (name, below) in map {
            if name == "." {
                fields.is_member = true;
            } else if let Some(step) = PathElement::from_v1(name) {
                fields.children.insert(step, FieldSet::root_from_v1(below));
            }
        }
        fields
    }
}

impl PathElement {
    fn to_v1(&self) -> String {
        match self {
            PathElement::Field(name) => format!("f:{name}"),
            PathElement::Key(keys) => format!("k:{keys}"),
            PathElement::Item(item) => format!("v:{item}"),
            PathElement::Index(index) => format!("i:{index}"),
        }
    }

    fn from_v1(text: &str) -> Option<PathElement> {
        let (kind, rest) = text.split_once(':')?;
        let canonical = |json: &str| serde_json::from_str::<Value>(json).ok().map(|value| sorted(&value));
        match kind {
            "f" => Some(PathElement::Field(rest.to_owned())),
            "k" => Some(PathElement::Key(canonical(rest)?)),
            "v" => Some(PathElement::Item(canonical(rest)?)),
            "i" => Some(PathElement::Index(rest.parse().ok()?)),
            _ => None,
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(keys) => {
                let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(f, "[{}]", pairs.join(","))
            }
            PathElement::Item(item) => write!(f, "[={item}]"),
            PathElement::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// The parts of a value that are owned separately; `None` if the value is owned as a whole.
pub fn children<'v, 's>(
    value: &'v Value,
    schema: Option<&'s Schema>,
) -> Option<Vec<(PathElement, &'v Value, Option<&'s Schema>)>> {
    match value {
        Value::Object(map) if !schema.is_some_and(Schema::is_atomic_map) => Some(
            map.iter()
                .map(|(name, child)| {
                    (PathElement::Field(name.clone()), child, schema.and_then(|s| s.field(name)))
                })
                .collect(),
        ),
        Value::Array(items) => {
            let kind = schema.map_or(ListKind::Atomic, Schema::list_kind);
            items
                .iter()
                .map(|item| {
                    Some((item_path_element(item, &kind, schema)?, item, schema.and_then(Schema::items)))
                })
                .collect()
        }
        _ => None,
    }
}

/// The path element of a list item; `None` in an atomic list.
pub fn item_path_element(item: &Value, kind: &ListKind<'_>, schema: Option<&Schema>) -> Option<PathElement> {
    match kind {
        ListKind::Atomic => None,
        ListKind::Set => Some(PathElement::Item(sorted(item))),
        ListKind::Map(keys) => {
            let mut found = BTreeMap::new();
            for key in *keys {
                let default = || schema.and_then(Schema::items)?.field(key)?.default();
                if let Some(value) = item.get(key).or_else(default) {
                    found.insert(key.as_str(), value);
                }
            }
            Some(PathElement::Key(serde_json::to_string(&found).unwrap_or_default()))
        }
    }
}

fn child_mut<'v, 's>(
    value: &'v mut Value,
    step: &PathElement,
    schema: Option<&'s Schema>,
) -> Option<(&'v mut Value, Option<&'s Schema>)> {
    match (value, step) {
        (Value::Object(map), PathElement::Field(name)) => {
            Some((map.get_mut(name)?, schema.and_then(|s| s.field(name))))
        }
        (Value::Array(items), _) => {
            let kind = schema.map_or(ListKind::Atomic, Schema::list_kind);
            let item = items
                .iter_mut()
                .find(|item| item_path_element(item, &kind, schema).as_ref() == Some(step))?;
            Some((item, schema.and_then(Schema::items)))
        }
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// JSON with sorted keys, so that equal values have equal text.
fn sorted(value: &Value) -> String {
    fn order(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let ordered: BTreeMap<&String, Value> = map.iter().map(|(k, v)| (k, order(v))).collect();
                ordered.into_iter().map(|(k, v)| (k.clone(), v)).collect()
            }
            other => other.clone(),
        }
    }
    order(value).to_string()
}
