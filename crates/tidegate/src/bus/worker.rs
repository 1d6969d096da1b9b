//! The worker loop of the bus: claims events that have a route, runs their handlers, ends them. Knows neither how
//! events are claimed nor what handlers do.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::End;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::router::Router;
use crate::backoff::Backoff;
use crate::error::{ErrorKind, Result};
use crate::manager::keeper::Keeper;
use crate::moments::distant;
use crate::queue::consumer::Consumer;
use crate::queue::delivery::{QueuedEvent, json_list};

/// The default of [`BusWorker::idle_wait`].
const IDLE_WAIT: Duration = Duration::from_secs(10);
/// The pause after the first failed claim; it doubles with every further one up to the idle wait.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// A worker with a shorter idle wait pauses for this long after every failed claim.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// A loop that claims events and runs their handlers. See [`EventBus::worker`](crate::EventBus::worker).
///
/// A handler that returns `Ok` ends its event as COMPLETED; an error, a panic or an unreadable payload ends it as
/// FAILED, with the error in the log. When the worker is stopped while a handler runs, the event is released and the
/// attempt does not count. Leases of running handlers are extended by heartbeats; when that fails, the handler is
/// dropped before its lease ends.
#[derive(Debug, Clone)]
pub struct BusWorker {
    consumer: Consumer,
    router: Router,
    idle_wait: Duration,
    concurrency: usize,
    grace: Duration,
}

impl BusWorker {
    pub(super) fn new(consumer: Consumer, router: Router) -> Self {
        Self { consumer, router, idle_wait: IDLE_WAIT, concurrency: 1, grace: Duration::ZERO }
    }

    /// Sets how long it waits when there is nothing to claim; 10 s by default. A wake-up ends the wait at once, so this
    /// matters only where there is none: for leases that ran out and for lost wake-ups.
    #[must_use]
    pub fn idle_wait(mut self, wait: Duration) -> Self {
        self.idle_wait = wait.max(Duration::from_millis(1));
        self
    }

    /// Sets how many events are handled at once; 1 by default.
    #[must_use]
    pub fn concurrency(mut self, events: usize) -> Self {
        self.concurrency = events.max(1);
        self
    }

    /// Sets how long running handlers may continue after shutdown before they are dropped; zero by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Runs until `shutdown` completes or the queue is closed. Then it claims nothing more, drops handlers that still
    /// run after the grace period, and releases their events. After an error of the database it tries again.
    ///
    /// Dropping this future does the same, except that the events are released in the background.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let (stop, stopped) = watch::channel(false);
        let keeper = self.keeper();
        let mut running = JoinSet::new();
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.work(&keeper, &mut running, stopped) => {}
        }
        if tokio::time::timeout(self.grace, all_done(&mut running)).await.is_err() {
            let _ = stop.send(true);
            all_done(&mut running).await;
        }
        // A claim under way may still return events, which are then released.
        self.consumer.batcher().wait_for_last_claim().await;
        self.consumer.shared.flush_releases().await;
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(self.consumer.shared.batchers.extend.clone(), self.consumer.key.lease)
    }

    /// Claims events and spawns their handlers until the queue is closed.
    async fn work(&self, keeper: &Keeper, running: &mut JoinSet<()>, stopped: watch::Receiver<bool>) {
        let shared = &self.consumer.shared;
        let wake_up = shared.wake_ups.of(&self.consumer.key.queue);
        let mut pauses = Backoff::new(FIRST_PAUSE, self.idle_wait.max(SHORTEST_PAUSE));
        while !shared.is_closed() {
            while let Some(done) = running.try_join_next() {
                log_loss(done);
            }
            let free = self.concurrency.saturating_sub(running.len());
            // Subscribed before the poll, so that no wake-up is missed in between.
            let (mut wakes, polled_at) = (wake_up.listen(), Instant::now());
            let claimed = self.consumer.poll_many(free).await;
            let wait = match claimed.and_then(|events| self.begin(events, keeper, running, &stopped)) {
                // Without capacity nothing was claimed.
                Ok(0) if free == 0 => self.idle_wait,
                Ok(begun) => {
                    pauses.succeeded();
                    if begun > 0 {
                        continue;
                    }
                    self.idle_wait
                }
                Err(error) => {
                    let pause = pauses.failed();
                    tracing::warn!(%error, retry_in = ?pause, "claiming events failed, retrying");
                    pause
                }
            };
            let mut alarm = distant(wait);
            if let Some(moment) = wake_up.next_moment(polled_at) {
                alarm = alarm.min(moment.into());
            }
            tokio::select! {
                Some(done) = running.join_next() => log_loss(done),
                () = tokio::time::sleep_until(alarm), if free > 0 => {}
                _ = wakes.changed(), if free > 0 => {}
            }
        }
    }

    /// Handles events until none can be claimed now, and returns how many it handled. Events that handlers publish
    /// meanwhile are handled too; delayed ones are not.
    ///
    /// # Errors
    /// Any error of the store while claiming.
    pub async fn drain(&self) -> Result<usize> {
        let (_stop, stopped) = watch::channel(false);
        let keeper = self.keeper();
        let mut handled = 0;
        loop {
            let events = self.consumer.poll_many(self.concurrency).await?;
            let mut running = JoinSet::new();
            match self.begin(events, &keeper, &mut running, &stopped)? {
                0 => return Ok(handled),
                begun => handled += begun,
            }
            all_done(&mut running).await;
        }
    }

    /// Spawns a task per event, which is aborted when its lease is lost; returns how many.
    fn begin(
        &self,
        events: Vec<QueuedEvent>,
        keeper: &Keeper,
        running: &mut JoinSet<()>,
        stopped: &watch::Receiver<bool>,
    ) -> Result<usize> {
        keeper.hold(events.iter().map(QueuedEvent::lease))?;
        let count = events.len();
        for event in events {
            let lease = Arc::clone(event.lease());
            lease.works_in(running.spawn(self.clone().handle(event, stopped.clone())));
        }
        Ok(count)
    }

    async fn handle(self, event: QueuedEvent, mut stopped: watch::Receiver<bool>) {
        // A local is dropped after the handler's future: the event is released once the handler is gone.
        let event = event;
        let id = event.id;
        if !event.lease().holds(Instant::now()) {
            tracing::warn!(%id, "lease ran out before the handler started: event is released");
            return;
        }
        let handled = tokio::select! {
            handled = self.router.route(&event) => handled,
            // Stopped: release it without an attempt outcome.
            () = async { let _ = stopped.wait_for(|stop| *stop).await; } => {
                event.lease().attempt_over();
                if let Err(error) = event.release().await {
                    tracing::warn!(%id, %error, "releasing an event failed: its lease may have to run out");
                }
                return;
            }
        };
        // The lease is still extended until the end is written.
        event.lease().attempt_over();
        let ended = match handled {
            Ok(()) => event.end_as(End::Completed, None, None).await,
            Err(error) => {
                tracing::warn!(%id, event_type = event.event_type(), %error, "handler failed: event ends as FAILED");
                event.end_as(End::Failed, Some(json_list([error.to_string()])), None).await
            }
        };
        match ended {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Fenced => {
                tracing::warn!(%id, "event was handled, but its lease was lost: it may be handled again");
            }
            Err(error) => tracing::warn!(%id, %error, "ending a handled event failed: it may be handled again"),
        }
    }
}

async fn all_done(running: &mut JoinSet<()>) {
    while let Some(done) = running.join_next().await {
        log_loss(done);
    }
}

/// Panics of handlers are caught, so a task should not panic. If it does, dropping its event releases it.
fn log_loss(done: std::result::Result<(), tokio::task::JoinError>) {
    if let Err(error) = done
        && error.is_panic()
    {
        tracing::error!(%error, "task of a bus worker panicked: its event is released");
    }
}
