//! Queries that can never have a result are refused before any request, with the
//! text to write instead.

use super::*;

#[track_caller]
fn refused(spec: Value, judge: JudgeType) -> String {
    query_of("web", "errors", spec, judge).expect_err("a refusal").to_string()
}

fn typed(change: Value) -> Value {
    let mut spec = counted();
    json_patch::merge(&mut spec, &change);
    spec
}

#[test]
fn a_judge_that_needs_counts_is_refused_with_a_remedy() {
    let spec = typed(json!({"counts": null, "query": "100 * errors / requests"}));
    let why = refused(spec, JudgeType::Sequential);
    assert!(why.contains("add counts or histogram") && why.contains("thresholdRange"), "{why}");
}

#[test]
fn every_invalid_field_is_named() {
    let cases = [
        (typed(json!({"counts": {"bad": "eror"}})), "counts.bad refers to eror", "errors, requests"),
        (typed(json!({"counts": {"bad": "RATE(errors)"}})), "counts", "rates cannot be counted"),
        (
            typed(json!({"cloudwatch": {"metrics": {"errors": {"statistic": "p99"}}}})),
            "counts",
            "Sum or SampleCount",
        ),
        (
            typed(json!({"cloudwatch": {"namespace": null}})),
            "requests has no namespace",
            "AWS/ApplicationELB",
        ),
        (typed(json!({"cloudwatch": {"period": "45s"}})), "period 45", "multiple of 60"),
        (typed(json!({"cloudwatch": {"period": "1500ms"}})), "period", "multiple of 60"),
        (
            typed(json!({"cloudwatch": {"canary": null, "primary": null}})),
            "the same for canary and primary",
            "spec.cloudwatch.canary",
        ),
        (typed(json!({"counts": null, "histogram": "errors"})), "histogram", "Milliseconds"),
        (json!({"counts": null, "cloudwatch": null, "query": "errors"}), "query", "MetricDataQueries"),
        (typed(json!({"provider": {"address": "monitoring"}})), "monitoring", "no address"),
        (typed(json!({"provider": {"type": "prometheus"}})), "spec.cloudwatch", "provider.type"),
        (
            typed(json!({"cloudwatch": {"dimensions": {"App": "{{ variables.app }}"}}})),
            "variables.app",
            "templateVariables",
        ),
    ];
    for (spec, field, instead) in cases {
        let judge = if spec["query"].is_null() { JudgeType::Sequential } else { JudgeType::Threshold };
        let why = refused(spec, judge);
        assert!(why.starts_with("template watched") || why.starts_with('"'), "{why}");
        assert!(why.contains(field) && why.contains(instead), "{why}");
    }
}
