//! The library through its front door: the coalescer alone, the queue over a store in memory that can be held up, and
//! every behaviour on both databases.

mod bad_places;
mod coalescer;
mod databases;
mod examples;
mod lanes;
mod looking_after;
mod manager;
mod memory;
mod metering;
mod outbox;
mod pooler;
mod queue;
mod support;
mod working;
