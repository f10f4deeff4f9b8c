//! Names of objects by label: a selector finds its objects without a scan.

use std::collections::{BTreeMap, BTreeSet, HashMap};

type Labels = BTreeMap<String, String>;

/// Label key → label value → object names.
#[derive(Default)]
pub struct LabelIndex(HashMap<String, HashMap<String, BTreeSet<String>>>);

impl LabelIndex {
    pub fn add(&mut self, name: &str, labels: Option<&Labels>) {
        for (key, value) in labels.into_iter().flatten() {
            let names = self.0.entry(key.clone()).or_default().entry(value.clone()).or_default();
            names.insert(name.to_owned());
        }
    }

    pub fn remove(&mut self, name: &str, labels: Option<&Labels>) {
        for (key, value) in labels.into_iter().flatten() {
            let Some(values) = self.0.get_mut(key) else { continue };
            if let Some(names) = values.get_mut(value) {
                names.remove(name);
                if names.is_empty() {
                    values.remove(value);
                }
            }
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// Objects that have all of these labels, ordered by name; none for no labels.
    pub fn matching<'a>(&'a self, labels: &Labels) -> Vec<&'a str> {
        let named = |(key, value): (&String, &String)| self.0.get(key)?.get(value);
        let Some(mut sets) = labels.iter().map(named).collect::<Option<Vec<_>>>() else { return Vec::new() };
        sets.sort_by_key(|names| names.len());
        let Some((rarest, others)) = sets.split_first() else { return Vec::new() };
        let has_all = |name: &&String| others.iter().all(|names| names.contains(*name));
        rarest.iter().filter(has_all).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<const N: usize>(labels: [(&str, &str); N]) -> Labels {
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn a_selector_finds_those_that_have_all_of_its_labels() {
        let mut held = LabelIndex::default();
        let (web, old) = (labels([("app", "web"), ("track", "new")]), labels([("app", "web")]));
        held.add("b", Some(&web));
        held.add("a", Some(&web));
        held.add("c", Some(&old));
        held.add("d", None);
        assert_eq!(held.matching(&old), ["a", "b", "c"]);
        assert_eq!(held.matching(&web), ["a", "b"]);
        for none in [labels([]), labels([("app", "api")]), labels([("app", "web"), ("zone", "a")])] {
            assert_eq!(held.matching(&none), [""; 0]);
        }
        held.remove("a", Some(&web));
        assert_eq!(held.matching(&web), ["b"]);
        for (name, labels) in [("b", &web), ("c", &old)] {
            held.remove(name, Some(labels));
        }
        assert!(held.0.is_empty(), "nothing is kept of what is gone");
    }
}
