//! The router: jobs of subscriptions are claimed within the limits of their pools and delivered as webhooks. Every node has
//! one, and all of them together keep limits and order: who delivers what is decided by claims, and how much by what the
//! database grants.
//!
//! [`board`] decides what is claimed next; [`attempt`] makes one attempt and records it; this module carries news between
//! them. It must not know SQL, nor how webhooks are sent.

mod attempt;
mod authority;
mod board;
mod message;
mod meters;
mod node;
mod predecessors;
mod routes;
mod sockets;
mod span;
mod supervise;
mod task_lanes;
mod terms;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tidegate::{End, JobClaim, Jobs, LimitAsk, LimitGrant, QueueName, QueuedEvent, Tsid, WaitingLanes, Wake};
use tidegate_core::pool::breaker::{CallResult, Permit, State};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use self::attempt::{Delivery, Recorded, Tried};
use self::authority::Authority;
use self::board::{Ask, Board};
use self::meters::{Meters, PoolMeters};
use self::predecessors::Predecessors;
use self::routes::{KeptRoutes, Origin, Route, Routes};
use self::supervise::{again_after_panics, apart};
use self::terms::Terms;
use crate::Subscription;
use crate::gateway::error::{GatewayError, Result, failed_within};
use crate::gateway::tasks::TaskLane;
use crate::gateway::{DELETED, Gateway, Made, Sweep};
use crate::webhook::client::Client;

/// How often the database is looked at for what no hint told.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The part of its time that the database is looked at, at most: one in so many.
const LOOK_PART: u32 = 20;
/// Queues with up to so many lanes are not looked at when something was made in them: each of their lanes is asked for.
const FEW_LANES: usize = 16;
/// After how many bytes of payload a claim may have left out jobs that it was to take.
const FULL: usize = 1 << 20;
/// How many jobs of a deleted subscription are cancelled at once.
const CANCELLED_AT_ONCE: usize = 256;
/// For how long a router that stops waits for attempts that are under way.
const GRACE: Duration = Duration::from_secs(20);

/// Delivers jobs until it is stopped.
#[derive(Debug)]
pub struct Router {
    stop: watch::Sender<bool>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// Cancels what waits for deleted subscriptions.
    sweep: JoinHandle<()>,
}

/// A job that was claimed, and what is said about it if it is a task.
type Told = (QueuedEvent, Option<String>);

/// What the conductor hears of.
enum News {
    Claimed { ask: Ask, result: Result<(Routes, Vec<Told>)> },
    Looked { began: Instant, result: Result<(Routes, WaitingLanes)> },
    Limits { asked: Instant, needs: Vec<LimitAsk>, result: Result<Vec<LimitGrant>> },
    Ended { lane: Tsid, route: Arc<Route>, permit: Permit, result: CallResult, bytes: u64 },
    Recorded { lane: Tsid, subscription: Option<Arc<Subscription>>, recorded: Option<Recorded> },
    Cancelled { lane: Tsid },
}

struct Conductor {
    gateway: Arc<Gateway>,
    jobs: Jobs,
    /// Under which the database knows this router, and the dead ones that it knows.
    predecessors: Predecessors,
    client: Arc<Client>,
    kept: Arc<KeptRoutes>,
    routes: Routes,
    board: Board,
    looks: Looks,
    meters: Meters,
    /// Lanes of deleted subscriptions whose jobs are being cancelled.
    cancelling: HashSet<Tsid>,
    attempts: JoinSet<()>,
    sender: mpsc::UnboundedSender<News>,
    news: mpsc::UnboundedReceiver<News>,
}

/// When the database is looked at.
struct Looks {
    is_looking: bool,
    /// At everything, at this moment.
    all_at: Instant,
    /// At these queues as soon as possible.
    queues: BTreeSet<QueueName>,
    not_before: Instant,
}

impl Router {
    /// Starts to deliver the jobs of a gateway's database.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn start(gateway: Arc<Gateway>, client: Client) -> Self {
        let (stop, stopped) = watch::channel(false);
        let jobs = gateway.queue().jobs();
        let sweep = tokio::spawn(Sweep::default().run(Arc::clone(&gateway)));
        let task = tokio::spawn(conduct(gateway, jobs, Arc::new(client), stopped));
        Self { stop, task: tokio::sync::Mutex::new(Some(task)), sweep }
    }

    /// Claims nothing more, and returns when the attempts that are under way have ended and are recorded. What does not end
    /// soon is given up; somebody else attempts it again. Calling it twice is fine.
    pub async fn stop(&self) {
        self.sweep.abort();
        let _ = self.stop.send(true);
        let mut task = self.task.lock().await;
        if let Some(task) = task.as_mut()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the router failed: jobs wait for another node, or for the next start");
        }
        *task = None;
    }
}

/// Runs conductors, one after the other if they fail, until they are to stop. What a failed one had under way is given back when
/// it is dropped.
async fn conduct(gateway: Arc<Gateway>, jobs: Jobs, client: Arc<Client>, stopped: watch::Receiver<bool>) {
    let run = || Conductor::new(Arc::clone(&gateway), jobs.clone(), Arc::clone(&client)).run(stopped.clone());
    again_after_panics(run, until_stopped(stopped.clone())).await;
    jobs.close().await;
}

/// Waits until the router is to stop, or is gone.
async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stops| *stops).await;
}

impl Conductor {
    fn new(gateway: Arc<Gateway>, jobs: Jobs, client: Arc<Client>) -> Self {
        let (sender, news) = mpsc::unbounded_channel();
        // As long as leases last: the slots of a node that died come back with its jobs.
        let board = Board::new(jobs.lease(), sockets::at_most());
        Self {
            gateway,
            jobs,
            predecessors: Predecessors::of_this_process(),
            client,
            kept: Arc::default(),
            routes: Routes::default(),
            board,
            looks: Looks::new(Instant::now()),
            meters: Meters::default(),
            cancelling: HashSet::new(),
            attempts: JoinSet::new(),
            sender,
            news,
        }
    }

    async fn run(mut self, stopped: watch::Receiver<bool>) {
        let mut is_stopped = pin!(until_stopped(stopped));
        let made = self.gateway.made_jobs();
        let mut hints = self.jobs.wake_hints();
        let mut stops_at: Option<Instant> = None;
        loop {
            let wake_at = match stops_at {
                None => self.act(Instant::now()),
                // What is granted after all was given back would be held by nobody until it ends.
                Some(at) if self.board.is_idle() && !self.board.is_asking() || Instant::now() >= at => break,
                Some(at) => at,
            };
            tokio::select! {
                () = &mut is_stopped, if stops_at.is_none() => stops_at = Some(Instant::now() + GRACE),
                Some(news) = self.news.recv() => {
                    // Attempts that end at the same moment are heard of, and planned for, together.
                    tokio::task::yield_now().await;
                    self.hear(news);
                    while let Ok(news) = self.news.try_recv() {
                        self.hear(news);
                    }
                    while self.attempts.try_join_next().is_some() {}
                }
                made = made.next() => self.made(made),
                wake = hints.next_wake() => match wake {
                    Some(wake) => self.woken(wake),
                    // The store is closed.
                    None => break,
                },
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
        self.attempts.shutdown().await;
        self.predecessors.stop();
        let held = self.board.gives_back(Instant::now());
        if let Err(error) = self.jobs.limits(self.predecessors.own_name(), held, self.board.granted_for()).await {
            tracing::warn!(%error, "slots of pools could not be given back: other nodes get them in a minute");
        }
    }

    /// Does what is to be done now, and says when to look again at the latest.
    fn act(&mut self, now: Instant) -> Instant {
        self.predecessors.look(&self.jobs, self.board.wants_slots(), now);
        let (needs, needs_at) = self.board.needs(now);
        if !needs.is_empty() {
            self.ask_for(needs, now);
        }
        let (asks, plan_at) = self.board.plan(now);
        for ask in asks {
            self.claim(ask);
        }
        let look_at = self.look(now);
        [needs_at, plan_at, look_at].into_iter().flatten().min().unwrap_or(now + LOOK_EVERY)
    }

    fn ask_for(&self, needs: Vec<LimitAsk>, asked: Instant) {
        let (jobs, asks) = (self.jobs.clone(), needs.clone());
        let node = self.predecessors.own_name().to_owned();
        let hold = self.board.granted_for();
        let ask = async move { Ok(jobs.limits(&node, asks, hold).await?) };
        apart(self.sender.clone(), ask, move |result| News::Limits { asked, needs, result });
    }

    fn claim(&self, ask: Ask) {
        let (jobs, kept, gateway) = (self.jobs.clone(), Arc::clone(&self.kept), Arc::clone(&self.gateway));
        let name = |lane: &Tsid| self.routes.get(*lane).map_or_else(|| lane.to_string(), |route| route.lane.clone());
        let quotas = ask.quotas.iter().map(|(lane, quota)| (name(lane), *quota as usize)).collect();
        let max = ask.quotas.values().map(|quota| *quota as usize).sum();
        let claim = JobClaim { queue: ask.queue.clone(), quotas, max };
        let work = async move {
            // Read after the claim began: a job goes by what was answered to somebody before.
            let (claimed, routes) = tokio::join!(claim_told(&jobs, claim), kept.read(&gateway));
            let jobs = claimed?;
            Ok((routes?, jobs))
        };
        apart(self.sender.clone(), work, move |result| News::Claimed { ask, result });
    }

    /// Looks at the database if it is time, and says when it will be.
    fn look(&mut self, now: Instant) -> Option<Instant> {
        let looks = &mut self.looks;
        if looks.is_looking {
            return None;
        }
        let wanted_at = if looks.queues.is_empty() { looks.all_at } else { looks.all_at.min(now) };
        let at = wanted_at.max(looks.not_before);
        if at > now {
            return Some(at);
        }
        looks.is_looking = true;
        let is_all = now >= looks.all_at || looks.queues.len() > 1;
        let queue = if is_all { None } else { looks.queues.first().cloned() };
        if is_all {
            looks.all_at = now + LOOK_EVERY;
        }
        looks.queues.clear();
        let (jobs, kept, of) = (self.jobs.clone(), Arc::clone(&self.kept), Arc::clone(&self.gateway));
        let work = async move {
            let waiting = jobs.waiting_lanes(queue).await?;
            // Read after the look: whoever is not among the routes then was deleted, and not made meanwhile.
            Ok((kept.read(&of).await?, waiting))
        };
        apart(self.sender.clone(), work, move |result| News::Looked { began: now, result });
        None
    }

    fn hear(&mut self, news: News) {
        let now = Instant::now();
        match news {
            News::Claimed { ask, result: Ok((routes, jobs)) } => self.claimed(&ask, routes, jobs, now),
            News::Claimed { ask, result: Err(error) } => {
                tracing::warn!(%error, queue = %ask.queue, "jobs could not be claimed; trying again");
                self.board.claim_failed(&ask, now);
            }
            News::Looked { began, result } => self.looked(began, result, now),
            News::Limits { asked, needs, result } => self.granted(asked, &needs, result, now),
            News::Ended { lane, route, permit, result, bytes } => {
                if self.board.ended(lane, &route.origin, permit, result, bytes, now) {
                    self.tell_breaker(&route.origin, now);
                }
            }
            News::Recorded { lane, subscription, recorded } => {
                let due = recorded.and_then(|recorded| recorded.due);
                // What could not be recorded is looked for.
                self.board.recorded(lane, due, recorded.is_none_or(|recorded| recorded.frees_group));
                if let Some(subscription) = subscription.filter(|_| recorded.is_some_and(|recorded| recorded.is_gone)) {
                    self.pause(subscription);
                }
            }
            News::Cancelled { lane } => drop(self.cancelling.remove(&lane)),
        }
    }

    fn go_by(&mut self, routes: Routes, now: Instant) {
        if routes.is_older_than(&self.routes) {
            // A slow claim read them before a look that was answered first.
            return;
        }
        let routes = routes.with_tasks_of(&mut self.routes);
        let has_changed = !routes.is_as(&self.routes);
        self.routes = routes;
        if has_changed {
            self.board.go_by(&self.routes, now);
        }
        if has_changed || self.board.holds_any() {
            self.hold(now);
        }
    }

    /// Jobs wait whose webhooks cannot be signed, or not be sent with the credentials that they must carry.
    fn hold(&mut self, now: Instant) {
        for (id, why) in self.board.hold(&self.routes, now) {
            let Some(route) = self.routes.get(id) else { continue };
            let subscription = route.subscription.as_ref().map(|subscription| subscription.code.as_str());
            tracing::error!(lane = route.lane, subscription, %why, "jobs wait: their webhooks cannot be sent in somebody's name");
        }
    }

    fn claimed(&mut self, ask: &Ask, routes: Routes, jobs: Vec<Told>, now: Instant) {
        self.go_by(routes, now);
        let mut got: HashMap<Tsid, u32> = HashMap::new();
        let mut bytes = 0;
        let lane_of = |job: &QueuedEvent| self.routes.lane_of(&ask.queue, job.lane_type.as_deref()?);
        let jobs: Vec<_> = jobs.into_iter().filter_map(|(job, task)| Some((lane_of(&job)?, job, task))).collect();
        for (lane, job, _) in &jobs {
            *got.entry(*lane).or_default() += 1;
            bytes += job.fact.payload.len();
        }
        self.board.claimed(ask, &got, bytes > FULL, now);
        // Jobs of a lane come one after another.
        let mut last: Option<(Tsid, Authority)> = None;
        let mut unreadable = 0;
        for (lane, job, task) in jobs {
            let Some(route) = self.routes.get(lane) else {
                self.board.release(lane, now);
                if self.routes.is_deleted(lane) {
                    self.cancel(ask.queue.clone(), lane, Some(job));
                }
                continue;
            };
            // What is not attempted is dropped, and thus given back without counting.
            let (terms, authority) = match &route.subscription {
                Some(subscription) => {
                    let known = last.take().filter(|(of, _)| *of == lane).map(|(_, authority)| Ok(authority));
                    let Ok(authority) = known.unwrap_or_else(|| self.routes.authority(subscription)) else {
                        self.board.release(lane, now);
                        continue;
                    };
                    last = Some((lane, authority.clone()));
                    (Terms::Subscription(Arc::clone(subscription)), Ok(authority))
                }
                None => {
                    let terms = Terms::of_task(task.as_deref());
                    unreadable += usize::from(matches!(terms, Terms::Unreadable));
                    let account = terms.account().map(|account| self.routes.account(route.origin.0, account));
                    let authority = account.unwrap_or_else(|| Ok(Authority::default()));
                    // Lanes of tasks that an older program created are not held.
                    if authority.is_err() && route.account.is_some() {
                        self.board.release(lane, now);
                        continue;
                    }
                    (terms, authority)
                }
            };
            let bytes = job.fact.payload.len() as u64;
            let Some((permit, starts)) = self.board.admit(lane, bytes, now) else { continue };
            let (client, route) = (Arc::clone(&self.client), Arc::clone(route));
            let under_way = UnderWay {
                lane,
                bytes,
                permit,
                meters: self.meters.of(route.pool),
                subscription: route.subscription.clone(),
                route,
                sender: self.sender.clone(),
            };
            self.attempts.spawn(under_way.attempt(Delivery { client, terms, authority, starts }, job));
        }
        if unreadable > 0 {
            tracing::warn!(
                unreadable,
                "tasks wait that a newer program wrote: upgrade this node, or let the others deliver them"
            );
        }
    }

    fn looked(&mut self, began: Instant, result: Result<(Routes, WaitingLanes)>, now: Instant) {
        self.looks.is_looking = false;
        let took = now.saturating_duration_since(began);
        self.looks.not_before = now + LOOK_AGAIN.max(took * LOOK_PART);
        let (routes, waiting) = match result {
            Ok(looked) => looked,
            Err(error) => {
                tracing::warn!(%error, "jobs could not be looked for; trying again");
                return;
            }
        };
        self.go_by(routes, now);
        let board = &mut self.board;
        self.routes.forget_tasks(now, |lane| board.forget(lane));
        board.forget_breakers(now);
        metrics::gauge!("tidegate_breakers_open").set(board.open_breakers(now) as f64);
        if let Some(due) = waiting.next_due_in {
            self.looks.all_at = self.looks.all_at.min(now + due);
        }
        for (queue, lane) in waiting.lanes {
            let Some(lane) = self.lane_with_something(&queue, &lane, now) else { continue };
            if self.board.has(lane) {
                self.board.hint(lane);
            } else if self.routes.is_deleted(lane) {
                self.cancel(queue, lane, None);
            }
        }
    }

    /// The id of a lane that was found, if it is one of this program's.
    fn lane_with_something(&mut self, queue: &QueueName, name: &str, now: Instant) -> Option<Tsid> {
        if !TaskLane::is_one(name) {
            return name.parse().ok();
        }
        let (id, new) = self.routes.task_lane(queue, name, now)?;
        if let Some(route) = new {
            self.board.add(id, &route, self.routes.rule(route.pool), now);
            if route.account.is_some() {
                // Otherwise it would be claimed, and given back, until the catalogue changes.
                self.hold(now);
            }
        }
        Some(id)
    }

    /// Jobs were made on this node.
    fn made(&mut self, made: Made) {
        made.subscriptions.into_iter().for_each(|lane| self.board.hint(lane));
        // Their lanes may be new.
        self.looks.queues.extend(made.tasks);
    }

    fn woken(&mut self, wake: Wake) {
        let Wake::Queues(queues) = wake else {
            self.looks.all_at = Instant::now();
            return;
        };
        for queue in queues {
            match self.board.few_lanes(&queue, FEW_LANES) {
                Some(lanes) => lanes.into_iter().for_each(|lane| self.board.hint(lane)),
                None => drop(self.looks.queues.insert(queue)),
            }
        }
    }

    fn granted(&mut self, asked: Instant, needs: &[LimitAsk], result: Result<Vec<LimitGrant>>, now: Instant) {
        match result {
            Ok(grants) => {
                for (need, grant) in needs.iter().zip(&grants) {
                    self.board.granted(need.pool, grant, asked, now);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the limits of pools could not be asked for; deliveries wait for them");
                needs.iter().for_each(|need| self.board.not_granted(need.pool, now));
            }
        }
    }

    /// Cancels jobs of a deleted subscription.
    fn cancel(&mut self, queue: QueueName, lane: Tsid, first: Option<QueuedEvent>) {
        let is_first = self.cancelling.insert(lane);
        if !is_first && first.is_none() {
            return;
        }
        let (jobs, sender) = (self.jobs.clone(), self.sender.clone());
        tokio::spawn(async move {
            let mut found: Vec<_> = first.into_iter().collect();
            loop {
                let ends = found.into_iter().map(|job| job.end_as(End::Cancelled, Some(deleted()), None));
                for ended in futures_util::future::join_all(ends).await {
                    if let Err(error) = ended {
                        tracing::warn!(%error, "a job of a deleted subscription could not be cancelled; trying again");
                    }
                }
                let quotas = [(lane.to_string(), CANCELLED_AT_ONCE)].into();
                let claim = JobClaim { queue: queue.clone(), quotas, max: CANCELLED_AT_ONCE };
                found = match is_first {
                    true => jobs.claim(claim).await.unwrap_or_default(),
                    false => Vec::new(),
                };
                if found.is_empty() {
                    break;
                }
            }
            if is_first {
                let _ = sender.send(News::Cancelled { lane });
            }
        });
    }

    /// Pauses a subscription whose receiver wants no more webhooks, as it was at the attempt.
    fn pause(&self, subscription: Arc<Subscription>) {
        let gateway = Arc::clone(&self.gateway);
        tokio::spawn(async move {
            // Whoever has changed the target since wants more.
            let on = crate::Match::Is(subscription.revision);
            match gateway.pause_subscription(subscription.id, None, on).await {
                Ok(_) => tracing::warn!(
                    subscription = %subscription.id, code = subscription.code,
                    "a subscription is paused: its receiver answered 410, it wants no more webhooks"
                ),
                Err(GatewayError::Changed(_) | GatewayError::NotFound(_)) => {}
                Err(error) => tracing::error!(
                    %error, subscription = %subscription.id,
                    "a subscription whose receiver answered 410 could not be paused: its other jobs are tried"
                ),
            }
        });
    }

    fn tell_breaker(&self, origin: &Origin, now: Instant) {
        metrics::gauge!("tidegate_breakers_open").set(self.board.open_breakers(now) as f64);
        let (client, target) = (origin.0.map(tracing::field::display), &origin.1);
        match self.board.breaker(origin, now) {
            State::Closed => tracing::info!(target, client, "webhooks succeed again: the breaker is closed"),
            State::Open(_) | State::HalfOpen => tracing::warn!(
                target,
                client,
                "webhooks fail: at least half of the last ones did; the breaker is open, and tries again every few seconds"
            ),
        }
    }
}

/// An attempt that is under way, and who hears of it.
struct UnderWay {
    lane: Tsid,
    route: Arc<Route>,
    subscription: Option<Arc<Subscription>>,
    /// Of its payload.
    bytes: u64,
    permit: Permit,
    meters: Arc<PoolMeters>,
    sender: mpsc::UnboundedSender<News>,
}

impl UnderWay {
    /// Makes the attempt and records it. Both are heard of, also if they fail within.
    async fn attempt(self, delivery: Delivery, job: QueuedEvent) {
        let Self { lane, route, subscription, bytes, permit, meters, sender } = self;
        let tried = AssertUnwindSafe(delivery.run(job)).catch_unwind().await.ok();
        let result = tried.as_ref().map_or(CallResult::NotMade, |tried| tried.result());
        // Sending fails when the router has stopped, which needs no news.
        let _ = sender.send(News::Ended { lane, route, permit, result, bytes });
        let recorded = match tried {
            Some(tried) => {
                meters.took(tried.took());
                recorded(tried).await
            }
            None => None,
        };
        if let Some(status) = recorded.and_then(|recorded| recorded.status) {
            meters.ended(status);
        }
        let _ = sender.send(News::Recorded { lane, subscription, recorded });
    }
}

/// Records an attempt; `None` if that failed.
async fn recorded(tried: Tried) -> Option<Recorded> {
    let error = match AssertUnwindSafe(tried.record()).catch_unwind().await {
        Ok(Ok(recorded)) => return Some(recorded),
        Ok(Err(error)) => GatewayError::from(error),
        Err(_) => failed_within(),
    };
    tracing::warn!(%error, "an attempt could not be recorded: its job is attempted again");
    None
}

/// Claims jobs, and reads what is said about those that are tasks. Where that fails, what was claimed is given back.
async fn claim_told(jobs: &Jobs, claim: JobClaim) -> tidegate::Result<Vec<Told>> {
    let claimed = jobs.claim(claim).await?;
    let is_task = |job: &QueuedEvent| job.lane_type.as_deref().is_some_and(TaskLane::is_one);
    let ids: Vec<_> = claimed.iter().filter(|job| is_task(job)).map(|job| job.id).collect();
    let mut tasks = jobs.tasks(&ids).await?.into_iter();
    let told = |job: QueuedEvent| {
        let task = if is_task(&job) { tasks.next().flatten() } else { None };
        (job, task)
    };
    Ok(claimed.into_iter().map(told).collect())
}

/// Why jobs are cancelled whose subscription is gone.
fn deleted() -> String {
    format!("[\"{DELETED}\"]")
}

impl Looks {
    fn new(now: Instant) -> Self {
        Self { is_looking: false, all_at: now, queues: BTreeSet::new(), not_before: now }
    }
}
