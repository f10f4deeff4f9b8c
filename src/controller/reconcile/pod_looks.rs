//! Looks at pods that do not become ready. The counts of a Deployment do not show why, and
//! no change of it follows when a container crashes: pods are listed some seconds after
//! the wait began, then less and less often. Pods that start at once are never listed.
//!
//! A list is read in the background, so that an API server that is slow delays no decision;
//! what it shows requests a reconcile.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::ListParams,
    core::{Expression, Selector},
};
use parking_lot::Mutex;

use crate::{
    controller::{background::pools::TaskKind, context::Context, queue::trigger::NamespacedName},
    engine::observed::Pods,
    workload::pod_trouble,
};

/// Until the first look.
const PATIENCE: SignedDuration = SignedDuration::from_secs(4);
/// Between two looks.
const MAX_INTERVAL: SignedDuration = SignedDuration::from_secs(30);
/// Pods of one look: the first in trouble is named.
const MAX_PODS: u32 = 20;
/// Of a list.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Of the pods of one arm.
#[derive(Default)]
pub struct PodLooks {
    unready_since: Option<Timestamp>,
    looked_at: Option<Timestamp>,
    /// Of the last list; shared with the look that is in progress.
    trouble: Arc<Mutex<Option<String>>>,
}

impl PodLooks {
    /// What keeps the pods from being ready, as far as known.
    pub fn trouble(
        &mut self,
        ctx: &Arc<Context>,
        canary: &NamespacedName,
        (labels, pods): (&BTreeMap<String, String>, Pods),
    ) -> Option<String> {
        if pods.desired == 0 || pods.are_ready(100) || labels.is_empty() {
            *self = Self::default();
            return None;
        }
        let now = ctx.clock.now();
        if self.is_due(now) {
            self.looked_at = Some(now);
            let (labels, key, known) = (labels.clone(), canary.clone(), Arc::clone(&self.trouble));
            // One that is not started is due again later.
            let _ = ctx.in_background(TaskKind::PodLook, canary, std::future::pending(), async move |ctx| {
                let listed = tokio::time::timeout(TIMEOUT, list(&ctx.client, &key.namespace, &labels)).await;
                let Ok(Ok(pods)) = listed else { return };
                let found = first_trouble(&pods, ctx.clock.now());
                if std::mem::replace(&mut *known.lock(), found.clone()) != found {
                    ctx.requests.request(key);
                }
            });
        }
        self.trouble.lock().clone()
    }

    /// When to look again; none if all pods are ready.
    pub fn due_at(&self) -> Option<Timestamp> {
        let since = self.unready_since?;
        let last = self.looked_at.unwrap_or(since);
        let interval = last.duration_since(since).clamp(PATIENCE, MAX_INTERVAL);
        last.checked_add(interval).ok()
    }

    fn is_due(&mut self, now: Timestamp) -> bool {
        self.unready_since.get_or_insert(now);
        self.due_at().is_some_and(|at| at <= now)
    }
}

async fn list(client: &Client, namespace: &str, labels: &BTreeMap<String, String>) -> kube::Result<Vec<Pod>> {
    let equal = labels.iter().map(|(key, value)| Expression::Equal(key.clone(), value.clone()));
    let selector: Selector = equal.collect();
    let params = ListParams::default().labels_from(&selector).limit(MAX_PODS);
    Ok(Api::<Pod>::namespaced(client.clone(), namespace).list(&params).await?.items)
}

/// Of the same pods always the same one.
fn first_trouble(pods: &[Pod], now: Timestamp) -> Option<String> {
    pods.iter().filter_map(|pod| pod_trouble(pod, now)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_looked_at_soon_and_then_less_often() {
        let mut looks = PodLooks::default();
        let at = |second: i64| Timestamp::from_second(1_000 + second).unwrap();
        let mut seconds = Vec::new();
        for second in 0..120 {
            if looks.is_due(at(second)) {
                looks.looked_at = Some(at(second));
                seconds.push(second);
            }
        }
        assert_eq!(seconds, [4, 8, 16, 32, 62, 92]);
    }
}
