//! What waits, what is in flight, and what is to be claimed next on this node. Decides and does nothing: every moment is an
//! argument.
//!
//! A lane is what jobs of one subscription, or tasks for one origin, wait in. What waits in it is known by hints and by claims: a hint says that there
//! may be something, a claim that finds nothing says that there is nothing until the next hint. Hints may be wrong or late;
//! looks at the database find what they missed.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{LimitAsk, LimitGrant, PoolKey, QueueName, Tsid};
use tidegate_core::pool::breaker::{Admission, Breaker, CallResult, Permit, State};
use tidegate_core::pool::plan::{Capacity, Hold, Lane as Planned, Planner, Waiting};
use tidegate_core::pool::rate::LATEST;

use super::authority::NoAuthority;
use super::routes::{Origin, Route, Routes, Rule};

/// Before a grant ends, no attempt begins that it would not cover: in its last part, one of so many, which is the time that a
/// call may take to reach the database.
const MARGIN_PART: u32 = 12;
/// How often a pool in use asks, so that it learns who else wants slots.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often a pool asks that has fewer slots than it wants.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// After what time a pool that is not used gives its slots back.
const IDLE: Duration = Duration::from_secs(10);
/// How many retries are awaited here; what is beyond is found by looks at the database.
const MAX_DUE: usize = 65_536;
/// How long a queue is left alone whose claim failed.
const CLAIM_PAUSE: Duration = Duration::from_millis(200);
/// The most attempts that are over and not recorded. With more, nothing is claimed.
const MAX_UNRECORDED: u32 = 2_048;
/// With so many bytes of payload under way nothing more is claimed: they are in memory until their receivers have answered.
const MAX_BYTES: u64 = 256 << 20;
/// One client may have one part in so many of the attempts and bytes under way, so that its hanging targets leave the rest to
/// others.
const CLIENT_PART: u32 = 2;

/// The board.
#[derive(Debug)]
pub(super) struct Board {
    /// For how long slots are granted.
    hold: Duration,
    lanes: HashMap<Tsid, Lane>,
    pools: HashMap<PoolKey, Pool>,
    breakers: HashMap<Origin, Breaker>,
    /// The lanes of each queue.
    queues: HashMap<QueueName, Vec<Tsid>>,
    /// Queues with a claim under way: one at a time, so that what ends meanwhile is claimed for together.
    claiming: HashSet<QueueName>,
    /// When lanes have something again.
    due: BinaryHeap<Reverse<(Instant, Tsid)>>,
    /// Rises with every hint and claim: tells which came first.
    clock: u64,
    unrecorded: u32,
    /// The most attempts under way at once.
    most: u32,
    all: Load,
    of_clients: HashMap<Option<Tsid>, Load>,
}

/// What is under way.
#[derive(Debug, Default, Clone, Copy)]
struct Load {
    /// Attempts, and those that a claim under way may bring.
    attempts: u32,
    /// Of payloads.
    bytes: u64,
}

#[derive(Debug)]
struct Lane {
    route: Arc<Route>,
    waiting: Waiting,
    /// The clock at the last hint.
    hinted: u64,
    /// Slots in use, and those that a claim under way may use.
    in_flight: u32,
    /// The subscription is gone: it stays until its attempts are over.
    is_gone: bool,
    /// Its webhooks cannot be signed yet, or not be sent with the credentials that they must carry.
    is_held: bool,
}

#[derive(Debug)]
struct Pool {
    rule: Rule,
    planner: Planner<Tsid>,
    /// Lanes with something waiting or in flight.
    active: BTreeSet<Tsid>,
    in_flight: u32,
    /// Slots that this node holds, and how many of them it is to use, until a moment.
    slots: u32,
    usable: u32,
    until: Option<Instant>,
    /// When deliveries may start, where there is a rate.
    moments: VecDeque<Instant>,
    /// Not before this are more moments asked for.
    moments_after: Option<Instant>,
    asked: Option<Instant>,
    /// A question to the database is under way, which says that so many slots are in use: until its answer is here no more
    /// are, for it may give the others away.
    asks_with: Option<u32>,
    /// When it was in use last.
    used: Instant,
}

/// Jobs to be claimed from a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) queue: QueueName,
    /// The most of each lane.
    pub(super) quotas: BTreeMap<Tsid, u32>,
    clock: u64,
}

impl Board {
    /// An empty board, whose slots are granted for so long, and which has at most so many attempts under way.
    pub(super) fn new(hold: Duration, most: u32) -> Self {
        Self {
            hold,
            most,
            all: Load::default(),
            of_clients: HashMap::new(),
            lanes: HashMap::new(),
            pools: HashMap::new(),
            breakers: HashMap::new(),
            queues: HashMap::new(),
            claiming: HashSet::new(),
            due: BinaryHeap::new(),
            clock: 0,
            unrecorded: 0,
        }
    }

    /// For how long slots are granted.
    pub(super) fn granted_for(&self) -> Duration {
        self.hold
    }

    /// Goes by other routes from now on. Lanes that were held or are new may have something waiting.
    pub(super) fn go_by(&mut self, routes: &Routes, now: Instant) {
        for lane in self.lanes.values_mut() {
            lane.is_gone = true;
        }
        for (id, route) in routes.all() {
            match self.lanes.get_mut(&id) {
                Some(lane) if Arc::ptr_eq(&lane.route, route) => lane.is_gone = false,
                Some(lane) => {
                    let (from, to) = (lane.route.pool, route.pool);
                    (lane.is_gone, lane.route) = (false, Arc::clone(route));
                    if from != to {
                        self.move_lane(id, from, routes.rule(to), now);
                    }
                    self.hint(id);
                }
                None => self.add_lane(id, route, routes.rule(route.pool), now),
            }
        }
        self.queues.clear();
        for (id, route) in routes.all() {
            self.queues.entry(route.queue.clone()).or_default().push(id);
        }
        for (key, pool) in &mut self.pools {
            pool.rule = routes.rule(*key);
        }
        // What is not delivered is not waited for either: a lane that takes part again is hinted at.
        let idle: Vec<Tsid> = self.lanes.iter().filter(|(_, lane)| !lane.takes_part()).map(|(id, _)| *id).collect();
        for id in idle {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.waiting = Waiting::AtLeast(0);
            }
            self.settle(id, now);
        }
        self.forget_breakers(now);
        // A pool stays as long as a lane names it: what is hinted at is put into it.
        let named: HashSet<PoolKey> = self.lanes.values().map(|lane| lane.route.pool).collect();
        self.pools.retain(|key, pool| {
            let is_used = !pool.active.is_empty() || pool.slots > 0 || pool.asks_with.is_some();
            named.contains(key) || is_used || !pool.is_forgotten(now, self.hold)
        });
    }

    /// Holds the lanes whose webhooks cannot be signed yet, and lets go of those whose can be. Returns which are held from now
    /// on, and why.
    pub(super) fn hold(&mut self, routes: &Routes, now: Instant) -> Vec<(Tsid, NoAuthority)> {
        let mut held = Vec::new();
        let mut let_go = Vec::new();
        for (id, lane) in self.lanes.iter_mut().filter(|(_, lane)| !lane.is_gone) {
            match routes.authority_of(&lane.route) {
                Err(why) if !lane.is_held => {
                    // Nothing is waited for in it: it is hinted at once it is let go.
                    lane.waiting = Waiting::AtLeast(0);
                    held.push((*id, why));
                }
                Ok(_) if lane.is_held => let_go.push(*id),
                _ => continue,
            }
            lane.is_held = !lane.is_held;
        }
        let_go.into_iter().for_each(|id| self.hint(id));
        held.iter().for_each(|(id, _)| self.settle(*id, now));
        held
    }

    /// Whether any lane is held.
    pub(super) fn holds_any(&self) -> bool {
        self.lanes.values().any(|lane| lane.is_held)
    }

    fn add_lane(&mut self, id: Tsid, route: &Arc<Route>, rule: Rule, now: Instant) {
        self.lanes.insert(id, Lane::new(Arc::clone(route)));
        self.pool(route.pool, rule, now);
    }

    /// Goes by a further lane.
    pub(super) fn add(&mut self, id: Tsid, route: &Arc<Route>, rule: Rule, now: Instant) {
        self.add_lane(id, route, rule, now);
        self.queues.entry(route.queue.clone()).or_default().push(id);
    }

    /// Forgets a lane, unless something may wait in it or is in flight.
    pub(super) fn forget(&mut self, id: Tsid) -> bool {
        let Some(lane) = self.lanes.get(&id) else { return true };
        if lane.waiting != Waiting::AtLeast(0) || lane.in_flight > 0 {
            return false;
        }
        if let Some(lanes) = self.queues.get_mut(&lane.route.queue) {
            lanes.retain(|other| *other != id);
        }
        self.lanes.remove(&id);
        true
    }

    fn pool(&mut self, key: PoolKey, rule: Rule, now: Instant) -> &mut Pool {
        self.pools.entry(key).or_insert_with(|| Pool::new(rule, now))
    }

    /// A lane's subscription names another pool: what is in flight counts there.
    fn move_lane(&mut self, id: Tsid, from: PoolKey, rule: Rule, now: Instant) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let (in_flight, to, is_active) = (lane.in_flight, lane.route.pool, lane.is_active());
        if let Some(pool) = self.pools.get_mut(&from) {
            pool.active.remove(&id);
            pool.in_flight -= in_flight;
        }
        let pool = self.pool(to, rule, now);
        pool.in_flight += in_flight;
        if is_active {
            pool.active.insert(id);
        }
    }

    /// Whether it knows a lane.
    pub(super) fn has(&self, id: Tsid) -> bool {
        self.lanes.get(&id).is_some_and(|lane| !lane.is_gone)
    }

    /// There may be something in a lane.
    pub(super) fn hint(&mut self, id: Tsid) {
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| lane.takes_part()) else { return };
        self.clock += 1;
        lane.hinted = self.clock;
        if lane.waiting == Waiting::AtLeast(0) {
            lane.waiting = Waiting::Unknown;
            if let Some(pool) = self.pools.get_mut(&lane.route.pool) {
                pool.active.insert(id);
            }
        }
    }

    /// There may be something in a lane at a moment.
    pub(super) fn hint_at(&mut self, id: Tsid, at: Instant) {
        if self.due.len() < MAX_DUE {
            self.due.push(Reverse((at, id)));
        }
    }

    /// The lanes of a queue if there are at most so many.
    pub(super) fn few_lanes(&self, queue: &QueueName, most: usize) -> Option<Vec<Tsid>> {
        let lanes = self.queues.get(queue);
        lanes.map_or(Some(Vec::new()), |lanes| (lanes.len() <= most).then(|| lanes.clone()))
    }

    /// Forgets the breakers that remember nothing, and those of targets that no lane goes to any more.
    pub(super) fn forget_breakers(&mut self, now: Instant) {
        if self.breakers.is_empty() {
            return;
        }
        let named: HashSet<&Origin> = self.lanes.values().map(|lane| &lane.route.origin).collect();
        self.breakers.retain(|origin, breaker| !breaker.is_idle(now) && named.contains(origin));
    }

    /// How the breaker of a target stands.
    pub(super) fn breaker(&self, origin: &Origin, now: Instant) -> State {
        self.breakers.get(origin).map_or(State::Closed, |breaker| breaker.state(now))
    }

    /// How many breakers are open.
    pub(super) fn open_breakers(&self, now: Instant) -> usize {
        self.breakers.values().filter(|breaker| breaker.state(now) != State::Closed).count()
    }

    /// What is to be claimed now, and when to ask at the latest even if nothing happens.
    pub(super) fn plan(&mut self, now: Instant) -> (Vec<Ask>, Option<Instant>) {
        while let Some(Reverse((at, id))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            self.hint(id);
        }
        let mut wake_at = self.due.peek().map(|Reverse((at, _))| *at);
        let mut room = self.all.room(self.most, 1);
        if self.unrecorded >= MAX_UNRECORDED || room == 0 {
            // What ends is news, after which it is planned again.
            return (Vec::new(), wake_at);
        }
        let mut asks: BTreeMap<QueueName, BTreeMap<Tsid, u32>> = BTreeMap::new();
        for pool in self.pools.values_mut() {
            let Some(mut capacity) = pool.capacity(now) else { continue };
            capacity.free = capacity.free.min(room);
            let is_free = |id: &Tsid| self.lanes.get(id).is_some_and(|lane| !self.claiming.contains(&lane.route.queue));
            if !pool.active.iter().any(is_free) {
                // Claims are under way for all that it has: what ends meanwhile is planned for when they are back.
                continue;
            }
            let lanes: Vec<_> = pool
                .active
                .iter()
                .filter_map(|id| self.lanes.get(id).map(|lane| (*id, lane)))
                .map(|(id, lane)| {
                    let state =
                        self.breakers.get(&lane.route.origin).map_or(State::Closed, |breaker| breaker.state(now));
                    let held_by = match state {
                        State::Closed => None,
                        State::HalfOpen => Some(Hold::BreakerHalfOpen),
                        State::Open(until) => {
                            wake_at = Some(wake_at.map_or(until, |at| at.min(until)));
                            Some(Hold::BreakerOpen)
                        }
                    };
                    let is_asked_for = lane.takes_part() && !self.claiming.contains(&lane.route.queue);
                    let waiting = if is_asked_for { lane.waiting } else { Waiting::AtLeast(0) };
                    let client = lane.route.origin.0;
                    Planned { id, client, waiting, in_flight: lane.in_flight, held_by }
                })
                .collect();
            let quotas = pool.planner.plan(capacity, &lanes);
            for (planned, quota) in lanes.iter().zip(quotas).filter(|(_, quota)| *quota > 0) {
                let Some(lane) = self.lanes.get_mut(&planned.id) else { continue };
                let of_client = self.of_clients.entry(planned.client).or_default();
                let quota = quota.min(of_client.room(self.most, CLIENT_PART));
                if quota == 0 {
                    continue;
                }
                lane.in_flight += quota;
                pool.in_flight += quota;
                room -= quota;
                self.all.attempts += quota;
                of_client.attempts += quota;
                asks.entry(lane.route.queue.clone()).or_default().insert(planned.id, quota);
            }
        }
        self.clock += 1;
        let clock = self.clock;
        self.claiming.extend(asks.keys().cloned());
        (asks.into_iter().map(|(queue, quotas)| Ask { queue, quotas, clock }).collect(), wake_at)
    }

    /// A claim is over; `got` is how many jobs it took of each lane, each of which uses a slot from now on. `may_be_cut`:
    /// it may have left jobs although they were asked for.
    pub(super) fn claimed(&mut self, ask: &Ask, got: &HashMap<Tsid, u32>, may_be_cut: bool, now: Instant) {
        self.claiming.remove(&ask.queue);
        for (id, quota) in &ask.quotas {
            let took = got.get(id).copied().unwrap_or(0);
            if let Some(lane) = self.lanes.get_mut(id)
                && took == 0
                && !may_be_cut
                && lane.hinted <= ask.clock
            {
                lane.waiting = Waiting::AtLeast(0);
            }
            self.give_back(*id, quota.saturating_sub(took), now);
        }
    }

    /// A claim failed: what it asked for is asked for again a little later.
    pub(super) fn claim_failed(&mut self, ask: &Ask, now: Instant) {
        self.claimed(ask, &HashMap::new(), false, now);
        for id in ask.quotas.keys() {
            self.hint_at(*id, now + CLAIM_PAUSE);
        }
    }

    /// Whether a job of a lane, with so many bytes, may be attempted: the permit of its target's breaker, and when it may
    /// start. Otherwise its slot is free again.
    pub(super) fn admit(&mut self, id: Tsid, bytes: u64, now: Instant) -> Option<(Permit, Option<Instant>)> {
        let admitted = self.try_admit(id, now);
        match admitted {
            Some(_) => self.carry(id, |load| load.bytes += bytes),
            None => self.give_back(id, 1, now),
        }
        admitted
    }

    /// Changes what is under way in all and for a lane's client.
    fn carry(&mut self, id: Tsid, change: impl Fn(&mut Load)) {
        change(&mut self.all);
        let Some(client) = self.lanes.get(&id).map(|lane| lane.route.origin.0) else { return };
        if let Entry::Occupied(mut load) = self.of_clients.entry(client) {
            change(load.get_mut());
            if load.get().is_nothing() {
                load.remove();
            }
        }
    }

    fn try_admit(&mut self, id: Tsid, now: Instant) -> Option<(Permit, Option<Instant>)> {
        let lane = self.lanes.get(&id).filter(|lane| lane.takes_part())?;
        let pool = self.pools.get_mut(&lane.route.pool).filter(|pool| !pool.rule.is_suspended)?;
        let breaker = self.breakers.entry(lane.route.origin.clone()).or_insert_with(|| Breaker::new(now));
        let Admission::Permit(permit) = breaker.may_start(now) else { return None };
        if pool.rule.rate.is_none() {
            return Some((permit, None));
        }
        // After the breaker: a target that is down must not use up the moments of others.
        let Some(moment) = pool.next_moment(now) else {
            breaker.on(permit, CallResult::NotMade, now);
            return None;
        };
        Some((permit, Some(moment)))
    }

    /// An attempt at a target is over and its slot free. It is to be recorded. Returns whether the target's breaker opened or
    /// closed; the lane may go to another one by now.
    pub(super) fn ended(
        &mut self,
        id: Tsid,
        origin: &Origin,
        permit: Permit,
        result: CallResult,
        bytes: u64,
        now: Instant,
    ) -> bool {
        self.unrecorded += 1;
        self.carry(id, |load| load.bytes = load.bytes.saturating_sub(bytes));
        let turned = self.breakers.get_mut(origin).is_some_and(|breaker| breaker.on(permit, result, now));
        self.give_back(id, 1, now);
        turned
    }

    /// An attempt was recorded. Its job is due again at a moment, and another one of its group may be claimable now.
    pub(super) fn recorded(&mut self, id: Tsid, due: Option<Instant>, frees_group: bool) {
        self.unrecorded = self.unrecorded.saturating_sub(1);
        if let Some(at) = due {
            self.hint_at(id, at);
        }
        if frees_group {
            self.hint(id);
        }
    }

    /// A job that was claimed is not attempted.
    pub(super) fn release(&mut self, id: Tsid, now: Instant) {
        self.give_back(id, 1, now);
    }

    /// Slots of a lane are free again.
    fn give_back(&mut self, id: Tsid, slots: u32, now: Instant) {
        self.carry(id, |load| load.attempts = load.attempts.saturating_sub(slots));
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.in_flight -= slots;
            if let Some(pool) = self.pools.get_mut(&lane.route.pool) {
                pool.in_flight -= slots;
                pool.used = now;
            }
        }
        self.settle(id, now);
    }

    /// Takes a lane out of its pool's active ones if it is not active any more, and forgets it if it is gone.
    fn settle(&mut self, id: Tsid, now: Instant) {
        let Some(lane) = self.lanes.get(&id) else { return };
        if lane.is_active() {
            return;
        }
        if let Some(pool) = self.pools.get_mut(&lane.route.pool)
            && pool.active.remove(&id)
        {
            pool.used = now;
        }
        if lane.is_gone {
            self.lanes.remove(&id);
        }
    }

    /// What is to be asked of the database about pools now, and when to look again at the latest. Each is answered by
    /// [`granted`](Self::granted) or [`not_granted`](Self::not_granted).
    pub(super) fn needs(&mut self, now: Instant) -> (Vec<LimitAsk>, Option<Instant>) {
        let mut needs = Vec::new();
        let mut wake_at: Option<Instant> = None;
        for (key, pool) in &mut self.pools {
            let Some(at) = pool.asks_at(now) else { continue };
            if at > now {
                wake_at = Some(wake_at.map_or(at, |other| other.min(at)));
                continue;
            }
            let need = pool.need(*key, now);
            (pool.asks_with, pool.asked) = (Some(need.in_use), Some(now));
            needs.push(need);
        }
        (needs, wake_at)
    }

    /// Whether some pool has fewer slots than it may have and could use.
    pub(super) fn wants_slots(&self) -> bool {
        self.pools.values().any(|pool| pool.is_wanted() && pool.slots < pool.rule.concurrency)
    }

    /// The database granted slots and moments, having been asked at `asked`.
    pub(super) fn granted(&mut self, key: PoolKey, grant: &LimitGrant, asked: Instant, now: Instant) {
        let Some(pool) = self.pools.get_mut(&key) else { return };
        pool.asks_with = None;
        let until = asked + self.hold - self.hold / MARGIN_PART;
        (pool.slots, pool.usable, pool.until) = (grant.slots, grant.usable, Some(until));
        pool.moments.extend(grant.starts.iter().map(|wait| now + *wait));
        pool.moments_after = grant.ask_again_in.map(|wait| now + wait);
    }

    /// The database was not reached: asked again later. What it granted before holds until it ends.
    pub(super) fn not_granted(&mut self, key: PoolKey, now: Instant) {
        if let Some(pool) = self.pools.get_mut(&key) {
            pool.moments_after = Some(now + ASK_AGAIN);
            // It may have been reached all the same, and have given away what was not in use.
            let in_use = pool.asks_with.take();
            pool.usable = in_use.map_or(pool.usable, |in_use| pool.usable.min(in_use));
        }
    }

    /// What gives back all slots.
    pub(super) fn gives_back(&self, now: Instant) -> Vec<LimitAsk> {
        let held = self.pools.iter().filter(|(_, pool)| pool.slots > 0 || pool.asks_with.is_some());
        held.map(|(key, pool)| LimitAsk { in_use: 0, wanted: 0, rate: None, ..pool.need(*key, now) }).collect()
    }

    /// Whether the database is being asked for slots, which it may grant any moment.
    pub(super) fn is_asking(&self) -> bool {
        self.pools.values().any(|pool| pool.asks_with.is_some())
    }

    /// Whether nothing is in flight and nothing is unrecorded.
    pub(super) fn is_idle(&self) -> bool {
        self.unrecorded == 0 && self.claiming.is_empty() && self.pools.values().all(|pool| pool.in_flight == 0)
    }
}

impl Load {
    /// How many more attempts may begin for whoever may have one part in so many of everything.
    fn room(&self, most: u32, part: u32) -> u32 {
        if self.bytes >= MAX_BYTES / u64::from(part) {
            return 0;
        }
        (most / part).max(1).saturating_sub(self.attempts)
    }

    fn is_nothing(&self) -> bool {
        self.attempts == 0 && self.bytes == 0
    }
}

impl Lane {
    fn new(route: Arc<Route>) -> Self {
        Self { route, waiting: Waiting::AtLeast(0), hinted: 0, in_flight: 0, is_gone: false, is_held: false }
    }

    /// Whether something may wait in it, or is in flight.
    fn is_active(&self) -> bool {
        self.waiting != Waiting::AtLeast(0) || self.in_flight > 0
    }

    /// Whether its jobs are delivered at present.
    fn takes_part(&self) -> bool {
        !self.is_gone && !self.is_held && self.route.is_active()
    }
}

impl Pool {
    fn new(rule: Rule, now: Instant) -> Self {
        Self {
            rule,
            planner: Planner::default(),
            active: BTreeSet::new(),
            in_flight: 0,
            slots: 0,
            usable: 0,
            until: None,
            moments: VecDeque::new(),
            moments_after: None,
            asked: None,
            asks_with: None,
            used: now,
        }
    }

    /// What it has to give on this node; `None` if that is nothing.
    fn capacity(&mut self, now: Instant) -> Option<Capacity> {
        let (slots, free) = (self.slots_at(now), self.free_at(now));
        while self.moments.front().is_some_and(|moment| *moment + LATEST <= now) {
            self.moments.pop_front();
        }
        let allowance = self.rule.rate.map(|_| u32::try_from(self.moments.len()).unwrap_or(u32::MAX));
        let can = free > 0 && allowance != Some(0) && !self.rule.is_suspended && !self.active.is_empty();
        can.then_some(Capacity { concurrency: slots, free, allowance })
    }

    /// The slots that attempts which begin now may use.
    fn slots_at(&self, now: Instant) -> u32 {
        if self.until.is_none_or(|until| now >= until) {
            return 0;
        }
        self.usable.min(self.rule.concurrency).min(self.asks_with.unwrap_or(u32::MAX))
    }

    /// Those of them that are not in use.
    fn free_at(&self, now: Instant) -> u32 {
        self.slots_at(now).saturating_sub(self.in_flight)
    }

    fn next_moment(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let moment = self.moments.pop_front()?;
            if moment + LATEST > now {
                return Some(moment);
            }
        }
    }

    /// When it asks the database next; `None` if it has nothing to ask.
    fn asks_at(&self, now: Instant) -> Option<Instant> {
        if self.asks_with.is_some() {
            return None;
        }
        let Some(asked) = self.asked else { return self.is_wanted().then_some(now) };
        if !self.is_wanted() {
            return (self.slots > 0).then_some((self.used + IDLE).max(asked + ASK_AGAIN));
        }
        let wants_slots = self.slots_at(now) < self.rule.concurrency;
        let slots = asked + if wants_slots { ASK_AGAIN } else { ASK_EVERY };
        let wants_moments = self.rule.rate.is_some() && self.moments.is_empty() && self.free_at(now) > 0;
        let moments = wants_moments.then(|| self.moments_after.unwrap_or(now));
        [Some(slots), moments].into_iter().flatten().min()
    }

    fn is_wanted(&self) -> bool {
        !self.active.is_empty() && (!self.rule.is_suspended || self.in_flight > 0)
    }

    fn need(&self, key: PoolKey, now: Instant) -> LimitAsk {
        let is_wanted = self.is_wanted();
        let wanted = if is_wanted { self.rule.concurrency.max(self.in_flight) } else { self.in_flight };
        // A moment that no slot is free for would be lost to all nodes. How many will be, the first question does not know.
        let free = if self.asked.is_none() { self.rule.concurrency } else { self.free_at(now) };
        let moments = if is_wanted && self.moments.is_empty() { free } else { 0 };
        // All that it holds counts as in use until it learns that somebody else wants of it.
        let is_contested = self.usable < self.slots || !is_wanted;
        let in_use = if is_contested { self.in_flight } else { self.slots.max(self.in_flight) };
        let rate = self.rule.rate.map(|rate| (rate, moments));
        LimitAsk { pool: key, concurrency: self.rule.concurrency, in_use, wanted: wanted.max(in_use), rate }
    }

    fn is_forgotten(&self, now: Instant, hold: Duration) -> bool {
        now.saturating_duration_since(self.used) > hold
    }
}

#[cfg(test)]
mod tests;
