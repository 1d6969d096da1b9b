//! What only PostgreSQL has: a clock of its own, failover, locks of groups, isolation levels, lists that are stuck, answers that are lost on the way,
//! migrations under locks and the indexes they build. Through the store's public calls and plain SQL; what both databases do
//! belongs into `tidegate_store::conformance`.

mod clock;
mod failover;
mod groups;
mod indexes;
mod isolation;
mod lists;
mod lost_answers;
mod migrations;
mod partitions;
mod scene;
