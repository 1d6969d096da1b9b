//! Whether the database's files are still where they were opened, and how long the write-ahead log is. A process goes on
//! writing into a file that was moved or deleted, and nobody finds again what it writes. Knows nothing of SQL.

use std::fs::Metadata;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// What tells one file from another under the same name.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(file: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (file.dev(), file.ino())
}

/// Elsewhere an open file can be neither moved nor deleted.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Identity {
    (0, 0)
}

/// The files of one open database; none for a database in memory.
#[derive(Debug, Default)]
pub(super) struct Place {
    files: Vec<(PathBuf, Identity)>,
    wal: Option<PathBuf>,
    /// It was told that a file is gone.
    told: AtomicBool,
}

impl Place {
    /// Remembers the database's file, its write-ahead log and the index of that, once they are open.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let unreadable = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("the database file {} cannot be found", path.display()))
                .with_source(error)
        };
        // SQLite follows links too, and puts the other files beside the one they lead to.
        let path = path.canonicalize().map_err(unreadable)?;
        let wal = beside(&path, "-wal");
        let shared = beside(&path, "-shm");
        let mut files = vec![(path.clone(), identity(&path.metadata().map_err(unreadable)?))];
        let others =
            [&wal, &shared].into_iter().filter_map(|file| Some((file.clone(), identity(&file.metadata().ok()?))));
        files.extend(others);
        Ok(Self { files, wal: Some(wal), told: AtomicBool::new(false) })
    }

    /// Refuses to go on while a file is not where it was. It goes on once the same file is back.
    pub(super) fn check(&self) -> Result<()> {
        for (path, known) in &self.files {
            let what = match path.metadata() {
                Ok(found) if identity(&found) == *known => continue,
                Ok(_) => "replaced by another file",
                Err(error) if error.kind() == IoErrorKind::NotFound => "moved or deleted",
                // Whether it may be looked at says nothing about the open file.
                Err(_) => continue,
            };
            let error = Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} was {what} while the database is open: nothing is written any more, for nobody would find it \
                     again. Put the file back, or restart on the right one",
                    path.display()
                ),
            );
            if !self.told.swap(true, Ordering::Relaxed) {
                tracing::error!(%error, "the database's files have changed");
            }
            return Err(error);
        }
        if self.told.swap(false, Ordering::Relaxed) {
            tracing::info!("the database's files are back");
        }
        Ok(())
    }

    /// The length of the write-ahead log.
    pub(super) fn wal_bytes(&self) -> Option<u64> {
        Some(self.wal.as_ref()?.metadata().ok()?.len())
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
