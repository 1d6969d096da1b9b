//! Resident memory of a server process.

use std::time::Duration;

use tokio::time::sleep;

use super::{Bench, known};
use crate::Result;
use crate::http::Connection;
use crate::report::Outcome;
use crate::runner::{progress, short};
use crate::served::Served;

/// Between two looks, and how many in a row have to agree.
const LOOK: Duration = Duration::from_millis(100);
const SAME: usize = 8;
/// Looks before it counts as never settling.
const LOOKS: usize = 200;

/// Runs what is wanted of this family.
///
/// # Errors
/// When a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Outcome>> {
    let idle = "server_rss_idle";
    if !bench.wanted.has(idle) {
        return Ok(Vec::new());
    }
    let folder = bench.sqlite_folder()?;
    let served = Served::start(&folder.path().join("tidegate.db").to_string_lossy()).await?;
    // Whoever asks for nothing else has to see that it works.
    Connection::open(served.address).await?.expect(200, "GET", "/readyz", b"").await?;
    let resident = settled(&served).await?;
    progress(&format!("{idle}: {} MiB", short(resident)));
    served.stop().await?;
    Ok(vec![Outcome::absolute(known(idle)?, vec![resident])])
}

/// The resident memory once it no longer grows.
pub(super) async fn settled(served: &Served) -> Result<f64> {
    let (mut highest, mut same) = (0.0_f64, 0);
    for _ in 0..LOOKS {
        let now = served.resident()?;
        same = if now > highest * 1.001 { 0 } else { same + 1 };
        highest = highest.max(now);
        if same == SAME {
            return Ok(highest);
        }
        sleep(LOOK).await;
    }
    Err("the server's memory keeps growing".into())
}
