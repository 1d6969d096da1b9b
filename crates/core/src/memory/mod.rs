//! Memory queues: queues that live in memory and whose state is persisted. All decisions, no IO: what a queue has to
//! store are blobs of records, and whoever stores them says when they are stored.
//!
//! | module | owns |
//! |---|---|
//! | [`config`](Config) | the configuration and what survives a crash |
//! | [`pattern`](Pattern) | patterns of events and how they are matched |
//! | [`event`](Event) | an event, packed |

mod config;
mod event;
mod pattern;
mod token;

pub use config::{Config, Durability, InvalidConfig};
pub use event::{Event, EventFields, InvalidEvent, MAX_EVENT, Source};
pub use pattern::{InvalidPattern, Pattern, PatternIndex, check_event_pattern};
pub use token::Epoch;
