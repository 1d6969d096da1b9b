//! Work that takes processor time, apart from the threads that serve requests: few pieces at once.

use std::sync::Arc;

use tidegate::{Error, ErrorKind};
use tokio::sync::Semaphore;

use super::error::Result;

/// A bounded number of threads for compiling and validating.
#[derive(Debug)]
pub(super) struct Apart(Arc<Semaphore>);

impl Apart {
    pub(super) fn new(workers: usize) -> Self {
        Self(Arc::new(Semaphore::new(workers.max(1))))
    }

    /// Runs work on a thread of its own once it is its turn. A panic is an error.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let closed = |_| Error::new(ErrorKind::Unavailable, "the program is shutting down");
        let permit = Arc::clone(&self.0).acquire_owned().await.map_err(closed)?;
        let done = tokio::task::spawn_blocking(move || {
            // Work cannot be interrupted: a caller that goes away does not make room before it is over.
            let _permit = permit;
            work()
        });
        Ok(done.await.map_err(|error| {
            tracing::error!(%error, "compiling or validating a schema panicked");
            Error::new(ErrorKind::Corrupt, "compiling or validating the schema failed: the log says why")
        })?)
    }
}
