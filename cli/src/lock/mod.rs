//! `duly lock`: runs a command while a lock is held, and manages held locks.
//!
//! `acquire` acquires the lock, `command` runs the command, `signals` and `terminal` connect both to the system.
//! `admin` lists, shows and breaks locks.

mod acquire;
mod admin;
mod command;
mod signals;
mod terminal;

use std::ffi::OsString;

use clap::{Args, Subcommand};

use self::acquire::AcquireArgs;
use crate::Setup;
use crate::exit::{self, CliError};
use crate::output::ColumnArgs;

const LOCK_USAGE: &str = "\
duly lock [OPTIONS] NAME -- COMMAND...
       duly lock ls
       duly lock get NAME
       duly lock break NAME [--slot N|--all]";

/// Run a command while a lock is held, like flock(1) but across machines
///
/// `duly lock NAME -- COMMAND ARGS...` waits for the lock, runs the command, releases the lock when the command ends, and
/// exits with its exit code (128 + n if signal n killed it, 127 if there is no such command, 126 if it cannot be run).
/// The command finds DULY_LOCK, DULY_FENCE and DULY_SLOT in its environment: pass the fence to the resource that the
/// lock protects, which must refuse a fence smaller than one it has seen.
/// Signals are forwarded to the command. The lock does not cover background processes that the command leaves.
///
/// If the lock is lost while the command runs (it was broken, or the store was unreachable for too long), the command
/// gets SIGTERM, and SIGKILL 5 s later: exit code 6. If duly itself is killed, the command is killed too.
///
/// `duly lock ls`, `duly lock get NAME` and `duly lock break NAME` show and break held locks;
/// acquire a lock with the name of one of these verbs with `--name`.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, disable_help_subcommand = true, override_usage = LOCK_USAGE)]
pub(crate) struct LockArgs {
    #[command(subcommand)]
    verb: Option<LockVerb>,
    #[command(flatten)]
    acquire: AcquireArgs,
}

impl LockArgs {
    /// Returns whether this acquires a lock.
    pub(crate) fn acquires(&self) -> bool {
        self.verb.is_none()
    }
}

#[derive(Debug, Subcommand)]
enum LockVerb {
    /// List held locks with their holders and the number of waiters
    Ls {
        #[command(flatten)]
        columns: ColumnArgs,
        #[command(flatten)]
        unexpected: UnexpectedCommand,
    },
    /// Show the holders of a lock (exit code 3 if the lock is free)
    Get {
        name: String,
        #[command(flatten)]
        unexpected: UnexpectedCommand,
    },
    /// Take a lock away from a holder: its command is stopped, and the next waiter gets the lock
    Break {
        name: String,
        /// Break only the hold of this slot
        #[arg(long, value_name = "N")]
        slot: Option<u32>,
        /// Break the holds of all slots
        #[arg(long, conflicts_with = "slot")]
        all: bool,
        #[command(flatten)]
        unexpected: UnexpectedCommand,
    },
}

/// A command after a verb: the user probably means a lock that is named like the verb.
#[derive(Debug, Args)]
struct UnexpectedCommand {
    #[arg(last = true, hide = true)]
    command: Vec<OsString>,
}

pub(crate) async fn run(lock: LockArgs, setup: &Setup) -> anyhow::Result<()> {
    let Some(verb) = lock.verb else {
        return acquire::run(lock.acquire, setup).await;
    };
    let (LockVerb::Ls { unexpected, .. } | LockVerb::Get { unexpected, .. } | LockVerb::Break { unexpected, .. }) =
        &verb;
    if lock.acquire.has_any_option() || !unexpected.command.is_empty() {
        let reason =
            "ls, get and break take no options and no command; for a lock with such a name use --name ls -- COMMAND";
        return Err(CliError::new(exit::USAGE, reason));
    }
    match verb {
        LockVerb::Ls { columns, .. } => admin::list(&columns, setup).await,
        LockVerb::Get { name, .. } => admin::get(&name, setup).await,
        LockVerb::Break { name, slot, all, .. } => admin::break_lock(&name, slot, all, setup).await,
    }
}
