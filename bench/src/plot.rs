//! Draws the results as one SVG: a bar per discipline on a logarithmic scale where 1 is `must` and further right is
//! always better. Knows nothing of how they were measured.

use crate::catalogue::Better;
use crate::report::{Measured, Verdict};
use crate::svg::{GRID, INK, begin, escape, line, rect, text};

const WIDTH: f64 = 1280.0;
const LEFT: f64 = 400.0;
const RIGHT: f64 = 980.0;
const TOP: f64 = 118.0;
const ROW: f64 = 38.0;
const BAR: f64 = 18.0;
/// The ends of the scale: from a quarter as good as `must` to eight times as good.
const LOW: f64 = 0.25;
const HIGH: f64 = 8.0;

/// The whole drawing. `subtitle` names the machine.
pub(crate) fn svg(outcomes: &[Measured], subtitle: &str) -> String {
    let bottom = TOP + ROW * outcomes.len() as f64;
    let height = bottom + 58.0;
    let mut out = begin(WIDTH, height, "Tidegate beside the raw limit of the same database");
    text(&mut out, (24.0, 38.0), 21.0, "start", INK, "600", "Tidegate beside the raw limit of the same database");
    text(&mut out, (24.0, 62.0), 12.5, "start", "#5b6775", "400", &escape(subtitle));
    legend(&mut out);
    for stripe in (0..outcomes.len()).step_by(2) {
        rect(&mut out, (12.0, TOP + ROW * stripe as f64 - 3.0), WIDTH - 24.0, ROW, "#f5f7f9");
    }
    grid(&mut out, bottom);
    for (index, outcome) in outcomes.iter().enumerate() {
        row(&mut out, outcome, TOP + ROW * index as f64);
    }
    // Drawn last, so that bars do not hide it.
    line(&mut out, (x(1.0), TOP - 10.0), (x(1.0), bottom + 4.0), INK, 1.6, "");
    let caption = "how many times as good as it must be (logarithmic; further right is better)";
    text(&mut out, (f64::midpoint(LEFT, RIGHT), bottom + 40.0), 12.5, "middle", "#5b6775", "400", caption);
    out.push_str("</svg>\n");
    out
}

/// How many times as good as `must` the result is.
fn score(outcome: &Measured) -> f64 {
    against_must(outcome, outcome.judged())
}

fn against_must(outcome: &Measured, value: f64) -> f64 {
    match outcome.better {
        Better::Higher => value / outcome.must,
        Better::Lower => outcome.must / value,
    }
}

/// The horizontal position of a score. Scores off the scale are drawn at its ends, NaN at the low one.
fn x(score: f64) -> f64 {
    let score = if score.is_nan() { LOW } else { score.clamp(LOW, HIGH) };
    LEFT + (RIGHT - LEFT) * (score / LOW).log2() / (HIGH / LOW).log2()
}

fn legend(out: &mut String) {
    let entries =
        [(Verdict::Aim, "reaches its aim"), (Verdict::Must, "reaches what it must"), (Verdict::Missed, "misses it")];
    let mut at = LEFT;
    for (verdict, label) in entries {
        rect(out, (at, 80.0), 12.0, 12.0, colour(verdict));
        text(out, (at + 18.0, 90.5), 12.5, "start", INK, "400", label);
        at += 48.0 + 7.0 * label.len() as f64;
    }
    line(out, (at + 6.0, 79.0), (at + 6.0, 93.0), INK, 2.5, "");
    text(out, (at + 16.0, 90.5), 12.5, "start", INK, "400", "aim");
}

fn grid(out: &mut String, bottom: f64) {
    let mut mark = LOW;
    while mark <= HIGH {
        let at = x(mark);
        let is_must = mark == 1.0;
        line(out, (at, TOP - 10.0), (at, bottom + 4.0), GRID, 1.0, "");
        let label = if is_must { "must".to_owned() } else { format!("{mark}×") };
        let (fill, weight) = if is_must { (INK, "600") } else { ("#5b6775", "400") };
        text(out, (at, bottom + 20.0), 12.0, "middle", fill, weight, &label);
        mark *= 2.0;
    }
}

fn row(out: &mut String, outcome: &Measured, top: f64) {
    let middle = top + ROW / 2.0 - 3.0;
    text(out, (LEFT - 14.0, middle - 1.0), 13.0, "end", INK, "600", outcome.name);
    text(out, (LEFT - 14.0, middle + 13.0), 10.0, "end", "#5b6775", "400", &escape(outcome.what()));
    // Bars start at `must`: to the left is worse, to the right is better.
    let (from, to) = (x(1.0), x(score(outcome)));
    let (left, width) = (from.min(to), (from - to).abs().max(2.0));
    rect(out, (left, middle - BAR / 2.0), width, BAR, colour(outcome.verdict()));
    let aim = x(against_must(outcome, outcome.aim));
    line(out, (aim, middle - BAR / 2.0 - 4.0), (aim, middle + BAR / 2.0 + 4.0), INK, 2.5, "round");
    text(out, (RIGHT + 18.0, middle + 4.5), 14.0, "start", colour(outcome.verdict()), "700", &outcome.judged_text());
    let marks = format!("must {}, aim {}", outcome.mark_text(outcome.must), outcome.mark_text(outcome.aim));
    text(out, (WIDTH - 20.0, middle + 4.5), 10.5, "end", "#5b6775", "400", &marks);
}

fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Aim => "#14866d",
        Verdict::Must => "#3b73b9",
        Verdict::Missed => "#c8372d",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::discipline;
    use crate::report::tests::samples;
    use crate::runner::Pair;

    /// Checks that elements close in order, `&` is escaped, and no number is NaN or infinite.
    fn check_well_formed(svg: &str) {
        assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
        let mut open = Vec::new();
        let mut rest = svg;
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "a bare > before {}", &rest[..start]);
            let end = rest[start..].find('>').expect("every element closes") + start;
            let element = &rest[start + 1..end];
            assert_eq!(element.matches('"').count() % 2, 0, "{element}");
            if let Some(name) = element.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "{name} closes what is open");
            } else if !element.ends_with('/') {
                open.push(element.split_whitespace().next().unwrap());
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "{open:?}");
        for (at, _) in svg.match_indices('&') {
            assert!(
                ["&amp;", "&lt;", "&gt;"].iter().any(|entity| svg[at..].starts_with(entity)),
                "{}",
                &svg[at..at + 9]
            );
        }
    }

    #[test]
    fn drawings_are_well_formed() {
        let outcomes = samples();
        let drawing = svg(&outcomes, "2 × <Some & CPU>");
        check_well_formed(&drawing);
        assert!(drawing.contains("2 × &lt;Some &amp; CPU&gt;"));
        assert!(outcomes.iter().all(|outcome| drawing.contains(outcome.name)));
        check_well_formed(&svg(&[], ""));
    }

    #[test]
    fn odd_numbers_stay_on_the_scale() {
        let drain = discipline("postgres_drain").unwrap();
        for (ours, baseline) in [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1e9, 1.0)] {
            let outcome = Measured::beside(drain, Pair { ours: vec![ours], baseline: vec![baseline] });
            let at = x(score(&outcome));
            assert!((LEFT..=RIGHT).contains(&at), "{ours} / {baseline} lies at {at}");
            check_well_formed(&svg(&[outcome], "x"));
        }
    }

    #[test]
    fn right_is_better() {
        let outcome = |name: &str, ours: f64| {
            Measured::beside(discipline(name).unwrap(), Pair { ours: vec![ours], baseline: vec![1.0] })
        };
        let place = |name: &str, ours: f64| x(score(&outcome(name, ours)));
        assert!(place("postgres_drain", 2.0) > place("postgres_drain", 1.0));
        assert!(place("sqlite_claim_flat_backlog_time", 1.0) > place("sqlite_claim_flat_backlog_time", 2.0));
        assert_eq!(place("postgres_drain", 1.0), x(1.0));
    }
}
