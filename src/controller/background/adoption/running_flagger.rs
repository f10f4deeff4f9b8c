//! Whether a Flagger runs that serves the same Canaries: two controllers must not write one
//! route.
//!
//! A Flagger is known by its Deployment, and where none has its labels by the Lease of its
//! leader election. It counts as running until it is known not to.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{api_error::api_message, migrate::flagger};

/// Between two looks for a Flagger.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Its leader election, unless a flag says otherwise.
const LEASE_NAMESPACE: &str = "kube-system";
const LEASE: &str = "flagger-leader-election";

/// The Flaggers of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Running {
    Deployments(Vec<FlaggerDeployment>),
    /// The holder of the Lease.
    Leader(String),
    /// Why it is not known.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlaggerDeployment {
    namespace: String,
    name: String,
    /// None for all.
    serves: Option<String>,
}

impl fmt::Display for FlaggerDeployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deployment {}/{}", self.namespace, self.name)
    }
}

/// Looks again and again; every change is sent.
pub async fn poll(client: &Client, known: watch::Sender<Running>) {
    loop {
        sleep(POLL_INTERVAL).await;
        let found = Running::find(client).await;
        known.send_if_modified(|known| {
            let changed = *known != found;
            *known = found;
            changed
        });
    }
}

impl Running {
    pub async fn find(client: &Client) -> Self {
        match timeout(READ_TIMEOUT, Self::try_find(client)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Self::Unknown(api_message(&error)),
            Err(_) => Self::Unknown(format!("no answer within {} s", READ_TIMEOUT.as_secs())),
        }
    }

    async fn try_find(client: &Client) -> kube::Result<Self> {
        let deployments: Api<Deployment> = Api::all(client.clone());
        let mut found = Vec::new();
        for selector in flagger::SELECTORS {
            found.extend(deployments.list(&ListParams::default().labels(selector)).await?.items);
        }
        if found.is_empty() {
            let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
            let leader = leases.get_opt(LEASE).await?.and_then(|lease| leader(&lease, Timestamp::now()));
            return Ok(leader.map_or(Self::Deployments(Vec::new()), Self::Leader));
        }
        let running = found.iter().filter(|deployment| flagger::is_running(deployment));
        let serving = running.map(|deployment| FlaggerDeployment {
            namespace: deployment.namespace().unwrap_or_default(),
            name: deployment.name_any(),
            serves: flagger::argument(deployment, "namespace"),
        });
        Ok(Self::Deployments(serving.collect()))
    }

    /// Why the Canaries of a namespace are not served here; none if they are.
    pub fn refusal_for(&self, namespace: &str) -> Option<String> {
        match self {
            Self::Deployments(all) => {
                let serves =
                    |one: &&FlaggerDeployment| one.serves.as_ref().is_none_or(|only| only == namespace);
                let one = all.iter().find(serves)?;
                Some(format!(
                    "Flagger runs ({one}), and two controllers must not move one route; scale it to 0, and Serin serves this Canary"
                ))
            }
            Self::Leader(holder) => Some(format!(
                "Flagger runs ({holder} holds the Lease {LEASE_NAMESPACE}/{LEASE}), and two controllers must not move one route; stop it, and Serin serves this Canary"
            )),
            Self::Unknown(why) => Some(format!(
                "Serin cannot find out whether a Flagger runs, so it serves nothing of Flagger's: {why}"
            )),
        }
    }
}

/// Who holds the Lease now.
fn leader(lease: &Lease, now: Timestamp) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
    let lasts = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or_default().into());
    let renewed = spec.renew_time.as_ref()?.0;
    (now.duration_since(renewed) < lasts).then_some(holder)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    #[test]
    fn a_flagger_of_one_namespace_serves_no_other() {
        let of = |serves: Option<&str>| {
            let deployment = FlaggerDeployment {
                namespace: "system".to_owned(),
                name: "flagger".to_owned(),
                serves: serves.map(str::to_owned),
            };
            Running::Deployments(vec![deployment])
        };
        assert_eq!(of(Some("shop")).refusal_for("other"), None);
        for running in [of(Some("shop")), of(None)] {
            let why = running.refusal_for("shop").expect("it is served");
            assert!(why.contains("Deployment system/flagger"), "{why}");
        }
        assert!(Running::Unknown("forbidden".to_owned()).refusal_for("shop").is_some());
    }

    #[test]
    fn a_lease_names_a_leader_until_it_expires() {
        let now = Timestamp::from_second(1_000).expect("a time");
        let renewed = |at: i64| Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some("flagger-1".to_owned()),
                lease_duration_seconds: Some(60),
                renew_time: Some(MicroTime(Timestamp::from_second(at).expect("a time"))),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        assert_eq!(leader(&renewed(950), now), Some("flagger-1".to_owned()));
        assert_eq!(leader(&renewed(900), now), None);
        assert_eq!(leader(&Lease::default(), now), None);
    }
}
