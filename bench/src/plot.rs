//! A bar chart of the table as SVG, written by hand: no library for a dozen rectangles.

use std::fmt::Write;

use crate::machine::Machine;
use crate::report::{Figure, Line, times};

const WIDTH: f64 = 1060.0;
const MARGIN: f64 = 24.0;
/// Where bars begin, and how long the longest of a line is.
const BAR_X: f64 = 380.0;
const BAR_LEN: f64 = 280.0;
/// Where the ratio and the goal stand.
const GOAL_X: f64 = 830.0;
const BAR: f64 = 14.0;
/// Height of a line with its two bars.
const LINE: f64 = 42.0;
const HEAD: f64 = 84.0;
const OURS: &str = "#2563a8";
const OTHER: &str = "#b9bec6";

/// Each line has its own scale: its longer bar is full, so what shows is the ratio.
pub(crate) fn svg(machine: &Machine, lines: &[Line]) -> String {
    let mut body = String::new();
    let mut y = HEAD;
    let mut group = "";
    // A bar without another beside it shows nothing.
    for line in lines.iter().filter(|line| line.other.is_some()) {
        if line.group != group {
            group = line.group;
            y += 8.0;
            rule(&mut body, y);
            y += 14.0;
        }
        y = draw(&mut body, line, y);
    }
    let height = y + MARGIN;
    let (date, title) = (escape(&machine.to_string()), "duly beside the limit of its store and its peers");
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="#1c2430">
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>
<text x="{MARGIN}" y="34" font-size="18" font-weight="600">{title}</text>
<text x="{MARGIN}" y="54" fill="#5b6573">{date}</text>
<text x="{MARGIN}" y="72" fill="#5b6573">Each line has its own scale. Blue is duly, grey the other side.</text>
{body}</svg>
"##
    )
}

/// Draws a line at this height and answers the next one's.
fn draw(body: &mut String, line: &Line, y: f64) -> f64 {
    let most = line.other.as_ref().map_or(line.ours.value, |other| other.value.max(line.ours.value));
    text(body, MARGIN, y + 11.0, &line.name);
    bar(body, &line.ours, most, y, OURS);
    if let Some(goal) = &line.goal {
        let met = if goal.met { "met" } else { "missed" };
        text(body, GOAL_X, y + BAR + 13.0, &format!("goal {}: {met}", goal.text));
    }
    if let Some(ratio) = line.ratio {
        text(body, GOAL_X, y + 11.0, &times(ratio));
    }
    if let Some(other) = &line.other {
        bar(body, other, most, y + BAR + 2.0, OTHER);
    }
    y + LINE
}

fn bar(body: &mut String, figure: &Figure, most: f64, y: f64, colour: &str) {
    let share = if most > 0.0 { (figure.value / most).clamp(0.0, 1.0) } else { 0.0 };
    let len = (share * BAR_LEN).max(1.0);
    let shown = if figure.who == "duly" { figure.shown() } else { format!("{} {}", figure.who, figure.shown()) };
    put(body, &format!(r#"<rect x="{BAR_X}" y="{y:.1}" width="{len:.1}" height="{BAR}" rx="2" fill="{colour}"/>"#));
    text(body, BAR_X + len + 6.0, y + 11.0, &shown);
}

fn text(body: &mut String, x: f64, y: f64, words: &str) {
    put(body, &format!(r#"<text x="{x:.1}" y="{y:.1}">{}</text>"#, escape(words)));
}

fn rule(body: &mut String, y: f64) {
    let end = WIDTH - MARGIN;
    put(body, &format!(r##"<line x1="{MARGIN}" y1="{y:.1}" x2="{end}" y2="{y:.1}" stroke="#e3e6ea"/>"##));
}

fn put(body: &mut String, element: &str) {
    writeln!(body, "{element}").expect("writing to a string does not fail");
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
