//! The command that runs while the lock is held.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use duly::lock::Guard;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getppid, getsid, kill_current_process_group, waitid};

use super::terminal::ControllingTerminal;
use crate::child::{self, ChildProcess, ChildSpec};

/// Shells add this to the number of the signal that killed a command.
pub(super) const SIGNAL_EXIT_BASE: i32 = 128;

/// The state of the command.
pub(super) enum CommandState {
    Running,
    /// Stopped by this signal.
    Stopped(Signal),
    /// Ended but not waited for, so the id of its group is still valid.
    Exited,
}

pub(super) struct GuardedCommand {
    process: ChildProcess,
    group: Pid,
    terminal: ControllingTerminal,
}

impl GuardedCommand {
    pub(super) fn start(spec: ChildSpec) -> std::io::Result<GuardedCommand> {
        let process = child::spawn_child(spec, &Arc::new(child::ProcessGuard::start()))?;
        let group = process.group.ok_or_else(|| std::io::Error::other("it has no process id"))?;
        Ok(GuardedCommand { process, group, terminal: ControllingTerminal::open() })
    }

    /// Sends a signal to the whole group.
    pub(super) fn send_signal(&self, signal: Signal) {
        self.process.send_signal(signal);
    }

    /// Returns the current state; call this after each SIGCHLD.
    pub(super) fn state(&self) -> std::io::Result<CommandState> {
        let poll = |options| waitid(WaitId::Pid(self.group), options | WaitIdOptions::NOHANG);
        if poll(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?.is_some() {
            return Ok(CommandState::Exited);
        }
        let stopped = poll(WaitIdOptions::STOPPED)?.and_then(|status| status.stopping_signal());
        Ok(stopped.and_then(Signal::from_named_raw).map_or(CommandState::Running, CommandState::Stopped))
    }

    /// Handles a stop of the command: it accessed the terminal in the background, or the user pressed Ctrl-Z.
    ///
    /// On Ctrl-Z this process stops, too, with its whole group, until the shell continues it.
    /// The lock is not extended meanwhile. If it is lost by then, the command is not continued.
    pub(super) fn handle_stop(&mut self, signal: Signal, lock: &Guard) {
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if wants_terminal && self.terminal.give_to(self.group) {
            return self.send_signal(Signal::CONT);
        }
        // The sender of any other stop signal continues the command.
        if !wants_terminal && signal != Signal::TSTP {
            return;
        }
        let had_terminal = self.terminal.take_back();
        if has_job_control_shell() {
            let _ = kill_current_process_group(Signal::STOP);
        }
        if lock.is_lost() {
            return;
        }
        if had_terminal || wants_terminal {
            self.terminal.give_to(self.group);
        }
        self.send_signal(Signal::CONT);
    }

    /// Waits for the command and takes the terminal back.
    pub(super) async fn wait(mut self) -> std::io::Result<ExitStatus> {
        self.terminal.take_back();
        self.process.wait().await
    }
}

/// Returns true if the parent may be a shell with job control, which continues stopped jobs.
fn has_job_control_shell() -> bool {
    let session = getppid().and_then(|parent| getsid(Some(parent)).ok());
    session.is_some() && session == getsid(None).ok()
}

/// Returns the exit code of a command, as shells do.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNAL_EXIT_BASE + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::exit::FAILURE)
}
