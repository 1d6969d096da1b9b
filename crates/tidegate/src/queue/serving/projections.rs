//! Pages of documents of a projection, with its status.

use tidegate_store::Document;

use crate::error::Result;
use crate::projection::ProjectionStatus;
use crate::queue::EventQueue;

/// Which documents of a projection to read.
#[derive(Debug, Clone)]
pub struct DocumentsPage {
    /// Only documents after this key.
    pub after: Option<String>,
    /// Most documents to read.
    pub limit: usize,
}

/// A projection, with documents if they were asked for.
#[derive(Debug, Clone)]
pub struct ProjectionPage {
    /// Its status.
    pub status: ProjectionStatus,
    /// The documents, in byte order of their keys; `None` when none were asked for.
    pub documents: Option<Vec<Document>>,
    /// The key of the last document when there are more after it.
    pub next_after: Option<String>,
}

impl EventQueue {
    /// The status of a projection, with a page of its documents if one is asked for.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name, or any error of the store.
    pub async fn projection_page(&self, name: &str, page: Option<DocumentsPage>) -> Result<ProjectionPage> {
        let status = self.projection_status(name).await?;
        let Some(DocumentsPage { after, limit }) = page else {
            return Ok(ProjectionPage { status, documents: None, next_after: None });
        };
        // One document more than wanted tells whether there are more.
        let mut found = self.projection_documents(name, after.as_deref(), limit.saturating_add(1)).await?;
        let is_last = found.len() <= limit;
        found.truncate(limit);
        let next_after = found.last().filter(|_| !is_last).map(|last| last.key.clone());
        Ok(ProjectionPage { status, documents: Some(found), next_after })
    }
}
