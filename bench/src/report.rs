//! The results of a run: whether each meets its limits, the printed table and the JSON. Measures nothing.

use std::fmt::Write as _;

use serde::Serialize;

use crate::catalogue::{Better, Discipline, Judge};
use crate::runner::{Pair, median, short};

/// The result of one discipline. The first nine fields are the stable part of the JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// The discipline's stable name.
    pub(crate) name: &'static str,
    /// The median of `runs`.
    pub(crate) value: f64,
    /// The unit of the value.
    pub(crate) unit: &'static str,
    /// The median of `baseline_runs`; `None` where there is no baseline.
    pub(crate) baseline: Option<f64>,
    /// `value / baseline`; `value / must` where there is no baseline. Of what grew see [`Measured::grown`].
    pub(crate) ratio: f64,
    /// Whether higher or lower is better.
    pub(crate) better: Better,
    /// The limit that has to be met: by the ratio, or by the value where there is no baseline.
    pub(crate) must: f64,
    /// The limit that is aimed at, for the same figure as `must`.
    pub(crate) aim: f64,
    /// The single measurements.
    pub(crate) runs: Vec<f64>,
    /// The single measurements of the baseline.
    pub(crate) baseline_runs: Vec<f64>,
    /// Additional figures, one line each.
    pub(crate) notes: Vec<String>,
    #[serde(skip)]
    what: &'static str,
    #[serde(skip)]
    judge: Judge,
}

/// Which of its limits a result meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Meets `aim`, and so `must`.
    Aim,
    /// Meets `must` only.
    Must,
    /// Meets neither.
    Missed,
}

impl Measured {
    /// A result with a baseline that was measured in the same run.
    pub(crate) fn beside(discipline: &'static Discipline, pair: Pair) -> Self {
        let (value, baseline) = (median(&pair.ours), median(&pair.baseline));
        let mut outcome = Self::new(discipline, value, pair.ours);
        outcome.baseline = Some(baseline);
        outcome.ratio = value / baseline;
        outcome.baseline_runs = pair.baseline;
        outcome
    }

    /// The same, where a baseline that is smaller than `least` counts as this one: the ratio is 1 and the growth by its part
    /// of that, so that what is almost nothing may become several times as much.
    pub(crate) fn grown(discipline: &'static Discipline, pair: Pair, least: f64) -> Self {
        let mut outcome = Self::beside(discipline, pair);
        let baseline = outcome.baseline.unwrap_or(f64::NAN);
        outcome.ratio = 1.0 + (outcome.value - baseline) / baseline.max(least);
        outcome
    }

    /// A result without a baseline.
    pub(crate) fn absolute(discipline: &'static Discipline, runs: Vec<f64>) -> Self {
        Self::new(discipline, median(&runs), runs)
    }

    fn new(discipline: &'static Discipline, value: f64, runs: Vec<f64>) -> Self {
        Self {
            name: discipline.name,
            value,
            unit: discipline.unit,
            baseline: None,
            ratio: value / discipline.must,
            better: discipline.better,
            must: discipline.must,
            aim: discipline.aim,
            runs,
            baseline_runs: Vec::new(),
            notes: Vec::new(),
            what: discipline.what,
            judge: discipline.judge,
        }
    }

    /// Adds an additional figure.
    #[must_use]
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// The figure that `must` and `aim` are compared with.
    pub(crate) fn judged(&self) -> f64 {
        match self.judge {
            Judge::Ratio => self.ratio,
            Judge::Value => self.value,
        }
    }

    /// Which limits the result meets. A result that is not a number meets none.
    pub(crate) fn verdict(&self) -> Verdict {
        let judged = self.judged();
        let reaches = |mark: f64| match self.better {
            Better::Higher => judged >= mark,
            Better::Lower => judged <= mark,
        };
        if reaches(self.aim) {
            Verdict::Aim
        } else if reaches(self.must) {
            Verdict::Must
        } else {
            Verdict::Missed
        }
    }

    /// What is measured, in one line.
    pub(crate) fn what(&self) -> &'static str {
        self.what
    }

    /// The figure that `must` and `aim` are compared with, as text with its unit.
    pub(crate) fn judged_text(&self) -> String {
        match self.judge {
            _ if !self.judged().is_finite() => "-".into(),
            Judge::Ratio => format!("{:.2}×", self.ratio),
            Judge::Value => format!("{} {}", short(self.value), self.unit),
        }
    }

    /// A limit (`must` or `aim`) as text, with its direction.
    pub(crate) fn mark_text(&self, mark: f64) -> String {
        let sign = if self.better == Better::Higher { '≥' } else { '≤' };
        match self.judge {
            Judge::Ratio => format!("{sign} {mark}×"),
            Judge::Value if mark >= 1000.0 => format!("{sign} {}", short(mark)),
            Judge::Value => format!("{sign} {mark}"),
        }
    }
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Aim => "aim reached",
            Self::Must => "ok",
            Self::Missed => "** MISSED **",
        }
    }
}

/// The results as JSON: a list of objects.
pub(crate) fn json(outcomes: &[Measured]) -> crate::Result<String> {
    Ok(serde_json::to_string_pretty(outcomes)? + "\n")
}

/// The results as a table, followed by all notes.
pub(crate) fn table(outcomes: &[Measured]) -> String {
    let head = ["discipline", "value", "unit", "baseline", "ratio", "must", "aim", "spread", "verdict"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(outcomes.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Text is flush left, numbers are flush right.
            let _ = match column {
                0 | 2 | 8 => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
        if index == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            let _ = writeln!(text, "{}", rules.join("──"));
        }
    }
    let missed = outcomes.iter().filter(|outcome| outcome.verdict() == Verdict::Missed).count();
    let aims = outcomes.iter().filter(|outcome| outcome.verdict() == Verdict::Aim).count();
    let _ = writeln!(text, "\n{} disciplines: {aims} reach their aim, {missed} miss their must.", outcomes.len());
    for outcome in outcomes {
        for note in &outcome.notes {
            let _ = writeln!(text, "  {}: {note}", outcome.name);
        }
    }
    text
}

fn row(outcome: &Measured) -> [String; 9] {
    let ratio = match outcome.judge {
        Judge::Ratio => format!("{:.2}×", outcome.ratio),
        Judge::Value => format!("{:.2} of must", outcome.ratio),
    };
    [
        outcome.name.into(),
        short(outcome.value),
        outcome.unit.into(),
        outcome.baseline.map_or_else(|| "-".into(), short),
        ratio,
        outcome.mark_text(outcome.must),
        outcome.mark_text(outcome.aim),
        spread(&outcome.runs),
        outcome.verdict().text().into(),
    ]
}

/// The largest deviation of a single measurement from the median: the precision that a ratio can be trusted to.
fn spread(runs: &[f64]) -> String {
    let middle = median(runs);
    let far = runs.iter().map(|run| (run / middle - 1.0).abs()).fold(0.0, f64::max);
    if runs.len() < 2 || !far.is_finite() { "-".into() } else { format!("±{:.0}%", far * 100.0) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalogue::{DISCIPLINES, discipline};

    pub(crate) fn samples() -> Vec<Measured> {
        let one = |discipline: &'static Discipline| match discipline.judge {
            Judge::Ratio => {
                let ours = vec![90.0 * discipline.aim, 100.0 * discipline.aim, 140.0 * discipline.aim];
                Measured::beside(discipline, Pair { ours, baseline: vec![100.0; 3] })
            }
            Judge::Value => Measured::absolute(discipline, vec![discipline.must]).note("half of it is publish"),
        };
        DISCIPLINES.iter().map(one).collect()
    }

    fn beside(name: &str, ours: f64, baseline: f64) -> Measured {
        Measured::beside(discipline(name).unwrap(), Pair { ours: vec![ours], baseline: vec![baseline] })
    }

    #[test]
    fn verdicts_follow_the_better_side() {
        assert_eq!(beside("postgres_drain", 200.0, 100.0).verdict(), Verdict::Aim);
        assert_eq!(beside("postgres_drain", 100.0, 100.0).verdict(), Verdict::Must);
        assert_eq!(beside("postgres_drain", 99.0, 100.0).verdict(), Verdict::Missed);
        let flat = "postgres_claim_flat_backlog_time";
        assert_eq!(beside(flat, 1.1, 1.0).verdict(), Verdict::Aim);
        assert_eq!(beside(flat, 1.5, 1.0).verdict(), Verdict::Must);
        assert_eq!(beside(flat, 1.6, 1.0).verdict(), Verdict::Missed);
        assert_eq!(beside(flat, 0.0, 0.0).verdict(), Verdict::Missed, "nothing measured is not a pass");
        let wal =
            |value| Measured::absolute(discipline("postgres_wal_bytes_per_event").unwrap(), vec![value]).verdict();
        assert_eq!([wal(900.0), wal(1600.0), wal(1601.0)], [Verdict::Aim, Verdict::Must, Verdict::Missed]);
    }

    #[test]
    fn small_figures_may_grow_by_more() {
        let grown = |ours: f64, baseline: f64| {
            let pair = Pair { ours: vec![ours], baseline: vec![baseline] };
            Measured::grown(discipline("sqlite_deliver_beside_dead_p99").unwrap(), pair, 25.0).verdict()
        };
        assert_eq!([grown(120.0, 100.0), grown(121.0, 100.0)], [Verdict::Must, Verdict::Missed]);
        assert_eq!([grown(30.0, 25.0), grown(31.0, 25.0)], [Verdict::Must, Verdict::Missed]);
        assert_eq!([grown(6.9, 2.0), grown(7.1, 2.0), grown(1.0, 2.0)], [Verdict::Must, Verdict::Missed, Verdict::Aim]);
        assert_eq!(grown(f64::NAN, 2.0), Verdict::Missed);
    }

    #[test]
    fn json_has_the_promised_shape() {
        let outcomes = samples();
        let list: Vec<serde_json::Value> = serde_json::from_str(&json(&outcomes).unwrap()).unwrap();
        assert_eq!(list.len(), DISCIPLINES.len());
        for (object, discipline) in list.iter().zip(&DISCIPLINES) {
            assert_eq!(object["name"], discipline.name);
            for key in ["value", "ratio", "must", "aim"] {
                assert!(object[key].is_number(), "{key} of {}", discipline.name);
            }
            assert!(object["unit"].is_string());
            assert!(["higher", "lower"].contains(&object["better"].as_str().unwrap()));
            assert!(object["runs"].as_array().unwrap().iter().all(serde_json::Value::is_number));
            assert_eq!(object["baseline"].is_null(), discipline.judge == Judge::Value);
        }
        assert_eq!(list[0]["ratio"].as_f64().unwrap(), 2.0);
        let wal = list.iter().find(|object| object["name"] == "postgres_wal_bytes_per_event").unwrap();
        assert_eq!(wal["ratio"].as_f64().unwrap(), 1.0);
    }

    #[test]
    fn the_table_marks_what_is_missed() {
        let mut outcomes = samples();
        assert!(!table(&outcomes).contains("MISSED"));
        outcomes[0].ratio = 0.5;
        let text = table(&outcomes);
        let line = text.lines().find(|line| line.starts_with("postgres_drain ")).unwrap();
        assert!(line.contains("MISSED"), "{line}");
        assert!(text.contains("1 miss their must"), "{text}");
        assert!(text.contains("half of it is publish"));
    }
}
