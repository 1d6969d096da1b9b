//! The inside of a batcher: admission, the calls that wait, and the tasks that flush them.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::limits::BatcherLimits;
use crate::error::{Error, ErrorKind, Result, closed, lost, stranded};

/// What a flush returns: one result per item in order, or one error for all.
pub type Flushed<A> = Pin<Box<dyn Future<Output = Result<Vec<Result<A>>>> + Send>>;

pub(super) struct Core<I, A> {
    pub(super) name: &'static str,
    pub(super) limits: BatcherLimits,
    pub(super) weigh: fn(&I) -> usize,
    flush: Box<dyn Fn(Vec<I>) -> Flushed<A> + Send + Sync>,
    items: Semaphore,
    weight: Semaphore,
    state: Mutex<State<I, A>>,
    idle: Notify,
    /// The runtime that it flushes on.
    pub(super) runtime: Handle,
    batch_size: metrics::Histogram,
    flush_seconds: metrics::Histogram,
}

struct State<I, A> {
    waiting: VecDeque<Call<I, A>>,
    /// Running [`Driver`]s.
    drivers: usize,
    closed: bool,
    /// Whether the runtime that it flushes on has ended.
    stranded: bool,
}

/// One call: one item, or several that go into the same flush.
pub(super) struct Call<I, A> {
    pub(super) load: Load<I>,
    pub(super) weight: usize,
    pub(super) reply: Reply<A>,
}

pub(super) enum Load<I> {
    One(I),
    Many(Vec<I>),
}

pub(super) enum Reply<A> {
    One(oneshot::Sender<Result<A>>),
    Many(oneshot::Sender<Vec<Result<A>>>),
}

impl<I, A> Core<I, A>
where
    I: Clone + Send + 'static,
    A: Send + 'static,
{
    /// `limits` are corrected to what a batcher can do: at least one item and one flush at once.
    pub(super) fn new(
        name: &'static str,
        limits: BatcherLimits,
        weigh: fn(&I) -> usize,
        flush: Box<dyn Fn(Vec<I>) -> Flushed<A> + Send + Sync>,
    ) -> Self {
        let limits = BatcherLimits {
            batch_items: limits.batch_items.max(1),
            in_flight: limits.in_flight.max(1),
            room_items: limits.room_items.clamp(1, u32::MAX as usize >> 3),
            room_weight: limits.room_weight.clamp(1, u32::MAX as usize >> 3),
            ..limits
        };
        Self {
            name,
            weigh,
            flush,
            items: Semaphore::new(limits.room_items),
            weight: Semaphore::new(limits.room_weight),
            state: Mutex::new(State { waiting: VecDeque::new(), drivers: 0, closed: false, stranded: false }),
            idle: Notify::new(),
            runtime: Handle::current(),
            batch_size: metrics::histogram!("tidegate_batch_size", "lane" => name),
            flush_seconds: metrics::histogram!("tidegate_flush_seconds", "lane" => name),
            limits,
        }
    }

    /// A call that is heavier than the limit counts as the limit, so that it is admitted alone.
    pub(super) fn admitted_weight(&self, weight: usize) -> usize {
        weight.clamp(1, self.limits.room_weight)
    }

    /// Waits until a call of so many items and this weight is admitted.
    pub(super) async fn admit(&self, items: usize, weight: usize) -> Result<()> {
        let items = items.min(self.limits.room_items) as u32;
        let weight = weight as u32;
        if let Ok(items_permit) = self.items.try_acquire_many(items)
            && let Ok(weight_permit) = self.weight.try_acquire_many(weight)
        {
            items_permit.forget();
            weight_permit.forget();
            return Ok(());
        }
        let both = async {
            let items_permit = self.items.acquire_many(items).await.map_err(|_| self.refusal())?;
            let weight_permit = self.weight.acquire_many(weight).await.map_err(|_| self.refusal())?;
            items_permit.forget();
            weight_permit.forget();
            Ok(())
        };
        tokio::time::timeout(self.limits.deadline, both).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Busy,
                format!("too many {} calls wait: not admitted within {:?}, slow down", self.name, self.limits.deadline),
            ))
        })
    }

    fn free(&self, items: usize, weight: usize) {
        self.items.add_permits(items.min(self.limits.room_items));
        self.weight.add_permits(weight);
    }

    /// Queues an admitted call, and starts a driver unless enough of them run.
    pub(super) fn enqueue(self: &Arc<Self>, call: Call<I, A>) -> Result<()> {
        let start = {
            let mut state = self.lock();
            if state.closed {
                drop(state);
                return Err(self.refusal());
            }
            state.waiting.push_back(call);
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

    /// The calls of the next flush; `None` when none waits, and the driver that asked is done.
    fn take(&self) -> Option<Vec<Call<I, A>>> {
        let mut state = self.lock();
        let mut calls = Vec::new();
        let (mut items, mut weight) = (0, 0);
        while let Some(call) = state.waiting.front() {
            let fits =
                items + call.load.len() <= self.limits.batch_items && weight + call.weight <= self.limits.batch_weight;
            if !calls.is_empty() && !fits {
                break;
            }
            let Some(call) = state.waiting.pop_front() else { break };
            if self.limits.skip_gone && call.reply.is_gone() {
                self.free(call.load.len(), call.weight);
                continue;
            }
            items += call.load.len();
            weight += call.weight;
            calls.push(call);
        }
        if calls.is_empty() {
            state.drivers -= 1;
            if state.drivers == 0 {
                self.idle.notify_waiters();
            }
            return None;
        }
        Some(calls)
    }

    async fn flush_calls(&self, calls: Vec<Call<I, A>>) {
        let alone = calls.len() == 1;
        let mut items = Vec::new();
        let mut replies = Vec::with_capacity(calls.len());
        for call in calls {
            replies.push((call.load.len(), call.weight, call.reply));
            match call.load {
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
            self.flush_bisecting(items).await
        };
        self.flush_seconds.record(started.elapsed().as_secs_f64());
        self.reply_all(replies, answers);
    }

    fn reply_all(&self, mut replies: Vec<(usize, usize, Reply<A>)>, answers: Vec<Result<A>>) {
        if let [(_, _, Reply::Many(_))] = replies.as_slice() {
            if let Some((length, weight, Reply::Many(reply))) = replies.pop() {
                self.free(length, weight);
                let _ = reply.send(answers);
            }
            return;
        }
        let mut answers = answers.into_iter();
        for (length, weight, reply) in replies {
            self.free(length, weight);
            // Sending fails when the caller is gone. Answers that must not be lost, such as leases, act on being
            // dropped.
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

    /// Flushes items of several callers. When a flush is refused as `Invalid`, its halves are tried, so that only the
    /// invalid items fail.
    fn flush_bisecting<'a>(&'a self, mut items: Vec<I>) -> Pin<Box<dyn Future<Output = Vec<Result<A>>> + Send + 'a>> {
        Box::pin(async move {
            let total = items.len();
            match self.flush_once(items.clone()).await {
                Ok(answers) => answers,
                Err(error) if error.kind() == ErrorKind::Invalid && total > 1 => {
                    let right = items.split_off(total / 2);
                    let mut answers = self.flush_bisecting(items).await;
                    answers.extend(self.flush_bisecting(right).await);
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
                tracing::error!(
                    batcher = self.name,
                    items = total,
                    answers = answers.len(),
                    "flush returned a wrong number of answers: its callers get an indeterminate error"
                );
                Err(lost())
            }
            Ok(Err(error)) => Err(error),
            Err(_panic) => {
                tracing::error!(batcher = self.name, "flush panicked: its callers get an indeterminate error");
                Err(lost())
            }
        }
    }
}

impl<I, A> Core<I, A> {
    fn lock(&self) -> MutexGuard<'_, State<I, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.items.close();
        self.weight.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether the runtime that it flushes on has ended.
    pub(super) fn is_stranded(&self) -> bool {
        self.lock().stranded
    }

    /// Waits until no call waits and no flush runs.
    pub(super) async fn idle(&self) {
        loop {
            let quiet = self.idle.notified();
            if self.lock().drivers == 0 {
                return;
            }
            quiet.await;
        }
    }

    /// Why further calls are refused.
    fn refusal(&self) -> Error {
        if self.lock().stranded { stranded() } else { closed() }
    }

    /// The runtime has ended, so there are no more flushes: refuses the calls that wait and all further ones.
    fn strand(&self) {
        let calls = {
            let mut state = self.lock();
            state.drivers -= 1;
            (state.closed, state.stranded) = (true, true);
            std::mem::take(&mut state.waiting)
        };
        self.items.close();
        self.weight.close();
        for call in calls {
            call.refuse(&stranded());
        }
        self.idle.notify_waiters();
    }
}

/// A task that flushes. When it is dropped before it is done, its runtime has ended.
struct Driver<I, A> {
    core: Arc<Core<I, A>>,
    done: bool,
}

impl<I, A> Driver<I, A>
where
    I: Clone + Send + 'static,
    A: Send + 'static,
{
    /// Flushes until no call waits. A driver is counted from before it is spawned until `take` finds nothing.
    async fn drive(mut self) {
        while let Some(calls) = self.core.take() {
            self.core.flush_calls(calls).await;
            // Callers that were just answered often call again at once: yield, so that one flush serves them all.
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

impl<I, A> Call<I, A> {
    fn refuse(self, error: &Error) {
        // Sending fails when the caller is gone, who needs no answer.
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
