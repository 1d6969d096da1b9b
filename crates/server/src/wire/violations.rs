//! What is wrong with data or with a schema, piece by piece.

use serde::{Deserialize, Serialize};
use tidegate_dispatch::{Change, Violation};
use utoipa::ToSchema;

/// One thing that is wrong, and where.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ViolationBody {
    /// Where: a JSON pointer, a path of fields, an XPath, or a field of the request. Empty for the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// The line, from 1, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The column, from 1, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

impl ViolationBody {
    pub(crate) fn of(violation: &Violation) -> Self {
        Self {
            path: violation.path.clone(),
            message: violation.message.clone(),
            line: violation.position.map(|position| position.line),
            column: violation.position.map(|position| position.column),
        }
    }

    pub(crate) fn of_change(change: &Change) -> Self {
        Self { path: change.path.clone(), message: change.message.clone(), line: None, column: None }
    }
}
