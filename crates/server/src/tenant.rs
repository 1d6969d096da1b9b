//! Whose queues: a client's queues live under its own prefix, so that nothing it names can be another's.

use tidegate::{EntryView, QueueName, Tsid};

use crate::auth::Caller;
use crate::error::{ApiError, Result};

/// The part of the database a caller sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tenant(pub(crate) Option<Tsid>);

impl From<&Caller> for Tenant {
    fn from(caller: &Caller) -> Self {
        Self(caller.client)
    }
}

impl Tenant {
    /// The queue that a caller means.
    pub(crate) fn queue(self, name: Option<&str>) -> Result<QueueName> {
        let name = name.unwrap_or(QueueName::DEFAULT);
        QueueName::new(name).map_err(tidegate::Error::from)?; // before the prefix, so that the text names what was sent
        let full = match self.0 {
            Some(client) => format!("{client}/{name}"),
            None => name.to_owned(),
        };
        Ok(QueueName::new(full).map_err(tidegate::Error::from)?)
    }

    /// A queue's name as the caller knows it.
    pub(crate) fn shown(self, queue: &QueueName) -> String {
        let name = queue.as_str();
        let own = self.0.and_then(|client| name.strip_prefix(&format!("{client}/")));
        own.unwrap_or(name).to_owned()
    }

    /// Whether a queue is the caller's.
    pub(crate) fn owns_queue(self, queue: &QueueName) -> bool {
        self.0.is_none_or(|client| queue.as_str().starts_with(&format!("{client}/")))
    }

    /// Whether the caller may see an entry.
    pub(crate) fn owns(self, entry: &EntryView) -> bool {
        self.0.is_none_or(|client| entry.fact.client == Some(client))
    }

    /// The entry, unless it is not the caller's: then there is none.
    pub(crate) fn own(self, entry: Option<EntryView>, id: tidegate::EntryId) -> Result<EntryView> {
        entry.filter(|entry| self.owns(entry)).ok_or_else(|| ApiError::no_event(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_names_only_its_own_queues() {
        let client = Tsid::from_i64(7);
        let (own, anchor) = (Tenant(Some(client)), Tenant(None));
        let queue = own.queue(Some("mail")).unwrap();
        assert_eq!(queue.as_str(), "0000000000007/mail");
        assert_eq!(own.shown(&queue), "mail");
        assert_eq!(anchor.shown(&queue), "0000000000007/mail");
        assert!(own.owns_queue(&queue) && anchor.owns_queue(&queue));
        assert!(!own.owns_queue(&QueueName::default()));
        assert!(!Tenant(Some(Tsid::from_i64(8))).owns_queue(&queue));
        assert_eq!(anchor.queue(None).unwrap().as_str(), "default");
        assert!(own.queue(Some("a b")).is_err());
    }
}
