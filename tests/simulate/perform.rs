//! Performs the events of a seed.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube_local::faults::FaultPlan;
use serde_json::{Value, json};
use serin::api::{AnalysisTemplate, Canary};
use serin::engine::command::Verb;
use serin::gates::annotations::{self, APPROVALS, COMMANDS};
use tokio::time::sleep;

use super::manifests::{container_of, template_name};
use super::recorder::{FOREIGN_WRITE, Recorder};
use super::refusals::ActiveRefusal;
use super::scenario::{Dependency, Event, Metrics};
use super::world::{NAMESPACE, World};

impl World {
    pub async fn perform(&mut self, event: &Event) {
        self.recorder.lock().log_event(event);
        match event {
            Event::Push { on, image } => self.push(*on, image).await,
            Event::EditConfig { on, value } => {
                let patch = json!({"data": {"value": value}});
                let name = format!("{}-config", self.scenario.canaries[*on].name);
                self.log_failure(
                    self.api::<ConfigMap>().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await,
                );
            }
            Event::Edit { on, spec } => self.patch_canary(*on, json!({ "spec": spec })).await,
            Event::Command { on, verb } => {
                self.commands += 1;
                let order = json!({"id": format!("c{}", self.commands), "verb": verb, "by": "ann"});
                {
                    let mut recorder = self.recorder.lock();
                    let at = recorder.lag.at();
                    let name = self.scenario.canaries[*on].name;
                    let subject = recorder.canaries.get_mut(name).expect("it is known");
                    match verb {
                        Verb::Retry | Verb::Rollback => subject.release_causes += 1,
                        Verb::Promote => {
                            subject.promoted_by_command = subject.status().map(|status| status.releases)
                        }
                        Verb::Abort => subject.aborts.record_command(format!("c{}", self.commands), at),
                        Verb::Pause | Verb::Resume => {}
                    }
                }
                self.annotate(*on, COMMANDS, vec![order]).await;
            }
            Event::Answer { on, yes } => self.answer_approvals(*on, *yes).await,
            Event::Delete { on } => {
                let name = self.scenario.canaries[*on].name;
                self.log_failure(self.api::<Canary>().delete(name, &DeleteParams::default()).await);
            }
            Event::Create { on } => self.create_canary(*on).await,
            Event::Scale { on, primary, replicas } => {
                let name = self.workload_name(*on, *primary);
                if !*primary {
                    self.note_scaled_by_user(*on);
                }
                if self.scenario.canaries[*on].kind == "Deployment" {
                    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                    self.log_failure(self.workload(*on).patch(&name, &PatchParams::default(), &patch).await);
                }
            }
            Event::KillPods { on, primary, all } => self.kill_pods(*on, *primary, *all).await,
            Event::Traffic { on, rate } => {
                let mut recorder = self.recorder.lock();
                recorder.advance_traffic();
                let name = self.scenario.canaries[*on].name;
                recorder.canaries.get_mut(name).expect("it is known").rate = *rate;
            }
            Event::Metrics { on, mode } => {
                let name = self.scenario.canaries[*on].name.to_owned();
                let mut recorder = self.recorder.lock();
                recorder.traffic.metrics.insert(name.clone(), *mode);
                recorder.note_own_trouble(&name);
                if *mode != Metrics::Available {
                    recorder.count("metrics lost");
                }
            }
            Event::Gate { on, hook, mode } => {
                let name = self.scenario.canaries[*on].name;
                let mut recorder = self.recorder.lock();
                recorder.gates.insert(format!("http://gates/{name}/{hook}"), *mode);
                recorder.note_own_trouble(name);
            }
            Event::Faults(plan) => {
                self.recorder.lock().lag.set_faults(*plan != FaultPlan::default());
                self.api_server.set_faults(plan.clone());
            }
            Event::Restart { gently, after, both } => {
                self.recorder.lock().lag.set_running(false);
                let ending = if *both { self.running.len() } else { 1 };
                for running in self.running.drain(..ending).collect::<Vec<_>>() {
                    self.recorder.lock().log(format!("  {} ends", running.connection.process));
                    let me = running.connection.process.clone();
                    if *gently {
                        running.stop.cancel();
                        let _ = running.work.await;
                    }
                    self.recorder.lock().remove_process(&me);
                }
                self.recorder.lock().count(if *gently { "ended" } else { "killed" });
                sleep(*after).await;
                self.start();
            }
            Event::Freeze { which, length } => {
                if let Some(running) = self.running.get(*which) {
                    let (connection, length) = (Arc::clone(&running.connection), *length);
                    self.recorder.lock().count("frozen");
                    tokio::spawn(async move { connection.freeze(length).await });
                }
            }
            Event::Refuse(planned) => {
                let mut recorder = self.recorder.lock();
                recorder.count("refusal");
                recorder.refusals.push(ActiveRefusal { planned: planned.clone(), ended: None });
            }
            Event::Allow(number) => self.recorder.lock().end_refusals(Some(*number)),
            Event::Lose { on, what } => self.lose(*on, *what).await,
            Event::Restore { on, what } => {
                self.create_dependency(*on, *what).await;
                if *what == Dependency::Template {
                    self.note_template(*on, false);
                }
            }
            Event::RecreateTarget { on, after, label } => {
                self.recorder.lock().count(if label.is_some() { "relabelled" } else { "recreated" });
                self.targets[*on].label = label.or(self.targets[*on].label);
                self.note_scaled_by_user(*on);
                let name = self.scenario.canaries[*on].name;
                let delete = DeleteParams::background();
                self.log_failure(self.workload(*on).delete(name, &delete).await);
                sleep(*after).await;
                self.create_target(*on).await;
            }
            Event::RevertReplicas { on, replicas, every, times } => {
                self.note_scaled_by_user(*on);
                self.recorder.lock().count("replicas reverted");
                if self.scenario.canaries[*on].kind == "Deployment" {
                    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                    let name = self.scenario.canaries[*on].name;
                    self.log_failure(self.workload(*on).patch(name, &PatchParams::default(), &patch).await);
                }
                self.repeat(*every, *times, |times| Event::RevertReplicas {
                    on: *on,
                    replicas: *replicas,
                    every: *every,
                    times,
                });
            }
            Event::RevertRoute { on, every, times } => {
                self.revert_route(*on, *times).await;
                self.repeat(*every, *times, |times| Event::RevertRoute { on: *on, every: *every, times });
            }
            Event::DieUnderTraffic { on } => {
                let name = self.scenario.canaries[*on].name;
                let dies = self.recorder.lock().canaries[name].dies_under_traffic();
                if dies {
                    self.recorder.lock().count("died under traffic");
                    self.kill_pods(*on, false, true).await;
                    let mut recorder = self.recorder.lock();
                    let at = recorder.lag.at() + Recorder::LIFE_UNDER_TRAFFIC;
                    recorder.agenda.add(at, event.clone());
                }
            }
            Event::StepClock(by) => {
                let mut recorder = self.recorder.lock();
                recorder.count("clock stepped");
                for setup in &self.scenario.canaries {
                    recorder.note_own_trouble(setup.name);
                }
                self.api_server.clock().step_by(*by);
            }
            Event::When { on, phases, after, then } => {
                let mut recorder = self.recorder.lock();
                let name = self.scenario.canaries[*on].name;
                let now = recorder.lag.at();
                recorder.agenda.add_trigger(name, phases, *after, (**then).clone());
                if let Some(phase) = recorder.canaries[name].status().map(|status| status.phase) {
                    recorder.agenda.record_phase(name, phase, now);
                }
            }
        }
    }

    /// Adds the event again, with one repetition less.
    fn repeat(&self, every: Duration, times: u32, event: impl FnOnce(u32) -> Event) {
        if times > 1 {
            let mut recorder = self.recorder.lock();
            let at = recorder.lag.at() + every;
            recorder.agenda.add(at, event(times - 1));
        }
    }

    fn note_scaled_by_user(&self, on: usize) {
        let mut recorder = self.recorder.lock();
        let of = self.scenario.canaries[on].name;
        recorder.canaries.get_mut(of).expect("it is known").scaled_by_user = true;
    }

    fn note_template(&self, on: usize, lost: bool) {
        let mut recorder = self.recorder.lock();
        let of = self.scenario.canaries[on].name;
        recorder.note_own_trouble(of);
        recorder.canaries.get_mut(of).expect("it is known").template_lost = lost;
    }

    async fn lose(&self, on: usize, what: Dependency) {
        let subject = &self.scenario.canaries[on];
        let delete = DeleteParams::background();
        self.recorder.lock().count(match what {
            Dependency::Autoscaler | Dependency::Budget => "companion lost",
            Dependency::Template => "template lost",
            Dependency::Primary => "primary lost",
        });
        match what {
            Dependency::Autoscaler => {
                self.log_failure(self.api::<HorizontalPodAutoscaler>().delete(subject.name, &delete).await);
            }
            Dependency::Budget => {
                self.log_failure(self.api::<PodDisruptionBudget>().delete(subject.name, &delete).await);
            }
            Dependency::Template => {
                self.note_template(on, true);
                let name = template_name(subject);
                self.log_failure(self.api::<AnalysisTemplate>().delete(&name, &delete).await);
            }
            Dependency::Primary => {
                let name = self.workload_name(on, true);
                self.log_failure(self.workload(on).delete(&name, &delete).await);
            }
        }
    }

    /// As a GitOps tool does that has the route of the beginning in its repository.
    async fn revert_route(&self, on: usize, number: u32) {
        let subject = &self.scenario.canaries[on];
        let name = subject.name;
        if subject.spec["provider"] != "smi:v1alpha2" {
            return;
        }
        self.recorder.lock().count("route reverted");
        let kind = GroupVersionKind::gvk("split.smi-spec.io", "v1alpha2", "TrafficSplit");
        let splits: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind));
        let patch = json!({
            "metadata": {"annotations": {FOREIGN_WRITE: number.to_string()}},
            "spec": {"backends": [
                {"service": format!("{name}-canary"), "weight": 0},
                {"service": format!("{name}-primary"), "weight": 100},
            ]},
        });
        let params = PatchParams { field_manager: Some("gitops".to_owned()), ..PatchParams::default() };
        self.log_failure(splits.patch(name, &params, &Patch::Merge(patch)).await);
    }

    fn workload_name(&self, on: usize, primary: bool) -> String {
        let name = self.scenario.canaries[on].name;
        if primary { format!("{name}-primary") } else { name.to_owned() }
    }

    pub fn log_failure<T>(&self, done: kube::Result<T>) {
        if let Err(error) = done {
            self.recorder.lock().log(format!("  (refused: {error})"));
        }
    }

    async fn push(&mut self, on: usize, image: &str) {
        let phase = {
            let recorder = self.recorder.lock();
            recorder.canaries[self.scenario.canaries[on].name].status().map(|status| status.phase)
        };
        if let Some(phase) = phase {
            self.recorder.lock().count(&format!("pushed while {phase:?}"));
        }
        image.clone_into(&mut self.targets[on].image);
        let subject = &self.scenario.canaries[on];
        let patch = json!({"spec": {"template": {"spec": {"containers": [container_of(image)]}}}});
        let patch = Patch::Strategic(patch);
        self.log_failure(self.workload(on).patch(subject.name, &PatchParams::default(), &patch).await);
    }

    async fn patch_canary(&self, on: usize, patch: Value) {
        let name = self.scenario.canaries[on].name;
        self.log_failure(
            self.api::<Canary>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await,
        );
    }

    /// Adds entries to the annotation of approvals or of commands.
    async fn annotate(&self, on: usize, annotation: &str, entries: Vec<Value>) {
        let name = self.scenario.canaries[on].name;
        let Ok(Some(canary)) = self.api::<Canary>().get_opt(name).await else { return };
        let text = canary.annotations().get(annotation).map_or("[]", String::as_str);
        let mut all: Vec<Value> = serde_json::from_str(text).expect("a list");
        all.extend(entries);
        let text = serde_json::to_string(&all).expect("JSON");
        self.patch_canary(on, json!({"metadata": {"annotations": {annotation: text}}})).await;
    }

    pub async fn answer_approvals(&self, on: usize, yes: bool) {
        let name = self.scenario.canaries[on].name;
        let Ok(Some(canary)) = self.api::<Canary>().get_opt(name).await else { return };
        let at = self.api_server.clock().now();
        let entry = |question: serin::engine::action::GateCall| {
            let mut entry = json!({
                "release": question.release, "gate": question.gate, "answer": if yes { "yes" } else { "no" },
                "by": "ann", "at": at,
            });
            if let Some(kind) = question.kind {
                entry["type"] = json!(kind);
            }
            if let serin::engine::action::GateScope::Step(step) = question.scope {
                entry["step"] = json!(step);
            }
            entry
        };
        let entries: Vec<_> = annotations::pending_approvals(&canary).into_iter().map(entry).collect();
        if !entries.is_empty() {
            self.annotate(on, APPROVALS, entries).await;
        }
    }

    async fn kill_pods(&self, on: usize, primary: bool, all: bool) {
        let labels = ListParams::default().labels(&format!("app={}", self.workload_name(on, primary)));
        let pods: Api<Pod> = self.api();
        let found = pods.list(&labels).await.expect("a list").items;
        for pod in found.iter().take(if all { usize::MAX } else { 1 }) {
            let delete = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            self.log_failure(pods.delete(&pod.name_any(), &delete).await);
        }
    }
}
