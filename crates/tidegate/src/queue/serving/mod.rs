//! What a server does with a queue beyond the embedded API, one file per subject: API keys, the catalogue version, resources, facts, queues by name, claims of
//! pull workers, entries by number, pages of documents. It takes names and numbers of any queue of the database; whose
//! they are is for the server to decide. Knows nothing of HTTP.

mod api_keys;
mod catalogue;
mod dispatching;
mod entries;
mod facts;
mod hints;
mod job_desk;
mod jobs;
mod projections;
mod publishing;
mod pull;
mod queues;
mod resources;

pub use api_keys::ApiKeys;
pub use entries::{AuditPart, Explained};
pub use facts::Facts;
pub use hints::WakeHints;
pub use job_desk::JobDesk;
pub use jobs::{JobClaim, Jobs};
pub use projections::{DocumentsPage, ProjectionPage};
pub use pull::PullClaim;
pub use queues::QueueStatus;
pub use resources::Resources;
