//! What is stored of a memory queue: blobs, each with a header and a checksum over all of it. A blob says itself what its
//! row says about it, so that a changed, exchanged or misplaced row is found out. Reading is total.
//!
//! | bytes | contents |
//! |---|---|
//! | 4 | `TGMQ` |
//! | 1 | the version of this format |
//! | 1 | 1 when more blobs of the same snapshot follow, else 0 |
//! | 2 | the length of the queue's name |
//! | 8 each | epoch, sequence number, first and last event number |
//! | 4 each | how many records there are, and their bytes |
//! | … | the queue's name with its client, then the records |
//! | 4 | CRC-32 of all before it: it finds every change within 32 neighbouring bits, so every changed byte |

use bytes::Bytes;

use super::codec::Reader;
use super::token::Epoch;
use crate::name::QueueName;

const MAGIC: [u8; 4] = *b"TGMQ";
const VERSION: u8 = 1;
const FIXED: usize = 48;
const CHECKSUM: usize = 4;

/// The key columns of a stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobKey {
    /// Rises by one with each blob of the queue.
    pub seq: u64,
    /// The owner that wrote it.
    pub epoch: u64,
    /// The lowest number of an event that it holds; 0 when it holds none.
    pub first: u64,
    /// The highest.
    pub last: u64,
    /// Its checksum.
    pub crc: u32,
}

/// A blob to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Its key columns.
    pub key: BlobKey,
    /// Its bytes.
    pub bytes: Bytes,
    /// More blobs of the same snapshot are to follow.
    pub more_follows: bool,
}

/// The start of a new blob: room for the header, then the queue's name.
pub(super) fn begin(queue: &str) -> Vec<u8> {
    let mut bytes = vec![0; FIXED];
    bytes.extend_from_slice(queue.as_bytes());
    bytes
}

/// Fills the header in and adds the checksum.
pub(super) fn complete(mut bytes: Vec<u8>, queue: &str, mut key: BlobKey, count: u32, more_follows: bool) -> Blob {
    let body = bytes.len() - FIXED - queue.len();
    let mut header = Vec::with_capacity(FIXED);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&[VERSION, u8::from(more_follows)]);
    // A name has at most 255 bytes, a client 13.
    header.extend_from_slice(&(queue.len() as u16).to_le_bytes());
    for number in [key.epoch, key.seq, key.first, key.last] {
        header.extend_from_slice(&number.to_le_bytes());
    }
    header.extend_from_slice(&count.to_le_bytes());
    header.extend_from_slice(&(body as u32).to_le_bytes());
    bytes[..FIXED].copy_from_slice(&header);
    key.crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&key.crc.to_le_bytes());
    Blob { key, bytes: bytes.into(), more_follows }
}

/// A stored blob that is as it was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened<'a> {
    pub(super) body: &'a [u8],
    pub(super) count: u32,
    pub(super) more_follows: bool,
}

/// What is wrong with a stored blob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Too few or too many bytes.
    #[error("it has {found} bytes instead of {expected}")]
    Length {
        /// The bytes that it should have.
        expected: u64,
        /// Those that it has.
        found: u64,
    },
    /// The bytes are not those of a blob.
    #[error("it does not begin like a blob of a memory queue")]
    NotABlob,
    /// It was written by a program that writes another format.
    #[error("it has format version {0}, this program reads {VERSION}")]
    Version(u8),
    /// Bytes have changed.
    #[error("its bytes have changed since they were written: the checksum is {found:08x} instead of {expected:08x}")]
    Checksum {
        /// The checksum that was stored.
        expected: u32,
        /// That of the bytes.
        found: u32,
    },
    /// It belongs to another queue.
    #[error("it belongs to the queue {0:?}")]
    OtherQueue(String),
    /// The row does not say what the blob says.
    #[error("the column {column} is {found}, the blob says {expected}")]
    Column {
        /// The column.
        column: &'static str,
        /// What the blob says.
        expected: u64,
        /// What the column says.
        found: u64,
    },
    /// One or more blobs before it are missing.
    #[error("{} before it missing: {expected} should follow, and it is {found}", missing(*expected, *found))]
    Missing {
        /// The sequence number that should come next.
        expected: u64,
        /// The one that was found.
        found: u64,
    },
    /// The last blobs are missing.
    #[error("the blobs from {expected} to {last} are missing at the end")]
    MissingAtEnd {
        /// The first one that is missing.
        expected: u64,
        /// The last one that was written.
        last: u64,
    },
    /// It was written by an owner whose time was over.
    #[error("it was written in epoch {found} after a blob of epoch {after}")]
    Epoch {
        /// The epoch of the blob before.
        after: u64,
        /// Its epoch.
        found: u64,
    },
    /// Its records make no sense.
    #[error("{0}")]
    Records(&'static str),
    /// The queue's row was changed.
    #[error("the row with the queue's state was changed: its checksum is {found:08x} instead of {expected:08x}")]
    StateRow {
        /// The checksum that was stored.
        expected: u32,
        /// That of the row.
        found: u32,
    },
}

fn missing(expected: u64, found: u64) -> String {
    match found.saturating_sub(expected) {
        0 => "blobs are out of order, or one".into(),
        1 => "one blob is".into(),
        count => format!("{count} blobs are"),
    }
}

/// Reads a stored blob, which must be as it was written, in this queue and under these columns.
pub(super) fn open<'a>(queue: &QueueName, key: &BlobKey, bytes: &'a [u8]) -> Result<Opened<'a>, Damage> {
    let queue = queue.to_string();
    let (header, rest) = bytes
        .split_at_checked(FIXED)
        .ok_or(Damage::Length { expected: (FIXED + CHECKSUM) as u64, found: bytes.len() as u64 })?;
    let mut reader = Reader(header);
    let fields = (|| {
        let magic = reader.take(MAGIC.len())?;
        let (version, flags, name) = (reader.byte()?, reader.byte()?, reader.u16()?);
        let numbers = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
        Some((magic, version, flags, name, numbers, reader.u32()?, reader.u32()?))
    })();
    let Some((magic, version, flags, name, [epoch, seq, first, last], count, body)) = fields else {
        return Err(Damage::NotABlob);
    };
    if magic != MAGIC {
        return Err(Damage::NotABlob);
    }
    let expected = FIXED as u64 + u64::from(name) + u64::from(body) + CHECKSUM as u64;
    let found = bytes.len() as u64;
    if expected != found {
        return Err(Damage::Length { expected, found });
    }
    let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else { return Err(Damage::NotABlob) };
    let (expected, found) = (u32::from_le_bytes(*checksum), crc32fast::hash(content));
    if expected != found {
        return Err(Damage::Checksum { expected, found });
    }
    // From here on the bytes are what was written, and differences say where the row is wrong.
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let (name, rest) = rest.split_at_checked(name.into()).ok_or(Damage::NotABlob)?;
    if name != queue.as_bytes() {
        return Err(Damage::OtherQueue(String::from_utf8_lossy(name).into_owned()));
    }
    let crc = (u64::from(found), u64::from(key.crc));
    let columns = [
        ("seq", (seq, key.seq)),
        ("epoch", (epoch, key.epoch)),
        ("first", (first, key.first)),
        ("last", (last, key.last)),
        ("crc", crc),
    ];
    if let Some((column, (expected, found))) = columns.into_iter().find(|(_, (blob, row))| blob != row) {
        return Err(Damage::Column { column, expected, found });
    }
    let body = rest.get(..body as usize).ok_or(Damage::NotABlob)?;
    if Epoch::new(epoch).is_none() || flags > 1 {
        return Err(Damage::NotABlob);
    }
    Ok(Opened { body, count, more_follows: flags == 1 })
}
