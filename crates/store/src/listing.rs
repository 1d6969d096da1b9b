//! Lists of entries: where candidates come from, which of them fit, and where a page ends. Knows which tables there are
//! but not how a database is asked.

use std::fmt::Write as _;

use tidegate_core::{End, EntryId, Status, Timestamp};

use crate::error::{Error, Result};
use crate::work::{EntrySummary, ListQuery, Page};

/// Entries that one page looks at, at most, where no index finds what is wanted.
const EXAMINED: usize = 10_000;
/// Entries looked at in one step.
const STEP: usize = 1_000;
/// Entries of one page.
const MAX_LIMIT: usize = 1_000;
/// Entries that a page may pass over.
const MAX_OFFSET: usize = 10_000_000;
/// Numbers follow the moments of publication up to this much.
const DISORDER_SECONDS: i64 = 600;

/// How a database writes its statements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    /// What stands before a parameter's number.
    pub(crate) parameter: char,
    /// What stands before a table's name.
    pub(crate) tables: char,
}

/// A step of a list: which candidates to fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Entries before this one.
    pub(crate) before: i64,
    /// How many at most.
    pub(crate) limit: i64,
    /// How many to pass over.
    pub(crate) skip: i64,
}

/// Checks what nobody can answer.
pub(crate) fn check(query: &ListQuery) -> Result<()> {
    if query.limit > MAX_LIMIT {
        return Err(Error::invalid(format!("a page has at most {MAX_LIMIT} entries")));
    }
    if query.offset > MAX_OFFSET {
        return Err(Error::invalid(format!("the offset must be at most {MAX_OFFSET}: use the cursor for deep pages")));
    }
    if query.tags.len() > tidegate_core::work::MAX_TAGS {
        return Err(Error::invalid("too many tags"));
    }
    for tag in &query.tags {
        tidegate_core::work::check_tag(tag)?;
    }
    Ok(())
}

/// The statement that finds the numbers of candidates, youngest first. Its parameters: before, how many per source, how
/// many, how many to pass over, then the tags.
pub(crate) fn candidates(query: &ListQuery, dialect: Dialect) -> String {
    let Dialect { parameter: p, tables: t } = dialect;
    let mut sources = Vec::new();
    let live = match query.status {
        None => Some(""),
        Some(Status::Pending) => Some("AND lease_until IS NULL "),
        Some(Status::Processing) => Some("AND lease_until IS NOT NULL "),
        Some(_) => None,
    };
    if query.tags.is_empty() {
        if let Some(condition) = live {
            sources.push(format!(
                "SELECT id FROM {{ns}}{t}event_queue WHERE id < {p}1 {condition}ORDER BY id DESC LIMIT {p}2"
            ));
        }
        let ended = match query.status {
            None => Some(String::new()),
            Some(status) => status.end().map(|end| match end {
                End::Completed => "AND status = 0 ".to_owned(),
                end => format!("AND status = {} AND status > 0 ", end.code()),
            }),
        };
        if let Some(condition) = ended {
            sources.push(format!(
                "SELECT id FROM {{ns}}{t}event_log WHERE id < {p}1 AND superseded <> 1 {condition}ORDER BY id DESC LIMIT {p}2"
            ));
        }
    }
    for number in 5..5 + query.tags.len() {
        if live.is_some() {
            sources.push(tagged_live(query.status, dialect, number));
        }
        for end in End::ALL.into_iter().filter(|end| query.status.is_none_or(|status| status.end() == Some(*end))) {
            sources.push(format!(
                "SELECT entry_id AS id FROM {{ns}}{t}log_tags WHERE tag = {p}{number} AND status = {} AND entry_id < {p}1 \
                 ORDER BY entry_id DESC LIMIT {p}2",
                end.code()
            ));
        }
    }
    // An entry with two of the tags comes once.
    let union = if query.tags.len() > 1 { " UNION " } else { " UNION ALL " };
    let mut sql = String::from("SELECT id FROM (");
    for (index, source) in sources.iter().enumerate() {
        let _ = write!(sql, "{}SELECT id FROM ({source}) AS s{index}", if index > 0 { union } else { "" });
    }
    let _ = write!(sql, ") AS candidates ORDER BY id DESC LIMIT {p}3 OFFSET {p}4");
    sql
}

/// Live entries with a tag: by its primary key, but those that are held by the index that has them together.
fn tagged_live(status: Option<Status>, dialect: Dialect, number: usize) -> String {
    let Dialect { parameter: p, tables: t } = dialect;
    if status == Some(Status::Processing) {
        return format!(
            "SELECT entry_id AS id FROM {{ns}}{t}event_tags WHERE queue_id IN (SELECT id FROM {{ns}}{t}queues) \
             AND tag = {p}{number} AND state = 3 AND entry_id < {p}1 ORDER BY entry_id DESC LIMIT {p}2"
        );
    }
    let condition = if status == Some(Status::Pending) { "AND state <> 3 " } else { "" };
    format!(
        "SELECT entry_id AS id FROM {{ns}}{t}event_tags WHERE tag = {p}{number} AND entry_id < {p}1 {condition}\
         ORDER BY entry_id DESC LIMIT {p}2"
    )
}

/// Whether candidates are looked at one by one.
fn is_filtered(query: &ListQuery) -> bool {
    query.queue.is_some()
        || query.event_type.is_some()
        || query.worker.is_some()
        || query.client.is_some()
        || query.from.is_some()
        || query.to.is_some()
}

/// Whether the total is kept, so that it need not be counted.
pub(crate) fn is_counted(query: &ListQuery) -> bool {
    !is_filtered(query) && query.tags.len() <= 1
}

fn fits(query: &ListQuery, entry: &EntrySummary) -> bool {
    let is =
        |wanted: &Option<String>, given: Option<&str>| wanted.as_deref().is_none_or(|wanted| Some(wanted) == given);
    query.status.is_none_or(|status| status == entry.status)
        && (query.tags.is_empty() || query.tags.iter().any(|tag| entry.tags.contains(tag)))
        && query.queue.as_ref().is_none_or(|queue| *queue == entry.queue)
        && is(&query.event_type, Some(&entry.event_type))
        && is(&query.worker, entry.worker.as_deref())
        && query.client.is_none_or(|client| Some(client) == entry.client)
        && query.from.is_none_or(|from| entry.created_at >= from)
        && query.to.is_none_or(|to| entry.created_at < to)
}

/// A page in the making.
#[derive(Debug)]
pub(crate) struct Listing<'a> {
    query: &'a ListQuery,
    page: Page,
    before: i64,
    /// Entries that fit and were passed over.
    passed: usize,
    examined: usize,
    done: bool,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(query: &'a ListQuery) -> Self {
        let before = query.before.map_or(i64::MAX, EntryId::get);
        let done = query.limit == 0;
        Self { query, page: Page::default(), before, passed: 0, examined: 0, done }
    }

    /// The next step, unless the page is complete.
    pub(crate) fn step(&self) -> Option<Step> {
        if self.done {
            return None;
        }
        let filtered = is_filtered(self.query);
        let skip = if filtered || self.examined > 0 { 0 } else { self.query.offset };
        let limit = if filtered { STEP } else { self.query.limit - self.page.items.len() + 1 };
        Some(Step { before: self.before, limit: limit as i64, skip: skip as i64 })
    }

    /// Takes in what a step found: numbers, youngest first, and what stands behind them.
    pub(crate) fn add(&mut self, step: Step, ids: &[i64], mut entries: impl FnMut(i64) -> Option<EntrySummary>) {
        let filtered = is_filtered(self.query);
        if !filtered && self.examined == 0 {
            self.passed = self.query.offset;
        }
        for id in ids {
            if self.page.items.len() == self.query.limit {
                self.done = true;
                self.page.next = EntryId::new(self.before).ok();
                return;
            }
            self.before = *id;
            self.examined += 1;
            let Some(entry) = entries(*id) else { continue };
            if self.is_before_range(entry.created_at) {
                self.done = true;
                return;
            }
            if !fits(self.query, &entry) {
                continue;
            }
            if filtered && self.passed < self.query.offset {
                self.passed += 1;
                continue;
            }
            self.page.items.push(entry);
        }
        if (ids.len() as i64) < step.limit {
            self.done = true;
        } else if self.examined >= EXAMINED || self.page.items.len() == self.query.limit {
            self.done = true;
            self.page.next = EntryId::new(self.before).ok();
        }
    }

    fn is_before_range(&self, at: Timestamp) -> bool {
        self.query.from.is_some_and(|from| at.as_second() + DISORDER_SECONDS < from.as_second())
    }

    /// The page, with its total where that is kept, else with what was seen of it.
    pub(crate) fn finish(mut self, total: Option<u64>) -> Page {
        match total {
            Some(total) => self.page.total = total,
            None => {
                let more = u64::from(self.page.next.is_some());
                self.page.total = (self.passed + self.page.items.len()) as u64 + more;
                self.page.total_capped = self.page.next.is_some() || self.query.before.is_some();
            }
        }
        self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_has_its_sources() {
        let dialect = Dialect { parameter: '?', tables: '_' };
        let sql = |status: Option<Status>, tags: &[&str]| {
            let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
            candidates(&ListQuery { status, tags, ..ListQuery::default() }, dialect)
        };
        let all = sql(None, &[]);
        assert!(all.contains("event_queue") && all.contains("event_log"), "{all}");
        assert!(!sql(Some(Status::Failed), &[]).contains("event_queue"));
        assert!(!sql(Some(Status::Pending), &[]).contains("event_log"));
        assert_eq!(sql(None, &["a"]).matches("log_tags").count(), 4);
        assert_eq!(sql(Some(Status::Completed), &["a"]).matches("log_tags").count(), 1);
        assert!(sql(None, &["a", "b"]).contains("tag = ?6"));
    }
}
