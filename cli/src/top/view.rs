//! Draws the state of `duly top`, without changing it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::state::{Pane, Screen, TopState, lateness};
use crate::escape::{escape_text, truncate};
use crate::events::short_id;
use crate::job::describe_job;
use crate::output::pluralize;
use crate::time;

const KEY_HELP: [&str; 12] = [
    "up, down    another line",
    "enter       open the queue or the job",
    "esc         back, or no filter",
    "tab         queues or jobs; in a queue: the next state",
    "p           pause the queue",
    "r           resume the queue",
    "d           dead jobs, or running ones",
    "c           cancel the job",
    "t           retry the dead job",
    "/           filter by queue and kind",
    "?           this help",
    "q           quit",
];
/// The longest text in a cell.
const CELL_CHARS_MAX: usize = 40;

pub(crate) fn draw(frame: &mut Frame<'_>, top: &TopState) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    let filter =
        if top.filter.is_empty() && !top.is_typing { String::new() } else { format!("  filter: {}", top.filter) };
    let cursor = if top.is_typing { "_" } else { "" };
    let title = format!("duly top{}{filter}{cursor}", format_path(&top.screens));
    frame.render_widget(Line::from(escape_text(&title).into_owned()), head);
    match top.screens.last() {
        None => draw_overview(frame, top, body),
        Some(Screen::Queue { name, .. }) => draw_queue(frame, top, name, body),
        Some(Screen::Job { scroll, .. }) => draw_job(frame, top, *scroll, body),
    }
    let foot_text = match (top.message.as_str(), top.screens.last()) {
        ("", None) => "enter open  tab jobs  p pause  r resume  / filter  ? help  q quit",
        ("", Some(Screen::Queue { .. })) => "enter open  tab next state  p pause  r resume  esc back  ? help  q quit",
        ("", Some(Screen::Job { .. })) => "up, down scroll  c cancel  t retry  esc back  ? help  q quit",
        (message, _) => message,
    };
    frame.render_widget(Line::from(escape_text(foot_text).into_owned()), foot);
    if top.is_help_shown {
        let area = center_rect(frame.area(), 56, KEY_HELP.len() as u16 + 2);
        frame.render_widget(Clear, area);
        frame.render_widget(
            Paragraph::new(KEY_HELP.map(Line::from).to_vec()).block(Block::bordered().title("keys")),
            area,
        );
    }
}

/// Formats the open screens: ` > mail > job ...7c1e`.
fn format_path(screens: &[Screen]) -> String {
    let name = |screen: &Screen| match screen {
        Screen::Queue { name, .. } => format!(" > queue {name}"),
        Screen::Job { id, .. } => format!(" > job {id}"),
    };
    screens.iter().map(name).collect()
}

fn draw_overview(frame: &mut Frame<'_>, top: &TopState, area: Rect) {
    let parts = [Constraint::Fill(2), Constraint::Fill(2), Constraint::Fill(1)];
    let [queues, jobs, nodes] = Layout::vertical(parts).areas(area);
    draw_queues(frame, top, queues);
    draw_jobs(frame, top, format!("{} jobs", top.shown_state()), top.pane == Pane::Jobs, jobs);
    draw_nodes(frame, top, nodes);
}

fn draw_queue(frame: &mut Frame<'_>, top: &TopState, name: &str, area: Rect) {
    let [head, jobs] = Layout::vertical([Constraint::Length(3), Constraint::Fill(1)]).areas(area);
    let queue = top.snapshot.queues.iter().find(|queue| queue.queue == name);
    let line = queue.map_or("the queue is gone".to_owned(), |queue| {
        let state = if queue.paused { "paused  " } else { "" };
        let late = lateness(queue).map_or(String::new(), |late| format!("  late {}", time::format_duration(late)));
        let rate = top.rates.get(name).map_or(String::new(), |rate| format!("  {rate:.1} ended/s"));
        format!(
            "{state}ready {}  running {}  scheduled {}  dead {}  done {}  cancelled {}{late}{rate}",
            queue.ready, queue.running, queue.scheduled, queue.dead, queue.done, queue.cancelled
        )
    });
    let title = format!("queue {}", escape_text(name));
    frame.render_widget(Paragraph::new(line).block(Block::bordered().title(title)), head);
    draw_jobs(frame, top, format!("{} jobs", top.shown_state()), true, jobs);
}

fn draw_job(frame: &mut Frame<'_>, top: &TopState, scroll: u16, area: Rect) {
    let lines: Vec<Line<'_>> = match &top.snapshot.job {
        Some(job) => describe_job(job)
            .into_iter()
            .map(|(name, value)| Line::from(format!("{name:<12} {}", escape_text(&value))))
            .collect(),
        None => vec![Line::from("the job is gone: it is done and not kept, or was removed")],
    };
    // The last line stays on the screen.
    let scroll = scroll.min(u16::try_from(lines.len().saturating_sub(1)).unwrap_or(u16::MAX));
    let block = Block::bordered().title("job");
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((scroll, 0)).block(block);
    frame.render_widget(text, area);
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
        let late = lateness(queue).map(time::format_duration).unwrap_or_default();
        let rate = top.rates.get(&queue.queue).map_or(String::new(), |rate| format!("{rate:.1}"));
        let state = match (queue.moving, queue.paused) {
            (true, _) => "moving",
            (false, true) => "paused",
            (false, false) => "",
        };
        let [scheduled, ready, running, done, dead] =
            [queue.scheduled, queue.ready, queue.running, queue.done, queue.dead].map(|n| n.to_string());
        Row::new([format_cell(&queue.queue), state.to_owned(), ready, running, scheduled, done, dead, rate, late])
    });
    let head = ["QUEUE", "", "READY", "RUNNING", "SCHEDULED", "DONE", "DEAD", "ENDED/S", "LATE"];
    let widths = [24, 7, 9, 8, 10, 9, 9, 9, 10];
    let table = build_table(&head, &widths, rows.collect(), "queues".into());
    let mut state = TableState::default().with_selected((top.pane == Pane::Queues).then(|| top.selected_queue()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_jobs(frame: &mut Frame<'_>, top: &TopState, title: String, is_selected: bool, area: Rect) {
    let rows = top.filtered_jobs().into_iter().map(|job| {
        Row::new([
            format_cell(&short_id(&job.id)),
            format_cell(&job.kind),
            format_cell(&job.queue),
            format!("{}/{}", job.attempts_made(), job.max_attempts),
            time::format_relative(time::from_millis(job.due_ms)),
            job.node.as_ref().map(|node| format_cell(&short_id(node))).unwrap_or_default(),
        ])
    });
    let head = ["ID", "KIND", "QUEUE", "ATTEMPTS", "DUE", "NODE"];
    let table = build_table(&head, &[9, 24, 18, 8, 16, 9], rows.collect(), title);
    let mut state = TableState::default().with_selected(is_selected.then(|| top.selected_job()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_nodes(frame: &mut Frame<'_>, top: &TopState, area: Rect) {
    let rows = top.snapshot.nodes.iter().map(|node| {
        let slots = node.slots.map_or(String::new(), |slots| format!("/{slots}"));
        let state = if node.state() == "alive" { "" } else { node.state() };
        let held = format!("{}{slots}", node.held);
        Row::new([
            format_cell(&short_id(&node.id)),
            format_cell(&node.host),
            state.to_owned(),
            held,
            format_cell(&node.queues.join(" ")),
        ])
    });
    let title = pluralize(top.snapshot.nodes.len() as u64, "node", "nodes");
    let table = build_table(&["NODE", "HOST", "", "RUNNING", "QUEUES"], &[9, 18, 7, 9, 40], rows.collect(), title);
    frame.render_widget(table, area);
}

fn center_rect(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}
