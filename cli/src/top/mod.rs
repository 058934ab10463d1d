//! `duly top`: a live view of queues, running jobs and nodes in the terminal.

mod state;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use duly::admin::QueueCounts;
use duly::job::Due;
use duly::{Duly, Filter, State};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::state::{KeyPress, StoreSnapshot, TopAction, TopState};
use crate::exit::{self, CliError};
use crate::{Setup, audit, store, time};

/// How often the store is queried.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The most jobs that are shown.
const JOBS_SHOWN_MAX: usize = 100;
/// Key presses that may be queued.
const QUEUED_KEYS_MAX: usize = 64;

/// Watch queues, running jobs and nodes; keys pause, resume, cancel and retry
#[derive(Debug, Args)]
pub(crate) struct TopArgs {}

pub(crate) async fn run(_: TopArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(CliError::new(exit::USAGE, "top: needs a terminal; `duly queues ls -o json` is for scripts"));
    }
    // Installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let result = run_screen(&duly, &mut terminal).await;
    ratatui::restore();
    result
}

async fn run_screen(duly: &Duly, terminal: &mut ratatui::DefaultTerminal) -> anyhow::Result<()> {
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
            Some(TopAction::Refresh) => refresh(duly, &mut top).await,
            Some(action) => {
                top.message = run_action(duly, action).await.unwrap_or_else(|error| error.to_string());
                refresh(duly, &mut top).await;
            }
        }
    }
}

/// Loads a new snapshot. Shows an error as the message; the next refresh tries again.
async fn refresh(duly: &Duly, top: &mut TopState) {
    match load_snapshot(duly, top.is_dead_shown).await {
        Ok(snapshot) => {
            if std::mem::take(&mut top.is_load_failing) {
                top.message.clear();
            }
            top.apply_snapshot(snapshot, time::now());
        }
        Err(error) => (top.message, top.is_load_failing) = (error.to_string(), true),
    }
}

async fn load_snapshot(duly: &Duly, is_dead_shown: bool) -> duly::Result<StoreSnapshot> {
    let counts = duly.queues().counts().await?;
    let now = duly.now();
    let queue_lateness = |counts: &QueueCounts| {
        counts.oldest_ready.map(|due| (counts.queue.clone(), now.duration_since(due).unwrap_or_default()))
    };
    let lateness = counts.iter().filter_map(queue_lateness).collect();
    let ended_attempts = match duly.queues().totals().await {
        Ok(totals) => totals.into_iter().map(|(queue, counters)| (queue, counters.attempts())).collect(),
        // Without a history, the rates come from the counts of kept jobs.
        Err(duly::Error::Unsupported { .. }) => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    let state = Some(if is_dead_shown { State::Dead } else { State::Running });
    let jobs = duly.jobs().list(Filter::all().state(state).limit(JOBS_SHOWN_MAX)).await?.jobs;
    Ok(StoreSnapshot { counts, ended_attempts, lateness, nodes: duly.nodes().list().await?, jobs })
}

async fn run_action(duly: &Duly, action: TopAction) -> duly::Result<String> {
    Ok(match action {
        TopAction::Pause(queue) => {
            audit::record(duly, "queues.pause", &queue, duly.queues().pause(&queue).await).await?;
            format!("queue {queue} is paused")
        }
        TopAction::Resume(queue) => {
            audit::record(duly, "queues.resume", &queue, duly.queues().resume(&queue).await).await?;
            format!("queue {queue} is open")
        }
        TopAction::Cancel(id) => {
            let result = audit::record(duly, "jobs.cancel", id, duly.jobs().cancel(id).await).await?;
            format!("job {id}: {}", crate::jobs::describe_cancel(&result))
        }
        TopAction::Retry(id) => {
            audit::record(duly, "jobs.retry", id, duly.jobs().reschedule(id, Due::Now).await).await?;
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
