//! The bus's worker loop: claim what is routed, hand it to its handler, finalise. Knows neither how events are claimed
//! nor what handlers do.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::End;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::router::Router;
use crate::consumer::{Consumer, distant};
use crate::delivery::QueuedEvent;
use crate::error::{ErrorKind, Result};
use crate::keeper::Keeper;
use crate::manager::LAST_CLAIM;

/// How long an idle worker waits before it looks by itself, when nobody says otherwise.
const IDLE_WAIT: Duration = Duration::from_secs(10);
/// The first wait after the database could not be asked; it doubles up to the idle wait.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A loop that takes events and has them handled. See [`EventBus::worker`](crate::EventBus::worker).
///
/// A handler that answers `Ok` ends its event as COMPLETED; one that answers an error, panics, or cannot read the payload
/// ends it as FAILED, with the error in the log. A worker that is stopped meanwhile gives no verdict: the event goes back
/// into its queue, and the attempt does not count. A long handler keeps its lease by heartbeat; where that fails, it is cut
/// off before the lease ends.
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

    /// How long it waits when there is nothing to do; 10 s by default. Wake-ups rouse it at once, so this only matters
    /// for what no wake-up tells: leases that ran out, and hints that were lost.
    #[must_use]
    pub fn idle_wait(mut self, wait: Duration) -> Self {
        self.idle_wait = wait.max(Duration::from_millis(1));
        self
    }

    /// How many events are handled at once; 1 by default.
    #[must_use]
    pub fn concurrency(mut self, events: usize) -> Self {
        self.concurrency = events.max(1);
        self
    }

    /// How long running handlers may go on after shutdown before they are cut off; not at all by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Works until `shutdown` completes (or the queue is closed). Then it takes nothing more, cuts running handlers off
    /// where they wait, and gives their events back. Errors of the database are waited out.
    ///
    /// Dropping this future does the same, except that nobody waits until the events are given back.
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
        // A claim under way may still bring events for nobody, which are released then. Others may use its lane, too.
        let _ = tokio::time::timeout(LAST_CLAIM, self.consumer.lane().idle()).await;
        self.consumer.shared.flush_releases().await;
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(self.consumer.shared.lanes.extend.clone(), self.consumer.key.lease)
    }

    /// Claims and spawns until the queue is closed.
    async fn work(&self, keeper: &Keeper, running: &mut JoinSet<()>, stopped: watch::Receiver<bool>) {
        let shared = &self.consumer.shared;
        let bell = shared.bells.of(&self.consumer.key.queue);
        let mut pause = FIRST_PAUSE;
        while !shared.is_closed() {
            while let Some(done) = running.try_join_next() {
                log_loss(done);
            }
            let free = self.concurrency.saturating_sub(running.len());
            // Heard from before the look on, so that nothing falls between.
            let (mut rung, looked) = (bell.listen(), Instant::now());
            let claimed = self.consumer.poll_many(free).await;
            let wait = match claimed.and_then(|events| self.begin(events, keeper, running, &stopped)) {
                Ok(0) => self.idle_wait,
                Ok(_) => {
                    pause = FIRST_PAUSE;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "events cannot be claimed, trying again");
                    pause = (pause * 2).min(self.idle_wait.max(FIRST_PAUSE));
                    pause
                }
            };
            let mut alarm = distant(wait);
            if let Some(moment) = bell.next_moment(looked) {
                alarm = alarm.min(moment.into());
            }
            tokio::select! {
                Some(done) = running.join_next() => log_loss(done),
                () = tokio::time::sleep_until(alarm), if free > 0 => {}
                _ = rung.changed(), if free > 0 => {}
            }
        }
    }

    /// Handles events until none can be claimed now, and answers how many that were. Events that handlers publish
    /// meanwhile are handled too; delayed ones are left.
    ///
    /// # Errors
    /// The store's, from claiming.
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

    /// Has events handled, each in a task that is stopped when its lease is lost; answers how many.
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
        // A local, so that the handler is gone before its event is given back.
        let event = event;
        let id = event.id;
        if !event.lease().holds(Instant::now()) {
            tracing::warn!(%id, "an event is given up: its lease ran out before it was begun");
            return;
        }
        let handled = tokio::select! {
            handled = self.router.route(&event) => handled,
            // No verdict: whoever takes it next starts afresh.
            () = async { let _ = stopped.wait_for(|stop| *stop).await; } => {
                event.lease().settle();
                if let Err(error) = event.release().await {
                    tracing::warn!(%id, %error, "an event could not be given back: its lease runs out");
                }
                return;
            }
        };
        // The lease is kept until the end is written.
        event.lease().settle();
        let ended = match handled {
            Ok(()) => event.end_as(End::Completed, None, None).await,
            Err(error) => {
                tracing::warn!(%id, event_type = event.event_type(), %error, "an event failed");
                let errors = serde_json::Value::from_iter([error.to_string()]).to_string();
                event.end_as(End::Failed, Some(errors), None).await
            }
        };
        match ended {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Fenced => {
                tracing::warn!(%id, "an event was handled for longer than its lease: another worker has it");
            }
            Err(error) => tracing::warn!(%id, %error, "an event was handled but could not be finalised"),
        }
    }
}

async fn all_done(running: &mut JoinSet<()>) {
    while let Some(done) = running.join_next().await {
        log_loss(done);
    }
}

/// A task of ours never panics by itself: handlers' panics are caught. Should one, its event was released.
fn log_loss(done: std::result::Result<(), tokio::task::JoinError>) {
    if let Err(error) = done
        && error.is_panic()
    {
        tracing::error!(%error, "handling an event broke off: it is released");
    }
}
