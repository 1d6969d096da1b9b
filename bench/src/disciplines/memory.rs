//! Peak resident memory while many events are published and ended, in a child process that does nothing else.

use std::process::Stdio;

use tidegate::EventQueue;
use tokio::process::Command;

use super::{Bench, known};
use crate::report::Measured;
use crate::runner::{progress, short};
use crate::{Result, tide};

/// Bytes per payload.
const LARGE: usize = 1024;

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When the child fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    if bench.wanted.has("memory_rss_sqlite") {
        let folder = bench.sqlite_folder()?;
        let file = folder.path().join("tidegate.db");
        outcomes.push(one(bench, "memory_rss_sqlite", &file.to_string_lossy()).await?);
    }
    if bench.wanted.has("memory_rss_postgres") {
        let database = bench.server()?.database().await?;
        outcomes.push(one(bench, "memory_rss_postgres", &database.url).await?);
    }
    Ok(outcomes)
}

async fn one(bench: &Bench, name: &str, address: &str) -> Result<Measured> {
    let child = Command::new(std::env::current_exe()?)
        .args(["--memory-child", address, "--memory-events", &bench.scale.memory.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    if !child.status.success() {
        return Err(format!("the child that measures {name} exited with {}", child.status).into());
    }
    let kib: f64 = String::from_utf8_lossy(&child.stdout).trim().parse()?;
    progress(&format!("{name}: {} MiB", short(kib / 1024.0)));
    Ok(Measured::absolute(known(name)?, vec![kib / 1024.0]))
}

/// The main function of the child: publishes half of the events first, the rest while consumers run. Prints its peak
/// resident memory in KiB.
///
/// # Errors
/// When a database call fails, or `/proc` does not have the figure.
pub(crate) async fn child(address: &str, events: usize) -> Result<()> {
    let queue = EventQueue::open(address).await?;
    let event = tide::event(LARGE);
    tide::fill(&queue, &event, events / 2).await?;
    let publish = tide::fill(&queue, &event, events - events / 2);
    let (published, worked) = tokio::join!(publish, tide::work_off(&queue, events));
    published?;
    worked?;
    tide::expect_ended(&queue, events).await?;
    queue.close().await;
    println!("{}", peak(&std::fs::read_to_string("/proc/self/status")?).ok_or("no VmHWM in /proc/self/status")?);
    Ok(())
}

/// The peak resident memory in KiB from the text of `/proc/self/status`. The kernel records it, so no peak is missed as
/// it could be between two samples.
fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read() {
        let status = "Name:\tbench\nVmPeak:\t  999 kB\nVmHWM:\t   81234 kB\nVmRSS:\t   70000 kB\n";
        assert_eq!(peak(status), Some(81_234));
        assert_eq!(peak("Name:\tbench\n"), None);
    }
}
