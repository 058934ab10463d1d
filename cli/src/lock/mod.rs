//! `duly lock`: a command that runs while a lock is held, and a look at the locks that are.
//!
//! `take` takes the lock, `command` runs the command, `signals` and `terminal` are what both need of the system,
//! `held` shows and breaks locks that others hold.

mod acquire;
mod admin;
mod command;
mod signals;
mod terminal;

use std::ffi::OsString;

use clap::{Args, Subcommand};

use self::acquire::Take;
use crate::Setup;
use crate::exit::{self, Fail};

const USAGE: &str = "\
duly lock [OPTIONS] NAME -- COMMAND...
       duly lock ls
       duly lock get NAME
       duly lock break NAME";

/// Run a command while a lock is held, like flock(1) but across machines
///
/// `duly lock NAME -- COMMAND ARGS...` waits for its turn, runs the command, releases the lock when it has ended, and
/// ends with its exit code (128 + n if signal n has killed it, 127 if there is no such command, 126 if it cannot be run).
/// The command finds DULY_LOCK, DULY_FENCE and DULY_SLOT in its environment: hand the fence to whatever the lock
/// protects, which must refuse a smaller one than it has seen.
/// Signals are passed on to it. What it leaves running in the background is not covered by the lock.
///
/// If the lock is lost while the command runs (it was broken, or the store was out of reach for too long), the command
/// gets SIGTERM, and SIGKILL 5 s later: exit code 6. If duly itself is killed, so is the command.
///
/// `duly lock ls`, `duly lock get NAME` and `duly lock break NAME` look at locks that are held;
/// a lock that is called like one of them is taken with `--name`.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, disable_help_subcommand = true, override_usage = USAGE)]
pub(crate) struct Lock {
    #[command(subcommand)]
    verb: Option<Look>,
    #[command(flatten)]
    take: Take,
}

#[derive(Debug, Subcommand)]
enum Look {
    /// List locks that are held: who has them, since when, and how many wait
    Ls {
        #[command(flatten)]
        mistake: Mistake,
    },
    /// Show who holds a lock (exit code 3 if nobody does)
    Get {
        name: String,
        #[command(flatten)]
        mistake: Mistake,
    },
    /// Take a lock away from whoever holds it: their command is told, and the next in line gets it
    Break {
        name: String,
        #[command(flatten)]
        mistake: Mistake,
    },
}

/// A command, where none belongs: somebody wants to take a lock that is called like a verb.
#[derive(Debug, Args)]
struct Mistake {
    #[arg(last = true, hide = true)]
    command: Vec<OsString>,
}

pub(crate) async fn run(lock: Lock, setup: &Setup) -> anyhow::Result<()> {
    let Some(verb) = lock.verb else {
        return acquire::run(lock.take, setup).await;
    };
    let (Look::Ls { mistake } | Look::Get { mistake, .. } | Look::Break { mistake, .. }) = &verb;
    if lock.take.is_given() || !mistake.command.is_empty() {
        let why = "ls, get and break take none of this; a lock that is called like one of them: --name ls -- COMMAND";
        return Err(Fail::new(exit::USAGE, why));
    }
    match verb {
        Look::Ls { .. } => admin::list(setup).await,
        Look::Get { name, .. } => admin::get(&name, setup).await,
        Look::Break { name, .. } => admin::break_it(&name, setup).await,
    }
}
