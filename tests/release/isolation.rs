//! The trouble of one Canary delays no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use http::StatusCode;
use serde_json::{Value, json};
use serin::api::canary::Phase;
use serin::controller::Options;
use serin::gates::webhook::{HookError, HookRequest, HookResponse, HookTransport, Webhooks};
use tokio::time::sleep;

use crate::world::{Running, World};

/// Receivers at `http://hangs` never respond, all others say yes.
#[derive(Default)]
struct Receivers {
    hanging: AtomicUsize,
}

struct HangingCall<'a>(&'a AtomicUsize);

impl Drop for HangingCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Receivers {
    fn hanging(&self) -> usize {
        self.hanging.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl HookTransport for Receivers {
    async fn send(&self, request: &HookRequest) -> Result<HookResponse, HookError> {
        if request.url.starts_with("http://hangs") {
            self.hanging.fetch_add(1, Ordering::Relaxed);
            let _call = HangingCall(&self.hanging);
            sleep(request.timeout).await;
            return Err(HookError::TimedOut);
        }
        Ok(HookResponse { status: StatusCode::OK })
    }
}

/// As many webhooks of a type, all of which hang for as long as they may.
fn hanging_hooks(kind: &str, count: usize) -> Value {
    let hook = |index| json!({"name": format!("hook {index}"), "type": kind, "url": "http://hangs/", "timeout": "5m", "retries": 3});
    let webhooks: Vec<Value> = (0..count).map(hook).collect();
    json!({"analysis": {"webhooks": webhooks}})
}

/// One controller for several namespaces, each with the Canary `web`.
async fn serin_of(worlds: &[&World], receivers: &Arc<Receivers>) -> Running {
    let options = Options {
        namespaces: worlds.iter().map(|world| world.namespace.clone()).collect(),
        webhooks: Some(Webhooks::with_transport(Arc::clone(receivers) as _)),
        ..Options::default()
    };
    worlds[0].serin_with(options).await
}

pub async fn hooks_that_hang_delay_only_their_own_release(world: World) {
    let (left, right) = (world.in_new_namespace().await, world.in_new_namespace().await);
    for other in [&left, &right] {
        other.canary(hanging_hooks("pre-rollout", 32)).await;
    }
    world.canary(json!({})).await;
    let receivers = Arc::<Receivers>::default();
    let _serin = serin_of(&[&world, &left, &right], &receivers).await;
    for world in [&world, &left, &right] {
        world.reaches(Phase::Initialized).await;
    }
    for other in [&left, &right] {
        other.push("web:v2").await;
    }
    for other in [&left, &right] {
        other.reaches(Phase::Progressing).await;
    }
    world.eventually("hooks hang", async || receivers.hanging() > 8).await;
    let (_traffic, before) = (world.traffic(), world.clock.now());
    world.push("web:v2-errors-50").await;
    assert_eq!(world.released(1).await.phase, Phase::Failed);
    let took = world.clock.now().duration_since(before);
    assert!(receivers.hanging() > 8, "the hooks hang no more after {took:?}");
}

pub async fn event_hooks_that_hang_delay_no_gate_of_others(world: World) {
    let other = world.in_new_namespace().await;
    other.canary(hanging_hooks("event", 50)).await;
    let gate = json!({"name": "ready?", "type": "confirm-rollout", "url": "http://answers/"});
    let event = json!({"name": "log", "type": "event", "url": "http://answers/"});
    world.canary(json!({"analysis": {"metrics": null, "webhooks": [gate, event]}})).await;
    let receivers = Arc::<Receivers>::default();
    let _serin = serin_of(&[&world, &other], &receivers).await;
    for world in [&world, &other] {
        world.reaches(Phase::Initialized).await;
    }
    other.push("web:v2").await;
    other.reaches(Phase::Progressing).await;
    world.eventually("hooks hang", async || receivers.hanging() > 1).await;
    world.push("web:v2").await;
    assert_eq!(world.released(1).await.phase, Phase::Succeeded);
    assert!(receivers.hanging() > 1, "the hooks hang no more");
}

pub async fn calls_end_with_the_canary_that_made_them(world: World) {
    let receivers = Arc::<Receivers>::default();
    let mut hooks = hanging_hooks("pre-rollout", 25);
    let events = hanging_hooks("event", 25)["analysis"]["webhooks"].take();
    hooks["analysis"]["webhooks"].as_array_mut().expect("hooks").extend(events.as_array().cloned().unwrap());
    for (index, hook) in hooks["analysis"]["webhooks"].as_array_mut().expect("hooks").iter_mut().enumerate() {
        hook["name"] = json!(format!("hook {index}"));
    }
    hooks["revertOnDeletion"] = json!(false);
    world.canary(hooks).await;
    let _serin = serin_of(&[&world], &receivers).await;
    world.reaches(Phase::Initialized).await;
    world.push("web:v2").await;
    world.reaches(Phase::Progressing).await;
    world.eventually("hooks hang", async || receivers.hanging() > 8).await;
    let before = world.clock.now();
    world.delete("Canary", "web").await;
    world.is_gone("Canary", "web").await;
    world.eventually("the calls are gone", async || receivers.hanging() == 0).await;
    let took = world.clock.now().duration_since(before);
    assert!(took < jiff::SignedDuration::from_mins(1), "the calls went on for {took:?}");
}

pub async fn calls_of_a_release_end_with_it(world: World) {
    let receivers = Arc::<Receivers>::default();
    world.canary(hanging_hooks("pre-rollout", 25)).await;
    let _serin = serin_of(&[&world], &receivers).await;
    world.reaches(Phase::Initialized).await;
    world.push("web:v2").await;
    world.eventually("hooks hang", async || receivers.hanging() > 1).await;
    world.command(serin::engine::command::Verb::Abort).await;
    let before = world.clock.now();
    assert_eq!(world.released(1).await.phase, Phase::Failed);
    world.eventually("the calls are gone", async || receivers.hanging() == 0).await;
    let took = world.clock.now().duration_since(before);
    assert!(took < jiff::SignedDuration::from_mins(1), "the calls went on for {took:?}");
}
