//! Draws the state of `duly top`, without changing it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use super::state::{Pane, TopState};
use crate::escape::{escape_text, truncate};
use crate::events::short_id;
use crate::time;

const KEY_HELP: [&str; 11] = [
    "up, down    another line",
    "tab         queues, or jobs",
    "p           pause the queue",
    "r           resume the queue",
    "d           dead jobs, or running ones",
    "c           cancel the running job",
    "t           retry the dead job",
    "/           filter by queue and kind",
    "esc         no filter",
    "?           this help",
    "q           quit",
];
/// The longest text in a cell.
const CELL_CHARS_MAX: usize = 40;

pub(crate) fn draw(frame: &mut Frame<'_>, top: &TopState) {
    let [head, queues, jobs, nodes, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let filter =
        if top.filter.is_empty() && !top.is_typing { String::new() } else { format!("  filter: {}", top.filter) };
    let cursor = if top.is_typing { "_" } else { "" };
    frame.render_widget(Line::from(format!("duly top{}{cursor}", escape_text(&filter))), head);
    draw_queues(frame, top, queues);
    draw_jobs(frame, top, jobs);
    draw_nodes(frame, top, nodes);
    let foot_text = if top.message.is_empty() { "? help  q quit" } else { top.message.as_str() };
    frame.render_widget(Line::from(escape_text(foot_text).into_owned()), foot);
    if top.is_help_shown {
        let area = center_rect(frame.area(), 46, KEY_HELP.len() as u16 + 2);
        frame.render_widget(Clear, area);
        frame.render_widget(
            Paragraph::new(KEY_HELP.map(Line::from).to_vec()).block(Block::bordered().title("keys")),
            area,
        );
    }
}

fn build_table<'t>(head: &'t [&'t str], widths: &[u16], rows: Vec<Row<'t>>, title: String) -> Table<'t> {
    let widths: Vec<Constraint> = widths.iter().map(|width| Constraint::Length(*width)).collect();
    let highlighted = Style::new().add_modifier(Modifier::REVERSED);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Table::new(rows, widths)
        .header(Row::new(head.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).style(bold))
        .row_highlight_style(highlighted)
        .block(Block::bordered().title(title))
}

fn format_cell(text: &str) -> String {
    truncate(&escape_text(text), CELL_CHARS_MAX)
}

fn draw_queues(frame: &mut Frame<'_>, top: &TopState, area: Rect) {
    let rows = top.filtered_queues().into_iter().map(|queue| {
        let lateness = top.snapshot.lateness.get(&queue.queue).copied().map(time::format_duration).unwrap_or_default();
        let rate = top.rates.get(&queue.queue).map_or(String::new(), |rate| format!("{rate:.1}"));
        let state = match (&queue.moving, queue.paused) {
            (Some(_), _) => "moving",
            (None, true) => "paused",
            (None, false) => "",
        };
        let [scheduled, ready, running, done, dead] =
            [queue.scheduled, queue.ready, queue.running, queue.done, queue.dead].map(|n| n.to_string());
        Row::new([format_cell(&queue.queue), state.to_owned(), ready, running, scheduled, done, dead, rate, lateness])
    });
    let head = ["QUEUE", "", "READY", "RUNNING", "SCHEDULED", "DONE", "DEAD", "ENDED/S", "LATE"];
    let widths = [24, 7, 9, 8, 10, 9, 9, 9, 10];
    let table = build_table(&head, &widths, rows.collect(), "queues".into());
    let mut state = TableState::default().with_selected((top.pane == Pane::Queues).then(|| top.selected_queue()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_jobs(frame: &mut Frame<'_>, top: &TopState, area: Rect) {
    let rows = top.filtered_jobs().into_iter().map(|record| {
        let job = &record.job;
        let node = record.node.map(short_id).unwrap_or_default();
        let attempts = format!("{}/{}", record.attempts_made(), job.max_attempts);
        Row::new([
            short_id(job.id),
            format_cell(&job.kind),
            format_cell(&job.queue),
            attempts,
            time::format_relative(record.due),
            node,
        ])
    });
    let title = if top.is_dead_shown { "dead jobs" } else { "running jobs" };
    let head = ["ID", "KIND", "QUEUE", "FAILED", "DUE", "NODE"];
    let table = build_table(&head, &[8, 18, 14, 7, 14, 8], rows.collect(), title.into());
    let mut state = TableState::default().with_selected((top.pane == Pane::Jobs).then(|| top.selected_job()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_nodes(frame: &mut Frame<'_>, top: &TopState, area: Rect) {
    let rows = top.snapshot.nodes.iter().map(|node| {
        let slots = node.profile.slots.map_or(String::new(), |slots| format!("/{slots}"));
        let state = if node.state() == "alive" { "" } else { node.state() };
        let held = format!("{}{slots}", node.held);
        Row::new([
            short_id(node.id),
            format_cell(&node.host),
            state.to_owned(),
            held,
            format_cell(&node.queues.join(" ")),
        ])
    });
    let title = format!("{} nodes", top.snapshot.nodes.len());
    let table = build_table(&["NODE", "HOST", "", "RUNNING", "QUEUES"], &[8, 18, 7, 9, 40], rows.collect(), title);
    frame.render_widget(table, area);
}

fn center_rect(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}
