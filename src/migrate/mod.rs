//! `serin migrate`: manifests of Flagger and Argo Rollouts as Serin's. Pure: text in, text
//! out.
//!
//! ```text
//!   Flagger        Canary, MetricTemplate, AlertProvider ─▶ the same text, other apiVersion
//!   Argo Rollouts  Rollout                               ─▶ Deployment and Canary
//!                  AnalysisTemplate (and cluster-wide)   ─▶ one template for each metric
//!   anything else                                        ─▶ unchanged
//! ```
//!
//! What has no equal is never dropped in silence: a comment above the object names the
//! field and what to do.

mod analysis_template;
pub mod flagger;
mod rollout;

use std::fmt::Write as _;

use serde_json::Value;

/// A file in Serin's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    pub text: String,
    /// Objects that are Serin's now.
    pub converted: usize,
    /// What could not be carried over, with the object that it was of.
    pub notes: Vec<String>,
}

/// An object, and what of its original has no equal.
struct Converted {
    object: Value,
    notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("document {at} is not YAML: {why}")]
pub struct NotYaml {
    /// From 1.
    at: usize,
    why: String,
}

/// Converts all documents of a file, in their order.
pub fn migrate(text: &str) -> Result<Migration, NotYaml> {
    let documents = split(text);
    let mut parsed = Vec::new();
    for (at, document) in documents.iter().enumerate() {
        let value: Value = serde_saphyr::from_str(document).map_err(|error| {
            let why = error.without_snippet().to_string();
            NotYaml { at: at + 1, why: why.lines().next().unwrap_or_default().to_owned() }
        })?;
        parsed.push(value);
    }
    let mut migration = Migration::default();
    for (document, value) in documents.iter().zip(&parsed) {
        let group = value["apiVersion"].as_str().and_then(|version| version.split_once('/'));
        let group = group.map_or("", |(group, _)| group);
        let kind = value["kind"].as_str().unwrap_or_default();
        match (group, kind) {
            _ if flagger::is_of_flagger(value) => migration.push_flagger(document, value),
            ("argoproj.io", "Rollout") => match rollout::unsupported_workload(value) {
                Some(kind) => {
                    let note = format!(
                        "workloadRef names a {kind}, which is not released here; the Rollout was left as it is"
                    );
                    migration.push_unchanged(document, &[note], value);
                }
                None => migration.push_all(rollout::convert(value, &parsed), value),
            },
            ("argoproj.io", "AnalysisTemplate" | "ClusterAnalysisTemplate") => {
                migration.push_all(analysis_template::convert(value), value);
            }
            ("argoproj.io", _) => {
                let note = format!("{kind} has no equal, and was left as it is");
                migration.push_unchanged(document, &[note], value);
            }
            _ if value.is_null() => {}
            _ => migration.push_unchanged(document, &[], value),
        }
    }
    Ok(migration)
}

impl Migration {
    fn push_unchanged(&mut self, text: &str, notes: &[String], original: &Value) {
        if !self.text.is_empty() {
            self.text.push_str("---\n");
        }
        self.push_notes(notes, original);
        self.text.push_str(text.trim_start_matches('\n'));
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    fn push_text(&mut self, text: &str, notes: &[String], original: &Value) {
        self.push_unchanged(text, notes, original);
        self.converted += 1;
    }

    /// Notes of a List are those of its items.
    fn push_flagger(&mut self, document: &str, value: &Value) {
        let items = value["items"].as_array().map(Vec::as_slice).unwrap_or(std::slice::from_ref(value));
        let items: Vec<&Value> = items.iter().filter(|item| flagger::is_of_flagger(item)).collect();
        let notes: Vec<Vec<String>> = items.iter().map(|item| flagger::notes(item)).collect();
        if !self.text.is_empty() {
            self.text.push_str("---\n");
        }
        for (item, notes) in items.iter().zip(&notes) {
            self.push_notes(notes, item);
        }
        self.text.push_str(flagger::convert(document).trim_start_matches('\n'));
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.converted += items.len();
    }

    fn push_all(&mut self, converted: Vec<Converted>, original: &Value) {
        for Converted { object, notes } in converted {
            // Writing a value that was read cannot fail; a comment is better than a panic.
            let text = serde_saphyr::to_string(&object).unwrap_or_else(|error| format!("# {error}\n"));
            self.push_text(&text, &notes, original);
        }
    }

    fn push_notes(&mut self, notes: &[String], original: &Value) {
        let kind = original["kind"].as_str().unwrap_or_default();
        let name = original["metadata"]["name"].as_str().unwrap_or_default();
        for note in notes {
            let _ = writeln!(self.text, "# serin migrate: {note}");
            self.notes.push(format!("{kind} {name}: {note}"));
        }
    }
}

/// The documents of a stream. A line of `---` begins one; inside a block scalar it would be
/// indented.
fn split(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        match line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with(' ')) {
            Some(_) => documents.push(String::new()),
            None => {
                if let Some(document) = documents.last_mut() {
                    document.push_str(line);
                    document.push('\n');
                }
            }
        }
    }
    documents.retain(|document| !document.trim().is_empty());
    documents
}

/// As durations are written: Argo's may be a number of seconds.
fn duration(value: &Value) -> Option<String> {
    match value {
        Value::Number(seconds) => Some(format!("{seconds}s")),
        Value::String(text) if text.parse::<u64>().is_ok() => Some(format!("{text}s")),
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_of_flagger_keep_their_comments() {
        let text = "\
# the shop
apiVersion: flagger.app/v1beta1
kind: MetricTemplate
metadata: {name: latency}  # slow
---
apiVersion: v1
kind: Service
";
        let migration = migrate(text).unwrap();
        let expected = text
            .replace("flagger.app/v1beta1", "serin.dev/v1alpha1")
            .replace("MetricTemplate", "AnalysisTemplate");
        assert_eq!((migration.text, migration.converted), (expected, 1));
    }

    #[test]
    fn a_broken_document_is_named() {
        let error = migrate("a: 1\n---\nb: [\n").unwrap_err();
        assert!(error.to_string().starts_with("document 2 is not YAML"), "{error}");
    }
}
