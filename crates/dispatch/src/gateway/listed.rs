//! Pages of resources, as lists show them.

use tidegate::{Resource, Tsid};

use super::error::Result;

/// A page of resources by client and code. What this program cannot read, because a newer one has written it or because it is
/// damaged, is left out, and hides no other.
#[derive(Debug)]
pub struct Listed<T> {
    /// What could be read.
    pub items: Vec<T>,
    /// The client and the code after which the next page begins, if there is one.
    pub next: Option<(Option<Tsid>, String)>,
}

impl<T> Listed<T> {
    /// A page of at most `limit` of these rows, of which one more was asked for.
    pub(super) fn of(mut rows: Vec<Resource>, limit: usize, read: impl Fn(&Resource) -> Result<T>) -> Self {
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(|last| (last.client, last.code.clone()));
        let told = |row: &Resource| {
            let found = read(row);
            found
                .inspect_err(|error| tracing::error!(%error, code = row.code, kind = row.kind, "left out of a list"))
                .ok()
        };
        Self { items: rows.iter().filter_map(told).collect(), next }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Error, ErrorKind, Timestamp};

    use super::*;

    #[test]
    fn what_cannot_be_read_hides_no_other_and_ends_no_list() {
        let row = |code: &str| Resource {
            id: Tsid::from_i64(1),
            kind: "k".into(),
            client: None,
            code: code.into(),
            version: 1,
            deleted: false,
            body: String::new(),
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        };
        let read = |row: &Resource| match row.code.starts_with("bad") {
            true => Err(Error::new(ErrorKind::Corrupt, "its body").into()),
            false => Ok(row.code.clone()),
        };
        let page = |codes: &[&str], limit| {
            let page = Listed::of(codes.iter().map(|code| row(code)).collect(), limit, read);
            (page.items, page.next.map(|(_, code)| code))
        };
        assert_eq!(page(&["a", "bad", "c"], 3), (vec!["a".into(), "c".into()], None));
        assert_eq!(page(&["a", "bad", "c"], 2), (vec!["a".into()], Some("bad".into())));
        assert_eq!(page(&["bad", "c"], 1), (vec![], Some("bad".into())), "the next page begins behind it");
    }
}
