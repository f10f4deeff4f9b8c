//! Good is promoted and bad is rolled back, on the built-in metrics.

use std::sync::Arc;

use serde_json::json;
use serin::api::Weight;
use serin::api::canary::Phase;
use serin::api::canary::status::{Outcome, Verdict};

use crate::Stage;

pub async fn a_healthy_revision_is_promoted(stage: Arc<Stage>) {
    let (world, _serin) = stage.initialized(json!({})).await;
    let _traffic = world.traffic();
    world.push("web:v2").await;
    let status = world.released(1).await;
    assert_eq!((status.phase, status.history[0].outcome), (Phase::Succeeded, Outcome::Promoted));
    assert_eq!((world.image("web-primary").await.as_str(), world.split().await), ("web:v2", Some((0, 100))));
    for metric in &status.metrics {
        let judged_on = (metric.canary, metric.primary, metric.canary_count, metric.primary_count);
        let (Some(canary), Some(primary), Some(of), Some(all)) = judged_on else {
            panic!("{metric:#?} has no numbers")
        };
        assert!(metric.verdict == Verdict::Pass && of >= 1.0 && all >= 1.0, "{metric:#?}");
        match metric.name.as_str() {
            "request-success-rate" => assert_eq!((canary, primary), (100.0, 100.0)),
            _ => assert!(canary > 0.0 && primary > 0.0, "{metric:#?}"),
        }
        assert!(metric.evidence.is_some_and(|evidence| (1.0..100.0).contains(&evidence)), "{metric:#?}");
    }
}

pub async fn errors_roll_back(stage: Arc<Stage>) {
    rolls_back(&stage, "web:v2-errors-30", "request-success-rate").await;
}

pub async fn slowness_rolls_back(stage: Arc<Stage>) {
    rolls_back(&stage, "web:v2-slow-2s", "request-duration").await;
}

async fn rolls_back(stage: &Stage, image: &str, metric: &str) {
    let (world, _serin) = stage.initialized(json!({})).await;
    let _traffic = world.traffic();
    world.push(image).await;
    let status = world.released(1).await;
    let past = &status.history[0];
    assert_eq!(past.outcome, Outcome::RolledBack);
    assert!(past.reason.starts_with(&format!("{metric} failed (canary ")), "{}", past.reason);
    assert!(past.highest_weight <= Weight::from_hundredths(5000).unwrap());
    let judged = status.metrics.iter().find(|judged| judged.name == metric).expect("the metric");
    assert_eq!(judged.verdict, Verdict::Fail);
    assert!(judged.evidence.is_some_and(|evidence| evidence >= 100.0), "{judged:#?}");
    assert_eq!((world.image("web-primary").await.as_str(), world.replicas("web").await), ("web:v1", 0));
    assert_eq!(world.split().await, Some((0, 100)));
    let news = world.event_messages().await;
    assert!(
        news.iter().any(|event| event.starts_with("RolledBack: ") && event.contains(metric)),
        "{news:#?}"
    );
}
