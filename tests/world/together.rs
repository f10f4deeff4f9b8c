//! Scenarios that go on at the same time: on real time most of what they do is
//! wait. `SCENARIO=errors_roll_back` runs one of them.

use std::pin::Pin;

use futures::FutureExt as _;
use tokio::task::LocalSet;

pub type Scenario = Pin<Box<dyn Future<Output = ()>>>;

/// Runs them all; fails when one does, and names it.
pub async fn together(scenarios: Vec<(&'static str, Scenario)>) {
    let only = std::env::var("SCENARIO").ok();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let all = LocalSet::new();
    let running: Vec<_> = scenarios
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, scenario)| (name, all.spawn_local(scenario)))
        .collect();
    all.await;
    let failed: Vec<_> =
        running.into_iter().filter_map(|(name, ran)| ran.now_or_never()?.err().map(|_| name)).collect();
    assert!(failed.is_empty(), "these failed: {failed:?}");
}
