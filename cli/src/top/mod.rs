//! `duly top`: queues, running jobs and nodes, live in the terminal.

mod state;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use duly::{Due, Duly, Filter, QueueCounts, State};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::state::{Act, Key, Look, Top};
use crate::exit::{self, Fail};
use crate::{Setup, store, time};

/// How often the store is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Most jobs that are shown.
const JOBS_MAX: usize = 100;
/// Keys that may wait.
const KEYS_MAX: usize = 64;

/// Watch queues, running jobs and nodes; keys pause, resume, cancel and retry
#[derive(Debug, Args)]
pub(crate) struct TopArgs {}

pub(crate) async fn run(_: TopArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(Fail::new(exit::USAGE, "top: needs a terminal; `duly queues ls -o json` is for scripts"));
    }
    // Gives the terminal back also if this panics.
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&duly, &mut terminal).await;
    ratatui::restore();
    ended
}

async fn watch(duly: &Duly, terminal: &mut ratatui::DefaultTerminal) -> anyhow::Result<()> {
    let mut top = Top::default();
    let mut keys = keys();
    // Who ends us by a signal gets the terminal back as it was.
    let [mut ended, mut hung_up] = [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let mut looks = tokio::time::interval(EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| view::draw(frame, &top))?;
        let act = tokio::select! {
            _ = looks.tick() => Some(Act::Look),
            key = keys.recv() => match key {
                Some(Some(key)) => top.key(key),
                // The terminal was resized: drawn anew.
                Some(None) => None,
                None => return Ok(()),
            },
            _ = ended.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
        };
        match act {
            None => {}
            Some(Act::Quit) => return Ok(()),
            Some(Act::Look) => see(duly, &mut top).await,
            Some(act) => {
                top.said = did(duly, act).await.unwrap_or_else(|error| error.to_string());
                see(duly, &mut top).await;
            }
        }
    }
}

/// A store that does not answer is told of, and asked again a second later.
async fn see(duly: &Duly, top: &mut Top) {
    match look(duly, top.dead).await {
        Ok(look) => {
            if std::mem::take(&mut top.blind) {
                top.said.clear();
            }
            top.see(look, time::now());
        }
        Err(error) => (top.said, top.blind) = (error.to_string(), true),
    }
}

async fn look(duly: &Duly, dead: bool) -> duly::Result<Look> {
    let counts = duly.counts().await?;
    let now = duly.now();
    let late = |counts: &QueueCounts| {
        counts.oldest.map(|due| (counts.queue.clone(), now.duration_since(due).unwrap_or_default()))
    };
    let late = counts.iter().filter_map(late).collect();
    let ended = match duly.totals().await {
        Ok(totals) => totals.into_iter().map(|(queue, tally)| (queue, tally.ended())).collect(),
        // A store that keeps no history: what is kept of ended jobs must do.
        Err(duly::Error::Unsupported { .. }) => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    let state = Some(if dead { State::Dead } else { State::Running });
    let jobs = duly.list(Filter { state, limit: JOBS_MAX, ..Filter::default() }).await?.jobs;
    Ok(Look { counts, ended, late, nodes: duly.nodes().await?, jobs })
}

async fn did(duly: &Duly, act: Act) -> duly::Result<String> {
    Ok(match act {
        Act::Pause(queue) => {
            duly.pause(&queue).await?;
            format!("queue {queue} is paused")
        }
        Act::Resume(queue) => {
            duly.resume(&queue).await?;
            format!("queue {queue} is open")
        }
        Act::Cancel(id) => {
            duly.cancel(id).await?;
            format!("job {id} is cancelled")
        }
        Act::Retry(id) => {
            duly.reschedule(id, Due::Now).await?;
            format!("job {id} is due now")
        }
        Act::Quit | Act::Look => String::new(),
    })
}

/// Keys as they are pressed, `None` for a terminal that has changed; from a thread, for reading them blocks.
fn keys() -> mpsc::Receiver<Option<Key>> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    match key.code {
                        KeyCode::Char('c' | 'd') if control => return,
                        KeyCode::Char(letter) => Some(Key::Char(letter)),
                        KeyCode::Up => Some(Key::Up),
                        KeyCode::Down => Some(Key::Down),
                        KeyCode::Tab | KeyCode::BackTab => Some(Key::Tab),
                        KeyCode::Enter => Some(Key::Enter),
                        KeyCode::Esc => Some(Key::Esc),
                        KeyCode::Backspace => Some(Key::Backspace),
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
