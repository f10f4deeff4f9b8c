//! Autoscalers and disruption budgets.

use super::workload::label_selector;
use super::{Errors, FieldValue};
use crate::schema::{FieldError, Reason};

pub(super) fn autoscaler(autoscaler: &FieldValue<'_>, errors: &mut Errors) {
    let spec = autoscaler.at("spec");
    let (least, most) = (spec.at("minReplicas"), spec.at("maxReplicas"));
    let (min, max) = (least.value.as_i64().unwrap_or(1), most.value.as_i64().unwrap_or_default());
    if min < 1 {
        errors.push(least.invalid("must be greater than or equal to 1"));
    }
    if min == 0 {
        let detail =
            "must specify at least one Object or External metric to support scaling to zero replicas";
        let from_outside = |metric: FieldValue<'_>| matches!(metric.at("type").text(), "Object" | "External");
        if !spec.at("metrics").items().any(from_outside) {
            errors.push(spec.at("metrics").forbidden(detail));
        }
    }
    if max < 1 {
        errors.push(most.required("must be set and greater than 0"));
    }
    if max < min {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(most.path.clone(), &max.into(), detail));
    }
    let target = spec.at("scaleTargetRef");
    for field in ["kind", "name"] {
        let field = target.at(field);
        if field.is_empty() {
            errors.push(field.required(""));
        }
        for part in ["/", "%"].iter().filter(|part| field.text().contains(**part)) {
            errors.push(field.invalid(&format!("may not contain '{part}'")));
        }
    }
    let version = target.at("apiVersion");
    if !version.text().contains('/') {
        let detail = "apiVersion must specify API group";
        errors.push(FieldError::invalid(version.path.clone(), &version.text().into(), detail));
    }
    for metric in spec.at("metrics").items() {
        check_metric(&metric, errors);
    }
    for direction in ["scaleUp", "scaleDown"] {
        check_rules(&spec.at("behavior").at(direction), errors);
    }
}

fn check_metric(metric: &FieldValue<'_>, errors: &mut Errors) {
    let kind = metric.at("type");
    let source = match kind.text() {
        "ContainerResource" => "containerResource",
        "External" => "external",
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        other => {
            if other.is_empty() {
                errors.push(kind.required("must specify a metric source type"));
            }
            kind.one_of(&["ContainerResource", "External", "Object", "Pods", "Resource"], errors);
            return;
        }
    };
    let source = metric.at(source);
    if !source.is_set() {
        errors.push(source.required("must populate information for the given metric source"));
        return;
    }
    let of_resource = matches!(kind.text(), "Resource" | "ContainerResource");
    if of_resource && source.at("name").is_empty() {
        errors.push(source.at("name").required("must specify a resource name"));
    }
    let target = source.at("target");
    let target_kind = target.at("type");
    match target_kind.text() {
        "Utilization" | "Value" | "AverageValue" => {}
        "" => {
            errors.push(target_kind.required("must specify a metric target type"));
            let detail = "must be either Utilization, Value, or AverageValue";
            errors.push(FieldError::invalid(target_kind.path.clone(), &"".into(), detail));
        }
        _ => errors.push(target_kind.invalid("must be either Utilization, Value, or AverageValue")),
    }
    let (share, average) = (target.at("averageUtilization"), target.at("averageValue"));
    if share.value.as_i64().is_some_and(|percent| percent < 1) {
        errors.push(share.invalid("must be greater than 0"));
    }
    if of_resource {
        match (share.is_set(), average.is_set()) {
            (false, false) => {
                errors.push(share.required("must set either a target raw value or a target utilization"));
            }
            (true, true) => {
                errors
                    .push(average.forbidden("may not set both a target raw value and a target utilization"));
            }
            (true, false) | (false, true) => {}
        }
    }
}

fn check_rules(rules: &FieldValue<'_>, errors: &mut Errors) {
    if !rules.is_set() {
        return;
    }
    let window = rules.at("stabilizationWindowSeconds");
    match window.value.as_i64() {
        Some(..0) => errors.push(window.invalid("must be greater than or equal to zero")),
        Some(3601..) => errors.push(window.invalid("must be less than or equal to 3600")),
        Some(0..=3600) | None => {}
    }
    rules.at("selectPolicy").one_of(&["Disabled", "Max", "Min"], errors);
    for policy in rules.at("policies").items() {
        policy.at("type").one_of(&["Percent", "Pods"], errors);
        for field in ["value", "periodSeconds"] {
            let field = policy.at(field);
            if field.value.as_i64().unwrap_or_default() <= 0 {
                errors.push(field.invalid("must be greater than zero"));
            }
        }
        let period = policy.at("periodSeconds");
        if period.value.as_i64().is_some_and(|seconds| seconds > 1800) {
            errors.push(period.invalid("must be less than or equal to 1800"));
        }
    }
}

pub(super) fn disruption_budget(budget: &FieldValue<'_>, errors: &mut Errors) {
    let spec = budget.at("spec");
    let (available, unavailable) = (spec.at("minAvailable"), spec.at("maxUnavailable"));
    if available.is_set() && unavailable.is_set() {
        // The API server prints its Go struct here.
        let shown = format!(
            "Invalid value: {{\"MinAvailable\":{},\"Selector\":{},\"MaxUnavailable\":{},\"UnhealthyPodEvictionPolicy\":{}}}",
            available.value,
            spec.at("selector").value,
            unavailable.value,
            spec.at("unhealthyPodEvictionPolicy").value
        );
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::with_text(spec.path.clone(), Reason::Invalid, &shown, detail));
    }
    available.count_or_percent(errors);
    unavailable.count_or_percent(errors);
    let policy = spec.at("unhealthyPodEvictionPolicy");
    if policy.is_set() {
        policy.one_of(&["AlwaysAllow", "IfHealthyBudget"], errors);
    }
    label_selector(&spec.at("selector"), errors);
}
