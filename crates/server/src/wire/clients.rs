//! Clients.

use serde::{Deserialize, Serialize};
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{Client, ClientsQuery};
use utoipa::{IntoParams, ToSchema};

use super::event_types::limit;
use crate::access::Visible;
use crate::cursor;
use crate::error::Result;

/// The id of a client in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct ClientPath {
    /// The id of the client.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// A new client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "code": "acme", "name": "Acme" }))]
pub(crate) struct NewClient {
    /// Unique; it never changes.
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9._-]+$")]
    pub(crate) code: String,
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    pub(crate) name: String,
}

/// What is said about a client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "name": "Acme" }))]
pub(crate) struct ClientChange {
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    pub(crate) name: String,
}

/// Which clients to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClientsParams {
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A client.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClientAnswer {
    /// The id: what keys, queues, events and subscriptions of the client carry.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// The code, which never changes.
    #[schema(example = "acme")]
    code: String,
    /// A name for people.
    name: String,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A page of clients.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClientsAnswer {
    /// The clients in the order of their codes.
    items: Vec<ClientAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl ClientsParams {
    /// The list that the parameters ask for, of what the caller may see.
    pub(crate) fn read(&self, visible: Visible) -> Result<ClientsQuery> {
        let after = self.cursor.as_deref().map(|text| cursor::read_client(text, visible.client())).transpose()?;
        Ok(ClientsQuery { id: visible.client(), after, limit: limit(self.limit.as_deref())? })
    }
}

impl From<&Client> for ClientAnswer {
    fn from(client: &Client) -> Self {
        Self {
            id: client.id,
            code: client.code.clone(),
            name: client.name.clone(),
            created_at: client.created_at,
            updated_at: client.updated_at,
        }
    }
}

impl ClientsAnswer {
    pub(crate) fn of(page: &[std::sync::Arc<Client>], more: bool, visible: Visible) -> Self {
        let last = page.last().filter(|_| more);
        Self {
            items: page.iter().map(|one| ClientAnswer::from(&**one)).collect(),
            next_cursor: last.map(|last| cursor::of_client(visible.client(), &last.code)),
        }
    }
}
