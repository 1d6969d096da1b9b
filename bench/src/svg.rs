//! Pieces of an SVG drawing. Knows nothing of what is drawn.

use std::fmt::Write as _;

/// The colour of what matters most.
pub(crate) const INK: &str = "#16202c";
/// The colour of the lines of a grid.
pub(crate) const GRID: &str = "#d5dbe2";

/// A point: from the left, from the top.
pub(crate) type Point = (f64, f64);

/// Starts a drawing on a white ground; to be ended with `</svg>`.
pub(crate) fn begin(width: f64, height: f64, title: &str) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\" role=\"img\">\n\
         <title>{title}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"
    );
    out
}

pub(crate) fn rect(out: &mut String, (left, top): Point, width: f64, height: f64, fill: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{fill}\"/>"
    );
}

pub(crate) fn line(out: &mut String, (x1, y1): Point, (x2, y2): Point, stroke: &str, width: f64, cap: &str) {
    let cap = if cap.is_empty() { String::new() } else { format!(" stroke-linecap=\"{cap}\"") };
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\" stroke-width=\"{width}\"{cap}/>"
    );
}

pub(crate) fn text(out: &mut String, (x, y): Point, size: f64, anchor: &str, fill: &str, weight: &str, content: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{fill}\" \
         font-weight=\"{weight}\">{content}</text>"
    );
}

/// Text as the content of an element.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
