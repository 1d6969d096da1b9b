//! The command of one event: started in its own process group, fed with the payload, and stopped when it must not go
//! on.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::event::Event;

/// Bytes from the end of a command's stderr that are reported with its failure.
const MAX_ERROR: usize = 4_000;
/// Time from SIGTERM to SIGKILL for a command that is stopped.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How long to read stderr after a command has ended: a process that it started may keep stderr open forever.
const STDERR_TIME: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Debug)]
pub(super) enum CommandEnd {
    Completed,
    Failed {
        code: i32,
        error: String,
    },
    /// The lease was lost.
    Lost,
    /// Stopped, because this process was told to stop.
    Stopped,
}

/// Runs the command for an event until it ends, or until the lease is `lost` or this process is `told_to_stop`: then it
/// is stopped.
pub(super) async fn run(
    command: &[String],
    event: &Event,
    lost: impl Future<Output = ()>,
    told_to_stop: impl Future<Output = ()>,
) -> CommandEnd {
    let mut child = match spawn(command, event) {
        Ok(child) => child,
        Err(error) => {
            return CommandEnd::Failed { code: 127, error: format!("the command cannot be started: {error}") };
        }
    };
    feed(&mut child, event);
    let tail = StderrTail::default();
    let reader = child.stderr.take().map(|stderr| tokio::spawn(tail.clone().read(stderr)));
    let (ended, was_stopped) = tokio::select! {
        ended = child.wait() => (ended, false),
        () = told_to_stop => (stop(&mut child).await, true),
        () = lost => {
            let _ = stop(&mut child).await;
            return CommandEnd::Lost;
        }
    };
    let failed = match ended {
        Ok(status) if status.success() => return CommandEnd::Completed,
        _ if was_stopped => return CommandEnd::Stopped,
        Ok(status) => status,
        Err(error) => return CommandEnd::Failed { code: 1, error: error.to_string() },
    };
    if let Some(reader) = reader {
        let _ = tokio::time::timeout(STDERR_TIME, reader).await;
    }
    let tail = tail.text();
    let error = if tail.trim().is_empty() { failed.to_string() } else { tail.trim().to_owned() };
    CommandEnd::Failed { code: failed.code().unwrap_or(-1), error: error.replace('\0', "") }
}

fn spawn(command: &[String], event: &Event) -> std::io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
    command.env("EVENT_ID", event.id.to_string()).env("EVENT_TITLE", event.title.replace('\0', ""));
    command.env("EVENT_TAGS", event.tags.replace('\0', "")).env("EVENT_ATTEMPT", event.attempts.to_string());
    if let Some(traceparent) = &event.traceparent {
        command.env("TRACEPARENT", traceparent);
    }
    command.spawn()
}

/// Writes the payload to the command's stdin, in the background.
fn feed(child: &mut Child, event: &Event) {
    let payload = event.payload.as_ref().map_or("null", |payload| payload.get()).to_owned();
    if let Some(mut stdin) = child.stdin.take() {
        tokio::spawn(async move {
            // A command may end without reading all of its stdin.
            let _ = stdin.write_all(payload.as_bytes()).await;
        });
    }
}

/// Stops a command and its process group: SIGTERM, and SIGKILL if that does not end it.
async fn stop(child: &mut Child) -> std::io::Result<ExitStatus> {
    signal_group(child, libc::SIGTERM);
    if let Ok(ended) = tokio::time::timeout(KILL_AFTER, child.wait()).await {
        return ended;
    }
    signal_group(child, libc::SIGKILL);
    child.wait().await
}

fn signal_group(child: &Child, signal: i32) {
    // Without an id the child was waited for, and the id may belong to another process by now.
    if let Some(group) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // SAFETY: kill takes two numbers and touches no memory.
        unsafe { libc::kill(-group, signal) };
    }
}

/// The end of a command's stderr, at least the last [`MAX_ERROR`] bytes.
#[derive(Debug, Clone, Default)]
struct StderrTail(Arc<Mutex<Vec<u8>>>);

impl StderrTail {
    /// Passes stderr on to ours and keeps its end.
    async fn read(self, mut stderr: tokio::process::ChildStderr) {
        let mut chunk = [0_u8; 8192];
        while let Ok(count) = stderr.read(&mut chunk).await {
            if count == 0 {
                break;
            }
            let _ = tokio::io::stderr().write_all(&chunk[..count]).await;
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&chunk[..count]);
            if kept.len() > 2 * MAX_ERROR {
                let from = kept.len() - MAX_ERROR;
                kept.drain(..from);
            }
        }
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = kept.len().saturating_sub(MAX_ERROR);
        String::from_utf8_lossy(&kept[from..]).into_owned()
    }
}
