//! The verbs that a database offers, one trait per subject. Values are in [`values`](crate::values). No SQL here.

pub(crate) mod attempts;
pub(crate) mod dispatch;
pub(crate) mod entries;
pub(crate) mod facts;
pub(crate) mod families;
pub(crate) mod handlers;
pub(crate) mod ingest;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod maintenance;
pub(crate) mod projections;
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod resources;
pub(crate) mod schedules;

pub use attempts::Attempts;
pub use dispatch::Dispatch;
pub use entries::Entries;
pub use facts::Facts;
pub use families::Families;
pub use handlers::HandlerStates;
pub use ingest::Ingestion;
pub use jobs::JobDesk;
pub use keys::KeyStore;
pub use maintenance::Maintenance;
pub use projections::Projections;
pub use queue::Queue;
pub use queues::Queues;
pub use resources::Resources;
pub use schedules::Schedules;

/// A database that keeps everything: all subjects together.
pub trait Store:
    Queue
    + Ingestion
    + Facts
    + Entries
    + Queues
    + Maintenance
    + Attempts
    + HandlerStates
    + Projections
    + Schedules
    + Resources
    + KeyStore
    + Dispatch
    + JobDesk
    + Families
{
}

impl<S> Store for S where
    S: Queue
        + Ingestion
        + Facts
        + Entries
        + Queues
        + Maintenance
        + Attempts
        + HandlerStates
        + Projections
        + Schedules
        + Resources
        + KeyStore
        + Dispatch
        + JobDesk
        + Families
{
}
