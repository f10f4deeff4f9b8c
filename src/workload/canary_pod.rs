//! Deletes one pod of the canary.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Preconditions},
};

use super::{Error, Workload, write::code};

impl Workload {
    /// Deletes a pod with these labels, which all pods of the canary have and no others,
    /// by its UID. The name is a label of a metric, which its author chooses: one that is
    /// no name, or not of the canary, is left alone.
    pub async fn delete_canary_pod(
        &self,
        client: &Client,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        if !is_pod_name(name) {
            return Ok(());
        }
        let attempt = || format!("replace pod {name} of the canary");
        let pods: Api<Pod> = Api::namespaced(client.clone(), self.namespace());
        let Some(pod) = pods.get_opt(name).await.map_err(Error::api(attempt()))? else { return Ok(()) };
        if labels.is_empty() || !labels.iter().all(|(label, value)| pod.labels().get(label) == Some(value)) {
            return Ok(());
        }
        let preconditions = Preconditions { uid: pod.uid(), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match pods.delete(name, &params).await {
            Ok(_) => Ok(()),
            // It is gone, and another one has its name.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(Error::api(attempt())(error)),
        }
    }
}

/// Longest name of a pod.
const MAX_NAME: usize = 253;

/// A DNS subdomain: nothing that leads a request elsewhere.
fn is_pod_name(name: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|byte| alphanumeric(*byte) || *byte == b'-')
            && [bytes.first(), bytes.last()]
                .into_iter()
                .all(|edge| edge.is_some_and(|byte| alphanumeric(*byte)))
    };
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_pods_become_part_of_a_path() {
        for name in ["web-7d9f8-abcde", "a", "web.0"] {
            assert!(is_pod_name(name), "{name}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        for name in ["", ".", "..", "a/b", "../secrets/a", "a?b", "A", "-a", "a-", "a..b", "a%2fb", &long] {
            assert!(!is_pod_name(name), "{name}");
        }
    }
}
