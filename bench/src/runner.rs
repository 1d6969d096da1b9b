//! Runs Tidegate and the baseline in turns, and has the statistics and number formats of all disciplines. Knows nothing
//! of databases or reports.

use std::time::Duration;

use crate::Result;

/// The single measurements of both sides, in the order they were made.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Pair {
    /// Measurements of Tidegate.
    pub(crate) ours: Vec<f64>,
    /// Measurements of the baseline.
    pub(crate) baseline: Vec<f64>,
}

/// Runs both sides `runs` times in turns (A B A B …), so that a slow minute of the machine affects both.
///
/// # Errors
/// The first error of either side.
pub(crate) async fn interleave(
    name: &str,
    runs: usize,
    mut ours: impl AsyncFnMut() -> Result<f64>,
    mut baseline: impl AsyncFnMut() -> Result<f64>,
) -> Result<Pair> {
    let mut pair = Pair::default();
    for run in 1..=runs {
        let (ours, baseline) = (ours().await?, baseline().await?);
        progress(&format!("{name} {run}/{runs}: {} vs {}", short(ours), short(baseline)));
        pair.ours.push(ours);
        pair.baseline.push(baseline);
    }
    Ok(pair)
}

/// Runs all futures concurrently, each in its own task, and waits for all.
///
/// # Errors
/// The first error of any of them; the others are aborted.
pub(crate) async fn at_once<F>(work: impl IntoIterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut tasks: tokio::task::JoinSet<Result<()>> = work.into_iter().collect();
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Writes a line of progress to standard error.
pub(crate) fn progress(line: &str) {
    eprintln!("  {line}");
}

/// The median: of an even number of values the mean of the middle two, of none NaN.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The 99th percentile by nearest rank: the smallest value that at least 99 % of the values do not exceed. `None` of
/// none.
pub(crate) fn p99<T: Into<f64>>(values: impl IntoIterator<Item = T>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().map(Into::into).collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * 99).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// Count per second.
pub(crate) fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9)
}

/// Formats a number with about three significant digits; `-` if it is not finite.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".into()
    } else if size >= 1000.0 {
        thousands(value)
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert_eq!(median(&[1.0, 1.0, 1.0, 1.0, 1000.0]), 1.0, "one outlier must not move it");
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles() {
        let up_to = |last: u16| (1..=last).rev().map(f64::from);
        assert_eq!(p99(up_to(0)), None);
        assert_eq!(p99([7.0_f32]), Some(7.0));
        assert_eq!(p99(up_to(99)), Some(99.0));
        assert_eq!(p99(up_to(100)), Some(99.0), "one in a hundred may be larger");
        assert_eq!(p99(up_to(101)), Some(100.0));
        assert_eq!(p99(up_to(200)), Some(198.0));
    }

    #[test]
    fn numbers_for_people() {
        let cases = [(1_234_567.0, "1,234,567"), (1000.0, "1,000"), (999.4, "999"), (54.321, "54.3"), (0.0625, "0.06")];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(short(-45_000.0), "-45,000");
        assert_eq!(short(f64::NAN), "-");
    }

    #[test]
    fn sides_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let side = async |name: &'static str, value: f64| {
            order.borrow_mut().push(name);
            Ok(value)
        };
        let pair = runtime.block_on(interleave("x", 3, async || side("a", 2.0).await, async || side("b", 1.0).await));
        assert_eq!(pair.unwrap(), Pair { ours: vec![2.0; 3], baseline: vec![1.0; 3] });
        assert_eq!(order.into_inner(), ["a", "b", "a", "b", "a", "b"]);
    }
}
