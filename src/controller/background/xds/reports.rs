//! The proxies of a control plane of this process.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::{ProxyReports, RouteReport};
use crate::{
    catalog::{Mailbox, ServiceKey},
    xds::ControlPlane,
};

/// Reports what the proxies of this control plane make of routes.
pub fn proxies_of(control_plane: &Arc<ControlPlane>) -> Arc<dyn ProxyReports> {
    Arc::new(Proxies {
        changed: Mutex::new(control_plane.watch_routes()),
        control_plane: Arc::clone(control_plane),
    })
}

struct Proxies {
    control_plane: Arc<ControlPlane>,
    changed: Mutex<Mailbox<BTreeSet<ServiceKey>>>,
}

#[async_trait]
impl ProxyReports for Proxies {
    fn report(&self, service: &ServiceKey) -> RouteReport {
        let state = self.control_plane.route_state(service);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        RouteReport {
            generation: state.generation,
            proxies: count(state.proxies),
            acknowledged: count(state.acknowledged),
            gone: count(state.gone),
            refusals: state
                .refusals
                .iter()
                .map(|refusal| format!("{}: {}", refusal.proxy, refusal.error))
                .collect(),
        }
    }

    async fn changed(&self) -> BTreeSet<ServiceKey> {
        self.changed.lock().await.changed().await
    }
}
