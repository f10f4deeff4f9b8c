//! Replicas against a model of the API server: one list of Leases, versions,
//! and a watch that is late by as much as it likes but never out of order.

use super::*;
use kube_local::seeded_rng::SeededRng;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Default)]
struct LeaseServer {
    leases: BTreeMap<String, LeaseView>,
    /// Every Lease that was written, or the name of one that was deleted.
    log: Vec<Result<LeaseView, String>>,
}

impl LeaseServer {
    fn write(&mut self, name: &str, shards: u32, role: LeaseRole) -> LeaseResponse {
        let version = (self.log.len() + 1).to_string();
        let seen = LeaseView { name: name.to_owned(), version, shards, role };
        self.log.push(Ok(seen.clone()));
        self.leases.insert(name.to_owned(), seen);
        LeaseResponse::Done
    }

    fn delete(&mut self, name: &str) -> LeaseResponse {
        self.log.push(Err(name.to_owned()));
        self.leases.remove(name);
        LeaseResponse::Done
    }

    fn perform(&mut self, request: &LeaseRequest, shards: u32) -> LeaseResponse {
        let take = |shard: u32, holder| {
            (shard_lease_name(shard, shards), LeaseRole::Shard { number: shard, holder })
        };
        let ((name, role), expected) = match request {
            LeaseRequest::Join { name } => ((name.clone(), LeaseRole::Member), None),
            LeaseRequest::Renew { name } => match self.leases.contains_key(name) {
                true => return self.write(name, shards, LeaseRole::Member),
                false => return LeaseResponse::NotFound,
            },
            LeaseRequest::Remove { name, version } => match self.leases.get(name) {
                None => return LeaseResponse::NotFound,
                Some(lease) if lease.version != *version => return LeaseResponse::Failed,
                Some(_) => return self.delete(name),
            },
            LeaseRequest::Acquire { shard, member, version } => {
                (take(*shard, Some(member.clone())), version.as_ref())
            }
            LeaseRequest::Release { shard, version } => (take(*shard, None), Some(version)),
        };
        match self.leases.get(&name).map(|lease| &lease.version) == expected {
            true => self.write(&name, shards, role),
            false => LeaseResponse::Failed,
        }
    }
}

/// A replica with its own idea of how fast time goes.
struct Process {
    assignment: ShardAssignment,
    shards: u32,
    epoch: Instant,
    rate: f64,
    /// How much of the log its watch has delivered.
    delivered: Option<usize>,
    paused_until: u64,
    partitioned_until: u64,
    /// Its watch alone delivers nothing.
    watch_stalled_until: u64,
    ownership: ReplicaOwnership,
    /// With when each arrives at the server.
    sent: Vec<(u64, LeaseRequest, Instant)>,
    responses: Vec<(u64, LeaseRequest, LeaseResponse, Instant)>,
    draining: Vec<(u64, ShardTerm)>,
    next: Option<Instant>,
    rejected: bool,
}

impl Process {
    fn new(name: String, shards: u32, rate: f64) -> Self {
        let assignment = ShardAssignment::new(name, shards);
        Self {
            ownership: assignment.ownership(),
            assignment,
            shards,
            epoch: Instant::now(),
            rate,
            delivered: None,
            paused_until: 0,
            partitioned_until: 0,
            watch_stalled_until: 0,
            sent: Vec::new(),
            responses: Vec::new(),
            draining: Vec::new(),
            next: None,
            rejected: false,
        }
    }

    fn now(&self, at: u64) -> Instant {
        self.epoch + ms(at).mul_f64(self.rate)
    }

    /// As the fence would say if it was asked at this moment.
    fn held_shards(&self, at: u64) -> Vec<u32> {
        let alive = self.ownership.until.is_some_and(|until| self.now(at) < until);
        let held = self
            .ownership
            .shards
            .iter()
            .enumerate()
            .filter(|(_, hold)| alive && **hold != ShardOwnership::NotHeld);
        held.map(|(shard, _)| shard as u32).collect()
    }
}

struct World {
    server: LeaseServer,
    processes: Vec<Process>,
    chance: SeededRng,
    at: u64,
    started: u32,
    /// Requests and watches fail and are late.
    faulty: bool,
    requests: Vec<LeaseRequest>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            server: LeaseServer::default(),
            processes: Vec::new(),
            chance: SeededRng::seeded(seed),
            at: 0,
            started: 0,
            faulty: false,
            requests: Vec::new(),
        }
    }

    fn random_up_to(&self, most: u64) -> u64 {
        self.chance.next_u64() % (most + 1)
    }

    fn start(&mut self, shards: u32) {
        self.started += 1;
        let rate = 0.97 + self.random_up_to(60) as f64 / 1000.0;
        self.processes.push(Process::new(format!("replica-{:02}", self.started), shards, rate));
    }

    fn end(&mut self, at: usize, gently: bool) {
        let process = self.processes.remove(at);
        if let Some(name) = process.assignment.member_name().filter(|_| gently)
            && self.server.leases.contains_key(name)
        {
            self.server.delete(name);
        }
        // What a dead process has sent may still arrive.
        for (_, request, _) in process.sent {
            if self.chance.random_bool(0.5) {
                self.server.perform(&request, process.shards);
            }
        }
    }

    fn step(&mut self) {
        self.at += 50 + self.random_up_to(100);
        let first = self.random_up_to(self.processes.len() as u64) as usize;
        for index in 0..self.processes.len() {
            let index = (first + index) % self.processes.len();
            self.deliver(index);
            self.run(index);
        }
        self.processes.retain(|process| !process.rejected);
        self.check();
    }

    /// Requests arrive whether or not their sender goes on.
    fn deliver(&mut self, index: usize) {
        let (at, trouble) = (self.at, self.faulty);
        let process = &mut self.processes[index];
        let (due, later) = process.sent.drain(..).partition(|(when, ..)| *when <= at);
        process.sent = later;
        let due: Vec<_> = due;
        for (_, request, asked) in due {
            let mut answer = LeaseResponse::Failed;
            if at >= process.partitioned_until && !(trouble && self.chance.random_bool(0.1)) {
                answer = self.server.perform(&request, process.shards);
            }
            if trouble && self.chance.random_bool(0.1) {
                answer = LeaseResponse::Failed;
            }
            let late = if trouble { self.chance.next_u64() % 3000 } else { self.chance.next_u64() % 100 };
            process.responses.push((at + late, request, answer, asked));
        }
    }

    fn run(&mut self, index: usize) {
        let (at, trouble) = (self.at, self.faulty);
        let process = &mut self.processes[index];
        if at < process.paused_until {
            return;
        }
        let now = process.now(at);
        let deaf = at < process.partitioned_until.max(process.watch_stalled_until);
        let hears = !(deaf || trouble && self.chance.random_bool(0.5));
        if hears {
            let whole = match process.delivered {
                None => true,
                Some(_) => trouble && self.chance.random_bool(0.01),
            };
            if whole {
                process.assignment.handle_list(self.server.leases.values().cloned().collect(), now);
                process.delivered = Some(self.server.log.len());
            } else if let Some(delivered) = process.delivered {
                let new = &self.server.log[delivered..];
                let some =
                    if trouble { self.chance.next_u64() as usize % (new.len() + 1) } else { new.len() };
                for event in &new[..some] {
                    match event {
                        Ok(seen) => process.assignment.handle_lease(seen.clone(), now),
                        Err(name) => process.assignment.handle_delete(name),
                    }
                }
                process.delivered = Some(delivered + some);
            }
        }
        let (due, later) = process.responses.drain(..).partition(|(when, ..)| *when <= at);
        process.responses = later;
        let due: Vec<_> = due;
        for (_, request, answer, asked) in due {
            process.assignment.handle_response(&request, answer, asked, now);
        }
        let (due, later) = process.draining.drain(..).partition(|(when, _)| *when <= at);
        process.draining = later;
        let due: Vec<(u64, ShardTerm)> = due;
        due.into_iter().for_each(|(_, ended)| process.assignment.handle_drained(ended));
        let Ok((wanted, next)) = process.assignment.poll(now) else {
            process.rejected = true;
            let name = process.assignment.member_name().map(str::to_owned);
            if let Some(member_name) = name.filter(|name| self.server.leases.contains_key(name)) {
                self.server.delete(&member_name);
            }
            return;
        };
        assert!(next.is_none_or(|next| next > now), "a turn that is due at once would never end");
        process.next = next;
        let ownership = process.assignment.ownership();
        for (shard, hold) in ownership.shards.iter().enumerate() {
            if let (ShardOwnership::Draining { term }, true) =
                (*hold, process.ownership.shards[shard] != *hold)
            {
                process.draining.push((at + self.chance.next_u64() % 2000, ShardTerm { shard, term }));
            }
        }
        process.ownership = ownership;
        self.requests.extend(wanted.iter().cloned());
        for request in wanted {
            let late = if trouble { self.chance.next_u64() % 3000 } else { self.chance.next_u64() % 100 };
            process.sent.push((at + late, request, now));
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        let mut holders: BTreeMap<u32, usize> = BTreeMap::new();
        let mut counts = BTreeSet::new();
        for (index, process) in self.processes.iter().enumerate() {
            for shard in process.held_shards(self.at) {
                counts.insert(process.shards);
                let other = holders.insert(shard, index);
                assert_eq!(other, None, "shard {shard} has two holders at {} ms", self.at);
            }
        }
        assert!(counts.len() < 2, "two ways to divide Canaries are in use: {counts:?}");
    }

    /// How many shards each replica holds.
    fn shares(&self) -> Vec<usize> {
        self.processes.iter().map(|process| process.held_shards(self.at).len()).collect()
    }

    fn advance(&mut self, millis: u64) {
        let until = self.at + millis;
        while self.at < until {
            self.step();
        }
    }

    /// Within this time all shards are held, and evenly; then nothing is
    /// written but renewals.
    #[track_caller]
    fn assert_settles(&mut self, shards: usize) {
        self.faulty = false;
        self.advance(45_000);
        let shares = self.shares();
        assert_eq!(shares.iter().sum::<usize>(), shards, "{shares:?}");
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(most - least <= 1, "{shares:?}");
        self.requests.clear();
        self.advance(20_000);
        let renewal = |request: &LeaseRequest| matches!(request, LeaseRequest::Renew { .. });
        assert!(self.requests.iter().all(renewal), "{:?}", self.requests);
        let renewals = self.requests.len() / self.processes.len();
        // One more where the first falls on the beginning and time goes fast.
        assert!((3..=5).contains(&renewals), "{renewals} renewals a replica in 20 seconds");
    }
}

#[test]
fn one_replica_holds_everything_at_once() {
    let mut world = World::new(1);
    world.start(16);
    world.advance(1500);
    assert_eq!(world.shares(), [16]);
    world.assert_settles(16);
}

#[test]
fn joining_replicas_get_their_share_and_leaving_ones_release_it() {
    let mut world = World::new(2);
    world.start(16);
    world.advance(3000);
    world.start(16);
    world.start(16);
    world.advance(10_000);
    let mut shares = world.shares();
    shares.sort();
    assert_eq!(shares, [5, 5, 6]);
    world.end(0, true);
    world.advance(2000);
    assert_eq!(world.shares(), [8, 8]);
}

#[test]
fn shards_of_a_dead_replica_are_taken_only_after_expiry() {
    let mut world = World::new(3);
    world.start(4);
    world.start(4);
    world.advance(10_000);
    world.end(0, false);
    world.advance(7_000);
    assert_eq!(world.shares(), [2], "the other may still be alive");
    world.advance(11_000);
    assert_eq!(world.shares(), [4]);
}

#[test]
fn a_replica_that_was_stopped_writes_nothing_when_it_wakes() {
    let mut world = World::new(4);
    world.start(4);
    world.start(4);
    world.advance(10_000);
    world.processes[0].paused_until = world.at + 60_000;
    world.advance(59_000);
    assert_eq!(world.shares(), [0, 4]);
    world.assert_settles(4);
}

#[test]
fn a_replica_with_another_shard_count_is_refused() {
    let mut world = World::new(5);
    world.start(16);
    world.advance(3000);
    world.start(8);
    world.advance(20_000);
    assert_eq!((world.processes.len(), world.processes[0].shards), (1, 16));
    world.assert_settles(16);
    // Once nobody counts like that any more it is as good as any.
    world.end(0, false);
    world.start(8);
    world.assert_settles(8);
}

#[test]
fn quotas_divide_evenly_and_move_little() {
    let held = BTreeMap::from([("a", 0), ("b", 3), ("c", 3), ("d", 3)]);
    let quotas = quotas(9, &held);
    assert_eq!(quotas, BTreeMap::from([("a", 2), ("b", 3), ("c", 2), ("d", 2)]));
}

/// Whatever happens: crashes, joins, pauses, partitions, lost and late
/// messages, clocks of different speed, replicas that disagree.
#[test]
fn no_shard_ever_has_two_holders_and_all_are_held_in_the_end() {
    for seed in 0..60 {
        let history = std::panic::AssertUnwindSafe(|| run_random_history(seed));
        if let Err(panic) = std::panic::catch_unwind(history) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn run_random_history(seed: u64) {
    let mut world = World::new(seed);
    let shards = 1 + world.random_up_to(11) as u32;
    world.start(shards);
    world.faulty = true;
    for _ in 0..25 {
        world.advance(world.random_up_to(8_000));
        let one = world.random_up_to(7) as usize % world.processes.len().max(1);
        match world.random_up_to(9) {
            0..=2 if world.processes.len() < 5 => world.start(shards),
            3 => world.start(shards + 1),
            8 => {
                world.processes.clear();
                world.start(shards);
                world.start(shards + 1);
            }
            9 if !world.processes.is_empty() => {
                world.processes[one].watch_stalled_until = world.at + world.random_up_to(30_000);
            }
            4 if world.processes.len() > 1 => world.end(one, true),
            5 if world.processes.len() > 1 => world.end(one, false),
            6 if !world.processes.is_empty() => {
                world.processes[one].paused_until = world.at + world.random_up_to(30_000);
            }
            7 if !world.processes.is_empty() => {
                world.processes[one].partitioned_until = world.at + world.random_up_to(30_000);
            }
            _ => {}
        }
    }
    world.advance(30_000);
    // Of the replicas that disagreed, the remaining one continues.
    let shards = match world.processes.iter().find(|process| !process.held_shards(world.at).is_empty()) {
        Some(process) => process.shards,
        None => shards,
    };
    world.processes.retain(|process| process.shards == shards);
    // One that was about to join may have met one that has just ended.
    world.advance(20_000);
    if world.processes.is_empty() {
        world.start(shards);
    }
    world.assert_settles(shards as usize);
}
