//! A durable event queue to embed.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate::{EventQueue, NewEvent};
//!
//! #[tokio::main]
//! async fn main() -> tidegate::Result<()> {
//!     let queue = EventQueue::open("sqlite:events.db").await?; // or postgres://user@host/database
//!     queue.publish(NewEvent::new("order.created", r#"{"amount": 99.99}"#)).await?;
//!
//!     while let Some(event) = queue.next(Duration::from_secs(1)).await? {
//!         println!("{} {:?}", event.event_type(), event.payload());
//!         event.complete().await?; // or fail(error), retry_after(…), snooze(…), release()
//!     }
//!     queue.close().await;
//!     Ok(())
//! }
//! ```
//!
//! [`EventQueue`] turns concurrent single calls into batches (see [`batcher`]), represents leases as values
//! ([`QueuedEvent`]) and wakes waiting consumers. SQL lives in the store, never here.
//!
//! [`EventManager`] claims events from a queue and runs handlers for them; see [`EventManager::builder`].
//!
//! # Delivery
//!
//! At least once. A claimed entry belongs to its holder until the lease ends; a holder that is late gets
//! [`ErrorKind::Fenced`] and changes nothing. Effects in the same database happen exactly once with
//! [`EventQueue::finalize_in`].
//!
//! # Metrics
//!
//! Metrics go through the `metrics` facade; install a recorder before opening a queue. The first 1,000 queues
//! ([`Options::queue_labels`]) have a label of their own, all others are summed as `_other`. The label `lane` is the
//! name of a [`batcher`].
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tidegate_published_total` | counter | | events published by this process |
//! | `tidegate_claimed_total` | counter | | entries claimed |
//! | `tidegate_finalized_total` | counter | `queue`, `end` | entries ended by this process, however they ended |
//! | `tidegate_retried_total` | counter | | entries requeued for a retry |
//! | `tidegate_released_total` | counter | | leases given back without counting the attempt |
//! | `tidegate_leases_lost_total` | counter | | calls that were fenced because their lease was no longer held |
//! | `tidegate_groups_mended_total` | counter | | groups whose head was deleted manually and that have a new one |
//! | `tidegate_batch_size` | histogram | `lane` | items per transaction |
//! | `tidegate_flush_seconds` | histogram | `lane` | time per transaction |
//! | `tidegate_publish_to_claim_seconds` | histogram | | from publish to claim, in database time |
//! | `tidegate_claim_to_finish_seconds` | histogram | | from claim to end, by handlers and pull workers |
//! | `tidegate_depth` | gauge | `queue`, `state` | entries that are ready, delayed, parked, leased |
//! | `tidegate_handled_total` | counter | `handler`, `result` | handler calls, by result |
//! | `tidegate_handler_seconds` | histogram | `handler` | how long handlers took |
//! | `tidegate_projection_events_total` | counter | `projection` | events applied by this process |
//! | `tidegate_projection_failures_total` | counter | `projection` | failures of events, every retry included |
//! | `tidegate_projection_lag_events` | gauge | `projection` | rows of the log not read yet, up to 10,000 |
//! | `tidegate_projection_lag_seconds` | gauge | `projection` | age of the oldest of them |
//! | `tidegate_sqlite_wal_bytes` | gauge | | length of SQLite's write-ahead log |
//! | `tidegate_oldest_age_seconds` | gauge | `queue` | how long the first claimable entry has waited; 0 without one |

mod background;
mod backoff;
mod batch;
mod bus;
mod error;
mod manager;
mod metrics;
mod moments;
mod options;
pub mod projection;
mod queue;
#[cfg(feature = "sqlite")]
pub mod testing;
mod trace;

pub use batch::batcher;
pub use bus::{ABANDONED_AFTER, BusWorker, EventBus, RouteError, Router};
pub use error::{Error, ErrorKind, Result};
pub use manager::{
    Delivered, Event, EventHandler, EventManager, Invocation, ManagerBuilder, ManagerHealth, ManagerOptions, Middleware,
};
pub use options::{Limits, Options};
pub use projection::{EventLogProjectionBuilder, LoggedEvent, Projection};
pub use queue::EventQueue;
pub use queue::consumer::Consumer;
pub use queue::dead_letters::DeadLetterFilter;
pub use queue::delivery::{Attempt, Failure, QueuedEvent};
pub use queue::health::Health;
pub use queue::native::DatabasePlace;
pub use queue::opening::Builder;
pub use queue::scheduler::Scheduler;
pub use queue::schedules::{Schedule, Schedules};
pub use queue::serving::{
    ApiKeys, AuditPart, DocumentsPage, Explained, Facts, JobClaim, JobDesk, Jobs, ProjectionPage, PullClaim,
    QueueStatus, Resources, WakeHints,
};
pub use queue::transactions::caller::CallerTx;
pub use queue::transactions::db_tx::DbTx;
pub use queue::transactions::receipt::Receipt;
pub use queue::transactions::sql_value::SqlValue;
#[cfg(feature = "sqlite")]
pub use queue::transactions::writer::Tx;
pub use tidegate_core::{
    Action, AttemptOutcome, Availability, DedupMode, Deduplication, Depth, End, EntryId, Expiry, Generation, Handled,
    IdSpace, Idempotency, LeaseToken, NewEvent, PayloadLimit, QueueConfig, QueueName, QueueSettings, QueueState,
    RetryPolicy, Status, Timestamp, TraceContext, Tsid, Why,
};
pub use tidegate_core::{Cron, MissedTicks};
#[cfg(feature = "postgres")]
pub use tidegate_store::postgres;
pub use tidegate_store::{
    AddTarget, AddedTarget, AuditRow, Backend, Batch, BlockedCount, BlockedGroup, BlockedPage, BlockedQuery,
    COUNTED_JOBS, CatalogueVersion, ChangeResource, Claimed, Clock, DeleteResource, EntryPhase, EntrySummary,
    EntryView, Fact, FactKey, FactKeyKind, FactTarget, FactTerm, FactsPage, FactsQuery, FactsWalk, Family, Finalize,
    Finalized, Heartbeat, HeartbeatLease, Held, HeldSlots, Holder, Ingest, IngestAnswer, IngestOutcome, Ingested,
    JobAttempt, JobLane, JobState, JobView, JobsPage, JobsQuery, KeyView, LaneAsk, LaneHolds, LimitAsk, LimitGrant,
    ListQuery, MAX_ADDED, MAX_ATTEMPT_BYTES, MAX_FACTS, MAX_INGEST_ROWS, MAX_JOBS, MAX_RESOURCES, MAX_TARGETS,
    MAX_TARGETS_FOUND, MAX_TASK_BYTES, MAX_TASKS, MAX_TERMS, ManualAction, ManualClock, NewKey, Page, PoolKey,
    PoolView, PublishOutcome, Published, PutResource, QueueChange, Report, ReportResult, Reported, Requeue, RequeueAt,
    Resource, ResourceChanges, ResourcesQuery, Retained, Retention, SCHEMA_VERSION, SettingsChange, SpareLane, Store,
    StoreOptions, StoredFact, Target, TypeFilter, WaitingLanes, Wake, WalkedFacts, WorkerKey, WorkerView, WorkersPage,
    WorkersQuery,
};
pub use tidegate_store::{ScheduleSpec, ScheduleView};

/// Compiles the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[derive(Debug)]
pub struct Readme;
