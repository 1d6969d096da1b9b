//! Decides whether a series keeps rising, by a straight line through its last three quarters. No IO.

use super::figures::{JUDGED, SERIES, Sample};
use crate::runner::{median, short};

/// How much a series may rise over the judged part of the run, as a fraction of its median.
const MAY_RISE: f64 = 0.05;

/// The result of one series.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    name: &'static str,
    unit: &'static str,
    median: f64,
    /// How much the line rises from the first to the last point, as a fraction of the median.
    rise: f64,
    /// Whether the series must not rise; others are only shown.
    judged: bool,
    /// Whether the series does not keep rising.
    pub(super) holds: bool,
}

/// Judges every series that the database has figures for.
pub(super) fn judge(samples: &[Sample]) -> Vec<Judged> {
    let last = &samples[samples.len() / 4..];
    let mut judged = Vec::new();
    for (index, (name, unit)) in SERIES.into_iter().enumerate() {
        let points: Vec<(f64, f64)> =
            last.iter().filter_map(|sample| Some((sample.minute, sample.values[index]?))).collect();
        // A size that the database does not have is not judged. A latency that was never measured fails.
        let measured = samples.iter().any(|sample| sample.values[index].is_some());
        if !measured && unit == "MiB" {
            continue;
        }
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        let median = median(&values);
        let rise = rise(&points) / median;
        judged.push(Judged {
            name,
            unit,
            median,
            rise,
            judged: index < JUDGED,
            holds: index >= JUDGED || points.len() > 1 && (rise <= MAY_RISE || median == 0.0),
        });
    }
    judged
}

/// How much the least-squares line rises from the first point to the last.
fn rise(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let across: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let along: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let span = points.last().map_or(0.0, |last| last.0) - points.first().map_or(0.0, |first| first.0);
    if across == 0.0 { 0.0 } else { along / across * span }
}

/// The results as a printed table.
pub(super) fn table(judged: &[Judged]) -> String {
    let mut text = String::new();
    for Judged { name, unit, median, rise, judged, holds } in judged {
        let said = match (judged, holds) {
            (false, _) => "beside",
            (true, true) => "ok",
            (true, false) => "RISES",
        };
        text.push_str(&format!(
            "{said:6} {name:24} median {:>8} {unit:4} rise {:+.1} %\n",
            short(*median),
            rise * 100.0
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(value: impl Fn(f64) -> f64) -> Vec<Sample> {
        let sample = |minute: u32| {
            let minute = f64::from(minute);
            let values = [Some(value(minute)), Some(5.0), None, Some(0.0), Some(9.0), Some(3.0), Some(minute)];
            Sample { minute, published: 0, handled: 0, redriven: 0, forgotten: 0, values }
        };
        (0..30).map(sample).collect()
    }

    fn memory_holds(value: impl Fn(f64) -> f64) -> bool {
        judge(&samples(value))[0].holds
    }

    #[test]
    fn what_keeps_rising_is_found() {
        assert!(memory_holds(|_| 100.0));
        assert!(memory_holds(|minute| if minute < 7.0 { minute * 10.0 } else { 100.0 }), "it fills up first");
        assert!(memory_holds(|minute| 100.0 - minute), "falling is fine");
        assert!(memory_holds(|minute| 100.0 + 20.0 * (minute % 2.0)), "noise is fine");
        assert!(!memory_holds(|minute| 100.0 + minute), "22 % in 22 minutes");
        assert!(memory_holds(|minute| 100.0 + 0.2 * minute), "4 % in 22 minutes");
        assert!(!memory_holds(|_| f64::NAN), "no number is no proof");
    }

    #[test]
    fn series_that_are_not_told_are_left_out() {
        let judged = judge(&samples(|_| 1.0));
        assert_eq!(judged.len(), 6);
        assert!(judged.iter().all(|series| series.holds), "{judged:?}");
        assert!(judge(&[]).iter().all(|series| !series.holds || !series.judged), "nothing was seen");
    }
}
