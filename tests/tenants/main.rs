//! Hostile tenants: each attack is refused or contained with a sentence on the Canary of its
//! author, while the release of another namespace is promoted by the same controller.
//!
//! A tenant may write Canaries, AnalysisTemplates and workloads in one namespace, and serve
//! what it likes.

#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

mod servers;

use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::controller::Options;
use serin::tenancy::Tenancy;

use world::{World, workload};

/// An attack, and a part of the sentence that its author reads.
struct Attack {
    /// Fields of the Canary.
    spec: Value,
    /// Specs of AnalysisTemplates by their names.
    templates: Vec<(&'static str, Value)>,
    /// Workloads that are there before the Canary.
    workloads: Vec<Value>,
    /// A release has to begin before anything happens.
    pushes: bool,
    sentence: &'static str,
}

impl Attack {
    fn refused(spec: Value, sentence: &'static str) -> Self {
        Self { spec, templates: Vec::new(), workloads: Vec::new(), pushes: false, sentence }
    }

    /// A metric `attack` by this template.
    fn by_template(template: Value, sentence: &'static str) -> Self {
        let spec = json!({"analysis": {"metrics": [
            {"name": "attack", "templateRef": {"name": "attack"}, "thresholdRange": {"max": 1}},
        ]}});
        Self { templates: vec![("attack", template)], ..Self::refused(spec, sentence) }
    }

    /// While it lasts, a release in another namespace is promoted.
    async fn run(self, world: World) {
        let hostile = world.in_new_namespace().await;
        for (name, spec) in &self.templates {
            let template = json!({
                "apiVersion": "serin.dev/v1alpha1", "kind": "AnalysisTemplate",
                "metadata": {"name": name, "namespace": hostile.namespace}, "spec": spec,
            });
            hostile.apply(template).await;
        }
        for object in &self.workloads {
            hostile.apply(object.clone()).await;
        }
        hostile.canary(self.spec).await;
        world.canary(json!({})).await;
        let options = Options {
            namespaces: vec![world.namespace.clone(), hostile.namespace.clone()],
            tenancy: Tenancy { no_cross_namespace_refs: true, ..Tenancy::default() },
            ..Options::default()
        };
        let _serin = world.serin_with(options).await;
        world.reaches(Phase::Initialized).await;
        let _traffic = (world.traffic(), hostile.traffic());
        if self.pushes {
            hostile.reaches(Phase::Initialized).await;
            hostile.push("web:v2").await;
        }
        let sentence = async || {
            let status = hostile.status().await;
            let metrics = status.metrics.into_iter().map(|metric| metric.reason);
            metrics.chain(status.message).any(|text| text.contains(self.sentence))
        };
        hostile.eventually(self.sentence, async || sentence().await).await;
        world.push("web:v2").await;
        assert_eq!(world.released(1).await.phase, Phase::Succeeded);
        assert!(sentence().await, "{:?}", hostile.status().await.message);
    }
}

fn prometheus(query: &str) -> Value {
    json!({"provider": {"type": "prometheus", "address": "http://127.0.0.1:9"}, "query": query})
}

/// Makes a test of each attack, on paused time.
macro_rules! attacks {
    ($($name:ident: $attack:expr;)*) => {
        $(#[tokio::test(start_paused = true)]
        async fn $name() {
            $attack.run(World::new().await).await
        })*
    };
}

attacks! {
    a_template_that_loops_is_refused: Attack::by_template(
        prometheus("{% for a in [1] * 100000 %}{% for b in [1] * 100000 %}{{ a }}{% endfor %}{% endfor %}"),
        "only variables, printf and index are supported",
    );
    a_query_of_the_canary_that_loops_is_refused: Attack::refused(
        json!({"metricsServer": "http://127.0.0.1:9", "analysis": {"metrics": [{
            "name": "attack", "query": "{{ \"x\" * 999999999 }}", "thresholdRange": {"max": 1},
        }]}}),
        "only variables, printf and index are supported",
    );
    a_flood_of_matchers_is_refused: Attack::by_template(
        {
            let matchers: Vec<String> = (0..999).map(|label| format!("l{label}=~\"a|b\"")).collect();
            json!({"provider": {"type": "scrape"}, "query": format!("x{{{}}}", matchers.join(","))})
        },
        "more than 32 matchers",
    );
    credentials_are_not_diverted: {
        let mut attack = Attack::by_template(
            json!({"provider": {"type": "prometheus", "secretRef": {"name": "platform"}}, "query": "up"}),
            "has credentials, which are not sent to spec.metricsServer of a Canary",
        );
        attack.spec["metricsServer"] = json!("http://tenant.example:9090");
        attack
    };
    a_template_of_another_namespace_is_refused: Attack::refused(
        json!({"analysis": {"metrics": [{
            "name": "attack", "templateRef": {"name": "errors", "namespace": "platform"}, "thresholdRange": {"max": 1},
        }]}}),
        "spec.analysis.metrics[].templateRef names errors in the namespace platform",
    );
    a_chat_of_another_namespace_is_refused: Attack::refused(
        json!({"analysis": {"alerts": [{
            "name": "attack", "severity": "info", "providerRef": {"name": "chat", "namespace": "platform"},
        }]}}),
        "spec.analysis.alerts[].providerRef names chat in the namespace platform",
    );
    the_controllers_aws_identity_is_not_lent: Attack::by_template(
        json!({
            "provider": {
                "type": "cloudwatch", "region": "eu-west-1",
                "role": {"roleArn": "arn:aws:iam::123456789012:role/platform"},
            },
            "query": "[]",
        }),
        "provider.role would be used with the controller's AWS identity",
    );
    a_large_regular_expression_is_refused: Attack::by_template(
        json!({"provider": {"type": "scrape"}, "query": "hits{a=~\"(x{1000}){1000}\"}"}),
        "is too large a regular expression",
    );
    a_long_variable_is_refused: Attack::by_template(
        {
            let mut template = prometheus("{{ variables.a }}");
            template["variables"] = json!({"a": "x".repeat(2000)});
            template
        },
        "variables.a is longer than 1024 bytes",
    );
    a_workload_of_somebody_else_is_not_overwritten: Attack {
        workloads: vec![workload("Deployment", "web-primary", "database:v1")],
        ..Attack::refused(json!({}), "Deployment web-primary exists and no Canary made it")
    };
    a_scheme_leads_no_request_elsewhere: {
        let mut web = workload("Deployment", "web", "web:v1");
        let scheme = json!({"prometheus.io/scheme": "http://platform.example/secrets?x="});
        web["spec"]["template"]["metadata"]["annotations"] = scheme;
        Attack {
            workloads: vec![web],
            pushes: true,
            ..Attack::refused(json!({}), "the annotation prometheus.io/scheme of pod")
        }
    };
    the_nodes_credentials_are_not_read: Attack {
        pushes: true,
        ..Attack::by_template(
            json!({"provider": {"type": "web", "address": "http://169.254.169.254"}, "query": "/latest"}),
            "leads to 169.254.169.254, to which tenants' addresses may not lead",
        )
    };
}
