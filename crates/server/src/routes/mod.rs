//! The handlers, one file per resource. They extract, ask `access` for what the request is about, call the library
//! once, and map its answer; they decide nothing.

pub(crate) mod accounts;
pub(crate) mod applied_sets;
pub(crate) mod clients;
pub(crate) mod event_types;
pub(crate) mod events;
pub(crate) mod facts;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod list;
pub(crate) mod manual;
pub(crate) mod pools;
pub(crate) mod projections;
pub(crate) mod publish;
pub(crate) mod queues;
pub(crate) mod replays;
pub(crate) mod report_batch;
pub(crate) mod reports;
pub(crate) mod schedules;
pub(crate) mod schemas;
pub(crate) mod subscribe;
pub(crate) mod subscriptions;
pub(crate) mod tasks;
pub(crate) mod versions;
pub(crate) mod workers;
