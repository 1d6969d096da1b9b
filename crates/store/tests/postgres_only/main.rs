//! What only PostgreSQL has: the server's clock, failover, group locks, isolation levels, blocked lists, lost answers,
//! partitions, migrations under locks and the indexes they build, the triggers of
//! resources, upkeep of two families. Tests use the store's public calls and plain SQL.
//! What both databases do belongs in `tidegate_store::conformance`.

mod clock;
mod failover;
mod families;
mod groups;
mod indexes;
mod ingest;
mod isolation;
mod lists;
mod lost_answers;
mod migrations;
mod partitions;
mod resources;
mod scene;
