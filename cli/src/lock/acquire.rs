//! `duly lock NAME -- COMMAND`: acquires the lock, runs the command, releases the lock.

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use duly::bounds::DEFAULT_LOCK_TTL;
use duly::lock::{Guard, Lock};
use duly::{ConflictKind, Duly, Error};
use duly_http::views::LockList;
use rustix::process::Signal;

use super::admin::format_holders;
use super::command::{self, CommandState, GuardedCommand};
use super::signals::OsSignals;
use crate::child::{ChildSpec, ChildStdio};
use crate::escape::escape_text;
use crate::exit::{self, CliError, SilentExit};
use crate::output::Output;
use crate::{Setup, store, time};

/// The time from SIGTERM to SIGKILL after the lock is lost.
const LOCK_LOST_GRACE: Duration = Duration::from_secs(5);
/// The timeout for the query of the holders, which only improves an error message.
const HOLDERS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long to wait for the lock before printing its holders.
const WAIT_MESSAGE_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct AcquireArgs {
    /// The lock
    #[arg(required_unless_present = "named")]
    name: Option<String>,

    /// The lock, if it has the name of a verb below
    #[arg(long = "name", id = "named", value_name = "NAME", conflicts_with = "name")]
    named: Option<String>,

    /// How long the lock stays held if the store is unreachable; extended while the command runs [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duly::admin::parse_duration)]
    ttl: Option<Duration>,

    /// Wait at most this long for the lock (then exit code 124); 0 tries once [default: without a limit]
    #[arg(long, value_name = "DURATION", value_parser = duly::admin::parse_duration)]
    wait: Option<Duration>,

    /// Try once, and exit with 4 if another owner holds the lock
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,

    /// The number of concurrent holders; all owners should pass the same number [default: 1]
    #[arg(long, value_name = "N")]
    slots: Option<u32>,

    /// Describes this holder in lists of locks [default: machine and process]
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// The exit code if another owner holds the lock, instead of 4 and 124
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(super) async fn run(verb: AcquireArgs, setup: &Setup) -> anyhow::Result<()> {
    // From here on, no signal ends this process before it has released the lock.
    let mut signals = OsSignals::listen()?;
    let duly = tokio::select! {
        duly = store::open_or_create(setup) => duly?,
        signal = signals.next_terminating() => return Err(signal_exit(signal)),
    };
    let guard = tokio::select! {
        guard = verb.acquire(&duly, &setup.out) => guard?,
        signal = signals.next_terminating() => return Err(signal_exit(signal)),
    };
    verb.print_acquired(&guard, &setup.out);
    let status = verb.run_command(&guard, &mut signals, &setup.out).await;
    if matches!(status, Ok(None)) {
        return Err(lock_lost_error(&guard));
    }
    let released = tokio::select! {
        released = guard.release() => released,
        signal = signals.next_terminating() => return Err(signal_exit(signal)),
    };
    let code = status?.map(command::exit_code);
    match released {
        Ok(()) => {}
        Err(Error::Conflict { kind: ConflictKind::LockLost, .. }) => return Err(lock_lost_error(&guard)),
        Err(error) => {
            exit::print_error(&format!("lock {} was not released; it expires on its own: {error}", guard.name()))
        }
    }
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(SilentExit(code).into()),
        None => Err(lock_lost_error(&guard)),
    }
}

fn signal_exit(signal: Signal) -> anyhow::Error {
    let code = u8::try_from(command::SIGNAL_EXIT_BASE + signal.as_raw()).unwrap_or(exit::FAILURE);
    SilentExit(code).into()
}

fn lock_lost_error(guard: &Guard) -> anyhow::Error {
    let (name, fence) = (escape_text(guard.name()), guard.fence());
    let message = format!(
        "lock {name} was lost while the command ran; another holder, with a fence above {fence}, may have run at the same time"
    );
    CliError::new(exit::LOCK_LOST, message)
}

impl AcquireArgs {
    /// Returns true if the command line sets any of these options.
    pub(super) fn has_any_option(&self) -> bool {
        let AcquireArgs { name, named, ttl, wait, no_wait, slots, note, conflict_exit_code, command } = self;
        let has_text = name.is_some() || named.is_some() || note.is_some() || !command.is_empty();
        has_text || ttl.is_some() || wait.is_some() || *no_wait || slots.is_some() || conflict_exit_code.is_some()
    }

    fn lock_name(&self) -> &str {
        self.name.as_ref().or(self.named.as_ref()).map_or("", String::as_str)
    }

    fn build_lock(&self, duly: &Duly) -> Lock {
        let mut lock = duly.lock(self.lock_name()).ttl(self.ttl()).slots(self.slots.unwrap_or(1));
        if let Some(note) = &self.note {
            lock = lock.note(note);
        }
        lock
    }

    fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_LOCK_TTL)
    }

    /// Acquires the lock, with the wait that the options allow.
    async fn acquire(&self, duly: &Duly, out: &Output) -> anyhow::Result<Guard> {
        let lock = self.build_lock(duly);
        if self.no_wait || self.wait == Some(Duration::ZERO) {
            let guard = lock.clone().try_acquire().await?;
            return match guard {
                Some(guard) => Ok(guard),
                None => Err(self.busy_error(&lock).await),
            };
        }
        let request = lock.clone();
        let acquiring = match self.wait {
            Some(wait) => request.wait(wait).acquire(),
            None => request.acquire(),
        };
        let acquired = tokio::select! {
            acquired = acquiring => acquired,
            never = print_holders_while_waiting(&lock, out) => match never {},
        };
        match acquired {
            Err(Error::Timeout { op: "lock", reason, .. }) => Err(self.timeout_error(&reason, &lock).await),
            acquired => Ok(acquired?),
        }
    }

    /// Builds the error for a lock that is held.
    async fn busy_error(&self, lock: &Lock) -> anyhow::Error {
        // The holder is optional: it may have changed, and the query may fail.
        let by_holders = describe_holders(lock).await.map_or_else(String::new, |holders| format!(" by {holders}"));
        self.not_acquired_error(exit::CONFLICT, format!("lock {} is held{by_holders}", escape_text(self.lock_name())))
    }

    /// Builds the error for a wait that timed out.
    async fn timeout_error(&self, reason: &str, lock: &Lock) -> anyhow::Error {
        let message = match describe_holders(lock).await {
            Some(holders) => format!("lock {} is held by {holders}; stopped waiting", escape_text(self.lock_name())),
            None => escape_text(reason).into_owned(),
        };
        self.not_acquired_error(exit::TIMED_OUT, message)
    }

    fn not_acquired_error(&self, code: u8, message: String) -> anyhow::Error {
        CliError::new(self.conflict_exit_code.unwrap_or(code), message)
    }

    fn print_acquired(&self, guard: &Guard, out: &Output) {
        let slot = if self.slots.unwrap_or(1) > 1 { format!("  slot {}", guard.slot()) } else { String::new() };
        let (name, fence, ttl) = (escape_text(guard.name()), guard.fence(), time::format_duration_exact(self.ttl()));
        out.print_message(&format!("lock {name}  fence {fence}{slot}  ttl {ttl}"));
    }

    /// Runs the command while the lock is held. Returns `None` if it was killed because the lock was lost.
    async fn run_command(
        &self,
        guard: &Guard,
        signals: &mut OsSignals,
        out: &Output,
    ) -> anyhow::Result<Option<ExitStatus>> {
        let env = vec![
            ("DULY_LOCK", guard.name().to_owned()),
            ("DULY_FENCE", guard.fence().to_string()),
            ("DULY_SLOT", guard.slot().to_string()),
        ];
        let spec = ChildSpec { argv: self.command.clone(), dir: None, env, stdio: ChildStdio::Inherited };
        let mut command = GuardedCommand::start(spec).context("cannot start the command")?;
        let ended = tokio::select! {
            ended = forward_signals(&mut command, signals, guard) => Some(ended?),
            () = guard.lost() => None,
        };
        if ended.is_some() {
            return Ok(Some(command.wait().await?));
        }
        out.print_message(&format!("lock {} is lost: SIGTERM to the command", escape_text(guard.name())));
        command.send_signal(Signal::TERM);
        // A stopped process handles SIGTERM only after it continues.
        command.send_signal(Signal::CONT);
        if tokio::time::timeout(LOCK_LOST_GRACE, forward_signals(&mut command, signals, guard)).await.is_err() {
            command.send_signal(Signal::KILL);
            forward_signals(&mut command, signals, guard).await?;
        }
        // Processes that the command started may still run.
        command.send_signal(Signal::KILL);
        command.wait().await?;
        Ok(None)
    }
}

/// Describes the holders; `None` if the query takes too long or the lock is free.
async fn describe_holders(lock: &Lock) -> Option<String> {
    let locks = tokio::time::timeout(HOLDERS_TIMEOUT, lock.holders()).await.ok()?.ok()?;
    (!locks.is_empty()).then(|| format_holders(&LockList::from(&locks[..]).locks))
}

/// Forwards signals to the command until it has ended.
async fn forward_signals(command: &mut GuardedCommand, signals: &mut OsSignals, lock: &Guard) -> std::io::Result<()> {
    loop {
        match command.state()? {
            CommandState::Exited => return Ok(()),
            CommandState::Stopped(signal) => command.handle_stop(signal, lock),
            CommandState::Running => {}
        }
        let signal = signals.next().await;
        if signal != Signal::CHILD {
            command.send_signal(signal);
        }
    }
}

/// Prints the holders after a short wait, to explain the delay.
async fn print_holders_while_waiting(lock: &Lock, out: &Output) -> Infallible {
    tokio::time::sleep(WAIT_MESSAGE_DELAY).await;
    if let Ok(locks) = lock.holders().await
        && let Some(first) = locks.first()
    {
        let holders = format_holders(&LockList::from(&locks[..]).locks);
        out.print_hint(&format!("waiting for lock {}, held by {holders}", escape_text(&first.name)));
    }
    std::future::pending().await
}
