//! Resources: configuration that every node caches, and the catalogue version under which it is cached.

use tidegate_core::name::check_text;
use tidegate_core::{Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};

/// The largest body of a resource, in bytes.
pub const MAX_BODY: usize = 1 << 20;
/// The most resources on one page of a list.
pub const MAX_RESOURCES: usize = 1_000;

/// A version of the catalogue: it rises with every change of a queue, a lane or a resource.
///
/// The stamp is drawn at random with every version. Two histories of one database (a restore, a failover that lost
/// commits) may share a number, never a stamp: equal versions mean equal catalogues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CatalogueVersion {
    /// The number; it rises by at least one with every change.
    pub number: i64,
    /// Tells two versions with the same number apart.
    pub stamp: i64,
}

/// A piece of configuration as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its number.
    pub id: Tsid,
    /// What it configures: `key`, and whatever kinds the layers above define.
    pub kind: String,
    /// The client it belongs to; `None` for one of no client.
    pub client: Option<Tsid>,
    /// Its name, unique among the resources of its kind and client that are not deleted. It never changes.
    pub code: String,
    /// The number of the catalogue version that last changed it.
    pub version: i64,
    /// Whether it was deleted. It is kept without its body until it is 1,000 versions old, so that every node hears of it.
    pub deleted: bool,
    /// What it says, as JSON; empty once it is deleted.
    pub body: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// A resource to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutResource {
    /// Creates one. `Conflict` when its code or its id is taken.
    Create {
        /// Its id; `None` to draw a new one.
        id: Option<Tsid>,
        /// Its kind, 1 to 255 bytes without control characters.
        kind: String,
        /// The client it belongs to.
        client: Option<Tsid>,
        /// Its code, 1 to 255 bytes without control characters.
        code: String,
        /// What it says: JSON of at most [`MAX_BODY`] bytes, kept as it is given.
        body: String,
    },
    /// Changes what one says. `NotFound` when there is none of this id and kind.
    Change {
        /// Its id.
        id: Tsid,
        /// Its kind.
        kind: String,
        /// The version it must have, else the answer is `Conflict`; `None` to change whatever there is.
        expected: Option<i64>,
        /// What it says from now on. The same as before writes nothing.
        body: String,
    },
}

/// A resource to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteResource {
    /// Its id.
    pub id: Tsid,
    /// Its kind.
    pub kind: String,
    /// The version it must have, unless it is deleted already; `None` to delete whatever there is.
    pub expected: Option<i64>,
}

/// One of the changes that are made together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeResource {
    /// Creates or changes one.
    Put(PutResource),
    /// Deletes one.
    Delete(DeleteResource),
}

/// What changed since a catalogue version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceChanges {
    /// The version that this leads to.
    pub version: CatalogueVersion,
    /// All resources follow, and what is not among them does not exist; otherwise only changed and deleted ones do.
    pub complete: bool,
    /// The resources.
    pub items: Vec<Resource>,
}

/// Which resources to list: those that are not deleted, by client and code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcesQuery {
    /// Their kind.
    pub kind: String,
    /// Only those of this client (`Some(None)`: of no client); `None` for those of all clients.
    pub client: Option<Option<Tsid>>,
    /// Only those after this client and code.
    pub after: Option<(Option<Tsid>, String)>,
    /// Most resources to list, at most [`MAX_RESOURCES`].
    pub limit: usize,
}

impl PutResource {
    /// Checks what can be checked without a database.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Create { kind, client, code, body, .. } => {
                check_key(kind, code)?;
                // 0 stands for no client in the index.
                if client.is_some_and(|client| client.to_i64() <= 0) {
                    return Err(Error::invalid("the client of a resource must be a positive number"));
                }
                check_body(body)
            }
            Self::Change { kind, body, .. } => {
                check_kind(kind)?;
                check_body(body)
            }
        }
    }
}

impl DeleteResource {
    /// Checks what can be checked without a database.
    pub(crate) fn check(&self) -> Result<()> {
        check_kind(&self.kind)
    }
}

impl ResourcesQuery {
    /// Checks what can be checked without a database.
    pub(crate) fn check(&self) -> Result<()> {
        check_kind(&self.kind)?;
        if let Some((_, code)) = &self.after {
            check_key(&self.kind, code)?;
        }
        if self.limit > MAX_RESOURCES {
            return Err(Error::invalid(format!("a page has at most {MAX_RESOURCES} resources, not {}", self.limit)));
        }
        Ok(())
    }

    /// The client and the code after which the page begins, and the last client, as they are stored: 0 for no client.
    pub(crate) fn range(&self) -> (i64, &str, i64) {
        let number = |client: Option<Tsid>| client.map_or(0, Tsid::to_i64);
        let (first, last) = match self.client {
            Some(client) => (number(client), number(client)),
            None => (0, i64::MAX),
        };
        match &self.after {
            Some((client, code)) if number(*client) >= first => (number(*client), code, last),
            _ => (first, "", last),
        }
    }
}

pub(crate) fn check_kind(kind: &str) -> Result<()> {
    Ok(check_text("kind of a resource", kind)?)
}

pub(crate) fn check_key(kind: &str, code: &str) -> Result<()> {
    check_kind(kind)?;
    Ok(check_text("code of a resource", code)?)
}

fn check_body(body: &str) -> Result<()> {
    if body.len() > MAX_BODY {
        let length = body.len();
        return Err(Error::invalid(format!(
            "the body of a resource has {length} bytes; at most {MAX_BODY} are allowed"
        )));
    }
    let read = serde_json::from_str::<serde::de::IgnoredAny>(body);
    read.map(drop)
        .map_err(|error| Error::invalid(format!("the body of a resource must be JSON: {error}")).with_source(error))
}

/// The error for a resource that does not exist.
pub(crate) fn no_resource(kind: &str, id: Tsid) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {kind} {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_after_its_cursor_and_ends_with_its_client() {
        let client = |number| Some(Tsid::from_i64(number));
        let query = |client, after| ResourcesQuery { kind: "k".into(), client, after, limit: 9 };
        assert_eq!(query(None, None).range(), (0, "", i64::MAX));
        assert_eq!(query(None, Some((client(5), "c".into()))).range(), (5, "c", i64::MAX));
        assert_eq!(query(Some(None), None).range(), (0, "", 0));
        assert_eq!(query(Some(client(5)), None).range(), (5, "", 5));
        assert_eq!(query(Some(client(5)), Some((client(5), "c".into()))).range(), (5, "c", 5));
        assert_eq!(query(Some(client(5)), Some((client(4), "c".into()))).range(), (5, "", 5), "nothing of client 4");
        assert_eq!(query(Some(client(5)), Some((client(6), "c".into()))).range(), (6, "c", 5), "an empty range");
    }
}
