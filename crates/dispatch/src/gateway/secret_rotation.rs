//! Which keys the stored secrets are encrypted with, and the change of all of them to the first key.

use std::collections::BTreeMap;

use tidegate::{ChangeResource, ErrorKind, MAX_RESOURCES, PutResource, Resource, ResourcesQuery};

use super::Gateway;
use super::accounts::ACCOUNT_SECRET;
use super::error::Result;
use super::subscriptions::SIGNING_SECRET;
use crate::secrets::{KeyId, Place, Unreadable, key_of};

/// The kinds of resources that hold secrets.
const KINDS: [&str; 2] = [SIGNING_SECRET, ACCOUNT_SECRET];
/// How many secrets are encrypted anew at once.
const PIECE: usize = 50;

/// How far the change of keys is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RotationProgress {
    /// Secrets that were looked at.
    pub seen: usize,
    /// Those that were encrypted anew.
    pub changed: usize,
    /// Those that could not be read: they stay as they are.
    pub unreadable: usize,
}

/// How many secrets are encrypted with one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUse {
    /// The key; `None` for secrets in plain text, of older programs.
    pub key: Option<KeyId>,
    /// How many secrets.
    pub secrets: usize,
    /// How many of them cannot be read here.
    pub unreadable: usize,
}

impl Gateway {
    /// The keys that stored secrets are encrypted with. What cannot be read is logged.
    ///
    /// # Errors
    /// The store's.
    pub async fn key_uses(&self) -> Result<Vec<KeyUse>> {
        let mut uses: BTreeMap<Option<KeyId>, KeyUse> = BTreeMap::new();
        for kind in KINDS {
            let mut after = None;
            loop {
                let rows = self.secret_rows(kind, after, MAX_RESOURCES).await?;
                for row in &rows {
                    let key = key_of(&row.body);
                    let found = uses.entry(key.clone()).or_insert(KeyUse { key, secrets: 0, unreadable: 0 });
                    found.secrets += 1;
                    if let Err(why) = self.contents_of(row) {
                        found.unreadable += 1;
                        if why == Unreadable::Damaged {
                            tracing::error!(kind, code = row.code, %why, "a stored secret cannot be used");
                        }
                    }
                }
                match rows.last().filter(|_| rows.len() == MAX_RESOURCES) {
                    Some(last) => after = Some((last.client, last.code.clone())),
                    None => break,
                }
            }
        }
        Ok(uses.into_values().collect())
    }

    /// Keys that something is encrypted with and that this node does not have, as far as it has met them.
    #[must_use]
    pub fn missing_keys(&self) -> Vec<KeyId> {
        self.secret_keys().missing()
    }

    /// Encrypts all secrets with the first key that are not yet. It may be stopped and called again, and run beside others:
    /// what somebody changes at the same time is looked at again.
    ///
    /// # Errors
    /// `Unavailable` when there is no key to encrypt with, or the store's.
    pub async fn rotate_secrets(&self, mut tell: impl FnMut(RotationProgress)) -> Result<RotationProgress> {
        let mut progress = RotationProgress::default();
        let first = self.secret_keys().sealing()?;
        for kind in KINDS {
            let mut after = None;
            loop {
                let rows = self.secret_rows(kind, after, PIECE).await?;
                let old: Vec<&Resource> =
                    rows.iter().filter(|row| key_of(&row.body).as_ref() != Some(first.id())).collect();
                progress.seen += rows.len();
                self.encrypt_anew(&old, &mut progress).await?;
                tell(progress);
                match rows.last().filter(|_| rows.len() == PIECE) {
                    Some(last) => after = Some((last.client, last.code.clone())),
                    None => break,
                }
            }
        }
        Ok(progress)
    }

    /// Encrypts these with the first key: all at once or, if somebody is changing one of them, one by one.
    async fn encrypt_anew(&self, rows: &[&Resource], progress: &mut RotationProgress) -> Result<()> {
        let mut changes = Vec::new();
        for row in rows {
            match self.sealed_anew(row)? {
                Some(change) => changes.push(change),
                None => progress.unreadable += 1,
            }
        }
        let count = changes.len();
        match self.queue.resources().change(changes).await {
            Ok(_) => progress.changed += count,
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                for row in rows {
                    progress.changed += usize::from(self.encrypt_one(row).await?);
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Encrypts one with the first key; whether there was anything to do.
    async fn encrypt_one(&self, row: &Resource) -> Result<bool> {
        self.until_written(|| async move {
            let Some(found) = self.queue.resources().get(&row.kind, row.id).await? else { return Ok(false) };
            let Some(change) = self.sealed_anew(&found)? else { return Ok(false) };
            match self.queue.resources().change(vec![change]).await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                changed => Ok(changed.map(|_| true)?),
            }
        })
        .await
    }

    /// A secret under the first key; `None` if it cannot be read.
    fn sealed_anew(&self, row: &Resource) -> Result<Option<ChangeResource>> {
        let Ok(text) = self.secret_keys().open(row) else { return Ok(None) };
        let body = self.secret_keys().seal(Place::of(row), &text)?;
        let (id, kind, expected) = (row.id, row.kind.clone(), Some(row.version));
        Ok(Some(ChangeResource::Put(PutResource::Change { id, kind, expected, body })))
    }

    async fn secret_rows(
        &self,
        kind: &str,
        after: Option<(Option<tidegate::Tsid>, String)>,
        limit: usize,
    ) -> Result<Vec<Resource>> {
        Ok(self.queue.resources().list(ResourcesQuery { kind: kind.to_owned(), client: None, after, limit }).await?)
    }
}
