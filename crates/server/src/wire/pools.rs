//! Dispatch pools.

use serde::{Deserialize, Serialize};
use tidegate::{HeldSlots, Timestamp, Tsid};
use tidegate_dispatch::{Listed, Pool, PoolBody, PoolHolds, PoolStatus, PoolsQuery};
use utoipa::{IntoParams, ToSchema};

use super::event_types::limit;
use super::jobs::counted;
use crate::access::Visible;
use crate::cursor;
use crate::error::{ApiError, Result};

/// The id of a dispatch pool in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct PoolPath {
    /// The id of the dispatch pool.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// A dispatch pool, new or changed. What is absent has its default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "code": "partners", "name": "Partners", "concurrency": 20, "rateLimitPerMinute": 600 }))]
pub(crate) struct PoolText {
    /// Unique per client; it never changes. A change may leave it out.
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9._-]+$")]
    code: Option<String>,
    /// The client whose subscriptions may name it; that of the caller or, for an unscoped caller, all clients if absent. It
    /// cannot be changed.
    #[schema(min_length = 13, max_length = 13)]
    pub(crate) client_id: Option<String>,
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// Deliveries at once, on all nodes together; 10 by default.
    #[schema(minimum = 1, maximum = 10000)]
    concurrency: Option<u32>,
    /// Deliveries per minute, on all nodes together; no limit if absent.
    #[schema(minimum = 1, maximum = 10_000_000)]
    rate_limit_per_minute: Option<u32>,
    /// `ACTIVE` (the default), or `SUSPENDED`: its jobs wait.
    #[schema(value_type = Option<String>, example = "ACTIVE")]
    status: Option<PoolStatus>,
}

/// Which dispatch pools to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PoolsParams {
    /// Only those of this client; an unscoped caller sees those of all by default.
    #[param(min_length = 13, max_length = 13)]
    #[serde(rename = "clientId")]
    pub(crate) client_id: Option<String>,
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A dispatch pool: limits that the deliveries of its subscriptions share.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolAnswer {
    /// The id.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// The code, which never changes.
    #[schema(example = "partners")]
    code: String,
    /// The client whose subscriptions may name it; `null` for the anchor level, whose pools all may name.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// A name for people.
    name: String,
    /// Deliveries at once, on all nodes together.
    concurrency: u32,
    /// Deliveries per minute, on all nodes together; `null` for no limit.
    rate_limit_per_minute: Option<u32>,
    /// `ACTIVE` or `SUSPENDED`.
    #[schema(value_type = String, example = "ACTIVE")]
    status: PoolStatus,
    /// What it holds and what waits for it. Only where pools are listed or shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<PoolHoldsAnswer>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// What a dispatch pool holds and what waits for it. Numbers are counted up to a bound: then a `+` follows.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolHoldsAnswer {
    /// Deliveries under way: the jobs that nodes have claimed.
    in_use: u64,
    /// The slots that nodes hold.
    slots: Vec<SlotsAnswer>,
    /// The subscriptions whose jobs wait.
    waiting_subscriptions: usize,
    /// The jobs that wait: those that are delayed, wait for a retry or are behind others included, but not tasks that are behind
    /// others of their group.
    #[schema(example = "1000+")]
    waiting: String,
    /// For how long the oldest has waited that could be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_waiting_seconds: Option<u64>,
    /// Whether its jobs wait because it is suspended.
    suspended: bool,
}

/// The slots of a dispatch pool that a node holds.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlotsAnswer {
    /// The node.
    node: String,
    /// How many it holds.
    slots: u32,
    /// How many it could use.
    wanted: u32,
}

/// A page of dispatch pools.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolsAnswer {
    /// The pools by client and code.
    items: Vec<PoolAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl PoolText {
    /// The code that a new pool must have.
    pub(crate) fn code(&self) -> Result<String> {
        self.code.clone().ok_or_else(|| ApiError::invalid("code is required"))
    }

    /// Refuses a change of what never changes.
    pub(crate) fn check_unchanged(&self, found: &Pool) -> Result<()> {
        let client = found.client.map(|client| client.to_string());
        let fixed = [("code", &self.code, Some(&found.code)), ("clientId", &self.client_id, client.as_ref())];
        match fixed.into_iter().find(|(_, named, is)| named.is_some() && named.as_ref() != *is) {
            Some((field, ..)) => {
                Err(ApiError::invalid(format!("{field} of a dispatch pool cannot be changed: leave it out")))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn read(self) -> PoolBody {
        let default = PoolBody::new(self.name);
        PoolBody {
            concurrency: self.concurrency.unwrap_or(default.concurrency),
            rate_limit_per_minute: self.rate_limit_per_minute,
            status: self.status.unwrap_or(default.status),
            ..default
        }
    }
}

impl PoolsParams {
    /// The list that the parameters ask for, of what the caller may see.
    pub(crate) fn read(&self, visible: Visible) -> Result<PoolsQuery> {
        let client = visible.client();
        let after = self.cursor.as_deref().map(|text| cursor::read_pool(text, client)).transpose()?;
        Ok(PoolsQuery { client: client.map(Some), after, limit: limit(self.limit.as_deref())? })
    }
}

impl PoolAnswer {
    /// A pool with what it holds.
    pub(crate) fn holding(pool: Pool, holds: PoolHolds) -> Self {
        let holds = PoolHoldsAnswer {
            in_use: holds.in_use,
            slots: holds.slots.iter().map(SlotsAnswer::from).collect(),
            waiting_subscriptions: holds.waiting_subscriptions,
            waiting: counted(holds.waiting, holds.is_capped),
            oldest_waiting_seconds: holds.oldest.map(|oldest| oldest.as_secs()),
            suspended: pool.body.status == PoolStatus::Suspended,
        };
        Self { holds: Some(holds), ..Self::from(pool) }
    }
}

impl From<&HeldSlots> for SlotsAnswer {
    fn from(held: &HeldSlots) -> Self {
        Self { node: shown(&held.node), slots: held.slots, wanted: held.wanted }
    }
}

impl From<Pool> for PoolAnswer {
    fn from(pool: Pool) -> Self {
        Self {
            id: pool.id,
            code: pool.code,
            client_id: pool.client,
            name: pool.body.name,
            concurrency: pool.body.concurrency,
            rate_limit_per_minute: pool.body.rate_limit_per_minute,
            status: pool.body.status,
            holds: None,
            created_at: pool.created_at,
            updated_at: pool.updated_at,
        }
    }
}

impl PoolsAnswer {
    pub(crate) fn of(page: Listed<Pool>, holds: Vec<PoolHolds>, visible: Visible) -> Self {
        let next_cursor = page.next.map(|(of, code)| cursor::of_pool(visible.client(), of, &code));
        let shown = |(pool, holds)| PoolAnswer::holding(pool, holds);
        Self { items: page.items.into_iter().zip(holds).map(shown).collect(), next_cursor }
    }
}

/// A node's name without what it tells of its machine and process: that is nothing for callers.
fn shown(node: &str) -> String {
    node.rsplit('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_node_is_shown_without_its_process() {
        assert_eq!(
            super::shown("749cacf5-bebe/4026531836/4026531834/812/2735152/00000000000000af"),
            "00000000000000af"
        );
        assert_eq!(super::shown("0123456789abcdef"), "0123456789abcdef");
    }
}
