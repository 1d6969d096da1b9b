//! The library through its front door: the coalescer alone, the queue over a store in memory that can be held up, and
//! every behaviour on both databases.

mod bad_places;
mod bus;
mod coalescer;
mod database_trouble;
mod databases;
mod encodings;
mod examples;
mod gone;
mod hindered;
mod holding;
mod lanes;
mod leases;
mod looking_after;
mod manager;
mod memory;
mod metering;
mod migrations;
mod outbox;
mod panics;
mod plain_sql;
mod pooler;
mod probing;
mod projection_failures;
mod projection_order;
mod projections;
mod queue;
mod retry_policies;
mod schedule;
mod support;
mod testing;
mod tls;
mod traces;
mod upgrade;
mod upkeep;
mod working;
