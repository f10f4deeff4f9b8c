//! Label and field selectors.

use serde_json::Value;

use super::kinds::{Origin, Resource};
use super::status_error::StatusError;

/// The selectors of a list or watch; empty matches all.
#[derive(Default, Debug)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: LabelOperator,
}

#[derive(Debug, PartialEq)]
enum LabelOperator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

#[derive(Debug)]
struct FieldRequirement {
    path: String,
    equal: bool,
    value: String,
}

impl Selector {
    pub fn parse(labels: &str, fields: &str, resource: &Resource) -> Result<Selector, StatusError> {
        Ok(Selector {
            labels: parse_labels(labels)
                .map_err(|why| StatusError::bad_request(format!("unable to parse requirement: {why}")))?,
            fields: parse_fields(fields, resource)?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Value) -> bool {
        let label =
            |key: &str| object.pointer("/metadata/labels").and_then(|labels| labels.get(key)?.as_str());
        self.labels.iter().all(|requirement| requirement.matches(label(&requirement.key)))
            && self.fields.iter().all(|requirement| requirement.matches(object))
    }
}

impl Requirement {
    fn matches(&self, label: Option<&str>) -> bool {
        let number = || label.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            LabelOperator::In(values) => label.is_some_and(|label| values.iter().any(|value| value == label)),
            LabelOperator::NotIn(values) => {
                label.is_none_or(|label| values.iter().all(|value| value != label))
            }
            LabelOperator::Exists => label.is_some(),
            LabelOperator::DoesNotExist => label.is_none(),
            LabelOperator::GreaterThan(bound) => number().is_some_and(|value| value > *bound),
            LabelOperator::LessThan(bound) => number().is_some_and(|value| value < *bound),
        }
    }
}

impl FieldRequirement {
    fn matches(&self, object: &Value) -> bool {
        let mut at = object;
        for name in self.path.split('.') {
            at = &at[name];
        }
        let text = match at {
            Value::String(text) => text.clone(),
            Value::Null if self.path == "spec.unschedulable" => "false".to_owned(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        (text == self.value) == self.equal
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    split_outside_parentheses(text).into_iter().map(|part| parse_requirement(part.trim())).collect()
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(&text[from..]);
    }
    parts
}

fn parse_requirement(text: &str) -> Result<Requirement, String> {
    let requirement = |key: &str, test: LabelOperator| {
        let key = key.trim();
        let well_formed = !key.is_empty()
            && key
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | '/'));
        if well_formed {
            Ok(Requirement { key: key.to_owned(), operator: test })
        } else {
            Err(format!("found '{text}', expected: identifier"))
        }
    };
    let set = |rest: &str| -> Result<Vec<String>, String> {
        let inner = rest.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let inner = inner.ok_or_else(|| format!("found '{rest}', expected: '('"))?;
        Ok(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    let number = |rest: &str| {
        rest.trim()
            .parse::<i64>()
            .map_err(|_| format!("{rest:?}: for 'Gt', 'Lt' operators, the value must be an integer"))
    };
    if let Some(key) = text.strip_prefix('!') {
        return requirement(key, LabelOperator::DoesNotExist);
    }
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = text.split_once(operator) {
            let value = value.trim();
            if let Some(symbol) = value.chars().next().filter(|letter| "=!<>(),".contains(*letter)) {
                return Err(format!("found '{symbol}', expected: identifier"));
            }
            let values = vec![value.to_owned()];
            return requirement(
                key,
                if equal { LabelOperator::In(values) } else { LabelOperator::NotIn(values) },
            );
        }
    }
    if let Some((key, bound)) = text.split_once('>') {
        return requirement(key, LabelOperator::GreaterThan(number(bound)?));
    }
    if let Some((key, bound)) = text.split_once('<') {
        return requirement(key, LabelOperator::LessThan(number(bound)?));
    }
    if let Some((key, rest)) = text.split_once(" notin ") {
        return requirement(key, LabelOperator::NotIn(set(rest)?));
    }
    if let Some((key, rest)) = text.split_once(" in ") {
        return requirement(key, LabelOperator::In(set(rest)?));
    }
    requirement(text, LabelOperator::Exists)
}

fn parse_fields(text: &str, resource: &Resource) -> Result<Vec<FieldRequirement>, StatusError> {
    let mut requirements = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (path, equal, value) = if let Some((path, value)) = part.split_once("!=") {
            (path, false, value)
        } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (path, true, value)
        } else {
            return Err(StatusError::bad_request(format!(
                "invalid selector: '{text}'; can't understand '{part}'"
            )));
        };
        if !selectable(resource, path) {
            return Err(StatusError::bad_request(
                if extra_fields(resource).is_empty() && resource.origin == Origin::Builtin {
                    format!(
                        "{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    )
                } else {
                    format!("field label not supported: {path}")
                },
            ));
        }
        requirements.push(FieldRequirement { path: path.to_owned(), equal, value: value.to_owned() });
    }
    Ok(requirements)
}

fn selectable(resource: &Resource, path: &str) -> bool {
    path == "metadata.name" || path == "metadata.namespace" || extra_fields(resource).contains(&path)
}

/// Fields that a kind can be selected by, besides name and namespace.
fn extra_fields(resource: &Resource) -> &'static [&'static str] {
    match (resource.origin, resource.kind.as_str()) {
        (Origin::Custom, _) => &[],
        (_, "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        (_, "Event") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        (_, "Secret") => &["type"],
        (_, "Namespace") => &["status.phase"],
        (_, "Node") => &["spec.unschedulable"],
        (_, "ReplicaSet") => &["status.replicas"],
        (_, "Service") => &["spec.clusterIP", "spec.type"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(selector: &str, labels: Value, expected: bool) {
        let selector = Selector { labels: parse_labels(selector).unwrap(), fields: Vec::new() };
        assert_eq!(selector.matches(&json!({"metadata": {"labels": labels}})), expected, "{selector:?}");
    }

    #[test]
    fn label_selectors_select_as_kubectl_does() {
        check("", json!({}), true);
        check("app=a", json!({"app": "a"}), true);
        check("app==a,tier!=db", json!({"app": "a"}), true);
        check("app=a,tier!=db", json!({"app": "a", "tier": "db"}), false);
        check("app in (a, b),x notin (c)", json!({"app": "b"}), true);
        check("app", json!({"app": ""}), true);
        check("!app", json!({"app": ""}), false);
        check("n>3", json!({"n": "4"}), true);
        check("n<3", json!({"n": "4"}), false);
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for text in ["app in a", "a b", "=x", "n>many"] {
            assert!(parse_labels(text).is_err(), "{text}");
        }
    }
}
