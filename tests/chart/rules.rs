//! Alerts, recording rules and the dashboard in the hands of promtool, and their documents.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::chart::{Helm, run};
use crate::support::{Folder, Part, program};

const ON: [&str; 2] = ["metrics.prometheusRule.enabled=true", "metrics.grafanaDashboard.enabled=true"];

async fn promtool(folder: &Folder, arguments: &[&str]) -> String {
    let promtool = program(Part::Promtool, "promtool").unwrap_or_else(|error| panic!("{error}"));
    let mut command = Command::new(promtool);
    command.args(arguments).current_dir(folder.path());
    run(command, "").await.ok()
}

fn rules(groups: &Value) -> Vec<&Value> {
    let groups = groups.as_array().expect("groups").iter();
    groups.flat_map(|group| group["rules"].as_array().expect("rules")).collect()
}

#[tokio::test]
async fn the_alerts_pass_their_unit_tests() {
    let rendered = Helm::new().template("serin", &ON).await;
    let groups = &rendered.one("PrometheusRule")["spec"]["groups"];
    let folder = Folder::new("rules");
    folder.write("rules.yaml", &json!({"groups": groups}).to_string());
    let tests = include_str!("rules/tests.yaml");
    folder.write("tests.yaml", tests);
    promtool(&folder, &["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"]).await;
    promtool(&folder, &["test", "rules", "tests.yaml"]).await;
    for rule in rules(groups).iter().filter_map(|rule| rule["alert"].as_str()) {
        assert!(tests.contains(&format!("alertname: {rule}\n")), "{rule} has no unit test");
    }
}

#[tokio::test]
async fn every_alert_links_to_its_section() {
    let rendered = Helm::new().template("serin", &ON).await;
    let document = include_str!("../../docs/alerts.md");
    let sections: BTreeSet<&str> = document.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut alerts = BTreeSet::new();
    for rule in rules(&rendered.one("PrometheusRule")["spec"]["groups"]) {
        let Some(alert) = rule["alert"].as_str() else { continue };
        let link = format!("docs/alerts.md#{}", alert.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], link);
        alerts.insert(alert);
    }
    assert_eq!(alerts, sections);
    let elsewhere =
        ["metrics.prometheusRule.enabled=true", "metrics.prometheusRule.runbooks=https://wiki/serin"];
    let text = Helm::new().template("serin", &elsewhere).await.text;
    assert!(text.contains("runbook_url: https://wiki/serin#serinfailing"));
}

#[tokio::test]
async fn the_dashboard_shows_series_that_exist_for_each_cluster_namespace_and_canary() {
    let rendered = Helm::new().template("serin", &ON).await;
    let map = rendered.all("ConfigMap").find(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1");
    let text = map.expect("the ConfigMap")["data"]["serin.json"].as_str().expect("text");
    let dashboard: Value = serde_json::from_str(text).expect("JSON");
    let variables: Vec<_> =
        dashboard["templating"]["list"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(variables, ["datasource", "cluster", "namespace", "canary"]);
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<String> =
        targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect();
    assert!(queries.len() > 20, "{queries:?}");
    let numbered = queries.iter().enumerate();
    let rules: Vec<Value> =
        numbered.map(|(at, query)| json!({"record": format!("query:{at}"), "expr": query})).collect();
    let folder = Folder::new("dashboard");
    folder.write("rules.yaml", &json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string());
    promtool(&folder, &["check", "rules", "rules.yaml"]).await;

    let documented = include_str!("../../docs/reference/metrics.md");
    for query in &queries {
        assert!(query.contains("cluster=~\"$cluster\""), "{query}");
        for word in query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let series = ["_bucket"].iter().fold(word, |word, suffix| word.trim_end_matches(suffix));
            let known = !series.starts_with("serin_") || documented.contains(&format!("`{series}"));
            assert!(known, "{series} is not a series of Serin: {query}");
        }
    }
}
