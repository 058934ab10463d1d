//! `duly work`: runs jobs as processes and prints events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use duly::admin::{QueueCounts, StoreUrl};
use duly::worker::ShutdownSignals;
use duly::worker::{Event, RunSummary};
use duly::{CancellationToken, Ctx, Duly, Outcome, Worker};
use serde_json::Map;

use crate::Setup;
use crate::child::Spawner;
use crate::config::{ProgramSetting, WorkConfig};
use crate::escape::{escape_json, escape_text};
use crate::events::EventRecord;
use crate::exec::{COMMAND_KIND, JobProcessRunner, is_executable};
use crate::exit::{self, CliError};
use crate::logs::{self, Level};
use crate::output::pluralize;
use crate::printer::Printer;
use crate::{store, systemd};

/// Run jobs, and print each event
///
/// Jobs of the kind `command` (from `duly push -- ...`) are run directly, without a shell, in the directory they were
/// pushed from: anyone with write access to the store can run commands as this user. On a server, where more than this
/// machine's users may have it, they run only with --commands.
/// With --exec a program runs all other kinds, or those of --kind: it gets the args as JSON on stdin, and
/// DULY_ID, DULY_KIND, DULY_QUEUE, DULY_ATTEMPT and DULY_FENCE in its environment (as commands do), and DULY_JID if
/// Sidekiq made the job.
/// Its exit code decides: 0 done, 100 dead, any other retry later.
/// Its output is shown on stderr; the end of its stderr is kept as the error of a failed attempt.
///
/// On SIGTERM or Ctrl-C the worker claims no more and waits for running jobs for the grace time. Children get SIGTERM in
/// its last fifth, at most 5 s before its end. Then the worker releases the rest. A second signal ends the grace time.
#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// A queue to work, first named first; with weights, queues share the worker instead;
    /// may be given several times [default: default]
    #[arg(long = "queue", value_name = "NAME[=WEIGHT]")]
    queues: Vec<String>,

    /// The number of concurrent jobs [default: 10]
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,

    /// A program that runs every kind except `command`; its arguments follow after `--`
    #[arg(long, value_name = "PROGRAM")]
    exec: Option<String>,

    /// Arguments for the program of --exec
    #[arg(last = true, requires = "exec", value_name = "ARGS")]
    exec_args: Vec<String>,

    /// A kind that the program of --exec runs; may be repeated. All other kinds are left to other workers
    #[arg(long = "kind", value_name = "NAME", requires = "exec", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    kinds: Vec<String>,

    /// Run jobs of the kind `command` from a server too: everyone who may push there runs programs as this user
    #[arg(long)]
    commands: bool,

    /// Exit when there is no job left that this worker can run. Jobs stay if they are due later, run on another node,
    /// or wait in a queue that is paused or moving; prints how many of the last two
    #[arg(long)]
    until_empty: bool,

    /// How long running jobs may continue after the worker is stopped [default: 25s]
    #[arg(long, value_name = "DURATION", value_parser = duly::admin::parse_duration)]
    grace: Option<Duration>,

    /// How often a job may crash its worker before it is dead [default: 3]
    #[arg(long, value_name = "N")]
    max_crashes: Option<u32>,
}

/// How long a worker that runs no commands leaves one to other workers.
const COMMAND_RELEASE_DELAY: Duration = Duration::from_secs(60);
const NOTHING_TO_RUN: &str =
    "nothing to run: from a server, `command` jobs run only with --commands, and all other kinds need --exec PROGRAM";

/// The settings of the worker, from flags and `duly.toml`.
struct WorkSettings {
    queues: Vec<(String, Option<u32>)>,
    concurrency: usize,
    program: Option<Vec<String>>,
    grace: Duration,
    runs_commands: bool,
}

pub(crate) async fn run(verb: WorkArgs, setup: Setup) -> anyhow::Result<()> {
    let duly = store::open_long_lived(&setup).await?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let _signals = ShutdownSignals::listen(stop.clone(), at_once.clone())?;
    run_until(verb, setup, &duly, stop, at_once).await
}

/// Works until one of the tokens is cancelled; `at_once` ends the grace time, too.
pub(crate) async fn run_until(
    verb: WorkArgs,
    mut setup: Setup,
    duly: &Duly,
    stop: CancellationToken,
    at_once: CancellationToken,
) -> anyhow::Result<()> {
    // On a server, more than the users of this machine may push.
    let url = StoreUrl::parse(&store::resolve_url(&setup)?)?;
    let is_local = url.file().is_some() || url.is_in_memory();
    let settings = verb.resolve_settings(std::mem::take(&mut setup.config.work), is_local)?;
    let printer = Printer::start(stop.clone())?;
    let queues: Vec<String> = settings.queues.iter().map(|(name, _)| name.clone()).collect();
    let worker = build_worker(&verb, settings, duly, &setup, &printer)?;
    let health = duly.health().await?;
    if health.acl.is_some() {
        // The durability of a Redis server depends on its own settings.
        setup.out.print_hint(&health.durability);
    }
    let summary = if verb.until_empty {
        worker.drain_with_shutdown(stop, at_once).await?
    } else {
        worker.run_with_shutdown(stop, at_once).await?
    };
    printer.finish();
    let RunSummary { acked, retried, buried, released, cancelled, lost, .. } = summary;
    setup.out.print_message(&format!(
        "{acked} done, {retried} to retry, {buried} dead, {released} released, {cancelled} cancelled, {lost} lost"
    ));
    if let (true, Ok(counts)) = (verb.until_empty, duly.queues().counts().await) {
        let remaining: Vec<String> =
            counts.iter().filter(|count| queues.contains(&count.queue)).flat_map(describe_remaining).collect();
        if !remaining.is_empty() {
            setup.out.print_message(&format!("left: {}", remaining.join(", ")));
        }
    }
    if let Some(error) = printer.write_error() {
        let advice = "make room for its output, or redirect it, and start the worker again";
        return Err(anyhow::anyhow!("stopped, because stdout cannot be written: {error}; {advice}"));
    }
    match summary.unrecorded {
        0 => Ok(()),
        outcomes => {
            let outcomes = pluralize(outcomes, "outcome", "outcomes");
            let reason = "the store did not respond in time; jobs without a recorded outcome run again";
            Err(CliError::new(exit::STORE_FAILED, format!("{outcomes} could not be recorded: {reason}")))
        }
    }
}

/// Describes the jobs that a drained worker could not run, and why.
fn describe_remaining(count: &QueueCounts) -> Vec<String> {
    let queue = &count.queue;
    let mut remaining = Vec::new();
    if count.running > 0 {
        remaining.push(format!("{} running elsewhere in queue {queue}", count.running));
    }
    if count.ready > 0 {
        let queue = match &count.moving {
            Some(moving) => format!("queue {queue}, which is moving to {}", escape_text(&moving.to)),
            None if count.paused => format!("queue {queue}, which is paused"),
            None => format!("queue {queue}"),
        };
        remaining.push(format!("{} ready in {queue}", count.ready));
    }
    remaining
}

fn build_worker(
    verb: &WorkArgs,
    settings: WorkSettings,
    duly: &Duly,
    setup: &Setup,
    printer: &Printer,
) -> anyhow::Result<Worker> {
    let names: Vec<&str> = settings.queues.iter().map(|(name, _)| name.as_str()).collect();
    let on_event = event_printer(setup, printer.clone(), names.join(" "), settings.program.is_some());
    let mut worker = duly.worker().concurrency(settings.concurrency).grace(settings.grace).on_event(on_event);
    for (name, weight) in &settings.queues {
        worker = worker.queue(name, settings.concurrency);
        if let Some(weight) = weight {
            worker = worker.weight(name, *weight);
        }
    }
    if let Some(crashes) = verb.max_crashes {
        worker = worker.max_crashes(crashes);
    }
    // The worker's run loop sends this: a separate timer would keep the watchdog quiet while the loop is stuck.
    if let Some(interval) = systemd::watchdog_interval() {
        worker = worker.alive_interval(interval);
    }
    let has_program = settings.program.is_some();
    let runner = Arc::new(JobProcessRunner {
        spawner: Spawner::start()?,
        printer: printer.clone(),
        quiet: setup.out.is_quiet(),
        grace: settings.grace,
        program: settings.program.unwrap_or_default(),
    });
    let command_runner = runner.clone();
    if settings.runs_commands {
        worker = worker.on_kind(COMMAND_KIND, move |ctx| command_runner.clone().run_command(ctx));
    } else if has_program && verb.kinds.is_empty() {
        // The program must not get it either; another worker may run commands.
        let leave = |_: Ctx| async { Ok::<_, String>(Outcome::release(COMMAND_RELEASE_DELAY)) };
        worker = worker.on_kind(COMMAND_KIND, leave);
    }
    for kind in &verb.kinds {
        let runner = runner.clone();
        worker = worker.on_kind(kind.as_str(), move |ctx| runner.clone().run_program(ctx));
    }
    if has_program && verb.kinds.is_empty() {
        worker = worker.on_any_kind(move |ctx| runner.clone().run_program(ctx));
    }
    Ok(worker)
}

/// Returns the event handler, which prints events and notifies systemd.
fn event_printer(
    setup: &Setup,
    printer: Printer,
    queues: String,
    any_kind: bool,
) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    let (json, quiet) = (setup.out.is_json(), setup.out.is_quiet());
    let hinted = AtomicBool::new(any_kind || quiet);
    move |event| {
        match event {
            Event::Started { held, .. } if held.job.kind != COMMAND_KIND && !hinted.swap(true, Ordering::Relaxed) => {
                let kind = escape_text(&held.job.kind);
                let message = format!(
                    "this worker cannot run the kind {kind}: such jobs wait for a worker that can (see --exec)"
                );
                printer.print_stderr(match logs::is_json() {
                    true => logs::format_line(Level::Warn, "duly::cli", &message, Map::new()),
                    false => message,
                });
            }
            Event::Joined { .. } => systemd::notify_ready(&queues),
            Event::Alive => systemd::notify_alive(),
            Event::Stopping { running, .. } => systemd::notify_stopping(*running),
            _ => {}
        }
        let Some(record) = EventRecord::from_event(event) else {
            return;
        };
        match json {
            _ if logs::is_json() && !quiet => printer.print_stdout(record.log_line()),
            // Serializing our own fields cannot fail.
            true => printer.print_stdout(escape_json(&serde_json::to_string(&record).unwrap_or_default(), true)),
            false if !quiet => printer.print_stdout(record.format_line()),
            false => {}
        }
    }
}

impl WorkArgs {
    /// Returns the options of a worker for these queues; all others have their defaults.
    pub(crate) fn for_queues(queues: Vec<String>, concurrency: Option<usize>, commands: bool) -> Self {
        let (exec, exec_args, kinds) = (None, Vec::new(), Vec::new());
        let (until_empty, grace, max_crashes) = (false, None, None);
        WorkArgs { queues, concurrency, exec, exec_args, kinds, commands, until_empty, grace, max_crashes }
    }

    /// Sets the program that runs all kinds but commands.
    pub(crate) fn exec(self, exec: Option<String>, exec_args: Vec<String>) -> Self {
        WorkArgs { exec, exec_args, ..self }
    }

    fn resolve_settings(&self, config: WorkConfig, is_local: bool) -> anyhow::Result<WorkSettings> {
        let invalid = |field: &str, reason: &str| CliError::new(exit::USAGE, format!("{field}: {reason}"));
        let mut queues = if self.queues.is_empty() { config.queues } else { self.queues.clone() };
        if queues.is_empty() {
            queues.push(duly::bounds::DEFAULT_QUEUE.to_owned());
        }
        let program = match &self.exec {
            Some(program) => Some([std::slice::from_ref(program), &self.exec_args[..]].concat()),
            None => config.exec.map(ProgramSetting::into_argv),
        };
        match program.as_ref().map(|argv| argv.first().map_or("", String::as_str)) {
            Some("") => return Err(invalid("exec", "names no program")),
            // Otherwise every job would lose an attempt.
            Some(name) if !is_executable(name) => {
                let hint = if name.contains(' ') { "; arguments follow after `--`" } else { "" };
                return Err(invalid(
                    "exec",
                    &format!("the program {name:?} does not exist, or this user may not run it{hint}"),
                ));
            }
            _ => {}
        }
        let runs_commands = is_local || self.commands;
        if !runs_commands && program.is_none() {
            return Err(CliError::new(exit::USAGE, NOTHING_TO_RUN));
        }
        if self.kinds.iter().any(|kind| kind == COMMAND_KIND) {
            return Err(invalid("kind", "the program of --exec does not run the kind `command`; see --commands"));
        }
        let configured = config.grace.map(|text| duly::admin::parse_duration(&text)).transpose();
        let configured = configured.map_err(|reason| invalid("work.grace", &reason))?;
        let grace = self.grace.or(configured).unwrap_or(duly::bounds::DEFAULT_GRACE_PERIOD);
        Ok(WorkSettings {
            queues: queues.iter().map(|text| parse_queue(text)).collect::<Result<_, _>>()?,
            concurrency: self.concurrency.or(config.concurrency).unwrap_or(duly::bounds::DEFAULT_CONCURRENCY),
            program,
            grace,
            runs_commands,
        })
    }
}

/// Parses `NAME` or `NAME=WEIGHT`.
fn parse_queue(text: &str) -> anyhow::Result<(String, Option<u32>)> {
    let Some((name, weight)) = text.split_once('=') else {
        return Ok((text.to_owned(), None));
    };
    match weight.parse() {
        Ok(weight) if weight > 0 => Ok((name.to_owned(), Some(weight))),
        _ => Err(CliError::new(exit::USAGE, format!("queue: {text:?} has no weight after the =; write {name}=3"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queue_names_and_weights_are_parsed() {
        assert_eq!(parse_queue("mail").expect("good"), ("mail".to_owned(), None));
        assert_eq!(parse_queue("mail=3").expect("good"), ("mail".to_owned(), Some(3)));
        for text in ["mail=", "mail=0", "mail=x", "mail=-1", "a=b=1"] {
            assert!(parse_queue(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_queue_or_is_refused(text in ".*") {
            let _ = parse_queue(&text);
        }
    }
}
