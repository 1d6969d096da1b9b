//! Draws the series of a soak as one SVG: a panel for each, from zero up, over the minutes of the run.

use std::fmt::Write as _;

use super::figures::{SERIES, Sample};
use crate::runner::short;
use crate::svg::{GRID, INK, Point, begin, escape, line, text};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 970.0;
const TOP: f64 = 90.0;
const PANEL: f64 = 120.0;
const GAP: f64 = 46.0;

/// The whole drawing. Series without any value have no panel.
pub(super) fn svg(samples: &[Sample], title: &str, machine: &str) -> String {
    let present: Vec<usize> =
        (0..SERIES.len()).filter(|index| samples.iter().any(|s| s.values[*index].is_some())).collect();
    let height = TOP + (PANEL + GAP) * present.len() as f64 + 20.0;
    let mut out = begin(WIDTH, height, "Tidegate over time");
    label(&mut out, (24.0, 36.0), 20.0, "start", &format!("Tidegate over time: {}", escape(title)));
    label(&mut out, (24.0, 60.0), 12.5, "start", &escape(machine));
    let last = samples.last().map_or(1.0, |sample| sample.minute).max(1e-9);
    for (place, index) in present.into_iter().enumerate() {
        panel(&mut out, samples, index, TOP + (PANEL + GAP) * place as f64, last);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, samples: &[Sample], index: usize, top: f64, last: f64) {
    let (name, unit) = SERIES[index];
    let points: Vec<(f64, f64)> =
        samples.iter().filter_map(|sample| Some((sample.minute, sample.values[index]?))).collect();
    let most = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let bottom = top + PANEL;
    label(out, (LEFT, top - 8.0), 13.5, "start", &format!("{name} ({unit})"));
    for part in [0.0, 0.5, 1.0] {
        let y = bottom - PANEL * part;
        line(out, (LEFT, y), (RIGHT, y), GRID, 1.0, "");
        label(out, (LEFT - 8.0, y + 4.0), 11.0, "end", &short(most * part));
    }
    label(out, (RIGHT, bottom + 16.0), 11.0, "end", &format!("{} min", short(last)));
    let path: Vec<String> = points
        .iter()
        .map(|(minute, value)| {
            format!("{:.1},{:.1}", LEFT + (RIGHT - LEFT) * minute / last, bottom - PANEL * value / most)
        })
        .collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#3b73b9\" stroke-width=\"1.8\"/>",
        path.join(" ")
    );
}

fn label(out: &mut String, at: Point, size: f64, anchor: &str, content: &str) {
    text(out, at, size, anchor, INK, "400", content);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_that_is_told_has_a_panel() {
        let values = [Some(1.0), Some(2.0), None, Some(0.0), Some(4.0), Some(5.5), Some(6.0)];
        let sample = Sample { minute: 1.0, published: 9, handled: 8, redriven: 1, forgotten: 0, values };
        let later = Sample { minute: 2.0, ..sample.clone() };
        let drawing = svg(&[sample, later], "a < b", "2 × CPU");
        assert_eq!(drawing.matches("<polyline").count(), 6);
        assert!(drawing.contains("a &lt; b") && !drawing.contains("NaN"), "{drawing}");
        assert!(!svg(&[], "", "").contains("<polyline"));
    }
}
