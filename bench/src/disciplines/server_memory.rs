//! Resident memory of a server process.

use std::time::Duration;

use tokio::time::sleep;

use super::{Bench, known};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{progress, short};
use crate::served::Served;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_millis(100);
/// The memory is stable after this many samples in a row without growth.
const STABLE: usize = 8;
/// After this many samples (20 s) without becoming stable, the measurement fails.
const MAX_SAMPLES: usize = 200;

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let idle = "server_rss_idle";
    if !bench.wanted.has(idle) {
        return Ok(Vec::new());
    }
    let folder = bench.sqlite_folder()?;
    let served = Served::start(&folder.path().join("tidegate.db").to_string_lossy()).await?;
    // Makes sure that the server works before its memory is measured.
    Connection::open(served.address).await?.expect(200, "GET", "/readyz", b"").await?;
    let resident = stable_resident(&served).await?;
    progress(&format!("{idle}: {} MiB", short(resident)));
    served.stop().await?;
    Ok(vec![Measured::absolute(known(idle)?, vec![resident])])
}

/// The resident memory in MiB, once it no longer grows.
///
/// # Errors
/// When the server has exited, or its memory does not stop growing.
pub(super) async fn stable_resident(served: &Served) -> Result<f64> {
    let (mut highest, mut same) = (0.0_f64, 0);
    for _ in 0..MAX_SAMPLES {
        let now = served.resident()?;
        same = if now > highest * 1.001 { 0 } else { same + 1 };
        highest = highest.max(now);
        if same == STABLE {
            return Ok(highest);
        }
        sleep(INTERVAL).await;
    }
    Err("the server's resident memory did not stop growing within 20 s".into())
}
