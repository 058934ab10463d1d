//! `duly move`: all jobs from one store to another, with a bar for people who watch.

use std::io::IsTerminal;
use std::sync::Mutex;

use anyhow::Context as _;
use clap::Args;
use duly::store::StoreUrl;
use duly::{Progress, QueueMoved};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{self, Fail};
use crate::output::{Format, Out, counted};
use crate::{Setup, store};

/// The bar, where it goes, and how long it may still take.
const BAR: &str = "{msg:20!} [{bar:30}] {human_pos}/{human_len} jobs, {eta} left";

/// Move all jobs from one store to another
///
/// Queue by queue; nothing is claimed from a queue while it moves, and running jobs are waited for.
/// If it is interrupted, run the same command again: nothing is lost or doubled.
#[derive(Debug, Args)]
pub(crate) struct Move {
    /// The store that the jobs are in, as for --store
    #[arg(long, value_name = "URL", env = "DULY_FROM", hide_env_values = true)]
    from: String,
    /// The store that they go to; a file is made if it is not there
    #[arg(long, value_name = "URL", env = "DULY_TO", hide_env_values = true)]
    to: String,
    /// Only this queue; several: give it several times
    #[arg(long, value_name = "NAME")]
    queue: Vec<String>,
}

/// The outcome for scripts.
#[derive(Serialize)]
struct Summary<'m> {
    moved: u64,
    queues: &'m [QueueMoved],
}

pub(crate) async fn run(verb: Move, setup: &Setup) -> anyhow::Result<()> {
    if setup.store_flag.is_some() {
        return Err(Fail::new(exit::USAGE, "move takes --from and --to, not --store"));
    }
    // Read both before any of them is made.
    let to = StoreUrl::parse(&verb.to).context("--to")?;
    let from = store::open_at(setup, &verb.from, "give the store that the jobs are in").await.context("--from")?;
    let target = store::open_or_make_at(setup, &verb.to).await.context("--to")?;
    let teller = Teller::new(setup.out);
    let mut moving = from.move_to(&target);
    for queue in verb.queue {
        moving = moving.queue(queue);
    }
    let bar = teller.bar.clone();
    let moving = moving.on_progress(move |progress| teller.tell(progress)).run();
    let (mut interrupted, mut ended) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let moved = tokio::select! {
        moved = moving => moved,
        _ = interrupted.recv() => return Err(broken_off(&bar)),
        _ = ended.recv() => return Err(broken_off(&bar)),
    };
    bar.finish_and_clear();
    tell(&setup.out, &moved?, &to)
}

fn broken_off(bar: &ProgressBar) -> anyhow::Error {
    bar.abandon();
    Fail::new(exit::FAILURE, "interrupted; the queue stays marked as moving: run the same command again to go on")
}

/// Tells people how far it is.
struct Teller {
    out: Out,
    bar: ProgressBar,
    /// The queue of which was said that it waits.
    waiting: Mutex<String>,
}

impl Teller {
    fn new(out: Out) -> Self {
        let bar = match std::io::stderr().is_terminal() && !out.is_quiet() {
            true => ProgressBar::new(0),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
        Teller { out, bar: bar.with_style(style), waiting: Mutex::default() }
    }

    fn tell(&self, progress: &Progress<'_>) {
        self.bar.set_length(progress.total);
        self.bar.set_position(progress.moved);
        self.bar.set_message(progress.queue.to_owned());
        let mut waiting = self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if progress.waiting && *waiting != progress.queue {
            progress.queue.clone_into(&mut waiting);
            let words = format!("waiting for running jobs of queue {} to end", progress.queue);
            self.bar.suspend(|| self.out.say(&words));
        }
    }
}

fn tell(out: &Out, moved: &[QueueMoved], to: &StoreUrl) -> anyhow::Result<()> {
    let total = moved.iter().map(QueueMoved::total).sum();
    match out.format {
        Format::Json => out.json(&Summary { moved: total, queues: moved })?,
        Format::Ndjson => moved.iter().try_for_each(|queue| out.json(queue))?,
        Format::Table | Format::Wide => {
            let rows = moved.iter().filter(|queue| queue.total() > 0).map(|q| {
                let [ready, scheduled, dead, done] = [q.ready, q.scheduled, q.dead, q.done].map(|n| n.to_string());
                [q.queue.clone(), ready, scheduled, dead, done]
            });
            out.table(["QUEUE", "READY", "SCHEDULED", "DEAD", "DONE"], rows.collect())?;
        }
    }
    let sum = |of: fn(&QueueMoved) -> u64| moved.iter().map(of).sum::<u64>();
    let (known, buried) = (sum(|queue| queue.known), sum(|queue| queue.buried));
    if known > 0 {
        out.say(&format!(
            "{known} jobs were left out: jobs with their ids are there already, or were a short while ago"
        ));
    }
    let left = sum(|queue| queue.left);
    if left > 0 {
        out.say(&format!("{left} entries are still where they were: they cannot be read, or have come since"));
    }
    if buried > 0 {
        out.say(&format!("{buried} jobs are dead there: their unique keys belong to other jobs"));
    }
    let rules = sum(|queue| queue.rules);
    if rules > 0 {
        out.say(&format!("{} moved too", counted(rules, "cron rule has", "cron rules have")));
    }
    out.say(&format!("moved {total} jobs to {}", crate::escape::safe(&to.to_string())));
    Ok(())
}
