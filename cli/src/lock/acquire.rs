//! `duly lock NAME -- COMMAND`: takes the lock, runs the command, releases the lock.

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use duly::{Duly, Error, Guard, LOCK_TTL, Lock};
use rustix::process::Signal;

use super::admin::who;
use super::command::{self, Command, State};
use super::signals::Signals;
use crate::child::{Start, Talk};
use crate::escape::safe;
use crate::exit::{self, Fail, PassedOn};
use crate::output::Out;
use crate::{Setup, store, time};

/// How long the command may go on after SIGTERM, once its lock is lost.
const LOST_GRACE: Duration = Duration::from_secs(5);
/// How long at most whoever ends without the lock looks who has it.
const NAMING: Duration = Duration::from_millis(500);
/// After so long in line, people are told whom they wait for.
const TELL_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Take {
    /// The lock
    #[arg(required_unless_present = "named")]
    name: Option<String>,

    /// The lock, if it is called like one of the verbs below
    #[arg(long = "name", id = "named", value_name = "NAME", conflicts_with = "name")]
    named: Option<String>,

    /// How long the lock outlives us if we are cut off from the store; extended while the command runs [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duly::store::duration)]
    ttl: Option<Duration>,

    /// Wait at most so long for the lock (then exit code 124); 0 tries once [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = duly::store::duration)]
    wait: Option<Duration>,

    /// Try once, and end with exit code 4 if somebody else holds the lock
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,

    /// At most so many may hold it at a time: everybody should say the same [default: 1]
    #[arg(long, value_name = "N")]
    slots: Option<u32>,

    /// Who this is, for those who look at who holds the lock [default: machine and process]
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// The exit code if the lock is held by somebody else, instead of 4 and 124
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,

    /// The command, and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(super) async fn run(take: Take, setup: &Setup) -> anyhow::Result<()> {
    // From here on no signal ends us without our doing: a lock is not left behind.
    let mut signals = Signals::listen()?;
    let duly = tokio::select! {
        duly = store::open_or_make(setup) => duly?,
        signal = signals.end() => return Err(ended_by(signal)),
    };
    let guard = tokio::select! {
        guard = take.acquire(&duly, &setup.out) => guard?,
        signal = signals.end() => return Err(ended_by(signal)),
    };
    take.tell(&guard, &setup.out);
    let held = take.hold(&guard, &mut signals, &setup.out).await;
    if matches!(held, Ok(None)) {
        // There is nothing to release.
        return Err(lost(&guard));
    }
    let released = tokio::select! {
        released = guard.release() => released,
        signal = signals.end() => return Err(ended_by(signal)),
    };
    let code = held?.map(command::code);
    match released {
        Ok(()) => {}
        Err(Error::Conflict(_)) => return Err(lost(&guard)),
        Err(error) => exit::say(&format!("lock {} was not released, and ends by itself: {error}", guard.name())),
    }
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(PassedOn(code).into()),
        None => Err(lost(&guard)),
    }
}

fn ended_by(signal: Signal) -> anyhow::Error {
    let code = u8::try_from(command::KILLED + signal.as_raw()).unwrap_or(exit::FAILURE);
    PassedOn(code).into()
}

fn lost(guard: &Guard) -> anyhow::Error {
    let (name, fence) = (safe(guard.name()), guard.fence());
    let words = format!(
        "lock {name} was lost while the command ran: the next holder, with a fence above {fence}, may have run beside it"
    );
    Fail::new(exit::LOST, words)
}

impl Take {
    /// Whether anything of it stands on the command line.
    pub(super) fn is_given(&self) -> bool {
        let Take { name, named, ttl, wait, no_wait, slots, note, conflict_exit_code, command } = self;
        let texts = name.is_some() || named.is_some() || note.is_some() || !command.is_empty();
        texts || ttl.is_some() || wait.is_some() || *no_wait || slots.is_some() || conflict_exit_code.is_some()
    }

    fn lock_name(&self) -> &str {
        self.name.as_ref().or(self.named.as_ref()).map_or("", String::as_str)
    }

    fn lock(&self, duly: &Duly) -> Lock {
        let mut lock = duly.lock(self.lock_name()).ttl(self.ttl()).slots(self.slots.unwrap_or(1));
        if let Some(note) = &self.note {
            lock = lock.note(note);
        }
        lock
    }

    fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(LOCK_TTL)
    }

    /// Takes the lock, as long as that may take.
    async fn acquire(&self, duly: &Duly, out: &Out) -> anyhow::Result<Guard> {
        let lock = self.lock(duly);
        if self.no_wait || self.wait == Some(Duration::ZERO) {
            let guard = lock.clone().try_acquire().await?;
            return match guard {
                Some(guard) => Ok(guard),
                None => Err(self.busy(&lock).await),
            };
        }
        let asked = lock.clone();
        let acquiring = match self.wait {
            Some(wait) => asked.wait(wait).acquire(),
            None => asked.acquire(),
        };
        let acquired = tokio::select! {
            acquired = acquiring => acquired,
            never = tell_whom_we_wait_for(&lock, out) => match never {},
        };
        match acquired {
            Err(Error::Timeout { op: "lock", reason }) => Err(self.gave_up(&reason, &lock).await),
            acquired => Ok(acquired?),
        }
    }

    /// Somebody else has it.
    async fn busy(&self, lock: &Lock) -> anyhow::Error {
        // Who that is may have changed, or be out of reach: that it is busy stays true.
        let by = holders(lock).await.map_or_else(String::new, |by| format!(" by {by}"));
        self.not_got(exit::CONFLICT, format!("lock {} is held{by}", safe(self.lock_name())))
    }

    /// It was not got in time, for this reason.
    async fn gave_up(&self, reason: &str, lock: &Lock) -> anyhow::Error {
        let words = match holders(lock).await {
            Some(by) => format!("lock {} is held by {by}: stopped waiting", safe(self.lock_name())),
            None => format!("lock {}: stopped waiting", safe(reason)),
        };
        self.not_got(exit::TIMED_OUT, words)
    }

    fn not_got(&self, code: u8, words: String) -> anyhow::Error {
        Fail::new(self.conflict_exit_code.unwrap_or(code), words)
    }

    fn tell(&self, guard: &Guard, out: &Out) {
        let slot = if self.slots.unwrap_or(1) > 1 { format!("  slot {}", guard.slot()) } else { String::new() };
        let (name, fence, ttl) = (safe(guard.name()), guard.fence(), time::exact(self.ttl()));
        out.say(&format!("lock {name}  fence {fence}{slot}  ttl {ttl}"));
    }

    /// Runs the command while the lock is held. `None`: it was ended because the lock was lost.
    async fn hold(&self, guard: &Guard, signals: &mut Signals, out: &Out) -> anyhow::Result<Option<ExitStatus>> {
        let env = vec![
            ("DULY_LOCK", guard.name().to_owned()),
            ("DULY_FENCE", guard.fence().to_string()),
            ("DULY_SLOT", guard.slot().to_string()),
        ];
        let start = Start { argv: self.command.clone(), dir: None, env, talk: Talk::Inherited };
        let mut command = Command::start(start).context("cannot start the command")?;
        let ended = tokio::select! {
            ended = follow(&mut command, signals, guard) => Some(ended?),
            () = guard.lost() => None,
        };
        if ended.is_some() {
            return Ok(Some(command.end().await?));
        }
        out.say(&format!("lock {} is lost: SIGTERM to the command", safe(guard.name())));
        command.signal(Signal::TERM);
        // One that is stopped must wake up to hear it.
        command.signal(Signal::CONT);
        if tokio::time::timeout(LOST_GRACE, follow(&mut command, signals, guard)).await.is_err() {
            command.signal(Signal::KILL);
            follow(&mut command, signals, guard).await?;
        }
        // What it has started may not have ended with it.
        command.signal(Signal::KILL);
        command.end().await?;
        Ok(None)
    }
}

/// Who has it, for people; nothing if that takes long, or nobody does any more.
async fn holders(lock: &Lock) -> Option<String> {
    let locks = tokio::time::timeout(NAMING, lock.holders()).await.ok()?.ok()?;
    (!locks.is_empty()).then(|| who(&locks))
}

/// Passes signals on to the command until it has ended.
async fn follow(command: &mut Command, signals: &mut Signals, lock: &Guard) -> std::io::Result<()> {
    // Ends with the command.
    loop {
        match command.state()? {
            State::Ended => return Ok(()),
            State::Stopped(by) => command.stopped(by, lock),
            State::Runs => {}
        }
        let signal = signals.next().await;
        if signal != Signal::CHILD {
            command.signal(signal);
        }
    }
}

/// For people who wonder why nothing happens.
async fn tell_whom_we_wait_for(lock: &Lock, out: &Out) -> Infallible {
    tokio::time::sleep(TELL_AFTER).await;
    if let Ok(locks) = lock.holders().await
        && let Some(first) = locks.first()
    {
        out.say_to_people(&format!("waiting for lock {}, held by {}", safe(&first.name), who(&locks)));
    }
    std::future::pending().await
}
