//! What Tidegate does with events beyond queues. Owns event types, their versions and schemas, subscriptions and ingest
//! ([`Gateway`]), service accounts and [secrets], the delivery of jobs ([`Router`]), and the client that sends [webhooks](webhook).
//!
//! It works on what the library offers, and must not know SQL or, outside of `webhook`, HTTP. What decides about the life
//! of a version is in `tidegate_core::event_type`; what compiles and validates is `tidegate_schema`.
//!
//! # Metrics
//!
//! Beside those of the library:
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tidegate_ingested_total` | counter | `result` | events that were `stored`, `repeated` or `refused` |
//! | `tidegate_matched_total` | counter | | entries and jobs made for them |
//! | `tidegate_deliveries_total` | counter | `pool`, `result` | attempts by the id of their pool, or `default`, and their status, such as `success` or `server_error` |
//! | `tidegate_delivery_seconds` | histogram | `pool` | how long they took |
//! | `tidegate_jobs_waiting` | gauge | `pool` | jobs that wait, of each subscription up to 1,000 in one place |
//! | `tidegate_jobs_oldest_seconds` | gauge | `pool` | for how long the oldest has waited that could be delivered |
//! | `tidegate_pool_slots_in_use` | gauge | `pool` | deliveries under way: the jobs that nodes have claimed |
//! | `tidegate_groups_blocked` | gauge | | message groups in which a failed job blocks the others, counted in pieces |
//! | `tidegate_breakers_open` | gauge | | targets of a client to which nothing is sent for a while |
//!
//! The label `pool` of gauges is the id of a pool, `default` for the built-in pools of all clients, or `_other` for all pools beyond
//! 100.

mod gateway;
mod router;
pub mod secrets;
pub mod webhook;

pub use router::Router;

/// The guide, whose program is compiled with the examples in the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/gateway.md")]
pub struct Guide;

pub use gateway::{
    Accepted, Account, AccountAuth, AccountBody, AccountsQuery, Acted, AllowedTarget, AppliedItem, AppliedSet,
    AppliedSetsQuery, AttemptRecord, BlockedJobs, BlockedJobsPage, BulkAct, CancelReason, Changed, Client,
    ClientsQuery, ConfigEntry, CreatedTask, DispatchMode, EventEntry, EventJob, EventType, EventTypeBody, EventView,
    EventsPage, EventsQuery, Forced, Gateway, GatewayError, GatewayOptions, Job, JobAct, JobKind, JobShown, JobStatus,
    JobTerms, JobTry, JobWhy, JobsFilter, JobsFound, KeyUse, Listed, Match, NewFact, NewTask, NewVersion, Pool,
    PoolBody, PoolHolds, PoolStatus, PoolsQuery, Replay, Replayed, RetryStrategy, Rotated, RotationProgress, Schema,
    SchemaBody, SchemasQuery, SecretText, ShownAuth, SigningScheme, SpecVersion, Subscription, SubscriptionBody,
    SubscriptionStatus, SubscriptionsQuery, TEST_EVENT, Target, Task, TaskRules, TestSent, TypeBinding, TypesQuery,
    UnknownTypes, Validated, Written, new_signing_secret, type_filter,
};
pub use tidegate_core::event_type::{
    CodePattern, EventTypeCode, InvalidCode, InvalidVersionNumber, TypeStatus, VersionNumber, VersionStatus,
};
pub use tidegate_core::filter::Filter;
pub use tidegate_core::matching::TypePattern;
pub use tidegate_schema::limits::DOCUMENT_BYTES;
pub use tidegate_schema::{
    Change, Comparison, Definition, Document, Format, SchemaType, Validator, Verdict, Violation,
};
