//! Whether the schema has become too new for this program while it runs. From then on the store refuses every verb: what
//! it wrote might contradict what newer programs rely on.

use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::values::options::too_old;

/// Notices that the schema needs a newer program, once and for all.
#[derive(Debug)]
pub(crate) struct Outdated {
    /// The schema, for messages.
    schema: String,
    refusal: OnceLock<Error>,
}

impl Outdated {
    pub(crate) fn new(schema: String) -> Self {
        Self { schema, refusal: OnceLock::new() }
    }

    /// Checks the versions that a transaction has read.
    ///
    /// # Errors
    /// `Schema` when the schema needs a newer program.
    pub(crate) fn check(&self, version: i32, oldest_compatible: i32) -> Result<()> {
        if let Some(error) = too_old(&self.schema, version, oldest_compatible)
            && self.refusal.set(error.clone()).is_ok()
        {
            tracing::error!(%error, "the database was upgraded: this program refuses all calls from now on");
        }
        self.refused()
    }

    /// # Errors
    /// `Schema` when an earlier [`check`](Self::check) failed.
    pub(crate) fn refused(&self) -> Result<()> {
        self.refusal.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::SCHEMA_VERSION;

    #[test]
    fn it_stays_refused() {
        let outdated = Outdated::new("s".into());
        assert!(outdated.check(SCHEMA_VERSION + 1, SCHEMA_VERSION).is_ok());
        let text = outdated.check(SCHEMA_VERSION + 2, SCHEMA_VERSION + 1).unwrap_err().to_string();
        assert!(text.contains(&(SCHEMA_VERSION + 2).to_string()) && text.contains("upgrade"), "{text}");
        assert!(outdated.check(SCHEMA_VERSION, SCHEMA_VERSION).is_err() && outdated.refused().is_err());
    }
}
