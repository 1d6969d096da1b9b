//! The statements of the PostgreSQL store, with the index that serves each: one set for each family. `{ns}` is the
//! namespace; `{live}`, `{log}` and the other tables of a family are filled in by [`Family::fill`], and an index is named
//! as that of entries; `{now}` is the present moment: a parameter that only tests set, else the statement's own time
//! (stable, so that indexes can use it).
//!
//! A connection plans a statement once, perhaps while tables are empty, so no statement may leave the planner a choice
//! that is wrong for full tables; the test `plans` checks that. A table is searched by `= ANY` on its key, by a range
//! of it, or for each given row by `LATERAL (… OFFSET 0)`, which can be planned in one direction only; a plain join
//! could walk over the whole table. While a table is empty, all of its indexes cost the same. So where another index
//! has a column of the primary key too, the whole key is compared a second time (`(id, generation) > (x, 0)`): always
//! true, but it makes the primary key the cheapest. And the first rows of a lane are ordered by (lane, id) from a pair
//! on: by id alone the planner could walk along the primary key and search a lane with few entries among all of them.

pub(in crate::postgres) mod added;
pub(in crate::postgres) mod attempts;
pub(in crate::postgres) mod audit;
pub(in crate::postgres) mod catalogue;
pub(in crate::postgres) mod claim;
pub(in crate::postgres) mod deduplication;
pub(in crate::postgres) mod dispatch;
pub(in crate::postgres) mod end;
pub(in crate::postgres) mod entries;
pub(in crate::postgres) mod facts;
pub(in crate::postgres) mod finding;
pub(in crate::postgres) mod groups;
pub(in crate::postgres) mod handlers;
pub(in crate::postgres) mod heartbeat;
pub(in crate::postgres) mod ingest;
pub(in crate::postgres) mod jobs;
pub(in crate::postgres) mod keys;
pub(in crate::postgres) mod lanes;
pub(in crate::postgres) mod lists;
pub(in crate::postgres) mod log_counts;
#[cfg(test)]
mod plans;
pub(in crate::postgres) mod projections;
pub(in crate::postgres) mod publish;
pub(in crate::postgres) mod queues;
pub(in crate::postgres) mod requests;
pub(in crate::postgres) mod resources;
pub(in crate::postgres) mod retain;
pub(in crate::postgres) mod schedules;
pub(in crate::postgres) mod tags;
pub(in crate::postgres) mod transactions;

use crate::sql::Columns as _;
use crate::values::Family;

/// The present moment: the one that tests set, else that of the statement.
const NOW: &str = "coalesce($1::timestamptz, statement_timestamp())";

crate::sql::subjects! {
    /// The statements of each subject.
    pub(in crate::postgres) struct Sql {
        added: added::Added,
        attempts: attempts::Attempts,
        audit: audit::Audit,
        catalogue: catalogue::Catalogue,
        claim: claim::Claim,
        deduplication: deduplication::Deduplication,
        dispatch: dispatch::Dispatch,
        end: end::End,
        entries: entries::Entries,
        finding: finding::Finding,
        groups: groups::Groups,
        handlers: handlers::Handlers,
        heartbeat: heartbeat::Heartbeat,
        ingest: ingest::Ingest,
        jobs: jobs::Jobs,
        keys: keys::Keys,
        lanes: lanes::Lanes,
        lists: lists::Lists,
        log_counts: log_counts::LogCounts,
        projections: projections::Projections,
        publish: publish::Publish,
        queues: queues::Queues,
        requests: requests::Requests,
        resources: resources::Resources,
        retain: retain::Retain,
        schedules: schedules::Schedules,
        tags: tags::Tags,
    }
}

impl Sql {
    /// The statements of one family in one namespace. Those about tags, lists, counts, projections, retention and
    /// deliveries are the same for either family: jobs have none of the first four, retention names the tables, and only
    /// jobs are delivered.
    pub(in crate::postgres) fn new(namespace: &str, family: Family) -> Self {
        let fact = facts::FactRow::list();
        let fill = |family: Family, text: &str| {
            let text = text.replace("{now}", NOW).replace("{removed}", removed_kind(family)).replace("{fact}", &fact);
            family.fill(&text, ".").replace("{ns}", namespace)
        };
        let of_entries = |text: &str| fill(Family::Entries, text);
        Self {
            dispatch: dispatch::Dispatch::new(|text| fill(Family::Jobs, text)),
            jobs: jobs::Jobs::new(|text| fill(Family::Jobs, text)),
            lists: lists::Lists::new(of_entries),
            log_counts: log_counts::LogCounts::new(of_entries),
            projections: projections::Projections::new(of_entries),
            retain: retain::Retain::new(of_entries),
            tags: tags::Tags::new(of_entries),
            ..Self::filled(|text| fill(family, text))
        }
    }
}

/// The kind of a family's queues in `catalogue_removed`; its lanes have the next one.
fn removed_kind(family: Family) -> &'static str {
    match family {
        Family::Entries => "0",
        Family::Jobs => "2",
    }
}
