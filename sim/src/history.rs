//! Histories: what the processes under test did, recorded so that they survive a kill -9.
//!
//! Every operation writes an intent before it starts and a result after its answer. Each is one line of JSON and one
//! plain `write` call: the page cache outlives the process. An intent without a result, and a result that is `unknown`,
//! both mean *may have happened*. Must not know queues or databases. Times are microseconds of this machine's clock.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// One event that a publish offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Unique in the run; the payload carries it.
    pub(crate) key: String,
    /// Its FIFO group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Whether it is published under a deduplication key, so that a repeat creates no second entry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) once: bool,
}

/// What a process is about to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Intent {
    /// Publish these events; with `outbox`, in the application's own transaction.
    Publish { offers: Vec<Offer>, outbox: bool },
    /// Claim entries; `lease` in microseconds.
    Claim { worker: String, lease: i64 },
    /// End an entry under a lease; `end` is the code of `End`.
    Finalize { id: i64, generation: u32, token: i64, end: i16 },
    /// Extend a lease by `lease` microseconds from now.
    Extend { id: i64, token: i64, lease: i64 },
    /// Give a lease back; `counts` says whether the attempt counts.
    Requeue { id: i64, token: i64, counts: bool },
    /// Run one handler for an entry.
    Handle { handler: String, claim: Claim },
    /// Count all events and entries in one snapshot.
    Census,
}

/// What the library answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OpOutcome {
    /// One answer per offer.
    Published { answers: Vec<Answer> },
    /// The caller's own transaction was rolled back on purpose.
    RolledBack,
    /// The leases that were handed out, perhaps none.
    Claimed { claims: Vec<Claim> },
    /// The entry has ended; `repeated` when it had before, by the same token.
    Finalized { repeated: bool, end: i16 },
    /// The moment at which the lease now ends, in database time.
    Extended { until: i64 },
    /// The lease was given back.
    Requeued,
    /// What the handler is about to answer; recorded before the manager sees it.
    Handled { success: bool },
    /// The caller no longer held the lease; nothing changed.
    Fenced,
    /// The counts of one snapshot.
    Counted { events: u64, waiting: u64, leased: u64, ended: u64 },
    /// An error after which nothing has changed.
    Refused { error: String },
    /// Busy or unavailable: the library says that nothing changed and that the caller should try again.
    Denied { error: String },
    /// The operation may have happened.
    Unknown { error: String },
}

/// The answer to one offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// A new entry was created.
    Created { id: i64 },
    /// The deduplication key already belonged to this entry.
    Duplicate { id: i64 },
    /// An error after which the event is not published.
    Refused { error: String },
    /// Busy or unavailable: not published, to be tried again.
    Denied { error: String },
    /// The event may have been published.
    Unknown { error: String },
}

/// One lease as the library reported it; times are database time in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) id: i64,
    pub(crate) generation: u32,
    pub(crate) token: i64,
    pub(crate) attempts: u32,
    pub(crate) key: String,
    pub(crate) claimed_at: i64,
    pub(crate) lease_until: i64,
}

/// One line of a history file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Intent {
        op: u64,
        at: i64,
        what: Intent,
    },
    Result {
        op: u64,
        at: i64,
        what: OpOutcome,
    },
    /// A milestone of the process: `ready`, `published` or `closed`.
    Note {
        at: i64,
        text: String,
    },
}

/// One operation, assembled from its intent and its result.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    /// The name of the history file: the process and its incarnation.
    pub(crate) process: String,
    pub(crate) begun: i64,
    /// `None`, like `outcome`, when the process ended before it recorded a result.
    pub(crate) answered: Option<i64>,
    pub(crate) intent: Intent,
    pub(crate) outcome: Option<OpOutcome>,
}

/// This machine's clock in microseconds; the databases under test read the same clock.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Writes the history of one incarnation of a process.
#[derive(Debug)]
pub(crate) struct Recorder {
    file: File,
    next: AtomicU64,
}

impl Recorder {
    /// Creates the history file of the next incarnation of `process` in `folder`.
    pub(crate) fn start(folder: &Path, process: &str) -> io::Result<Self> {
        let incarnation = files(folder, Some(process))?.len();
        let path = folder.join(format!("{process}.{incarnation:04}.jsonl"));
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self { file, next: AtomicU64::new(1) })
    }

    /// Records what is about to happen; returns the number to pass to `result`.
    pub(crate) fn intent(&self, what: Intent) -> io::Result<u64> {
        let op = self.next.fetch_add(1, Ordering::Relaxed);
        self.write(&Line::Intent { op, at: now(), what })?;
        Ok(op)
    }

    /// Records the answer to an operation.
    pub(crate) fn result(&self, op: u64, what: OpOutcome) -> io::Result<()> {
        self.write(&Line::Result { op, at: now(), what })
    }

    /// Records that a milestone was reached.
    pub(crate) fn note(&self, text: &str) -> io::Result<()> {
        self.write(&Line::Note { at: now(), text: text.into() })
    }

    /// One line is one write to a file in append mode, so that lines of concurrent tasks never mix.
    fn write(&self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        (&self.file).write_all(&bytes)
    }
}

/// The history files in a folder, of one process or of all, oldest incarnation of a process first.
pub(crate) fn files(folder: &Path, process: Option<&str>) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder)? {
        let path = item?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some((owner, _)) = name.strip_suffix(".jsonl").and_then(|stem| stem.rsplit_once('.')) else { continue };
        if process.is_none_or(|process| process == owner) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// All operations recorded in a folder, of one process or of all.
pub(crate) fn read(folder: &Path, process: Option<&str>) -> io::Result<Vec<Op>> {
    let mut ops = Vec::new();
    for path in files(folder, process)? {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let mut tail = Tail::new(path);
        let mut open: HashMap<u64, usize> = HashMap::new();
        for line in tail.lines()? {
            match line {
                Line::Intent { op, at, what } => {
                    open.insert(op, ops.len());
                    ops.push(Op { process: name.clone(), begun: at, answered: None, intent: what, outcome: None });
                }
                Line::Result { op, at, what } => {
                    let index = *open.get(&op).ok_or_else(|| io::Error::other(format!("{name}: no intent {op}")))?;
                    ops[index].answered = Some(at);
                    ops[index].outcome = Some(what);
                }
                Line::Note { .. } => {}
            }
        }
    }
    Ok(ops)
}

/// Reads a growing history file piece by piece.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    offset: u64,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    /// The complete lines since the last call. A last line without a newline was cut off by a kill or is still being
    /// written; it is left for the next call.
    pub(crate) fn lines(&mut self) -> io::Result<Vec<Line>> {
        self.lines_where(|_| true)
    }

    /// Like `lines`, but only notes and counts, without the cost of parsing the rest.
    pub(crate) fn milestones(&mut self) -> io::Result<Vec<Line>> {
        let counted = b"\"counted\"";
        self.lines_where(|line| {
            let head = &line[..line.len().min(120)];
            head.starts_with(b"{\"note\"") || head.windows(counted.len()).any(|part| part == counted)
        })
    }

    fn lines_where(&mut self, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<Line>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.offset += whole as u64;
        bytes[..whole]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty() && wanted(line))
            .map(|line| serde_json::from_slice(line).map_err(io::Error::from))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_writer_leaves_a_readable_history() {
        let folder = tempfile::tempdir().unwrap();
        let first = Recorder::start(folder.path(), "w1").unwrap();
        let op = first.intent(Intent::Census).unwrap();
        first.result(op, OpOutcome::Counted { events: 1, waiting: 1, leased: 0, ended: 0 }).unwrap();
        first.intent(Intent::Claim { worker: "w1".into(), lease: 5 }).unwrap();
        (&first.file).write_all(b"{\"result\":{\"op\":2,").unwrap();
        let second = Recorder::start(folder.path(), "w1").unwrap();
        second.intent(Intent::Census).unwrap();
        Recorder::start(folder.path(), "w10").unwrap().intent(Intent::Census).unwrap();

        let ops = read(folder.path(), Some("w1")).unwrap();
        assert_eq!(ops.len(), 3);
        assert!(ops[0].outcome.is_some() && ops[0].answered.is_some());
        assert!(ops[1].outcome.is_none(), "cut off: may have happened");
        assert_eq!(ops[2].process, "w1.0001");
        assert_eq!(read(folder.path(), None).unwrap().len(), 4);
    }

    #[test]
    fn a_damaged_line_inside_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("w.0000.jsonl"), "{\"note\":{\"at\":1,\"te\n{}\n").unwrap();
        assert!(read(folder.path(), None).is_err());
    }

    #[test]
    fn a_tail_waits_for_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.0000.jsonl");
        std::fs::write(&path, "{\"note\":{\"at\":1,\"text\":\"a\"}}\n{\"note\"").unwrap();
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.lines().unwrap().len(), 1);
        assert_eq!(tail.lines().unwrap().len(), 0);
        let rest = ":{\"at\":2,\"text\":\"b\"}}\n";
        OpenOptions::new().append(true).open(path).unwrap().write_all(rest.as_bytes()).unwrap();
        assert_eq!(tail.lines().unwrap(), [Line::Note { at: 2, text: "b".into() }]);
    }
}
