//! A Rollout: the Deployment that it stands for, and a Canary.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::analysis_template::name_of;
use super::{Converted, duration};

/// The kind of its workload, if that cannot be the target of a Canary.
pub fn unsupported_workload(rollout: &Value) -> Option<&str> {
    rollout["spec"]["workloadRef"]["kind"].as_str().filter(|kind| !["Deployment", "DaemonSet"].contains(kind))
}

/// `others` are all documents of the file: Services have the ports, templates the metrics.
pub fn convert(rollout: &Value, others: &[Value]) -> Vec<Converted> {
    let spec = &rollout["spec"];
    let mut converted = Vec::new();
    let target = match spec["workloadRef"].as_object() {
        None => {
            let deployment = deployment(rollout);
            let target = json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "name": rollout["metadata"]["name"],
            });
            converted.push(deployment);
            target
        }
        Some(reference) => json!({
            "apiVersion": reference["apiVersion"], "kind": reference["kind"], "name": reference["name"],
        }),
    };
    let mut conversion = Conversion { rollout, others, notes: Vec::new(), metrics: BTreeMap::new() };
    if !spec["workloadRef"].is_null() {
        conversion.note("workloadRef: the Deployment keeps its replicas; set them to what it should have before the Rollout is deleted");
    }
    let canary = conversion.canary(&target);
    converted.push(Converted { object: canary, notes: conversion.notes });
    converted
}

fn deployment(rollout: &Value) -> Converted {
    let mut notes = Vec::new();
    let spec = &rollout["spec"];
    let mut ours = Map::new();
    let kept = [
        "replicas",
        "selector",
        "template",
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
        "paused",
    ];
    for field in kept {
        if !spec[field].is_null() {
            ours.insert(field.to_owned(), spec[field].clone());
        }
    }
    let canary = &spec["strategy"]["canary"];
    let rolling: Map<String, Value> = ["maxSurge", "maxUnavailable"]
        .into_iter()
        .filter(|field| !canary[*field].is_null())
        .map(|field| (field.to_owned(), canary[field].clone()))
        .collect();
    if !rolling.is_empty() {
        ours.insert("strategy".to_owned(), json!({ "type": "RollingUpdate", "rollingUpdate": rolling }));
    }
    if ours.get("selector").is_none() && ours.contains_key("template") {
        notes.push("it has no selector, which a Deployment needs; set spec.selector".to_owned());
    }
    if !spec["restartAt"].is_null() {
        notes.push("restartAt has no equal; use kubectl rollout restart".to_owned());
    }
    let mut metadata = rollout["metadata"].clone();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !name.starts_with("rollout.argoproj.io/"));
    }
    let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": ours });
    Converted { object, notes }
}

struct Conversion<'a> {
    rollout: &'a Value,
    others: &'a [Value],
    notes: Vec<String>,
    /// By name, in our form.
    metrics: BTreeMap<String, Value>,
}

/// How Argo's routers are called here, and those that are not.
const ROUTERS: [(&str, Option<&str>); 8] = [
    ("istio", Some("istio")),
    ("smi", Some("smi:v1alpha4")),
    ("appMesh", Some("appmesh:v1beta2")),
    ("nginx", None),
    ("alb", None),
    ("ambassador", None),
    ("traefik", None),
    ("apisix", None),
];

impl Conversion<'_> {
    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    fn canary(&mut self, target: &Value) -> Value {
        let strategy = &self.rollout["spec"]["strategy"];
        let (provider, analysis, apex) = match strategy["blueGreen"].is_object() {
            true => self.blue_green(&strategy["blueGreen"]),
            false => self.canary_strategy(&strategy["canary"]),
        };
        let mut spec = json!({ "provider": provider, "targetRef": target });
        spec["service"] = self.service(apex.as_deref());
        if let Some(seconds) = self.rollout["spec"]["progressDeadlineSeconds"].as_u64() {
            spec["progressDeadlineSeconds"] = json!(seconds);
        }
        let warm = [&strategy["canary"], &strategy["blueGreen"]].into_iter().find_map(|one| {
            let delay = &one["scaleDownDelaySeconds"];
            delay.as_u64().or_else(|| delay.as_str()?.trim_end_matches('s').parse().ok())
        });
        if let Some(seconds) = warm.filter(|seconds| *seconds > 0) {
            spec["rollback"] = json!({ "keepWarmSeconds": seconds });
        }
        spec["analysis"] = analysis;
        let mut metadata = json!({ "name": self.rollout["metadata"]["name"] });
        if let Some(namespace) = self.rollout["metadata"]["namespace"].as_str() {
            metadata["namespace"] = json!(namespace);
        }
        json!({ "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": metadata, "spec": spec })
    }

    fn canary_strategy(&mut self, canary: &Value) -> (&'static str, Value, Option<String>) {
        let apex = ["stableService", "canaryService"].into_iter().find_map(|field| canary[field].as_str());
        let provider = self.provider(&canary["trafficRouting"]);
        for (field, way) in [
            ("canaryMetadata", "labels of pods are those of the pod template"),
            ("stableMetadata", "labels of pods are those of the pod template"),
            ("antiAffinity", "write it in the pod template"),
            ("dynamicStableScale", "the primary keeps its size until the release is promoted"),
            ("abortScaleDownDelaySeconds", "a canary that was rolled back is scaled down at once"),
            ("minPodsPerReplicaSet", "the canary has the size that its target has"),
            ("pingPong", "the Services keep their roles"),
        ] {
            if !canary[field].is_null() {
                self.note(format!("strategy.canary.{field} has no equal: {way}"));
            }
        }
        let background = self.analysis_metrics(&canary["analysis"]);
        if canary["analysis"]["startingStep"].as_u64().is_some_and(|at| at > 0) {
            self.note("analysis.startingStep: metrics are judged from the first step on");
        }
        let mut steps = Vec::new();
        for step in canary["steps"].as_array().into_iter().flatten() {
            if let Some(step) = self.step(step, !background.is_empty()) {
                steps.push(step);
            }
        }
        if provider == "kubernetes" && steps.iter().any(|step| !step["weight"].is_null()) {
            self.note("without trafficRouting Argo divides traffic by the number of pods; provider kubernetes switches all of it, so weights are gone: choose a provider that divides, or keep the pauses");
            for step in &mut steps {
                step.as_object_mut().map(|step| step.remove("weight"));
            }
            steps.retain(|step| step.as_object().is_some_and(|step| !step.is_empty()));
        }
        let mut analysis = json!({ "interval": "1m" });
        match steps.is_empty() {
            true => analysis["iterations"] = json!(1),
            false => analysis["steps"] = json!(steps),
        }
        self.finish(&mut analysis);
        (provider, analysis, apex.map(str::to_owned))
    }

    fn blue_green(&mut self, blue_green: &Value) -> (&'static str, Value, Option<String>) {
        if !blue_green["previewService"].is_null() {
            self.note("previewService: the canary is reached at the Service NAME-canary");
        }
        if !blue_green["previewReplicaCount"].is_null() {
            self.note("previewReplicaCount: write steps[].replicas");
        }
        if !blue_green["postPromotionAnalysis"].is_null() {
            self.note("postPromotionAnalysis has no equal: write a webhook of type post-rollout, and rollback.keepWarmSeconds for a way back");
        }
        self.analysis_metrics(&blue_green["prePromotionAnalysis"]);
        let mut steps = Vec::new();
        if let Some(seconds) = blue_green["autoPromotionSeconds"].as_u64().filter(|seconds| *seconds > 0) {
            steps.push(json!({ "pause": { "duration": format!("{seconds}s") } }));
        } else if blue_green["autoPromotionEnabled"] == false {
            steps.push(json!({ "approval": { "message": "Promote?" } }));
        }
        let mut analysis = json!({ "interval": "1m" });
        match steps.is_empty() {
            true => analysis["iterations"] = json!(1),
            false => analysis["steps"] = json!(steps),
        }
        self.finish(&mut analysis);
        ("kubernetes", analysis, blue_green["activeService"].as_str().map(str::to_owned))
    }

    fn finish(&mut self, analysis: &mut Value) {
        analysis["threshold"] = json!(1);
        if !self.metrics.is_empty() {
            analysis["metrics"] = self.metrics.values().cloned().collect();
        }
    }

    fn provider(&mut self, routing: &Value) -> &'static str {
        let Some(routers) = routing.as_object().filter(|routers| !routers.is_empty()) else {
            return "kubernetes";
        };
        if routers.keys().any(|name| name == "plugins") {
            let is_gateway = routing["plugins"]
                .as_object()
                .is_some_and(|all| all.contains_key("argoproj-labs/gatewayAPI"));
            if is_gateway {
                self.note("the Gateway API plugin names an HTTPRoute; Serin adopts the one of the apex Service's name: set service.gatewayRefs to its parents");
                return "gatewayapi:v1";
            }
            self.note("plugins of trafficRouting have no equal; set provider");
            return "kubernetes";
        }
        let known = ROUTERS.iter().find(|(theirs, _)| routers.contains_key(*theirs));
        match known {
            Some((_, Some(ours))) => {
                if routing["istio"].is_object() {
                    self.note("istio: Serin adopts the VirtualService of the apex Service's name; rename yours, or set service.name");
                }
                ours
            }
            Some((theirs, None)) => {
                self.note(format!("trafficRouting.{theirs} has no router here; use gatewayapi:v1 with the implementation's HTTPRoute"));
                "gatewayapi:v1"
            }
            None => {
                self.note("trafficRouting has no router here; set provider");
                "kubernetes"
            }
        }
    }

    fn step(&mut self, step: &Value, has_background: bool) -> Option<Value> {
        let (name, value) = step.as_object()?.iter().next()?;
        match name.as_str() {
            "setWeight" => Some(match (value.as_u64(), has_background) {
                // A step of weight 0 is one that only waits.
                (Some(0) | None, _) => return None,
                (Some(weight), true) => json!({ "weight": weight }),
                (Some(weight), false) => json!({ "weight": weight, "analysis": { "skip": true } }),
            }),
            "pause" => Some(match duration(&value["duration"]) {
                Some(duration) => json!({ "pause": { "duration": duration } }),
                None => json!({ "pause": {} }),
            }),
            "setCanaryScale" => {
                let count = value["replicas"].as_u64();
                let percent = value["weight"].as_u64();
                match (count, percent) {
                    (Some(count), _) if count > 0 => Some(json!({ "replicas": { "count": count } })),
                    (_, Some(percent)) if percent > 0 => Some(json!({ "replicas": { "percent": percent } })),
                    _ => {
                        self.note("setCanaryScale.matchTrafficWeight is how the canary is sized between steps with replicas");
                        None
                    }
                }
            }
            "setHeaderRoute" => {
                let headers: Map<String, Value> = value["match"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|one| {
                        Some((one["headerName"].as_str()?.to_lowercase(), one["headerValue"].clone()))
                    })
                    .collect();
                // Without a match Argo removes the route, which ends with the step here.
                (!headers.is_empty()).then(|| json!({ "match": [{ "headers": headers }] }))
            }
            "setMirrorRoute" => {
                let percent = value["percentage"].as_u64().unwrap_or(100);
                if value["match"].is_array() {
                    self.note("setMirrorRoute.match has no equal: all requests are mirrored, by percentage");
                }
                (percent > 0).then(|| json!({ "mirror": percent }))
            }
            "analysis" => {
                let metrics = self.analysis_metrics(value);
                (!metrics.is_empty()).then(|| json!({ "analysis": { "metrics": metrics }, "iterations": 1 }))
            }
            "experiment" => {
                self.note("a step experiment has no equal: the canary is compared with the primary by judge sequential");
                None
            }
            other => {
                self.note(format!("a step {other} has no equal"));
                None
            }
        }
    }

    /// Adds the metrics of an analysis, and returns their names.
    fn analysis_metrics(&mut self, analysis: &Value) -> Vec<String> {
        let mut names = Vec::new();
        let templates = analysis["templates"].as_array().cloned().unwrap_or_default();
        let old = analysis["templateName"].as_str().map(|name| json!({ "templateName": name }));
        for reference in templates.iter().chain(old.iter()) {
            let Some(template) = reference["templateName"].as_str() else { continue };
            let shared = reference["clusterScope"] == true;
            let kind = if shared { "ClusterAnalysisTemplate" } else { "AnalysisTemplate" };
            let found =
                self.others.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == template);
            let metrics: Vec<Value> = match found {
                Some(found) => found["spec"]["metrics"].as_array().cloned().unwrap_or_default(),
                None => {
                    self.note(format!(
                        "{kind} {template} is not in this file: its metrics were taken for one of that name"
                    ));
                    vec![json!({ "name": template })]
                }
            };
            for metric in &metrics {
                let metric_name = metric["name"].as_str().unwrap_or(template);
                let name = name_of(template, metric_name, metrics.len() == 1);
                let mut ours = json!({ "name": name, "templateRef": { "name": name } });
                if shared {
                    ours["templateRef"]["kind"] = json!(kind);
                }
                match duration(&metric["interval"]) {
                    Some(interval) if interval.contains("{{") => self.note(format!(
                        "the interval of metric {metric_name} is an argument ({interval}): set metrics[].interval"
                    )),
                    Some(interval) => ours["interval"] = json!(interval),
                    None => {}
                }
                let variables = self.arguments(&analysis["args"]);
                if !variables.is_empty() {
                    ours["templateVariables"] = Value::Object(variables);
                }
                self.metrics.entry(name.clone()).or_insert(ours);
                names.push(name);
            }
        }
        names
    }

    fn arguments(&mut self, args: &Value) -> Map<String, Value> {
        let mut variables = Map::new();
        for arg in args.as_array().into_iter().flatten() {
            let Some(name) = arg["name"].as_str() else { continue };
            match &arg["value"] {
                Value::String(value) => {
                    variables.insert(name.to_owned(), json!(value));
                }
                _ => self.note(format!("argument {name} is taken from the Rollout: use {{{{ target }}}}, {{{{ name }}}} or {{{{ namespace }}}} in the query")),
            }
        }
        variables
    }

    /// The apex Service, with the port of the Service in the same file.
    fn service(&mut self, apex: Option<&str>) -> Value {
        let name = apex.or(self.rollout["metadata"]["name"].as_str()).unwrap_or_default();
        let found =
            self.others.iter().find(|one| one["kind"] == "Service" && one["metadata"]["name"] == name);
        let port = found.and_then(|service| service["spec"]["ports"].get(0));
        let container =
            &self.rollout["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"];
        let mut ours = json!({});
        if apex.is_some() {
            ours["name"] = json!(name);
        }
        match port {
            Some(port) => {
                ours["port"] = port["port"].clone();
                if !port["targetPort"].is_null() {
                    ours["targetPort"] = port["targetPort"].clone();
                }
            }
            None => {
                ours["port"] = json!(container.as_u64().unwrap_or(80));
                self.note(format!(
                    "the Service {name} is not in this file: check service.port and targetPort"
                ));
            }
        }
        ours
    }
}
