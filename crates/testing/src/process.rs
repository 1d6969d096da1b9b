//! Signals to processes, their children, and waiting for them.

use std::io;
use std::time::{Duration, Instant};

/// Sends a signal. That the process is gone already is not an error.
pub(crate) fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: kill has no memory effects.
    if unsafe { libc::kill(pid, signal) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
}

/// The child processes of `parent`.
pub(crate) fn children(parent: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if stat(pid).is_some_and(|(_, its_parent)| its_parent == parent) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Whether a process has ended; a zombie has.
pub(crate) fn is_gone(pid: u32) -> bool {
    stat(pid).is_none_or(|(state, _)| state == 'Z')
}

/// A process's state letter and parent; `None` when there is no such process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself contain any character.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Polls `done` every 5 ms until it is true; fails after `limit`, naming `what`.
pub(crate) fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    while !done()? {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{what} took more than {limit:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
