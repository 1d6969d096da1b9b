//! Who may see and change what. The only place that compares clients: routes ask it for the queue, the entry or the
//! rows that a request is about, and work with its answer.
//!
//! - A caller of a client sees and changes the queues of its client, the entries in them, and the workers that claim
//!   from them. What belongs to others does not exist for it (404); naming another client is refused (403).
//! - An unscoped caller sees everything, and names the client beside the queue.
//! - Projections, schedules and metrics cover all clients, so only unscoped callers see them. A caller of a client manages
//!   its keys.
//! - What a caller may do with what it sees, its scopes say.
//!
//! Which worker holds an entry is not decided here: the store compares the worker's name and lease token with those of
//! the claim.

use tidegate::{CatalogueVersion, EntryId, EntryView, EventQueue, QueueName, Tsid};

use crate::error::{ApiError, Code, Result};
use crate::scope::{Scope, Scopes};

/// The authenticated caller of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    name: String,
    /// The client that the caller belongs to; `None` for an unscoped caller.
    client: Option<Tsid>,
    scopes: Scopes,
    /// The catalogue version that was read for this request, if one was.
    version: Option<CatalogueVersion>,
}

/// An entry as a request names it, before it is known whether the caller may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedEntry(EntryId);

impl NamedEntry {
    pub(crate) fn new(id: EntryId) -> Self {
        Self(id)
    }

    /// Its number, for texts and cursors.
    pub(crate) fn number(self) -> i64 {
        self.0.get()
    }
}

/// The rows that a request is about: those of one client, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visible(Option<Tsid>);

impl Visible {
    /// The client whose rows they are; `None`: the rows of all.
    pub(crate) fn client(self) -> Option<Tsid> {
        self.0
    }

    /// The queue of this name.
    ///
    /// # Errors
    /// 400 when the name is not valid.
    pub(crate) fn queue(self, name: &str) -> Result<QueueName> {
        Ok(QueueName::of(self.0, name).map_err(tidegate::Error::from)?)
    }

    /// Whether a queue is among them.
    pub(crate) fn has(self, queue: &QueueName) -> bool {
        self.0.is_none() || queue.client() == self.0
    }
}

impl Caller {
    pub(crate) fn new(name: String, client: Option<Tsid>, scopes: Scopes) -> Self {
        Self { name, client, scopes, version: None }
    }

    /// The caller, of a request for which this catalogue version was read.
    pub(crate) fn at(self, version: CatalogueVersion) -> Self {
        Self { version: Some(version), ..self }
    }

    /// The catalogue version that was read for this request, if one was.
    pub(crate) fn version(&self) -> Option<CatalogueVersion> {
        self.version
    }

    /// The caller of a server without authentication. The name is stored in the audit.
    pub(crate) fn anybody() -> Self {
        Self::new("anybody".into(), None, Scopes::all())
    }

    /// The name of the key, or the subject of the token: for logs and the audit.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The caller, or 403 when it does not have the scope.
    pub(crate) fn need(self, scope: Option<Scope>) -> Result<Self> {
        let Some(scope) = scope else { return Ok(self) };
        if self.scopes.allow(scope) {
            return Ok(self);
        }
        tracing::debug!(caller = self.name, scope = scope.as_str(), "refused: scope missing");
        let text = format!("this needs the scope {}, which these credentials do not have", scope.as_str());
        Err(ApiError::new(Code::Forbidden, text))
    }

    /// 403 unless the caller is unscoped: for what covers all clients.
    pub(crate) fn need_unscoped(&self) -> Result<()> {
        match self.client {
            None => Ok(()),
            Some(_) => Err(ApiError::new(Code::Forbidden, "this needs credentials that belong to no client")),
        }
    }

    /// The rows that a list shows: those of the caller's client, or of the one that an unscoped caller names.
    ///
    /// # Errors
    /// 400 when `named` is no client id, 403 when it is another client than the caller's.
    pub(crate) fn visible(&self, named: Option<&str>) -> Result<Visible> {
        self.visible_as("client", named)
    }

    /// As [`visible`](Self::visible), for a field of another name.
    ///
    /// # Errors
    /// As [`visible`](Self::visible).
    pub(crate) fn visible_as(&self, field: &str, named: Option<&str>) -> Result<Visible> {
        let bad = |_| ApiError::invalid(format!("{field} must be the id of a client: 13 characters"));
        let named = named.map(str::parse::<Tsid>).transpose().map_err(bad)?;
        match (self.client, named) {
            (Some(own), Some(other)) if own != other => {
                let text = format!("{field} is not the client of these credentials: leave it out");
                Err(ApiError::new(Code::Forbidden, text))
            }
            (own, named) => Ok(Visible(own.or(named))),
        }
    }

    /// The queue that a request is about; `default` if it names none. Whether it exists is not known yet.
    ///
    /// # Errors
    /// As [`visible`](Self::visible), and 400 when the name is not valid.
    pub(crate) fn queue(&self, client: Option<&str>, name: Option<&str>) -> Result<QueueName> {
        self.visible(client)?.queue(name.unwrap_or(QueueName::DEFAULT))
    }

    fn sees(&self, queue: &QueueName) -> bool {
        Visible(self.client).has(queue)
    }

    /// The entry that a request is about. For an unscoped caller nothing is looked up, so it need not exist.
    ///
    /// # Errors
    /// 404 when it is in another client's queue, or does not exist.
    pub(crate) async fn entry(&self, queue: &EventQueue, named: NamedEntry) -> Result<EntryId> {
        let mut answers = self.entries(queue, &[named]).await?;
        answers.pop().unwrap_or_else(|| Err(ApiError::no_event(named.number())))
    }

    /// As [`entry`](Self::entry) for several entries, with one result each.
    pub(crate) async fn entries(&self, queue: &EventQueue, named: &[NamedEntry]) -> Result<Vec<Result<EntryId>>> {
        let ids = named.iter().map(|named| named.0);
        if self.client.is_none() {
            return Ok(ids.map(Ok).collect());
        }
        let queues = queue.queues_of(ids.clone().collect()).await?.into_iter().chain(std::iter::repeat(None));
        let own = |(id, of): (EntryId, Option<QueueName>)| match of {
            Some(of) if self.sees(&of) => Ok(id),
            _ => Err(ApiError::no_event(id)),
        };
        Ok(ids.zip(queues).map(own).collect())
    }

    /// The entry that a request is about, with all it holds.
    ///
    /// # Errors
    /// 404 when it is in another client's queue, or does not exist.
    pub(crate) async fn entry_view(&self, queue: &EventQueue, named: NamedEntry) -> Result<EntryView> {
        let found = queue.entry(named.0).await?.filter(|entry| self.sees(&entry.queue));
        found.ok_or_else(|| ApiError::no_event(named.number()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(client: Option<i64>) -> Caller {
        Caller::new("k".into(), client.map(Tsid::from_i64), Scopes::all())
    }

    #[test]
    fn a_client_names_only_its_own_queues() {
        let client = Tsid::from_i64(7);
        let (own, unscoped) = (caller(Some(7)), caller(None));
        let queue = own.queue(None, Some("mail")).unwrap();
        assert_eq!((queue.client(), queue.name()), (Some(client), "mail"));
        assert_eq!(unscoped.queue(Some("0000000000007"), Some("mail")).unwrap(), queue);
        assert_eq!(own.queue(Some("0000000000007"), Some("mail")).unwrap(), queue);
        assert!(own.queue(Some("0000000000008"), Some("mail")).is_err());
        assert!(own.sees(&queue) && unscoped.sees(&queue));
        assert!(!own.sees(&QueueName::default()));
        assert!(!caller(Some(8)).sees(&queue));
        assert_eq!(unscoped.queue(None, None).unwrap(), QueueName::default());
        assert!(own.queue(None, Some("a b")).is_err());
        assert!(unscoped.queue(Some("nobody"), None).is_err());
        assert!(unscoped.queue(Some("0000000000000"), None).is_err(), "zero means no client");
    }

    #[test]
    fn what_covers_all_clients_is_for_unscoped_callers() {
        assert!(caller(None).need_unscoped().is_ok());
        assert_eq!(caller(Some(7)).need_unscoped().unwrap_err().status().as_u16(), 403);
        let reader = Caller::new("k".into(), None, [Scope::Read].into_iter().collect());
        assert!(reader.clone().need(Some(Scope::Read)).is_ok());
        assert_eq!(reader.need(Some(Scope::Manage)).unwrap_err().status().as_u16(), 403);
    }
}
