//! The metrics server that the controller was started with, for questions of people: the
//! edges of the inventory.
//!
//! Its Secret is read at each question, so a rotated one needs no restart.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::{Credentials, ServerAccess, metric_query, prometheus::Prometheus};
use crate::{
    api::analysis_template::{MetricProvider, MetricProviderType},
    api_error::api_message,
    tenancy::TenantAddresses,
};

/// `--metrics-server`, with its Secret and headers.
#[derive(Clone)]
pub struct OwnMetricsServer {
    client: Client,
    access: ServerAccess,
}

impl OwnMetricsServer {
    pub fn new(client: Client, access: ServerAccess) -> Self {
        Self { client, access }
    }

    /// The error names the Secret or the field at fault.
    pub async fn connect(&self) -> Result<Prometheus, String> {
        let ServerAccess { address, secret, headers } = &self.access;
        let provider = metric_query::provider(MetricProviderType::Prometheus, address.clone());
        let provider = MetricProvider { headers: headers.clone(), ..provider };
        let credentials = match secret {
            None => Credentials::default(),
            Some(secret) => {
                let secrets = Api::<Secret>::namespaced(self.client.clone(), &secret.namespace);
                let named = format!("the Secret {} in {}", secret.name, secret.namespace);
                match secrets.get_opt(&secret.name).await {
                    Ok(Some(found)) => Credentials::from(&found),
                    Ok(None) => return Err(format!("{named} does not exist (--metrics-server-secret)")),
                    Err(error) => return Err(format!("{named} cannot be read: {}", api_message(&error))),
                }
            }
        };
        Prometheus::new(&provider, &credentials, &TenantAddresses::default()).map_err(|why| why.to_string())
    }
}
