//! Whose queues: a caller of a client names its own queues only; an unscoped caller names a client beside the queue.

use serde::Deserialize;
use tidegate::{EntryView, QueueName, Tsid};
use utoipa::IntoParams;

use crate::auth::Caller;
use crate::error::{ApiError, Code, Result};

/// The part of the database a caller sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tenant(pub(crate) Option<Tsid>);

/// Whose queue is meant, where only a name stands in the path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClientParam {
    /// The client whose queue is meant, for keys that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    pub(crate) client: Option<String>,
}

impl From<&Caller> for Tenant {
    fn from(caller: &Caller) -> Self {
        Self(caller.client)
    }
}

impl Tenant {
    /// The client that is meant: the caller's own, or the one that an unscoped caller names.
    pub(crate) fn client(self, named: Option<&str>) -> Result<Option<Tsid>> {
        let bad = |_| ApiError::invalid("client does not fit: it must be the id of a client, 13 characters");
        let named = named.map(str::parse::<Tsid>).transpose().map_err(bad)?;
        match (self.0, named) {
            (Some(own), Some(other)) if own != other => {
                Err(ApiError::new(Code::Forbidden, "client is not the key's own: leave it out"))
            }
            (own, named) => Ok(own.or(named)),
        }
    }

    /// The queue that is meant; `default` if none is named.
    pub(crate) fn queue(self, client: Option<&str>, name: Option<&str>) -> Result<QueueName> {
        let client = self.client(client)?;
        Ok(QueueName::of(client, name.unwrap_or(QueueName::DEFAULT)).map_err(tidegate::Error::from)?)
    }

    /// Whether a queue is the caller's to see.
    pub(crate) fn owns_queue(self, queue: &QueueName) -> bool {
        self.0.is_none() || queue.client() == self.0
    }

    /// The entry, unless it is not the caller's: then there is none.
    pub(crate) fn own(self, entry: Option<EntryView>, id: tidegate::EntryId) -> Result<EntryView> {
        entry.filter(|entry| self.owns_queue(&entry.queue)).ok_or_else(|| ApiError::no_event(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_names_only_its_own_queues() {
        let client = Tsid::from_i64(7);
        let (own, unscoped) = (Tenant(Some(client)), Tenant(None));
        let queue = own.queue(None, Some("mail")).unwrap();
        assert_eq!((queue.client(), queue.name()), (Some(client), "mail"));
        assert_eq!(unscoped.queue(Some("0000000000007"), Some("mail")).unwrap(), queue);
        assert_eq!(own.queue(Some("0000000000007"), Some("mail")).unwrap(), queue);
        assert!(own.queue(Some("0000000000008"), Some("mail")).is_err());
        assert!(own.owns_queue(&queue) && unscoped.owns_queue(&queue));
        assert!(!own.owns_queue(&QueueName::default()));
        assert!(!Tenant(Some(Tsid::from_i64(8))).owns_queue(&queue));
        assert_eq!(unscoped.queue(None, None).unwrap(), QueueName::default());
        assert!(own.queue(None, Some("a b")).is_err());
        assert!(unscoped.queue(Some("nobody"), None).is_err());
        assert!(unscoped.queue(Some("0000000000000"), None).is_err(), "zero stands for no client");
    }
}
