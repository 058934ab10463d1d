//! How `duly top` looks. Pure: from what is known to what is drawn.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use super::state::{Pane, Top};
use crate::escape::{cut, safe};
use crate::time;

const HELP: [&str; 11] = [
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

pub(crate) fn draw(frame: &mut Frame<'_>, top: &Top) {
    let [head, queues, jobs, nodes, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let filter = if top.filter.is_empty() && !top.typing { String::new() } else { format!("  filter: {}", top.filter) };
    let cursor = if top.typing { "_" } else { "" };
    frame.render_widget(Line::from(format!("duly top{}{cursor}", safe(&filter))), head);
    draw_queues(frame, top, queues);
    draw_jobs(frame, top, jobs);
    draw_nodes(frame, top, nodes);
    let foot_text = if top.said.is_empty() { "? help  q quit" } else { top.said.as_str() };
    frame.render_widget(Line::from(safe(foot_text).into_owned()), foot);
    if top.help {
        let area = centered(frame.area(), 46, HELP.len() as u16 + 2);
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()).block(Block::bordered().title("keys")), area);
    }
}

fn table<'t>(head: &'t [&'t str], widths: &[u16], rows: Vec<Row<'t>>, title: String) -> Table<'t> {
    let widths: Vec<Constraint> = widths.iter().map(|width| Constraint::Length(*width)).collect();
    let marked = Style::new().add_modifier(Modifier::REVERSED);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Table::new(rows, widths)
        .header(Row::new(head.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).style(bold))
        .row_highlight_style(marked)
        .block(Block::bordered().title(title))
}

fn cell(text: &str) -> String {
    cut(&safe(text), CELL_CHARS_MAX)
}

fn draw_queues(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let rows = top.queues().into_iter().map(|queue| {
        let late = top.look.late.get(&queue.queue).map_or(String::new(), |late| time::short(*late));
        let rate = top.rates.get(&queue.queue).map_or(String::new(), |rate| format!("{rate:.1}"));
        let state = match (&queue.moving, queue.paused) {
            (Some(_), _) => "moving",
            (None, true) => "paused",
            (None, false) => "",
        };
        let [scheduled, ready, running, done, dead] =
            [queue.scheduled, queue.ready, queue.running, queue.done, queue.dead].map(|n| n.to_string());
        Row::new([cell(&queue.queue), state.to_owned(), ready, running, scheduled, done, dead, rate, late])
    });
    let head = ["QUEUE", "", "READY", "RUNNING", "SCHEDULED", "DONE", "DEAD", "ENDED/S", "LATE"];
    let widths = [24, 7, 9, 8, 10, 9, 9, 9, 10];
    let table = table(&head, &widths, rows.collect(), "queues".into());
    let mut state = TableState::default().with_selected((top.pane == Pane::Queues).then(|| top.queue_at()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_jobs(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let rows = top.jobs().into_iter().map(|record| {
        let job = &record.job;
        let node = record.node.map(|node| node.to_string()).unwrap_or_default();
        let tries = format!("{}/{}", record.attempts, job.max_attempts);
        Row::new([job.id.to_string(), cell(&job.kind), cell(&job.queue), tries, time::distance(record.due), node])
    });
    let title = if top.dead { "dead jobs" } else { "running jobs" };
    let head = ["ID", "KIND", "QUEUE", "FAILED", "DUE", "NODE"];
    let table = table(&head, &[36, 18, 14, 7, 14, 36], rows.collect(), title.into());
    let mut state = TableState::default().with_selected((top.pane == Pane::Jobs).then(|| top.job_at()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_nodes(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let rows = top.look.nodes.iter().map(|node| {
        let slots = node.takes.slots.map_or(String::new(), |slots| format!("/{slots}"));
        let state = if node.state() == "alive" { "" } else { node.state() };
        let holds = format!("{}{slots}", node.held);
        Row::new([node.id.to_string(), cell(&node.host), state.to_owned(), holds, cell(&node.queues.join(" "))])
    });
    let title = format!("{} nodes", top.look.nodes.len());
    let table = table(&["NODE", "HOST", "", "RUNNING", "QUEUES"], &[36, 18, 7, 9, 40], rows.collect(), title);
    frame.render_widget(table, area);
}

fn centered(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}
