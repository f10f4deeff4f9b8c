//! Assignment of shards to replicas. Pure: Leases, responses and the time go in;
//! requests come out.
//!
//! ```text
//!   member   web-7d4-x2k-18af…      renewed by its replica, every five seconds
//!   member   web-7d4-q9z-18b0…
//!   shard    serin-shard-0-of-16    names the member that holds it; written
//!   shard    serin-shard-1-of-16    only when it changes hands
//!   …
//! ```
//!
//! - A shard is its holder's as long as the holder's member Lease exists. So
//!   renewing costs one write a replica, however many shards there are.
//! - A member without a renewal for [`LEASE_DURATION`] is removed, by a delete of
//!   exactly the resourceVersion that was seen. Its own renewals then get 404, so
//!   it cannot come back; its fence closed [`FENCE_MARGIN`] before, counted from
//!   before it sent its last renewal. No two clocks are compared.
//! - Only watch events change the view, and they come in order. So a holder whose
//!   member Lease is missing has gone; it is not one that has yet to join.
//! - A replica that was removed joins again under another name.
//! - Each replica keeps its fair share, releases the excess, and acquires its part
//!   of the free shards. All compute the same, so two try for one shard only while
//!   one view is behind; resourceVersions decide then.
//! - Replicas with different shard counts would reconcile the same Canaries. A
//!   replica joins only if no live member has another count, checks again once it
//!   sees its own Lease, and otherwise stops: of two that start at once at least
//!   one sees the other.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::fence::{
    FENCE_MARGIN, LEASE_DURATION, RENEW_INTERVAL, ReplicaOwnership, ShardOwnership, ShardTerm,
};

/// Wait for the watch event of a write, or after a failed one.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The parts of a Lease that the assignment uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    pub name: String,
    pub version: String,
    /// Shard count of its writer.
    pub shards: u32,
    pub role: LeaseRole,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRole {
    Member,
    Shard { number: u32, holder: Option<String> },
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Create a member Lease.
    Join { name: String },
    /// Renew it, if it exists.
    Renew { name: String },
    /// Delete exactly this version.
    Remove { name: String, version: String },
    /// Make the member the holder, if the Lease is still at this version; create it
    /// if there is none.
    Acquire { shard: u32, member: String, version: Option<String> },
    /// Remove the holder, if the Lease is still at this version.
    Release { shard: u32, version: String },
}

/// The response to a [`LeaseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseResponse {
    Done,
    /// 404.
    NotFound,
    /// Refused or timed out; it may have taken effect.
    Failed,
}

/// Another replica has another number of shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the replica {other} divides the Canaries into {theirs} shards and this one into {ours}: start all \
     replicas with the same --shards; to change it, end all of them first"
)]
pub struct ShardCountMismatch {
    other: String,
    theirs: u32,
    ours: u32,
}

/// The view and the plans of one replica.
pub struct ShardAssignment {
    shards: u32,
    name_prefix: String,
    /// Number of names used so far; each is used once.
    names_used: u32,
    /// The first list is complete.
    synced: bool,
    /// Shutting down: acquires nothing more.
    shutting_down: bool,
    members: BTreeMap<String, Member>,
    shard_leases: Vec<Option<Shard>>,
    membership: Option<OwnMembership>,
    owned: BTreeMap<u32, OwnedShard>,
    last_term: u64,
    /// Leases with a request in flight, or the time until which they are left alone.
    in_flight: HashMap<String, Option<Instant>>,
}

struct Member {
    version: String,
    shards: u32,
    /// When this version was first seen.
    unchanged_since: Instant,
    /// A renewal was seen.
    renewed: bool,
}

struct Shard {
    version: String,
    holder: Option<String>,
}

struct OwnMembership {
    name: String,
    until: Instant,
    renew_at: Instant,
    /// Its Lease was seen, and with it all that were created before.
    established: bool,
}

struct OwnedShard {
    term: u64,
    stage: OwnedStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnedStage {
    Held,
    Draining,
    Drained,
}

pub fn shard_lease_name(shard: u32, shards: u32) -> String {
    format!("serin-shard-{shard}-of-{shards}")
}

impl ShardAssignment {
    /// `stem` must be unique among replicas and among processes over time.
    pub fn new(stem: String, shards: u32) -> Self {
        Self {
            shards,
            name_prefix: stem,
            names_used: 0,
            synced: false,
            shutting_down: false,
            members: BTreeMap::new(),
            shard_leases: (0..shards).map(|_| None).collect(),
            membership: None,
            owned: BTreeMap::new(),
            last_term: 0,
            in_flight: HashMap::new(),
        }
    }

    /// A complete list of Leases.
    pub fn handle_list(&mut self, all: Vec<LeaseView>, now: Instant) {
        let stays: BTreeSet<&str> = all.iter().map(|seen| seen.name.as_str()).collect();
        let gone = self.members.keys().cloned();
        let shards = (0..self.shards).map(|shard| shard_lease_name(shard, self.shards));
        let gone: Vec<String> = gone.chain(shards).filter(|name| !stays.contains(name.as_str())).collect();
        gone.iter().for_each(|name| self.handle_delete(name));
        all.into_iter().for_each(|seen| self.handle_lease(seen, now));
        self.synced = true;
    }

    /// A Lease was created or changed.
    pub fn handle_lease(&mut self, seen: LeaseView, now: Instant) {
        match seen.role {
            LeaseRole::Member => {
                let known = self.members.get(&seen.name);
                if known.is_some_and(|known| known.version == seen.version) {
                    return;
                }
                let renewed = known.is_some();
                let member =
                    Member { version: seen.version, shards: seen.shards, unchanged_since: now, renewed };
                self.members.insert(seen.name.clone(), member);
            }
            LeaseRole::Shard { number, holder } => {
                let Some(lease) = self.shard_leases.get_mut(number as usize) else { return };
                if seen.shards != self.shards || lease.as_ref().is_some_and(|is| is.version == seen.version) {
                    return;
                }
                *lease = Some(Shard { version: seen.version, holder });
            }
        }
        self.in_flight.retain(|name, until| *name != seen.name || until.is_none());
        self.recompute_owned();
    }

    /// A Lease was deleted.
    pub fn handle_delete(&mut self, name: &str) {
        self.members.remove(name);
        if self.is_own_member(name) {
            self.drop_membership();
        }
        for (shard, lease) in self.shard_leases.iter_mut().enumerate() {
            if *name == shard_lease_name(shard as u32, self.shards) {
                *lease = None;
            }
        }
        self.in_flight.retain(|busy, until| busy != name || until.is_none());
        self.recompute_owned();
    }

    /// Nothing is in progress for a draining shard.
    pub fn handle_drained(&mut self, ended: ShardTerm) {
        let mine = self.owned.get_mut(&(ended.shard as u32));
        if let Some(mine) = mine.filter(|mine| mine.term == ended.term && mine.stage == OwnedStage::Draining)
        {
            mine.stage = OwnedStage::Drained;
        }
    }

    /// Acquires nothing from now on.
    pub fn begin_shutdown(&mut self) {
        self.shutting_down = true;
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Name of the own member Lease.
    pub fn member_name(&self) -> Option<&str> {
        self.membership.as_ref().map(|me| me.name.as_str())
    }

    /// The response to a request that was sent at `asked`.
    pub fn handle_response(
        &mut self,
        request: &LeaseRequest,
        response: LeaseResponse,
        sent_at: Instant,
        now: Instant,
    ) {
        self.in_flight.insert(self.lease_name(request), Some(now + RETRY_DELAY));
        let (until, renew_at) = (sent_at + LEASE_DURATION - FENCE_MARGIN, sent_at + RENEW_INTERVAL);
        match (request, response) {
            (LeaseRequest::Join { name }, LeaseResponse::Done) => {
                self.membership =
                    Some(OwnMembership { name: name.clone(), until, renew_at, established: false });
            }
            (LeaseRequest::Renew { name }, LeaseResponse::Done) => {
                self.in_flight.remove(name);
                if let Some(me) = self.membership.as_mut().filter(|me| me.name == *name) {
                    (me.until, me.renew_at) = (until, renew_at);
                }
            }
            (LeaseRequest::Renew { name }, LeaseResponse::NotFound) if self.is_own_member(name) => {
                self.drop_membership()
            }
            _ => {}
        }
    }

    /// The requests to send now, and when to poll again at the latest.
    pub fn poll(&mut self, now: Instant) -> Result<(Vec<LeaseRequest>, Option<Instant>), ShardCountMismatch> {
        if !self.synced {
            return Ok((Vec::new(), None));
        }
        if self.membership.as_ref().is_some_and(|me| me.until <= now) {
            self.drop_membership();
        }
        self.in_flight.retain(|_, until| until.is_none_or(|until| until > now));
        let mut wanted = self.expire_members(now);
        self.check_shard_count(now)?;
        match &self.membership {
            None => wanted.extend(self.join()),
            Some(me) if me.renew_at <= now => wanted.push(LeaseRequest::Renew { name: me.name.clone() }),
            Some(_) => {}
        }
        if self.membership.as_ref().is_some_and(|me| me.established) && !self.shutting_down {
            wanted.extend(self.rebalance(now));
        }
        wanted.retain(|request| !self.in_flight.contains_key(&self.lease_name(request)));
        for request in &wanted {
            self.in_flight.insert(self.lease_name(request), None);
        }
        Ok((wanted, self.next_timeout(now)))
    }

    pub fn ownership(&self) -> ReplicaOwnership {
        let hold = |shard| match self.owned.get(&shard) {
            Some(OwnedShard { term, stage: OwnedStage::Held }) => ShardOwnership::Held { term: *term },
            Some(OwnedShard { term, stage: OwnedStage::Draining }) => {
                ShardOwnership::Draining { term: *term }
            }
            Some(OwnedShard { stage: OwnedStage::Drained, .. }) | None => ShardOwnership::NotHeld,
        };
        ReplicaOwnership {
            until: self.membership.as_ref().map(|me| me.until),
            shards: (0..self.shards).map(hold).collect(),
        }
    }

    /// The membership expired or was removed: nothing is held.
    fn drop_membership(&mut self) {
        self.membership = None;
        self.recompute_owned();
    }

    fn recompute_owned(&mut self) {
        let me = self.membership.as_ref().filter(|me| me.established).map(|me| me.name.as_str());
        for (shard, lease) in self.shard_leases.iter().enumerate() {
            let shard = shard as u32;
            if me.is_some() && lease.as_ref().and_then(|lease| lease.holder.as_deref()) == me {
                self.owned.entry(shard).or_insert_with(|| {
                    self.last_term += 1;
                    OwnedShard { term: self.last_term, stage: OwnedStage::Held }
                });
            } else {
                self.owned.remove(&shard);
            }
        }
    }

    fn is_own_member(&self, name: &str) -> bool {
        self.membership.as_ref().is_some_and(|me| me.name == name)
    }

    fn is_alive(&self, name: &str, member: &Member, now: Instant) -> bool {
        self.is_own_member(name) || now < member.unchanged_since + LEASE_DURATION
    }

    fn expire_members(&self, now: Instant) -> Vec<LeaseRequest> {
        let dead = self.members.iter().filter(|(name, member)| !self.is_alive(name, member, now));
        dead.map(|(name, dead)| LeaseRequest::Remove { name: name.clone(), version: dead.version.clone() })
            .collect()
    }

    /// Members with another shard count, expired ones included: until they are
    /// removed they might come back.
    fn mismatched_members(&self) -> impl Iterator<Item = (&String, &Member)> {
        self.members.iter().filter(|(_, member)| member.shards != self.shards)
    }

    /// Checks, once, that no member has another shard count.
    fn check_shard_count(&mut self, now: Instant) -> Result<(), ShardCountMismatch> {
        let visible = match &self.membership {
            Some(me) if me.established => return Ok(()),
            Some(me) => self.members.contains_key(&me.name),
            None => false,
        };
        // A member that does not renew has ended; its Lease remains.
        let works =
            |name: &str, member: &Member| self.is_alive(name, member, now) && (visible || member.renewed);
        if let Some((other, member)) = self.mismatched_members().find(|(name, member)| works(name, member)) {
            return Err(ShardCountMismatch {
                other: other.clone(),
                theirs: member.shards,
                ours: self.shards,
            });
        }
        let alone = self.mismatched_members().next().is_none();
        if let Some(me) = &mut self.membership {
            me.established = visible && alone;
            self.recompute_owned();
        }
        Ok(())
    }

    fn join(&mut self) -> Option<LeaseRequest> {
        if self.shutting_down
            || self.mismatched_members().next().is_some()
            || self.in_flight.contains_key(&self.name_prefix)
        {
            return None;
        }
        self.names_used += 1;
        Some(LeaseRequest::Join { name: format!("{}-{}", self.name_prefix, self.names_used) })
    }

    /// Releases the excess, and acquires its part of the free shards.
    fn rebalance(&mut self, now: Instant) -> Vec<LeaseRequest> {
        let Some(me) = self.membership.as_ref().map(|me| me.name.clone()) else { return Vec::new() };
        let holders =
            self.shard_leases.iter().map(|lease| lease.as_ref().and_then(|lease| lease.holder.as_ref()));
        let holders = holders.map(|holder| holder.filter(|holder| self.members.contains_key(*holder)));
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        let equals =
            |name: &str, member: &Member| member.shards == self.shards && self.is_alive(name, member, now);
        let equals = self.members.iter().filter(|(name, member)| equals(name, member));
        held.extend(equals.map(|(name, _)| (name.as_str(), 0)));
        for holder in holders.clone().flatten() {
            held.entry(holder).and_modify(|count| *count += 1);
        }
        let quotas = quotas(self.shards, &held);
        let mut requests = Vec::new();
        for (shard, _) in holders.enumerate().filter(|(_, holder)| holder.is_none()) {
            let next = held.iter_mut().find(|(name, count)| **count < quotas[*name]);
            let Some((name, count)) = next else { break };
            *count += 1;
            if *name == me {
                let version = self.shard_leases[shard].as_ref().map(|lease| lease.version.clone());
                requests.push(LeaseRequest::Acquire { shard: shard as u32, member: me.clone(), version });
            }
        }
        let quota = quotas.get(me.as_str()).copied().unwrap_or(self.shards) as usize;
        let kept = self.owned.values_mut().filter(|mine| mine.stage == OwnedStage::Held);
        for mine in kept.skip(quota) {
            mine.stage = OwnedStage::Draining;
        }
        for (shard, _) in self.owned.iter().filter(|(_, mine)| mine.stage == OwnedStage::Drained) {
            if let Some(lease) = &self.shard_leases[*shard as usize] {
                requests.push(LeaseRequest::Release { shard: *shard, version: lease.version.clone() });
            }
        }
        requests
    }

    fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let me = self.membership.iter().flat_map(|me| {
            let renewing = matches!(self.in_flight.get(&me.name), Some(None));
            [Some(me.until), (!renewing).then_some(me.renew_at)]
        });
        let others = self.members.iter().filter(|(name, _)| !self.is_own_member(name));
        let others = others.map(|(_, member)| Some(member.unchanged_since + LEASE_DURATION));
        me.chain(others).chain(self.in_flight.values().copied()).flatten().filter(|at| *at > now).min()
    }

    /// The Lease of a request; at most one is in flight for each.
    fn lease_name(&self, request: &LeaseRequest) -> String {
        match request {
            LeaseRequest::Join { .. } => self.name_prefix.clone(),
            LeaseRequest::Renew { name } | LeaseRequest::Remove { name, .. } => name.clone(),
            LeaseRequest::Acquire { shard, .. } | LeaseRequest::Release { shard, .. } => {
                shard_lease_name(*shard, self.shards)
            }
        }
    }
}

/// Equal quotas; the remainder goes to those that hold most, so that nothing moves
/// without need.
fn quotas<'a>(shards: u32, held: &BTreeMap<&'a str, u32>) -> BTreeMap<&'a str, u32> {
    let members = (held.len() as u32).max(1);
    let mut order: Vec<(&str, u32)> = held.iter().map(|(name, count)| (*name, *count)).collect();
    order.sort_by_key(|(_, count)| Reverse(*count));
    let quota = |rank: usize| shards / members + u32::from((rank as u32) < shards % members);
    order.into_iter().enumerate().map(|(rank, (name, _))| (name, quota(rank))).collect()
}

#[cfg(test)]
mod tests;
