//! The JSON shapes of requests and answers, one file per subject, and the conversions between them and the library's
//! values. Names of fields, and when they are absent, are part of the API's contract. What a request sends is checked
//! here; what the caller may see and change is asked of `access`.

pub(crate) mod accounts;
pub(crate) mod applied_sets;
pub(crate) mod audit;
pub(crate) mod basics;
pub(crate) mod claims;
pub(crate) mod clients;
pub(crate) mod cloud_event;
pub(crate) mod event;
pub(crate) mod event_types;
pub(crate) mod facts;
pub(crate) mod idempotency;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod leased;
pub(crate) mod listed;
pub(crate) mod manual;
pub(crate) mod new_event;
pub(crate) mod payload;
pub(crate) mod pools;
pub(crate) mod projections;
pub(crate) mod publish;
pub(crate) mod queues;
pub(crate) mod replays;
pub(crate) mod report_batch;
pub(crate) mod reports;
pub(crate) mod retry;
pub(crate) mod schedules;
pub(crate) mod schemas;
pub(crate) mod secrets;
pub(crate) mod shown;
pub(crate) mod subscriptions;
pub(crate) mod tags;
pub(crate) mod tasks;
pub(crate) mod trace;
pub(crate) mod violations;
pub(crate) mod workers;
