//! Turns concurrent single calls into batches.
//!
//! A [`Coalescer`] is one lane. It flushes at once when idle, else as soon as a flush returns; a flush is bounded by
//! count and weight, and callers wait for its answer. Waiting calls are bounded too: past a deadline the answer is
//! [`ErrorKind::Busy`]. Flushes run in tasks of their own, so a caller that goes away cancels nothing; they run on the
//! runtime the lane was made on, and when that is gone every call is told so. It knows nothing about events or databases:
//! urgency comes from giving each verb its own lane.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::error::{Error, ErrorKind, Result, closed, lost, stranded};

/// What a flush returns: one answer per item in order, or one error for all.
pub type Flushed<A> = Pin<Box<dyn Future<Output = Result<Vec<Result<A>>>> + Send>>;

/// The bounds of one lane.
#[derive(Debug, Clone)]
pub struct LaneLimits {
    /// Items of one flush at most.
    pub batch_items: usize,
    /// Weight of one flush at most, save for a single call that is heavier by itself.
    pub batch_weight: usize,
    /// Flushes at once at most.
    pub in_flight: usize,
    /// Items that wait or are being flushed at most.
    pub room_items: usize,
    /// Their weight at most.
    pub room_weight: usize,
    /// How long a call waits for room before it is told `Busy`.
    pub deadline: Duration,
    /// Whether calls whose caller is gone before their flush are left out.
    pub skip_gone: bool,
    /// Who may call at all.
    pub admit: Admit,
}

/// Asked in the caller's own task before a call is let in; its error is the call's. Lets everybody in by default.
#[derive(Clone)]
pub struct Admit(Arc<dyn Fn() -> Result<()> + Send + Sync>);

impl Admit {
    /// Asks this closure.
    pub fn new(check: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }
}

impl Default for Admit {
    fn default() -> Self {
        Self::new(|| Ok(()))
    }
}

impl fmt::Debug for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admit")
    }
}

impl Default for LaneLimits {
    fn default() -> Self {
        Self {
            batch_items: 1_000,
            batch_weight: 8 << 20,
            in_flight: 1,
            room_items: 10_000,
            room_weight: 32 << 20,
            deadline: Duration::from_secs(30),
            skip_gone: false,
            admit: Admit::default(),
        }
    }
}

/// One lane of calls. Clones are handles of the same lane.
pub struct Coalescer<I, A> {
    core: Arc<Core<I, A>>,
}

impl<I, A> Clone for Coalescer<I, A> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

impl<I, A> fmt::Debug for Coalescer<I, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").field("lane", &self.core.name).field("limits", &self.core.limits).finish()
    }
}

struct Core<I, A> {
    name: &'static str,
    limits: LaneLimits,
    weigh: fn(&I) -> usize,
    flush: Box<dyn Fn(Vec<I>) -> Flushed<A> + Send + Sync>,
    items: Semaphore,
    weight: Semaphore,
    state: Mutex<State<I, A>>,
    idle: Notify,
    runtime: Handle,
    batch_size: metrics::Histogram,
    flush_seconds: metrics::Histogram,
}

struct State<I, A> {
    waiting: VecDeque<Job<I, A>>,
    drivers: usize,
    closed: bool,
    /// The runtime it flushed on is gone.
    stranded: bool,
}

/// One call: one item, or many that stay together.
struct Job<I, A> {
    load: Load<I>,
    weight: usize,
    reply: Reply<A>,
}

enum Load<I> {
    One(I),
    Many(Vec<I>),
}

enum Reply<A> {
    One(oneshot::Sender<Result<A>>),
    Many(oneshot::Sender<Vec<Result<A>>>),
}

/// An admitted call. It is flushed whether or not this is awaited.
#[derive(Debug)]
pub struct Ticket<T>(oneshot::Receiver<T>);

impl<A> Ticket<Result<A>> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The item's own error, or the one that hit its whole flush.
    pub async fn answer(self) -> Result<A> {
        self.0.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl<A> Ticket<Vec<Result<A>>> {
    /// Waits for the answers.
    ///
    /// # Errors
    /// When the flush was lost; otherwise each item has its own answer.
    pub async fn answers(self) -> Result<Vec<Result<A>>> {
        self.0.await.map_err(|_| lost())
    }
}

impl<I, A> Coalescer<I, A>
where
    I: Clone + Send + 'static,
    A: Send + 'static,
{
    /// A lane that flushes with `flush` on the current runtime. `name` is its label in metrics.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new<F, Fut>(name: &'static str, limits: LaneLimits, weigh: fn(&I) -> usize, flush: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Result<A>>>> + Send + 'static,
    {
        let limits = LaneLimits {
            batch_items: limits.batch_items.max(1),
            in_flight: limits.in_flight.max(1),
            room_items: limits.room_items.clamp(1, u32::MAX as usize >> 3),
            room_weight: limits.room_weight.clamp(1, u32::MAX as usize >> 3),
            ..limits
        };
        let core = Core {
            name,
            weigh,
            flush: Box::new(move |items| Box::pin(flush(items))),
            items: Semaphore::new(limits.room_items),
            weight: Semaphore::new(limits.room_weight),
            state: Mutex::new(State { waiting: VecDeque::new(), drivers: 0, closed: false, stranded: false }),
            idle: Notify::new(),
            runtime: Handle::current(),
            batch_size: metrics::histogram!("tidegate_batch_size", "lane" => name),
            flush_seconds: metrics::histogram!("tidegate_flush_seconds", "lane" => name),
            limits,
        };
        Self { core: Arc::new(core) }
    }

    /// Sends one item and waits for its answer.
    ///
    /// # Errors
    /// `Busy` when there was no room in time, `Unavailable` when the lane is closed, else the flush's error.
    pub async fn call(&self, item: I) -> Result<A> {
        self.submit(item).await?.answer().await
    }

    /// Sends items that stay together and in order, in as many flushes as their size needs, one after the other.
    /// Once begun it goes on even if the caller goes away.
    pub async fn call_many(&self, items: Vec<I>) -> Vec<Result<A>> {
        let total = items.len();
        // Several chunks go on in a task of their own, which nobody could be asked about.
        if let Err(error) = (self.core.limits.admit.0)() {
            return (0..total).map(|_| Err(error.clone())).collect();
        }
        let mut chunks = self.split(items);
        if chunks.len() <= 1 {
            let Some(chunk) = chunks.pop_front() else { return Vec::new() };
            return self.call_chunk(chunk).await;
        }
        let lane = self.clone();
        let all = self.core.runtime.spawn(async move {
            let mut answers = Vec::with_capacity(total);
            for chunk in chunks {
                answers.extend(lane.call_chunk(chunk).await);
            }
            answers
        });
        all.await.unwrap_or_else(|_| {
            let error = if self.core.lock().stranded { stranded() } else { lost() };
            (0..total).map(|_| Err(error.clone())).collect()
        })
    }

    async fn call_chunk(&self, chunk: Vec<I>) -> Vec<Result<A>> {
        let length = chunk.len();
        let answers = match self.submit_many(chunk).await {
            Ok(ticket) => ticket.answers().await,
            Err(error) => Err(error),
        };
        answers.unwrap_or_else(|error| (0..length).map(|_| Err(error.clone())).collect())
    }

    /// Waits for room, then hands one item over.
    ///
    /// # Errors
    /// `Busy` when there was no room in time, `Unavailable` when the lane is closed.
    pub async fn submit(&self, item: I) -> Result<Ticket<Result<A>>> {
        (self.core.limits.admit.0)()?;
        let weight = self.core.admitted_weight((self.core.weigh)(&item));
        self.core.admit(1, weight).await?;
        let (reply, ticket) = oneshot::channel();
        self.core.enqueue(Job { load: Load::One(item), weight, reply: Reply::One(reply) })?;
        Ok(Ticket(ticket))
    }

    /// Waits for room, then hands over items that go into one flush. They should fit the bounds of one.
    ///
    /// # Errors
    /// `Busy` when there was no room in time, `Unavailable` when the lane is closed.
    pub async fn submit_many(&self, items: Vec<I>) -> Result<Ticket<Vec<Result<A>>>> {
        (self.core.limits.admit.0)()?;
        let weight = self.core.admitted_weight(items.iter().map(self.core.weigh).sum());
        self.core.admit(items.len(), weight).await?;
        let (reply, ticket) = oneshot::channel();
        self.core.enqueue(Job { load: Load::Many(items), weight, reply: Reply::Many(reply) })?;
        Ok(Ticket(ticket))
    }

    /// Cuts items into pieces that each fit one flush.
    pub fn split(&self, items: Vec<I>) -> VecDeque<Vec<I>> {
        let limits = &self.core.limits;
        let fits = items.len() <= limits.batch_items
            && items.iter().map(self.core.weigh).try_fold(0_usize, usize::checked_add) <= Some(limits.batch_weight);
        if items.is_empty() || fits {
            return if items.is_empty() { VecDeque::new() } else { VecDeque::from([items]) };
        }
        let mut chunks = VecDeque::new();
        let mut chunk = Vec::new();
        let mut weight = 0;
        for item in items {
            let more = (self.core.weigh)(&item);
            if !chunk.is_empty() && (chunk.len() == limits.batch_items || weight + more > limits.batch_weight) {
                chunks.push_back(std::mem::take(&mut chunk));
                weight = 0;
            }
            weight += more;
            chunk.push(item);
        }
        chunks.push_back(chunk);
        chunks
    }

    /// How many flushes run at once at most.
    #[must_use]
    pub fn at_once(&self) -> usize {
        self.core.limits.in_flight
    }

    /// Refuses further calls; what was admitted is still flushed.
    pub fn close(&self) {
        self.core.lock().closed = true;
        self.core.items.close();
        self.core.weight.close();
    }

    /// Whether further calls are refused.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core.lock().closed
    }

    /// Waits until nothing waits and no flush runs.
    pub async fn idle(&self) {
        loop {
            let quiet = self.core.idle.notified();
            if self.core.lock().drivers == 0 {
                return;
            }
            quiet.await;
        }
    }

    /// Whether two handles are of the same lane.
    #[must_use]
    pub fn same_lane(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl<I, A> Core<I, A>
where
    I: Clone + Send + 'static,
    A: Send + 'static,
{
    /// A call that is heavier than the whole room is let in alone.
    fn admitted_weight(&self, weight: usize) -> usize {
        weight.clamp(1, self.limits.room_weight)
    }

    async fn admit(&self, items: usize, weight: usize) -> Result<()> {
        let items = items.min(self.limits.room_items) as u32;
        let weight = weight as u32;
        if let Ok(room) = self.items.try_acquire_many(items)
            && let Ok(weight_room) = self.weight.try_acquire_many(weight)
        {
            room.forget();
            weight_room.forget();
            return Ok(());
        }
        let both = async {
            let room = self.items.acquire_many(items).await.map_err(|_| self.refusal())?;
            let weight_room = self.weight.acquire_many(weight).await.map_err(|_| self.refusal())?;
            room.forget();
            weight_room.forget();
            Ok(())
        };
        tokio::time::timeout(self.limits.deadline, both).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Busy,
                format!("the {} lane had no room within its deadline: slow down", self.name),
            ))
        })
    }

    fn leave(&self, items: usize, weight: usize) {
        self.items.add_permits(items.min(self.limits.room_items));
        self.weight.add_permits(weight);
    }

    fn enqueue(self: &Arc<Self>, job: Job<I, A>) -> Result<()> {
        let start = {
            let mut state = self.lock();
            if state.closed {
                drop(state);
                return Err(self.refusal());
            }
            state.waiting.push_back(job);
            let start = state.drivers < self.limits.in_flight;
            state.drivers += usize::from(start);
            start
        };
        if start {
            let driver = Driver { core: Arc::clone(self), done: false };
            self.runtime.spawn(driver.drive());
        }
        Ok(())
    }

    fn take(&self) -> Option<Vec<Job<I, A>>> {
        let mut state = self.lock();
        let mut jobs = Vec::new();
        let (mut items, mut weight) = (0, 0);
        while let Some(job) = state.waiting.front() {
            let fits =
                items + job.load.len() <= self.limits.batch_items && weight + job.weight <= self.limits.batch_weight;
            if !jobs.is_empty() && !fits {
                break;
            }
            let Some(job) = state.waiting.pop_front() else { break };
            if self.limits.skip_gone && job.reply.is_gone() {
                self.leave(job.load.len(), job.weight);
                continue;
            }
            items += job.load.len();
            weight += job.weight;
            jobs.push(job);
        }
        if jobs.is_empty() {
            state.drivers -= 1;
            if state.drivers == 0 {
                self.idle.notify_waiters();
            }
            return None;
        }
        Some(jobs)
    }

    async fn flush_jobs(&self, jobs: Vec<Job<I, A>>) {
        let alone = jobs.len() == 1;
        let mut items = Vec::new();
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs {
            replies.push((job.load.len(), job.weight, job.reply));
            match job.load {
                Load::One(item) => items.push(item),
                Load::Many(many) if items.is_empty() => items = many,
                Load::Many(many) => items.extend(many),
            }
        }
        let started = Instant::now();
        let total = items.len();
        self.batch_size.record(total as f64);
        let answers = if alone {
            self.flush_once(items).await.unwrap_or_else(|error| (0..total).map(|_| Err(error.clone())).collect())
        } else {
            self.flush_apart(items).await
        };
        self.flush_seconds.record(started.elapsed().as_secs_f64());
        self.hand_out(replies, answers);
    }

    fn hand_out(&self, mut replies: Vec<(usize, usize, Reply<A>)>, answers: Vec<Result<A>>) {
        if let [(_, _, Reply::Many(_))] = replies.as_slice() {
            if let Some((length, weight, Reply::Many(reply))) = replies.pop() {
                self.leave(length, weight);
                let _ = reply.send(answers);
            }
            return;
        }
        let mut answers = answers.into_iter();
        for (length, weight, reply) in replies {
            self.leave(length, weight);
            // A caller that is gone gets nothing; an answer that must not be lost acts when it is dropped.
            match reply {
                Reply::One(reply) => {
                    let _ = reply.send(answers.next().unwrap_or_else(|| Err(lost())));
                }
                Reply::Many(reply) => {
                    let _ = reply.send(answers.by_ref().take(length).collect());
                }
            }
        }
    }

    /// Flushes several callers' items. When all are refused because of one, halves are tried, so that only it fails.
    fn flush_apart<'a>(&'a self, mut items: Vec<I>) -> Pin<Box<dyn Future<Output = Vec<Result<A>>> + Send + 'a>> {
        Box::pin(async move {
            let total = items.len();
            match self.flush_once(items.clone()).await {
                Ok(answers) => answers,
                Err(error) if error.kind() == ErrorKind::Invalid && total > 1 => {
                    let right = items.split_off(total / 2);
                    let mut answers = self.flush_apart(items).await;
                    answers.extend(self.flush_apart(right).await);
                    answers
                }
                Err(error) => (0..total).map(|_| Err(error.clone())).collect(),
            }
        })
    }

    async fn flush_once(&self, items: Vec<I>) -> Result<Vec<Result<A>>> {
        let total = items.len();
        let flush = AssertUnwindSafe(async { (self.flush)(items).await }).catch_unwind();
        match flush.await {
            Ok(Ok(answers)) if answers.len() == total => Ok(answers),
            Ok(Ok(answers)) => {
                tracing::error!(lane = self.name, items = total, answers = answers.len(), "answers do not match items");
                Err(lost())
            }
            Ok(Err(error)) => Err(error),
            Err(_panic) => {
                tracing::error!(lane = self.name, "a flush panicked");
                Err(lost())
            }
        }
    }
}

impl<I, A> Core<I, A> {
    fn lock(&self) -> MutexGuard<'_, State<I, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why further calls are refused.
    fn refusal(&self) -> Error {
        if self.lock().stranded { stranded() } else { closed() }
    }

    /// Nobody will flush any more: tells those who wait, and refuses whoever comes.
    fn strand(&self) {
        let jobs = {
            let mut state = self.lock();
            state.drivers -= 1;
            (state.closed, state.stranded) = (true, true);
            std::mem::take(&mut state.waiting)
        };
        self.items.close();
        self.weight.close();
        for job in jobs {
            job.refuse(&stranded());
        }
        self.idle.notify_waiters();
    }
}

/// One of those who flush. Dropped before it is done, its runtime is gone.
struct Driver<I, A> {
    core: Arc<Core<I, A>>,
    done: bool,
}

impl<I, A> Driver<I, A>
where
    I: Clone + Send + 'static,
    A: Send + 'static,
{
    /// Flushes until nothing waits. A driver is counted from before it is spawned until `take` finds nothing.
    async fn drive(mut self) {
        while let Some(jobs) = self.core.take() {
            self.core.flush_jobs(jobs).await;
            // Callers that were just answered often come back at once: let them, so that one flush serves them all.
            tokio::task::yield_now().await;
        }
        self.done = true;
    }
}

impl<I, A> Drop for Driver<I, A> {
    fn drop(&mut self) {
        if !self.done {
            self.core.strand();
        }
    }
}

impl<I, A> Job<I, A> {
    fn refuse(self, error: &Error) {
        // Whoever is gone needs no answer.
        match self.reply {
            Reply::One(reply) => drop(reply.send(Err(error.clone()))),
            Reply::Many(reply) => drop(reply.send((0..self.load.len()).map(|_| Err(error.clone())).collect())),
        }
    }
}

impl<I> Load<I> {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(many) => many.len(),
        }
    }
}

impl<A> Reply<A> {
    fn is_gone(&self) -> bool {
        match self {
            Self::One(reply) => reply.is_closed(),
            Self::Many(reply) => reply.is_closed(),
        }
    }
}
