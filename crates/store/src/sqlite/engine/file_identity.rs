//! Whether the database's files are still where they were opened, and how long the write-ahead log is. A process could
//! go on writing into a file that was moved or deleted, and those writes would be lost. Knows no SQL.

use std::fs::Metadata;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// What identifies a file: on Unix its device and inode.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(file: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (file.dev(), file.ino())
}

/// On other systems an open file can be neither moved nor deleted.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Identity {
    (0, 0)
}

/// The files of an open database; none for a database in memory.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Place {
    files: Vec<(PathBuf, Identity)>,
    wal: Option<PathBuf>,
    /// Whether a missing file was logged.
    reported: AtomicBool,
}

impl Place {
    /// Records the database's file, its write-ahead log and that log's index, once they are open.
    pub(in crate::sqlite) fn of(path: &Path) -> Result<Self> {
        let unreadable = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("the database file {} cannot be found", path.display()))
                .with_source(error)
        };
        // SQLite follows links too, and puts the other files beside their target.
        let path = path.canonicalize().map_err(unreadable)?;
        let wal = beside(&path, "-wal");
        let shared = beside(&path, "-shm");
        let mut files = vec![(path.clone(), identity(&path.metadata().map_err(unreadable)?))];
        let others =
            [&wal, &shared].into_iter().filter_map(|file| Some((file.clone(), identity(&file.metadata().ok()?))));
        files.extend(others);
        Ok(Self { files, wal: Some(wal), reported: AtomicBool::new(false) })
    }

    /// Fails while a file is not where it was opened. Succeeds again once the same file is back.
    pub(in crate::sqlite) fn check(&self) -> Result<()> {
        for (path, known) in &self.files {
            let what = match path.metadata() {
                Ok(found) if identity(&found) == *known => continue,
                Ok(_) => "replaced by another file",
                Err(error) if error.kind() == IoErrorKind::NotFound => "moved or deleted",
                // Missing permission to look at the path says nothing about the open file.
                Err(_) => continue,
            };
            let error = Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} was {what} while the database is open: writes are refused, because they would be lost. Put the \
                     file back, or restart with the right one",
                    path.display()
                ),
            );
            if !self.reported.swap(true, Ordering::Relaxed) {
                tracing::error!(%error, "a database file was moved, deleted or replaced: writes are refused");
            }
            return Err(error);
        }
        if self.reported.swap(false, Ordering::Relaxed) {
            tracing::info!("the database files are back: writes are accepted again");
        }
        Ok(())
    }

    /// The length of the write-ahead log in bytes.
    pub(in crate::sqlite) fn wal_bytes(&self) -> Option<u64> {
        Some(self.wal.as_ref()?.metadata().ok()?.len())
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
