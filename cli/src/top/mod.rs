//! `duly top`: a live view of queues, running jobs and nodes in the terminal.

mod state;
#[cfg(test)]
mod tests;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use duly::Filter;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::state::{KeyPress, StoreSnapshot, TopAction, TopQuery, TopState};
use crate::backend::Backend;
use crate::exit::{self, CliError};
use crate::{Setup, time};

/// How often the store is queried.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The most jobs that are shown.
const JOBS_SHOWN_MAX: usize = 100;
/// Key presses that may be queued.
const QUEUED_KEYS_MAX: usize = 64;

/// Watch queues, running jobs and nodes; keys open a queue or a job, pause, resume, cancel and retry
#[derive(Debug, Args)]
pub(crate) struct TopArgs {}

pub(crate) async fn run(_: TopArgs, setup: &Setup) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(CliError::new(exit::USAGE, "top: needs a terminal; `duly queues ls -o json` is for scripts"));
    }
    // Installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let result = run_screen(&backend, &mut terminal).await;
    ratatui::restore();
    result
}

async fn run_screen(backend: &Backend, terminal: &mut ratatui::DefaultTerminal) -> anyhow::Result<()> {
    let mut top = TopState::default();
    let mut keys = read_keys();
    // A signal must also leave the terminal restored.
    let [mut terminated, mut hung_up] = [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let mut refreshes = tokio::time::interval(REFRESH_INTERVAL);
    refreshes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| view::draw(frame, &top))?;
        let action = tokio::select! {
            _ = refreshes.tick() => Some(TopAction::Refresh),
            key = keys.recv() => match key {
                Some(Some(key)) => top.handle_key(key),
                // A resize only needs a redraw.
                Some(None) => None,
                None => return Ok(()),
            },
            _ = terminated.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
        };
        match action {
            None => {}
            Some(TopAction::Quit) => return Ok(()),
            Some(TopAction::Refresh) => refresh(backend, &mut top).await,
            Some(action) => {
                top.message = run_action(backend, action).await.unwrap_or_else(|error| exit::format_error(&error));
                refresh(backend, &mut top).await;
            }
        }
    }
}

/// Loads a new snapshot. Shows an error as the message; the next refresh tries again.
async fn refresh(backend: &Backend, top: &mut TopState) {
    match load_snapshot(backend, &top.query()).await {
        Ok(snapshot) => {
            if std::mem::take(&mut top.is_load_failing) {
                top.message.clear();
            }
            top.apply_snapshot(snapshot, time::now());
        }
        Err(error) => (top.message, top.is_load_failing) = (exit::format_error(&error), true),
    }
}

/// Loads what the screen shows.
async fn load_snapshot(backend: &Backend, query: &TopQuery) -> anyhow::Result<StoreSnapshot> {
    let mut snapshot = StoreSnapshot {
        queues: backend.queues().await?.queues,
        ended_attempts: backend.ended_attempts().await?,
        ..StoreSnapshot::default()
    };
    match query {
        TopQuery::Job(id) => snapshot.job = backend.find_job(*id).await?,
        TopQuery::Jobs { queue, state } => {
            let mut filter = Filter::all().state(*state).limit(JOBS_SHOWN_MAX);
            filter.queue = queue.clone();
            snapshot.jobs = backend.list_jobs(filter).await?.jobs;
            snapshot.nodes = backend.nodes().await?.nodes;
        }
    }
    Ok(snapshot)
}

async fn run_action(backend: &Backend, action: TopAction) -> anyhow::Result<String> {
    Ok(match action {
        TopAction::Pause(queue) => {
            backend.pause_queue(&queue).await?;
            format!("queue {queue} is paused")
        }
        TopAction::Resume(queue) => {
            backend.resume_queue(&queue).await?;
            format!("queue {queue} is open")
        }
        TopAction::Cancel(id) => {
            format!("job {id}: {}", crate::jobs::describe_cancel(&backend.cancel_job(id).await?))
        }
        TopAction::Retry(id) => {
            backend.retry_job(id).await?;
            format!("job {id} is due now")
        }
        TopAction::Quit | TopAction::Refresh => String::new(),
    })
}

/// Returns the key presses, and `None` for each resize. A thread reads them, because reading blocks.
fn read_keys() -> mpsc::Receiver<Option<KeyPress>> {
    let (sender, keys) = mpsc::channel(QUEUED_KEYS_MAX);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    match key.code {
                        KeyCode::Char('c' | 'd') if control => return,
                        KeyCode::Char(letter) => Some(KeyPress::Char(letter)),
                        KeyCode::Up => Some(KeyPress::Up),
                        KeyCode::Down => Some(KeyPress::Down),
                        KeyCode::Tab | KeyCode::BackTab => Some(KeyPress::Tab),
                        KeyCode::Enter => Some(KeyPress::Enter),
                        KeyCode::Esc => Some(KeyPress::Esc),
                        KeyCode::Backspace => Some(KeyPress::Backspace),
                        _ => continue,
                    }
                }
                Event::Resize(..) => None,
                _ => continue,
            };
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    keys
}
