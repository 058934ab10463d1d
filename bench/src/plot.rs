//! Renders the table as a bar chart in SVG, without a library.

use std::fmt::Write;

use crate::machine::Machine;
use crate::report::{Figure, ReportLine, format_ratio};

const WIDTH: f64 = 1060.0;
const MARGIN: f64 = 24.0;
/// The start of the bars, and the length of the longest bar of a line.
const BAR_X: f64 = 380.0;
const BAR_LENGTH_MAX: f64 = 280.0;
/// The position of the ratio and the goal.
const GOAL_X: f64 = 830.0;
const BAR_HEIGHT: f64 = 14.0;
/// The height of a line with its two bars.
const LINE_HEIGHT: f64 = 42.0;
const HEAD_HEIGHT: f64 = 84.0;
const OURS_COLOR: &str = "#2563a8";
const OTHER_COLOR: &str = "#b9bec6";

/// Renders the chart. Each line has its own scale, so that its bars show the ratio.
pub(crate) fn render_svg(machine: &Machine, lines: &[ReportLine]) -> String {
    let mut body = String::new();
    let mut y = HEAD_HEIGHT;
    let mut group = "";
    // A single bar shows nothing.
    for line in lines.iter().filter(|line| line.other.is_some()) {
        if line.group != group {
            group = line.group;
            y += 8.0;
            draw_rule(&mut body, y);
            y += 14.0;
        }
        y = draw_line(&mut body, line, y);
    }
    let height = y + MARGIN;
    let (date, title) = (escape_xml(&machine.to_string()), "duly compared to its store's baseline and its peers");
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

/// Draws a line at this height and returns the height of the next line.
fn draw_line(body: &mut String, line: &ReportLine, y: f64) -> f64 {
    let max = line.other.as_ref().map_or(line.ours.value, |other| other.value.max(line.ours.value));
    draw_text(body, MARGIN, y + 11.0, &line.name);
    draw_bar(body, &line.ours, max, y, OURS_COLOR);
    if let Some(goal) = &line.goal {
        let met = if goal.is_met { "met" } else { "missed" };
        draw_text(body, GOAL_X, y + BAR_HEIGHT + 13.0, &format!("goal {}: {met}", goal.text));
    }
    if let Some(ratio) = line.ratio {
        draw_text(body, GOAL_X, y + 11.0, &format_ratio(ratio));
    }
    if let Some(other) = &line.other {
        draw_bar(body, other, max, y + BAR_HEIGHT + 2.0, OTHER_COLOR);
    }
    y + LINE_HEIGHT
}

fn draw_bar(body: &mut String, figure: &Figure, max: f64, y: f64, colour: &str) {
    let share = if max > 0.0 { (figure.value / max).clamp(0.0, 1.0) } else { 0.0 };
    let len = (share * BAR_LENGTH_MAX).max(1.0);
    let shown = if figure.subject == "duly" {
        figure.format_value()
    } else {
        format!("{} {}", figure.subject, figure.format_value())
    };
    write_element(
        body,
        &format!(r#"<rect x="{BAR_X}" y="{y:.1}" width="{len:.1}" height="{BAR_HEIGHT}" rx="2" fill="{colour}"/>"#),
    );
    draw_text(body, BAR_X + len + 6.0, y + 11.0, &shown);
}

fn draw_text(body: &mut String, x: f64, y: f64, text: &str) {
    write_element(body, &format!(r#"<text x="{x:.1}" y="{y:.1}">{}</text>"#, escape_xml(text)));
}

fn draw_rule(body: &mut String, y: f64) {
    let end = WIDTH - MARGIN;
    write_element(body, &format!(r##"<line x1="{MARGIN}" y1="{y:.1}" x2="{end}" y2="{y:.1}" stroke="#e3e6ea"/>"##));
}

fn write_element(body: &mut String, element: &str) {
    writeln!(body, "{element}").expect("writing to a string does not fail");
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
