//! The domain of Tidegate, pure.
//!
//! All decisions are made here: what an event is, how an entry moves through its life, when a retry is due, which entry
//! of a group is next, why an entry is not running. Nothing here performs IO, awaits or reads a clock: time and
//! randomness are arguments. The stores carry the decisions out in SQL, and the conformance suite compares them with
//! [`model::Model`].

pub mod attempt;
pub mod claim;
pub mod cloud_event;
pub mod cron;
pub mod entry;
pub mod event;
pub mod event_type;
pub mod filter;
pub mod handlers;
pub mod id;
pub mod matching;
pub mod memory;
pub mod model;
pub mod name;
pub mod place;
pub mod pool;
pub mod queue;
pub mod retry;
pub mod schedule;
pub mod template;
pub mod trace;
pub mod why;

pub use attempt::{Action, AttemptOutcome, Status};
pub use cron::{Cron, InvalidCron};
pub use entry::{End, Entry, Generation, Input, Lease, LeaseToken, Phase, Refusal, transition};
pub use event::{Availability, DedupMode, Deduplication, Expiry, Idempotency, NewEvent, PayloadLimit};
pub use handlers::{Handled, HandlerDecision, HandlerRecord};
pub use id::{EntryId, IdSpace, InvalidId, Tsid};
pub use jiff::Timestamp;
pub use name::{InvalidName, QueueName};
pub use place::Place;
pub use queue::{Depth, QueueConfig, QueueSettings, QueueState};
pub use retry::RetryPolicy;
pub use schedule::MissedTicks;
pub use template::EventTemplate;
pub use trace::TraceContext;
pub use why::Why;
