//! Memory queues: queues that live in memory and whose state is persisted. All decisions, no IO: what a queue has to
//! store are blobs of records, and whoever stores them says when they are stored.
//!
//! | module | owns |
//! |---|---|
//! | [`config`](Config) | the configuration and what survives a crash |
//! | [`pattern`](Pattern) | patterns of events and how they are matched |
//! | [`event`](Event) | an event, packed |
//! | [`queue`](Queue) | publish, claim, ack, nack, dead letters, status, what has to be stored |
//! | cells, lanes, leases, progress | its parts: events by number, which is next, who holds what, the checkpoint |
//! | record, journal, [`blob`](Blob), [`row`](StateRow) | what is stored, and its checksums |
//! | [`recovery`](Recovery) | a queue from what was stored, and what is wrong with that |
//! | [`json`](StateJson) | the source's JSON of a queue's state |

mod blob;
mod cells;
mod codec;
mod config;
mod event;
mod journal;
mod json;
mod lanes;
mod leases;
mod pattern;
mod progress;
mod queue;
mod record;
mod recovery;
mod row;
mod token;

pub use blob::{Blob, BlobKey, Damage};
pub use config::{Config, Durability, InvalidConfig};
pub use event::{Event, EventFields, InvalidEvent, MAX_EVENT, Source};
pub use json::{EventJson, MetadataJson, MetricsJson, SourceJson, StateJson};
pub use pattern::{InvalidPattern, Pattern, PatternIndex, check_event_pattern};
pub use queue::{
    Batch, Checkpoint, Claimed, DeadLetter, LeaseRefused, Listed, ListedPhase, Nacked, PublishRefused, Published,
    Queue, RedriveRefused, StatusRefused, Wanted,
};
pub use record::{State, Totals};
pub use recovery::{Loss, Recovered, Recovery, RecoveryRecord, RecoveryRefused};
pub use row::StateRow;
pub use token::Epoch;
