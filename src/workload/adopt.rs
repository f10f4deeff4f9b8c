//! The revisions of a target and of a primary that another tool made: Flagger's is a copy of
//! its target under the same labels and names.

use std::collections::BTreeMap;

use kube::Client;
use kube::core::DynamicObject;
use serde_json::Value;

use super::act::Error;
use super::{ConfigContents, REVISION, Workload};
use crate::engine::revision::{HashVersion, revision};

/// Annotations of the pods of Flagger's primary which its target does not have.
const THEIR_ANNOTATIONS: [&str; 2] = ["flagger-id", REVISION];

/// What a target and an adopted primary run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedRevisions {
    pub target: String,
    /// The target's, if the primary is a copy of it.
    pub primary: String,
}

impl Workload {
    /// Reads both. The primary must exist.
    pub async fn read_adopted(&self, client: &Client) -> Result<AdoptedRevisions, Error> {
        let attempt = "take the primary over";
        let target = self.get_required(client, self.kind(), &self.target, attempt).await?;
        let primary = self.get_required(client, self.kind(), &self.primary_name(), attempt).await?;
        let spec = &target.data["spec"];
        let refs = self.config_refs(spec);
        let mut configs = ConfigContents::default();
        configs.read(client, &self.namespace, &refs).await?;
        let of_target = self.digest(spec, &refs, &configs, HashVersion::CURRENT).revision;
        let plain = BTreeMap::new();
        let names = self.copy_names(&refs, &configs);
        let copies = [&names, &plain].map(|names| {
            let copy = self.primary_manifest(&target, &of_target, names, Some(&primary))?;
            Ok::<_, Error>(template_revision(&copy))
        });
        let of_primary = template_revision(&primary);
        let [with_copies, without] = copies;
        // Flagger copies configs or leaves them, by a flag of its own.
        let is_copy = of_primary == with_copies? || of_primary == without?;
        Ok(AdoptedRevisions {
            primary: if is_copy { of_target.clone() } else { of_primary },
            target: of_target,
        })
    }
}

/// Of the pod template alone.
fn template_revision(object: &DynamicObject) -> String {
    let mut template = object.data["spec"]["template"].clone();
    if let Some(annotations) = template.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !THEIR_ANNOTATIONS.contains(&name.as_str()));
    }
    revision(HashVersion::CURRENT, &template, &BTreeMap::new())
}
