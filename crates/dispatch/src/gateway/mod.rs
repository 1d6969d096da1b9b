//! The gateway: event types, their versions and schemas; clients and subscriptions; and the ingest of events, which are
//! validated by their types and matched with the subscriptions. All configuration is kept as resources, so that a change on one node is seen by the next call on every node.
//!
//! A type's resource holds its versions; each version's schema is a resource of its own, which only the type refers to.
//! What belongs together is written together: a version and its schema, a schema and its edition in the type.

pub(crate) mod accounts;
mod apart;
mod applied_sets;
mod clients;
mod compatibility;
pub(crate) mod error;
mod event_types;
mod events;
pub(crate) mod ingest;
mod jobs;
pub(crate) mod kept;
mod listed;
mod made;
pub(crate) mod pools;
mod replay;
mod schemas;
mod secret_rotation;
pub(crate) mod secrets;
pub(crate) mod subscriptions;
pub(crate) mod tasks;
mod trial;
mod types;
mod validation;
mod validators;
mod values;
mod versions;

use std::future::Future;
use std::sync::Arc;

use tidegate::{CatalogueVersion, EventQueue};
use tidegate_schema::Change;

pub use accounts::{Account, AccountAuth, AccountBody, AccountsQuery, ShownAuth};
pub use applied_sets::{AppliedItem, AppliedSet, AppliedSetsQuery};
pub use clients::{Client, ClientsQuery};
pub use error::GatewayError;
pub use event_types::TypesQuery;
pub use events::{EventsPage, EventsQuery, type_filter};
pub use ingest::{Accepted, EventEntry, EventJob, EventView, NewFact};
pub use jobs::{
    Acted, AttemptRecord, BlockedJobs, BlockedJobsPage, BulkAct, CancelReason, Job, JobAct, JobKind, JobShown,
    JobStatus, JobTerms, JobTry, JobWhy, JobsFilter, JobsFound, PoolHolds,
};
pub use listed::Listed;
pub use pools::{Pool, PoolBody, PoolStatus, PoolsQuery};
pub use replay::{Replay, Replayed};
pub use schemas::SchemasQuery;
pub use secret_rotation::{KeyUse, RotationProgress};
pub use secrets::{Rotated, SecretText, SigningScheme, new_signing_secret};
pub use subscriptions::{
    AllowedTarget, ConfigEntry, DispatchMode, RetryStrategy, Subscription, SubscriptionBody, SubscriptionStatus,
    SubscriptionsQuery, Target, TypeBinding,
};
pub use tasks::{CreatedTask, NewTask, Task, TaskRules};
pub use trial::{TEST_EVENT, TestSent};
pub use validation::Validated;
pub use values::{EventType, EventTypeBody, Forced, NewVersion, Schema, SchemaBody, SpecVersion};

use apart::Apart;
use clients::Clients;
use error::Result;
use ingest::{Batchers, Flusher, Meters};
pub(crate) use jobs::{DELETED, Sweep};
use jobs::{Gauges, Senders};
use kept::Kept;
pub(crate) use made::{Made, MadeJobs};
use tasks::TaskBatchers;
use trial::Trials;
use types::Types;
use validators::Validators;

use crate::secrets::{SecretKeys, SecretOptions};

/// How often a change is tried again on what another writer left.
const TRIES: usize = 8;

/// What becomes of events whose type is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownTypes {
    /// They are stored, without validation.
    #[default]
    Accept,
    /// They are refused.
    Reject,
}

/// Bounds and rules of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// What becomes of events whose type is not registered.
    pub unknown_types: UnknownTypes,
    /// Where unencrypted webhooks may be sent.
    pub allowed_targets: Vec<AllowedTarget>,
    /// The keys that encrypt secrets.
    pub secrets: SecretOptions,
    /// About how many bytes compiled schemas may occupy.
    pub validator_bytes: usize,
    /// How many schemas are compiled, and large documents validated, at once.
    pub workers: usize,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            unknown_types: UnknownTypes::default(),
            allowed_targets: Vec::new(),
            secrets: SecretOptions::default(),
            validator_bytes: 64 << 20,
            workers: 2,
        }
    }
}

/// Clients, event types, schemas and subscriptions of a database, over one of its queues.
#[derive(Debug)]
pub struct Gateway {
    queue: EventQueue,
    options: GatewayOptions,
    types: Arc<Kept<Types>>,
    made: Arc<MadeJobs>,
    clients: Kept<Clients>,
    senders: Kept<Senders>,
    gauges: Gauges,
    trials: Trials,
    batchers: Batchers,
    task_batchers: TaskBatchers,
    meters: Meters,
    validators: Validators,
    apart: Apart,
    secret_keys: Arc<SecretKeys>,
}

/// What a change is made on: whatever there is, or only the revision that the caller has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// Whatever there is.
    Any,
    /// Only this revision.
    Is(i64),
}

/// A change and whether it found nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It was made.
    Yes,
    /// It was so already.
    No,
}

/// A type as a change has left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The type.
    pub event_type: EventType,
    /// Whether there was anything to change.
    pub changed: Changed,
    /// Differences from the version before of which nobody can tell whether they break something.
    pub warnings: Vec<Change>,
    /// The schemas as the change has left them, in the order of their versions: of the version that was changed, or of all
    /// when the type was.
    pub schemas: Vec<Schema>,
}

impl Written {
    fn nothing(event_type: EventType, schemas: Vec<Schema>) -> Self {
        Self { event_type, changed: Changed::No, warnings: Vec::new(), schemas }
    }

    /// A change with nothing to warn of.
    fn of(event_type: EventType, schemas: Vec<Schema>) -> Self {
        Self { event_type, changed: Changed::Yes, warnings: Vec::new(), schemas }
    }
}

impl Match {
    fn check(self, revision: i64, what: &dyn std::fmt::Display) -> Result<()> {
        match self {
            Self::Is(wanted) if wanted != revision => {
                let text = format!("{what} has changed since it was read: read it again and repeat the change on that");
                Err(GatewayError::Changed(text))
            }
            _ => Ok(()),
        }
    }
}

impl Gateway {
    /// The gateway of a queue's database.
    #[must_use]
    pub fn new(queue: EventQueue, options: GatewayOptions) -> Self {
        let types = Arc::default();
        let made = Arc::<MadeJobs>::default();
        let secret_keys = SecretKeys::new(options.secrets.clone(), &queue.database_place());
        let flusher = Flusher::new(queue.clone(), Arc::clone(&types), Arc::clone(&made));
        Self {
            batchers: Batchers::new(&queue, &Arc::new(flusher)),
            task_batchers: TaskBatchers::new(&queue, &made),
            meters: Meters::default(),
            queue,
            types,
            made,
            clients: Kept::default(),
            senders: Kept::default(),
            gauges: Gauges::default(),
            trials: Trials::default(),
            validators: Validators::new(options.validator_bytes),
            apart: Apart::new(options.workers),
            secret_keys: Arc::new(secret_keys),
            options,
        }
    }

    /// The queue of its database.
    pub(crate) fn queue(&self) -> &EventQueue {
        &self.queue
    }

    /// Tells of the jobs that this node has made, from now on.
    pub(crate) fn made_jobs(&self) -> Arc<MadeJobs> {
        self.made.listen();
        Arc::clone(&self.made)
    }

    /// The catalogue version to go by: the given one, which must have been read after the call that needs it came.
    async fn version(&self, known: Option<CatalogueVersion>) -> Result<CatalogueVersion> {
        match known {
            Some(version) => Ok(version),
            None => Ok(self.queue.catalogue_version().await?),
        }
    }

    /// Makes a change, again as long as other writers are faster. So nothing in it may fail as a race after it has written:
    /// what it answers with is what the write returned.
    async fn until_written<T, F: Future<Output = Result<T>>>(&self, mut change: impl FnMut() -> F) -> Result<T> {
        for _ in 0..TRIES {
            match change().await {
                Err(error) if error.is_race() => {}
                done => return done,
            }
        }
        Err(GatewayError::Conflict("others keep changing it at the same time; try again".into()))
    }
}
