//! The library through its front door: the coalescer alone, the queue over a store in memory that can be held up, and
//! every behaviour on both databases.

mod coalescer;
mod lanes;
mod memory;
mod support;
