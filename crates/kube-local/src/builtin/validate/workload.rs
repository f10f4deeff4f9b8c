//! Workloads: kinds that create pods from a template.

use serde_json::{Map, Value, json};

use super::{Errors, FieldValue, metadata, names, pod};
use crate::schema::{FieldError, Reason};

pub(super) fn deployment(deployment: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let spec = deployment.at("spec");
    for count in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        spec.at(count).at_least_zero(errors);
    }
    check_selector(&spec, "deployment", true, errors);
    template(&spec, "ReplicaSet", errors);
    let strategy = spec.at("strategy");
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").text() {
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
            unavailable.count_or_percent(errors);
            match surge.value.as_str() {
                // `maxSurge` may exceed 100 %.
                Some(text) if text.strip_suffix('%').is_some_and(|share| share.parse::<u64>().is_ok()) => {}
                _ => surge.count_or_percent(errors),
            }
            if is_zero(&unavailable) && is_zero(&surge) {
                errors.push(unavailable.invalid("may not be 0 when `maxSurge` is 0"));
            }
        }
        "Recreate" => {
            if rolling.is_set() {
                errors.push(rolling.forbidden("may not be specified when strategy `type` is 'Recreate'"));
            }
        }
        _ => errors.push(not_a_strategy(&strategy, ["Recreate", "RollingUpdate"])),
    }
    let (deadline, patience) = (spec.at("progressDeadlineSeconds"), spec.at("minReadySeconds"));
    if let Some(seconds) = deadline.value.as_i64()
        && seconds <= patience.value.as_i64().unwrap_or_default()
    {
        errors.push(deadline.invalid("must be greater than minReadySeconds"));
    }
    if let Some(old) = old {
        spec.at("selector").immutable(&old.at("spec.selector"), errors);
    }
}

pub(super) fn replica_set(set: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let spec = set.at("spec");
    spec.at("replicas").at_least_zero(errors);
    spec.at("minReadySeconds").at_least_zero(errors);
    check_selector(&spec, "replicaset", true, errors);
    template(&spec, "ReplicaSet", errors);
    if let Some(old) = old {
        spec.at("selector").immutable(&old.at("spec.selector"), errors);
    }
}

pub(super) fn daemon_set(set: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let spec = set.at("spec");
    spec.at("minReadySeconds").at_least_zero(errors);
    spec.at("revisionHistoryLimit").at_least_zero(errors);
    check_selector(&spec, "daemonset", false, errors);
    template(&spec, "DaemonSet", errors);
    let strategy = spec.at("updateStrategy");
    match strategy.at("type").text() {
        "OnDelete" => {}
        "RollingUpdate" => {
            let (unavailable, surge) =
                (strategy.at("rollingUpdate.maxUnavailable"), strategy.at("rollingUpdate.maxSurge"));
            unavailable.count_or_percent(errors);
            surge.count_or_percent(errors);
            match (is_zero(&unavailable), is_zero(&surge)) {
                (true, true) => errors.push(unavailable.required("cannot be 0 when maxSurge is 0")),
                (false, false) => {
                    errors.push(surge.invalid("may not be set when maxUnavailable is non-zero"))
                }
                (true, false) | (false, true) => {}
            }
        }
        _ => errors.push(not_a_strategy(&strategy, ["RollingUpdate", "OnDelete"])),
    }
    if let Some(old) = old {
        spec.at("selector").immutable(&old.at("spec.selector"), errors);
    }
}

pub(super) fn stateful_set(set: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut Errors) {
    let spec = set.at("spec");
    spec.at("replicas").at_least_zero(errors);
    spec.at("minReadySeconds").at_least_zero(errors);
    let policy = spec.at("podManagementPolicy");
    if !matches!(policy.text(), "OrderedReady" | "Parallel") {
        errors.push(policy.invalid("must be 'OrderedReady' or 'Parallel'"));
    }
    let strategy = spec.at("updateStrategy");
    if !matches!(strategy.at("type").text(), "RollingUpdate" | "OnDelete") {
        let detail = "must be 'RollingUpdate' or 'OnDelete'";
        let shown = format!("Invalid value: {}", go_strategy(&strategy));
        errors.push(FieldError::with_text(strategy.path.clone(), Reason::Invalid, &shown, detail));
    }
    check_selector(&spec, "statefulset", true, errors);
    template(&spec, "StatefulSet", errors);
    if let Some(old) = old {
        const CHANGEABLE: [&str; 7] = [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ];
        let rest = |spec: &Value| {
            let fields = spec.as_object().into_iter().flatten();
            let fixed = fields.filter(|(name, _)| !CHANGEABLE.contains(&name.as_str()));
            fixed.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>()
        };
        if rest(spec.value) != rest(old.at("spec").value) {
            errors.push(spec.forbidden(
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                 'minReadySeconds' are forbidden",
            ));
        }
    }
}

fn is_zero(count: &FieldValue<'_>) -> bool {
    match count.value {
        Value::String(text) => text.trim_end_matches('%').parse() == Ok(0),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => true,
    }
}

fn not_a_strategy(strategy: &FieldValue<'_>, supported: [&str; 2]) -> FieldError {
    let shown = format!("Unsupported value: {}", go_strategy(strategy));
    let detail = format!("supported values: \"{}\", \"{}\"", supported[0], supported[1]);
    FieldError::with_text(strategy.path.clone(), Reason::NotSupported, &shown, &detail)
}

/// The API server prints its Go struct here.
fn go_strategy(strategy: &FieldValue<'_>) -> String {
    format!(
        "{{\"Type\":{},\"RollingUpdate\":{}}}",
        strategy.at("type").value,
        strategy.at("rollingUpdate").value
    )
}

fn check_selector(spec: &FieldValue<'_>, owner: &str, required: bool, errors: &mut Errors) {
    let selector = spec.at("selector");
    if !selector.is_set() {
        if required {
            errors.push(selector.required(""));
        }
    } else {
        let before = errors.len();
        label_selector(&selector, errors);
        if errors.len() > before {
            errors.push(selector.invalid("invalid label selector"));
            return;
        }
        if selector.at("matchLabels").is_empty() && selector.at("matchExpressions").is_empty() {
            errors.push(selector.invalid(&format!("empty selector is invalid for {owner}")));
            return;
        }
    }
    let labels = spec.at("template.metadata.labels");
    if !selects(selector.value, labels.value) {
        let shown = if labels.is_set() { labels.value.clone() } else { json!({}) };
        errors.push(FieldError::invalid(
            labels.path.clone(),
            &shown,
            "`selector` does not match template `labels`",
        ));
    }
}

pub(super) fn label_selector(selector: &FieldValue<'_>, errors: &mut Errors) {
    metadata::labels(&selector.at("matchLabels"), errors);
    for expression in selector.at("matchExpressions").items() {
        let (operator, values) = (expression.at("operator"), expression.at("values"));
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                errors.push(values.required("must be specified when `operator` is 'In' or 'NotIn'"));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.push(
                    values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.push(operator.invalid("not a valid selector operator")),
        }
        expression.at("key").name(names::qualified, errors);
        for value in values.items() {
            value.name(names::label_value, errors);
        }
    }
}

/// An absent selector selects nothing.
fn selects(selector: &Value, labels: &Value) -> bool {
    if selector.is_null() {
        return false;
    }
    let wanted = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    wanted.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|expression| {
            let found = expression["key"].as_str().and_then(|key| labels.get(key));
            let among = || {
                found.is_some_and(|found| expression["values"].as_array().is_some_and(|v| v.contains(found)))
            };
            match expression["operator"].as_str() {
                Some("In") => among(),
                Some("NotIn") => !among(),
                Some("Exists") => found.is_some(),
                _ => found.is_none(),
            }
        })
}

fn template(spec: &FieldValue<'_>, owner: &str, errors: &mut Errors) {
    let template = spec.at("template");
    metadata::labels(&template.at("metadata.labels"), errors);
    metadata::annotations(&template.at("metadata.annotations"), errors);
    let pod = template.at("spec");
    pod::spec(&pod, errors);
    if pod.at("restartPolicy").text() != "Always" {
        pod.at("restartPolicy").one_of(&["Always"], errors);
    }
    let deadline = pod.at("activeDeadlineSeconds");
    if deadline.is_set() && owner != "StatefulSet" {
        errors.push(deadline.forbidden(&format!("activeDeadlineSeconds in {owner} is not Supported")));
    }
}
