//! The Canary of a simulation, with the templates that it names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use jiff::SignedDuration;
use kube::ResourceExt as _;
use serde_json::Value;
use serin_core::simulation::{Cluster, MetricModel, Setting};

use crate::api::canary::{Analysis, Metric};
use crate::api::reference::TemplateRef;
use crate::api::{AnalysisTemplateSpec, Canary};
use crate::engine::Plan;
use crate::engine::plan::PlanError;

/// Nobody waits longer for a release.
const PATIENCE: SignedDuration = SignedDuration::from_hours(24);

pub struct Input {
    pub canary: Canary,
    /// By name: files rarely hold two of one name, and the last one counts.
    templates: BTreeMap<String, AnalysisTemplateSpec>,
}

impl Input {
    pub fn read(paths: &[PathBuf], name: Option<&str>) -> anyhow::Result<Self> {
        let (mut canaries, mut templates) = (Vec::new(), BTreeMap::new());
        for path in paths {
            let text = match path.as_os_str() == "-" {
                true => std::io::read_to_string(std::io::stdin().lock()),
                false => std::fs::read_to_string(path),
            };
            let text = text.with_context(|| format!("read {}", path.display()))?;
            collect(&text, &mut canaries, &mut templates).with_context(|| path.display().to_string())?;
        }
        if let Some(name) = name {
            canaries.retain(|canary: &Canary| canary.name_any() == name);
            ensure!(!canaries.is_empty(), "the files have no Canary {name}");
        }
        let names: Vec<String> = canaries.iter().map(|canary| canary.name_any()).collect();
        match (canaries.pop(), names.len()) {
            (Some(canary), 1) => Ok(Self { canary, templates }),
            (None, _) => {
                bail!("the files have no Canary of serin.dev; serin migrate converts those of other tools")
            }
            (Some(_), _) => bail!("the files have several Canaries; name one of {}", names.join(", ")),
        }
    }

    pub fn name(&self) -> String {
        self.canary.name_any()
    }

    /// With what is simulated besides traffic.
    pub fn setting(&self, pods: u32, pod_start: Duration, matched: f64) -> anyhow::Result<Setting> {
        self.setting_of(&self.canary.spec.analysis, pods, pod_start, matched)
    }

    /// Likewise, with another analysis.
    pub fn setting_of(
        &self,
        analysis: &Analysis,
        pods: u32,
        pod_start: Duration,
        matched: f64,
    ) -> anyhow::Result<Setting> {
        let mut spec = self.canary.spec.clone();
        spec.analysis = analysis.clone();
        // A calendar would make the result depend on the day.
        spec.release_windows.clear();
        let plan = Plan::new(&spec, |reference: &TemplateRef| self.templates.get(&reference.name));
        let plan = plan.map_err(|why| match why {
            PlanError::TemplateMissing { .. } => {
                anyhow::Error::new(why).context("add the template's file with -f")
            }
            other => anyhow::Error::new(other),
        })?;
        ensure!(!plan.suspend, "spec.suspend is true, so nothing is released");
        let template = |metric: &Metric| {
            metric.template_ref.as_ref().and_then(|reference| self.templates.get(&reference.name))
        };
        let metrics = MetricModel::of_plan(&plan, analysis, template);
        let cluster = Cluster::initialized(plan, pods, pod_start)
            .context("the primary does not become ready in the simulation")?;
        Ok(Setting { cluster, metrics, matched, patience: PATIENCE })
    }
}

fn collect(
    text: &str,
    canaries: &mut Vec<Canary>,
    templates: &mut BTreeMap<String, AnalysisTemplateSpec>,
) -> anyhow::Result<()> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("it is not YAML")?;
    for document in documents {
        let of_serin =
            document["apiVersion"].as_str().is_some_and(|version| version.starts_with("serin.dev/"));
        match document["kind"].as_str() {
            Some("Canary") if of_serin => {
                canaries.push(serde_json::from_value(document).context("its Canary is not valid")?);
            }
            Some(kind @ ("AnalysisTemplate" | "ClusterAnalysisTemplate")) if of_serin => {
                let name = document["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let spec = serde_json::from_value(document["spec"].clone());
                templates
                    .insert(name.clone(), spec.with_context(|| format!("its {kind} {name} is not valid"))?);
            }
            _ => {}
        }
    }
    Ok(())
}
