//! Who may write: of several replicas the one that holds the Lease. A replica
//! that lost it, or cannot tell, writes nothing more.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::clock::Clock;

/// How long a Lease is held without being renewed.
const LENGTH: Duration = Duration::from_secs(15);
/// How often it is renewed, and asked for.
const RENEWED_EVERY: Duration = Duration::from_secs(5);

/// The Lease belongs to another replica by now, or might.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not hold the lease any more, so it writes nothing")]
pub struct Fenced;

/// Lets writes through while the Lease is held.
#[derive(Clone)]
pub struct Fence(Option<watch::Receiver<Option<Instant>>>);

impl Fence {
    /// For a replica that is alone.
    pub fn open() -> Self {
        Self(None)
    }

    pub fn check(&self) -> Result<(), Fenced> {
        match &self.0 {
            None => Ok(()),
            Some(until) if until.borrow().is_some_and(|until| Instant::now() < until) => Ok(()),
            Some(_) => Err(Fenced),
        }
    }

    /// Until the Lease is held.
    pub async fn held(&mut self) {
        if let Some(until) = &mut self.0 {
            // Whoever renews it lives as long as the controller.
            let _ = until.wait_for(|until| until.is_some_and(|until| Instant::now() < until)).await;
        }
    }

    /// Until the Lease is lost.
    pub async fn lost(&mut self) {
        let Some(until) = &mut self.0 else { return std::future::pending().await };
        loop {
            let Some(end) = *until.borrow_and_update() else { return };
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                changed = until.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(end) => return,
            }
        }
    }
}

/// Where the Lease is and who asks for it.
#[derive(Clone, Debug)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub me: String,
}

/// What the Lease says to one replica.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// Nobody's, or run out: this may be written to take it.
    Free(LeaseSpec),
    /// Mine: this may be written to keep it.
    Mine(LeaseSpec),
    /// Another's, until then at least.
    Theirs { until: Timestamp },
}

/// What a Lease says to `me`.
pub fn evaluate_lease(spec: Option<&LeaseSpec>, me: &str, now: Timestamp) -> Standing {
    let renewed = |spec: LeaseSpec| LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(LENGTH.as_secs()).ok(),
        renew_time: Some(MicroTime(now)),
        ..spec
    };
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
    let mut taken = renewed(spec.cloned().unwrap_or_default());
    if holder == Some(me) {
        return Standing::Mine(taken);
    }
    let until = spec.and_then(|spec| {
        let length = spec.lease_duration_seconds.unwrap_or_default().max(0);
        spec.renew_time.as_ref()?.0.checked_add(Duration::from_secs(length.unsigned_abs().into())).ok()
    });
    match (holder, until) {
        (Some(_), Some(until)) if until > now => Standing::Theirs { until },
        _ => {
            taken.acquire_time = Some(MicroTime(now));
            taken.lease_transitions =
                Some(taken.lease_transitions.map_or(0, |count| count.saturating_add(1)));
            Standing::Free(taken)
        }
    }
}

/// Asks for the Lease, and renews it while it is held, until dropped. Says
/// until when writes may go through.
pub fn hold(client: Client, clock: Clock, claim: Claim) -> (Fence, impl Future<Output = ()>) {
    let (tell, told) = watch::channel(None);
    let work = async move {
        loop {
            // Counted from before the request: the server's answer may be late.
            let asked = Instant::now();
            match renew(&client, &clock, &claim).await {
                Ok(true) => _ = tell.send_replace(Some(asked + LENGTH - RENEWED_EVERY / 2)),
                Ok(false) => _ = tell.send_replace(None),
                // Held as long as it lasts.
                Err(error) => tracing::warn!(%error, "cannot renew the lease"),
            }
            sleep(RENEWED_EVERY).await;
        }
    };
    (Fence(Some(told)), work)
}

/// Gives the Lease back, so that nobody waits for it to run out.
pub async fn release(client: &Client, clock: &Clock, claim: &Claim) -> kube::Result<()> {
    let api: Api<Lease> = Api::namespaced(client.clone(), &claim.namespace);
    let Some(mut lease) = api.get_opt(&claim.name).await? else { return Ok(()) };
    if let Standing::Mine(spec) = evaluate_lease(lease.spec.as_ref(), &claim.me, clock.now()) {
        lease.spec = Some(LeaseSpec { holder_identity: None, renew_time: None, ..spec });
        api.replace(&claim.name, &PostParams::default(), &lease).await?;
    }
    Ok(())
}

/// True if it is held now. Versions make sure that only one replica takes it.
async fn renew(client: &Client, clock: &Clock, claim: &Claim) -> kube::Result<bool> {
    let api: Api<Lease> = Api::namespaced(client.clone(), &claim.namespace);
    let present = api.get_opt(&claim.name).await?;
    let spec = present.as_ref().and_then(|lease| lease.spec.as_ref());
    let spec = match evaluate_lease(spec, &claim.me, clock.now()) {
        Standing::Theirs { .. } => return Ok(false),
        Standing::Free(spec) | Standing::Mine(spec) => spec,
    };
    let written = match present {
        Some(lease) => {
            let lease = Lease { spec: Some(spec), ..lease };
            api.replace(&claim.name, &PostParams::default(), &lease).await
        }
        None => {
            let metadata = ObjectMeta { name: Some(claim.name.clone()), ..ObjectMeta::default() };
            api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
        }
    };
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn a_lease_is_theirs_until_it_runs_out() {
        let Standing::Free(theirs) = evaluate_lease(None, "a", at(0)) else { panic!("nobody holds it") };
        assert_eq!(evaluate_lease(Some(&theirs), "b", at(14)), Standing::Theirs { until: at(15) });
        assert!(matches!(evaluate_lease(Some(&theirs), "a", at(60)), Standing::Mine(_)));
        let Standing::Free(taken) = evaluate_lease(Some(&theirs), "b", at(15)) else { panic!("it ran out") };
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("b"), Some(1)));
    }

    #[test]
    fn a_lease_that_was_given_back_is_free() {
        let spec = LeaseSpec { holder_identity: Some(String::new()), ..LeaseSpec::default() };
        assert!(matches!(evaluate_lease(Some(&spec), "a", at(0)), Standing::Free(_)));
    }
}
