//! The figures that a soak samples: memory of this process, sizes of the database, latency. Judges nothing.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::database::Database;
use super::load::Load;
use crate::Result;
use crate::runner::p99;

/// Name and unit of the series.
pub(super) const SERIES: [(&str, &str); 7] = [
    ("resident memory", "MiB"),
    ("tables", "MiB"),
    ("indexes", "MiB"),
    ("write-ahead log", "MiB"),
    ("files", "MiB"),
    ("p99 publish to handled", "ms"),
    ("p99 of a plain commit", "ms"),
];
/// How many of them are judged. The last one shows the disk's own latency.
pub(super) const JUDGED: usize = 6;

/// The figures at one moment. Counts are totals since the start.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) minute: f64,
    pub(super) published: u64,
    pub(super) handled: u64,
    pub(super) redriven: u64,
    /// Entries that retention removed.
    pub(super) forgotten: u64,
    /// One value per series of [`SERIES`]; `None` where the database has no such figure.
    pub(super) values: [Option<f64>; 7],
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} min: {} published, {} handled", self.minute, self.published, self.handled)?;
        for ((name, unit), value) in SERIES.iter().zip(self.values) {
            if let Some(value) = value {
                write!(f, ", {name} {value:.1} {unit}")?;
            }
        }
        Ok(())
    }
}

/// Samples all figures.
///
/// # Errors
/// When `/proc` or the database cannot be read.
pub(super) async fn sample(begun: Instant, load: &Load, database: &Database) -> Result<Sample> {
    let sizes = database.sizes().await?;
    let [tables, indexes, log, files] = sizes.map(|bytes| bytes.map(mebibytes));
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    Ok(Sample {
        minute: begun.elapsed().as_secs_f64() / 60.0,
        published: count(&load.published),
        handled: count(&load.handled),
        redriven: count(&load.redriven),
        forgotten: count(&load.forgotten),
        values: [Some(mebibytes(resident()?)), tables, indexes, log, files, p99(load.latencies()), p99(load.commits())],
    })
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}

/// All samples as CSV.
pub(super) fn csv(samples: &[Sample]) -> String {
    let mut text = String::from("minute,published,handled,redriven,forgotten");
    for (name, unit) in SERIES {
        text.push_str(&format!(",{} ({unit})", name));
    }
    text.push('\n');
    for sample in samples {
        let Sample { minute, published, handled, redriven, forgotten, values } = sample;
        text.push_str(&format!("{minute:.2},{published},{handled},{redriven},{forgotten}"));
        for value in values {
            text.push_str(&value.map_or(",".into(), |value| format!(",{value:.3}")));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_column_for_each_series() {
        let values = [Some(1.0), Some(2.0), None, Some(3.0), Some(4.0), Some(5.5), Some(6.0)];
        let sample = Sample { minute: 1.0, published: 9, handled: 8, redriven: 1, forgotten: 0, values };
        let text = csv(&[sample]);
        let counts: Vec<usize> = text.lines().map(|line| line.matches(',').count()).collect();
        assert_eq!(counts, [11, 11]);
        assert!(text.ends_with("1.00,9,8,1,0,1.000,2.000,,3.000,4.000,5.500,6.000\n"), "{text}");
    }
}
