//! The manifests of a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize as _;
use serde_json::Value;

/// An object in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// `web.yaml, document 2`.
    pub place: String,
    pub value: Value,
}

/// Time and size of a file: another value means that it was written.
pub type Stamps = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// The objects of all files, and what could not be read.
#[derive(Debug, Default, PartialEq)]
pub struct Manifests {
    pub read: Vec<Manifest>,
    pub errors: Vec<String>,
}

/// The YAML files below a folder, by name. Hidden ones are skipped, and links followed, as
/// a checkout may be a link that is replaced.
pub fn stamps(folder: &Path) -> std::io::Result<Stamps> {
    let mut found = Stamps::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            // One that is gone by now is not there.
            let Ok(about) = fs::metadata(&path) else { continue };
            let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
            match about.is_dir() {
                _ if is_hidden => {}
                true => folders.push(path),
                false if is_yaml => _ = found.insert(path, (about.modified().ok(), about.len())),
                false => {}
            }
        }
    }
    Ok(found)
}

pub fn read(folder: &Path, files: &Stamps) -> Manifests {
    let mut manifests = Manifests::default();
    for path in files.keys() {
        let shown = path.strip_prefix(folder).unwrap_or(path).display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => manifests.parse(&shown, &text),
            Err(error) => manifests.errors.push(format!("{shown}: {error}")),
        }
    }
    manifests
}

impl Manifests {
    fn parse(&mut self, file: &str, text: &str) {
        let documents: Vec<Value> = match serde_saphyr::from_multiple(text) {
            Ok(documents) => documents,
            Err(error) => {
                let line = error.location().map_or(1, |at| at.line());
                let text = error.without_snippet().to_string();
                let why = text.lines().next().unwrap_or_default();
                return self.errors.push(format!("{file}, line {line}: it is not YAML: {why}"));
            }
        };
        let documents = documents.into_iter().enumerate().filter(|(_, value)| !value.is_null());
        for (at, value) in documents {
            let place = format!("{file}, document {}", at + 1);
            let items = match value["kind"] == "List" {
                true => Vec::deserialize(&value["items"]).unwrap_or_default(),
                false => vec![value],
            };
            for value in items {
                let is_missing =
                    |path: &str| value.pointer(path).and_then(Value::as_str).is_none_or(str::is_empty);
                let fields =
                    [("apiVersion", "/apiVersion"), ("kind", "/kind"), ("metadata.name", "/metadata/name")];
                match fields.into_iter().find(|(_, path)| is_missing(path)) {
                    Some((field, _)) => {
                        self.errors
                            .push(format!("{place}: it has no {field}, so it is no Kubernetes object"));
                    }
                    None => self.read.push(Manifest { place: place.clone(), value }),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_document_is_named_and_the_others_are_read() {
        let mut manifests = Manifests::default();
        let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        manifests
            .parse("web.yaml", &format!("{good}---\nkind: ConfigMap\nmetadata: {{name: b}}\n---\n{good}"));
        manifests.parse("broken.yaml", "a: [1,\nb: 2\n");
        let places: Vec<&str> = manifests.read.iter().map(|manifest| manifest.place.as_str()).collect();
        assert_eq!(places, ["web.yaml, document 1", "web.yaml, document 3"]);
        assert!(
            manifests.errors[0].starts_with("web.yaml, document 2: it has no apiVersion"),
            "{manifests:?}"
        );
        assert!(manifests.errors[1].starts_with("broken.yaml, line "), "{manifests:?}");
    }
}
