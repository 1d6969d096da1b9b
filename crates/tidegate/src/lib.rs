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
//! [`EventQueue`] turns concurrent single calls into batches (see [`coalescer`]), leases into values ([`QueuedEvent`]),
//! and hints into wake-ups. It knows no SQL: that is the store's.
//!
//! [`EventManager`] works a queue off with handlers; [`EventManager::builder`] shows how.
//!
//! # Delivery
//!
//! At least once. A claimed entry is ours until its lease runs out; whoever is late is told so
//! ([`ErrorKind::Fenced`]) and changes nothing. Effects in the same database happen exactly once with
//! [`EventQueue::finalize_in`].
//!
//! # Metrics
//!
//! Through the `metrics` facade; install a recorder before a queue is opened. The first 1,000 queues
//! ([`Options::queue_labels`]) have a label of their own, all others are summed as `_other`.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tidegate_published_total` | counter | | events published by this process |
//! | `tidegate_claimed_total` | counter | | entries claimed |
//! | `tidegate_finalized_total` | counter | `queue`, `end` | entries ended by this process, however they ended |
//! | `tidegate_retried_total` | counter | | attempts that failed and are tried again |
//! | `tidegate_released_total` | counter | | leases given back without a verdict |
//! | `tidegate_leases_lost_total` | counter | | verdicts that came too late |
//! | `tidegate_groups_mended_total` | counter | | groups that had lost their head (rows removed by hand) and go on |
//! | `tidegate_batch_size` | histogram | `lane` | items per transaction |
//! | `tidegate_flush_seconds` | histogram | `lane` | time per transaction |
//! | `tidegate_publish_to_claim_seconds` | histogram | | from publish to claim, in database time |
//! | `tidegate_claim_to_finish_seconds` | histogram | | from claim to end, by handlers and pull workers |
//! | `tidegate_depth` | gauge | `queue`, `state` | entries that are ready, delayed, parked, leased |
//! | `tidegate_handled_total` | counter | `handler`, `result` | handlers' answers |
//! | `tidegate_handler_seconds` | histogram | `handler` | how long handlers took |
//! | `tidegate_projection_events_total` | counter | `projection` | events taken in by this process |
//! | `tidegate_projection_failures_total` | counter | `projection` | events that failed, each time |
//! | `tidegate_projection_lag_events` | gauge | `projection` | rows of the log not read yet, up to 10,000 |
//! | `tidegate_projection_lag_seconds` | gauge | `projection` | age of the oldest of them |
//! | `tidegate_sqlite_wal_bytes` | gauge | | length of SQLite's write-ahead log |
//! | `tidegate_oldest_age_seconds` | gauge | `queue` | for how long the first claimable entry could have been claimed; 0 when there is none |

mod admin;
mod bus;
pub mod coalescer;
mod consumer;
mod db_tx;
mod delivery;
mod error;
mod keeper;
mod lease;
mod manager;
mod metrics;
mod moments;
mod options;
mod probe;
pub mod projection;
mod queue;
mod receipt;
mod release;
mod schedule;
mod shared;
mod sql_value;
#[cfg(feature = "sqlite")]
pub mod testing;
mod trace;
mod transaction;
mod upkeep;
mod wake;
mod work;

pub use admin::DeadLetterFilter;
pub use bus::{ABANDONED_AFTER, BusWorker, EventBus, RouteError, Router};
pub use consumer::Consumer;
pub use db_tx::{DbTx, SqlValue};
pub use delivery::{Failure, QueuedEvent};
pub use error::{Error, ErrorKind, Result};
pub use manager::{
    Delivered, Event, EventHandler, EventManager, Invocation, ManagerBuilder, ManagerHealth, ManagerOptions, Middleware,
};
pub use options::{Builder, Limits, Options};
pub use projection::{EventLogProjectionBuilder, LoggedEvent, Projection};
pub use queue::EventQueue;
pub use receipt::Receipt;
pub use schedule::{Schedule, Scheduler, Schedules};
pub use tidegate_core::{
    Action, Availability, DedupMode, Deduplication, Depth, End, EntryId, Generation, Handled, IdSpace, Idempotency,
    LeaseToken, NewEvent, Outcome, PayloadLimit, QueueConfig, QueueName, QueueSettings, QueueState, RetryPolicy,
    Status, Timestamp, TraceContext, Tsid, Why,
};
pub use tidegate_core::{Cron, MissedTicks};
#[cfg(feature = "postgres")]
pub use tidegate_store::postgres;
pub use tidegate_store::{
    AuditRow, Backend, Claimed, Clock, EntryPhase, EntrySummary, EntryView, Fact, Finalize, Finalized, Heartbeat,
    HeartbeatLease, Held, Holder, KeyStore, KeyView, ListQuery, ManualClock, NewKey, Page, PublishOutcome, Published,
    QueueChange, Report, Reported, Requeue, RequeueAt, Retained, Retention, SettingsChange, Store, StoreOptions,
    Verdict, WorkerView,
};
pub use tidegate_store::{ScheduleSpec, ScheduleView};
pub use transaction::CallerTx;
#[cfg(feature = "sqlite")]
pub use transaction::Tx;
pub use upkeep::Health;

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[derive(Debug)]
pub struct Readme;
