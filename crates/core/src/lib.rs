//! The pure domain of Tidegate.
//!
//! Everything that *decides* lives here: what an event is, how an entry moves through its life, when a retry is due,
//! who is next in a FIFO group, why an entry is not running. Nothing here performs IO, awaits, or reads a clock: time
//! and randomness are arguments. The stores execute these decisions in SQL and are held to [`model::Model`] by the
//! conformance suite.

pub mod cron;
pub mod entry;
pub mod event;
pub mod handled;
pub mod id;
pub mod model;
pub mod name;
pub mod queue;
pub mod retry;
pub mod schedule;
pub mod template;
pub mod trace;
pub mod why;
pub mod work;

pub use cron::{Cron, InvalidCron};
pub use entry::{End, Entry, Generation, Input, Lease, LeaseToken, Phase, Refusal, transition};
pub use event::{Availability, DedupMode, Deduplication, Idempotency, NewEvent, PayloadLimit};
pub use handled::{Handled, HandlerRecord, Verdict};
pub use id::{EntryId, IdSpace, InvalidId, Tsid};
pub use jiff::Timestamp;
pub use name::{InvalidName, QueueName};
pub use queue::{Depth, QueueConfig, QueueSettings, QueueState};
pub use retry::RetryPolicy;
pub use schedule::MissedTicks;
pub use template::EventTemplate;
pub use trace::TraceContext;
pub use why::Why;
pub use work::{Action, Outcome, Status};
