//! How replicas share out the shards. Pure: Leases that were seen, answers and
//! the time go in; requests come out.
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
//! - A member that was not seen to renew for [`LENGTH`] is removed, by a delete
//!   of exactly the version that was seen. Its own renewals then find nothing,
//!   so it cannot come back; its fence closed [`MARGIN`] before, counted from
//!   before it sent its last renewal. No clock is compared with another's.
//! - Only a watch tells what is; it tells everything in order. So a holder whose
//!   member Lease is not there has gone, and is not one that is yet to come.
//! - A replica that was removed joins again under another name.
//! - Each keeps its fair share, gives back what is more, and takes of what is
//!   free what falls to it. Everybody computes this alike, so two reach for the
//!   same shard only while one of them sees less; versions decide then.
//! - Replicas that count shards differently would work on the same Canaries. A
//!   replica joins only if it sees nobody alive that counts differently, looks
//!   again once it sees itself, and else refuses to work: of two that begin at
//!   once at least one sees the other.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::lease::{Ended, Hold, LENGTH, MARGIN, RENEWED_EVERY, Tenure};

/// How long to wait for the watch to tell of a write, or after one that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What a Lease says, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub name: String,
    pub version: String,
    /// How many shards there are, in its writer's opinion.
    pub shards: u32,
    pub role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Member,
    Shard { number: u32, holder: Option<String> },
}

/// What to ask of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Create a member Lease.
    Join { name: String },
    /// Change it, if it is there.
    Renew { name: String },
    /// Delete exactly this version.
    Remove { name: String, version: String },
    /// Make the shard the member's, if it is still at this version; create its
    /// Lease if there is none.
    Take { shard: u32, member: String, version: Option<String> },
    /// Make it nobody's, if it is still at this version.
    GiveBack { shard: u32, version: String },
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// There is no such object.
    Absent,
    /// Refused or lost; it may have been done all the same.
    Failed,
}

/// Another replica divides the Canaries differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the replica {other} divides the Canaries into {theirs} shards and this one into {ours}: start all \
     replicas with the same --shards; to change it, end all of them first"
)]
pub struct Disagreement {
    other: String,
    theirs: u32,
    ours: u32,
}

/// One replica.
pub struct Replica {
    shards: u32,
    stem: String,
    /// How many names it has had; each is used once.
    names: u32,
    /// The first list has come.
    listed: bool,
    /// It ends, and takes nothing more.
    leaving: bool,
    members: BTreeMap<String, Member>,
    leases: Vec<Option<Shard>>,
    me: Option<Me>,
    mine: BTreeMap<u32, Mine>,
    terms: u64,
    /// Leases with a request under way, or that are left alone until then.
    busy: HashMap<String, Option<Instant>>,
}

struct Member {
    version: String,
    shards: u32,
    /// Since when this version has been here.
    since: Instant,
    /// It was seen to change.
    renewed: bool,
}

struct Shard {
    version: String,
    holder: Option<String>,
}

struct Me {
    name: String,
    until: Instant,
    renew_at: Instant,
    /// It was seen together with everybody who came before.
    established: bool,
}

struct Mine {
    term: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Kept,
    Ending,
    Ended,
}

pub fn lease_of(shard: u32, shards: u32) -> String {
    format!("serin-shard-{shard}-of-{shards}")
}

impl Replica {
    /// The stem of its names must be nobody else's, and no earlier process's.
    pub fn new(stem: String, shards: u32) -> Self {
        Self {
            shards,
            stem,
            names: 0,
            listed: false,
            leaving: false,
            members: BTreeMap::new(),
            leases: (0..shards).map(|_| None).collect(),
            me: None,
            mine: BTreeMap::new(),
            terms: 0,
            busy: HashMap::new(),
        }
    }

    /// All Leases there are.
    pub fn list(&mut self, all: Vec<Seen>, now: Instant) {
        let stays: BTreeSet<&str> = all.iter().map(|seen| seen.name.as_str()).collect();
        let gone = self.members.keys().cloned();
        let shards = (0..self.shards).map(|shard| lease_of(shard, self.shards));
        let gone: Vec<String> = gone.chain(shards).filter(|name| !stays.contains(name.as_str())).collect();
        gone.iter().for_each(|name| self.gone(name));
        all.into_iter().for_each(|seen| self.see(seen, now));
        self.listed = true;
    }

    /// A Lease is new or has changed.
    pub fn see(&mut self, seen: Seen, now: Instant) {
        match seen.role {
            Role::Member => {
                let known = self.members.get(&seen.name);
                if known.is_some_and(|known| known.version == seen.version) {
                    return;
                }
                let renewed = known.is_some();
                let member = Member { version: seen.version, shards: seen.shards, since: now, renewed };
                self.members.insert(seen.name.clone(), member);
            }
            Role::Shard { number, holder } => {
                let Some(lease) = self.leases.get_mut(number as usize) else { return };
                if seen.shards != self.shards || lease.as_ref().is_some_and(|is| is.version == seen.version) {
                    return;
                }
                *lease = Some(Shard { version: seen.version, holder });
            }
        }
        self.busy.retain(|name, until| *name != seen.name || until.is_none());
        self.count_mine();
    }

    /// A Lease was deleted.
    pub fn gone(&mut self, name: &str) {
        self.members.remove(name);
        if self.is_me(name) {
            self.lose();
        }
        for (shard, lease) in self.leases.iter_mut().enumerate() {
            if *name == lease_of(shard as u32, self.shards) {
                *lease = None;
            }
        }
        self.busy.retain(|busy, until| busy != name || until.is_none());
        self.count_mine();
    }

    /// Nothing is under way any more for a shard.
    pub fn ended(&mut self, ended: Ended) {
        let mine = self.mine.get_mut(&(ended.shard as u32));
        if let Some(mine) = mine.filter(|mine| mine.term == ended.term && mine.stage == Stage::Ending) {
            mine.stage = Stage::Ended;
        }
    }

    /// From now on it takes nothing.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Of its member Lease.
    pub fn name(&self) -> Option<&str> {
        self.me.as_ref().map(|me| me.name.as_str())
    }

    /// What came of a request that was sent at `asked`.
    pub fn answered(&mut self, request: &Request, answer: Answer, asked: Instant, now: Instant) {
        self.busy.insert(self.subject(request), Some(now + AGAIN));
        let (until, renew_at) = (asked + LENGTH - MARGIN, asked + RENEWED_EVERY);
        match (request, answer) {
            (Request::Join { name }, Answer::Done) => {
                self.me = Some(Me { name: name.clone(), until, renew_at, established: false });
            }
            (Request::Renew { name }, Answer::Done) => {
                self.busy.remove(name);
                if let Some(me) = self.me.as_mut().filter(|me| me.name == *name) {
                    (me.until, me.renew_at) = (until, renew_at);
                }
            }
            (Request::Renew { name }, Answer::Absent) if self.is_me(name) => self.lose(),
            _ => {}
        }
    }

    /// What to do now, and when to be called again at the latest.
    pub fn turn(&mut self, now: Instant) -> Result<(Vec<Request>, Option<Instant>), Disagreement> {
        if !self.listed {
            return Ok((Vec::new(), None));
        }
        if self.me.as_ref().is_some_and(|me| me.until <= now) {
            self.lose();
        }
        self.busy.retain(|_, until| until.is_none_or(|until| until > now));
        let mut wanted = self.remove_dead(now);
        self.agree(now)?;
        match &self.me {
            None => wanted.extend(self.join()),
            Some(me) if me.renew_at <= now => wanted.push(Request::Renew { name: me.name.clone() }),
            Some(_) => {}
        }
        if self.me.as_ref().is_some_and(|me| me.established) && !self.leaving {
            wanted.extend(self.share_out(now));
        }
        wanted.retain(|request| !self.busy.contains_key(&self.subject(request)));
        for request in &wanted {
            self.busy.insert(self.subject(request), None);
        }
        Ok((wanted, self.next_turn(now)))
    }

    pub fn tenure(&self) -> Tenure {
        let hold = |shard| match self.mine.get(&shard) {
            Some(Mine { term, stage: Stage::Kept }) => Hold::Kept { term: *term },
            Some(Mine { term, stage: Stage::Ending }) => Hold::Ending { term: *term },
            Some(Mine { stage: Stage::Ended, .. }) | None => Hold::None,
        };
        Tenure { until: self.me.as_ref().map(|me| me.until), shards: (0..self.shards).map(hold).collect() }
    }

    /// Its membership ran out or was removed: nothing is held any more.
    fn lose(&mut self) {
        self.me = None;
        self.count_mine();
    }

    fn count_mine(&mut self) {
        let me = self.me.as_ref().filter(|me| me.established).map(|me| me.name.as_str());
        for (shard, lease) in self.leases.iter().enumerate() {
            let shard = shard as u32;
            if me.is_some() && lease.as_ref().and_then(|lease| lease.holder.as_deref()) == me {
                self.mine.entry(shard).or_insert_with(|| {
                    self.terms += 1;
                    Mine { term: self.terms, stage: Stage::Kept }
                });
            } else {
                self.mine.remove(&shard);
            }
        }
    }

    fn is_me(&self, name: &str) -> bool {
        self.me.as_ref().is_some_and(|me| me.name == name)
    }

    fn is_alive(&self, name: &str, member: &Member, now: Instant) -> bool {
        self.is_me(name) || now < member.since + LENGTH
    }

    fn remove_dead(&self, now: Instant) -> Vec<Request> {
        let dead = self.members.iter().filter(|(name, member)| !self.is_alive(name, member, now));
        dead.map(|(name, dead)| Request::Remove { name: name.clone(), version: dead.version.clone() })
            .collect()
    }

    /// Members that count shards differently, dead ones among them: until they
    /// are removed they might come back.
    fn differing(&self) -> impl Iterator<Item = (&String, &Member)> {
        self.members.iter().filter(|(_, member)| member.shards != self.shards)
    }

    /// Makes sure, once, that nobody counts shards differently.
    fn agree(&mut self, now: Instant) -> Result<(), Disagreement> {
        let visible = match &self.me {
            Some(me) if me.established => return Ok(()),
            Some(me) => self.members.contains_key(&me.name),
            None => false,
        };
        // One that does not renew has ended, and its Lease only lasts.
        let works =
            |name: &str, member: &Member| self.is_alive(name, member, now) && (visible || member.renewed);
        if let Some((other, member)) = self.differing().find(|(name, member)| works(name, member)) {
            return Err(Disagreement { other: other.clone(), theirs: member.shards, ours: self.shards });
        }
        let alone = self.differing().next().is_none();
        if let Some(me) = &mut self.me {
            me.established = visible && alone;
            self.count_mine();
        }
        Ok(())
    }

    fn join(&mut self) -> Option<Request> {
        if self.leaving || self.differing().next().is_some() || self.busy.contains_key(&self.stem) {
            return None;
        }
        self.names += 1;
        Some(Request::Join { name: format!("{}-{}", self.stem, self.names) })
    }

    /// Gives back what is too much; takes of what is free what falls to it.
    fn share_out(&mut self, now: Instant) -> Vec<Request> {
        let Some(me) = self.me.as_ref().map(|me| me.name.clone()) else { return Vec::new() };
        let holders = self.leases.iter().map(|lease| lease.as_ref().and_then(|lease| lease.holder.as_ref()));
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
                let version = self.leases[shard].as_ref().map(|lease| lease.version.clone());
                requests.push(Request::Take { shard: shard as u32, member: me.clone(), version });
            }
        }
        let quota = quotas.get(me.as_str()).copied().unwrap_or(self.shards) as usize;
        let kept = self.mine.values_mut().filter(|mine| mine.stage == Stage::Kept);
        for mine in kept.skip(quota) {
            mine.stage = Stage::Ending;
        }
        for (shard, _) in self.mine.iter().filter(|(_, mine)| mine.stage == Stage::Ended) {
            if let Some(lease) = &self.leases[*shard as usize] {
                requests.push(Request::GiveBack { shard: *shard, version: lease.version.clone() });
            }
        }
        requests
    }

    fn next_turn(&self, now: Instant) -> Option<Instant> {
        let me = self.me.iter().flat_map(|me| {
            let renewing = matches!(self.busy.get(&me.name), Some(None));
            [Some(me.until), (!renewing).then_some(me.renew_at)]
        });
        let others = self.members.iter().filter(|(name, _)| !self.is_me(name));
        let others = others.map(|(_, member)| Some(member.since + LENGTH));
        me.chain(others).chain(self.busy.values().copied()).flatten().filter(|at| *at > now).min()
    }

    /// The Lease that a request is about; at most one is under way for each.
    fn subject(&self, request: &Request) -> String {
        match request {
            Request::Join { .. } => self.stem.clone(),
            Request::Renew { name } | Request::Remove { name, .. } => name.clone(),
            Request::Take { shard, .. } | Request::GiveBack { shard, .. } => lease_of(*shard, self.shards),
        }
    }
}

/// As many for each as for any other; of what does not divide evenly one more
/// for those that hold most, so that nothing moves without need.
fn quotas<'a>(shards: u32, held: &BTreeMap<&'a str, u32>) -> BTreeMap<&'a str, u32> {
    let members = (held.len() as u32).max(1);
    let mut order: Vec<(&str, u32)> = held.iter().map(|(name, count)| (*name, *count)).collect();
    order.sort_by_key(|(_, count)| Reverse(*count));
    let quota = |rank: usize| shards / members + u32::from((rank as u32) < shards % members);
    order.into_iter().enumerate().map(|(rank, (name, _))| (name, quota(rank))).collect()
}

#[cfg(test)]
mod tests;
