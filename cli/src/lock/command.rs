//! The command that runs while the lock is held.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use duly::Guard;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getppid, getsid, kill_current_process_group, waitid};

use super::terminal::ControllingTerminal;
use crate::child::{self, ChildProcess, ChildSpec};

/// What a shell adds to the number of the signal that has killed a command.
pub(super) const SIGNAL_EXIT_BASE: i32 = 128;

/// How the command stands.
pub(super) enum CommandState {
    Running,
    /// By this signal.
    Stopped(Signal),
    /// It has not been collected yet: its group is still its own.
    Exited,
}

pub(super) struct GuardedCommand {
    process: ChildProcess,
    group: Pid,
    terminal: ControllingTerminal,
}

impl GuardedCommand {
    pub(super) fn start(start: ChildSpec) -> std::io::Result<GuardedCommand> {
        let running = child::spawn_child(start, &Arc::new(child::ProcessGuard::start()))?;
        let group = running.group.ok_or_else(|| std::io::Error::other("it has no process id"))?;
        Ok(GuardedCommand { process: running, group, terminal: ControllingTerminal::open() })
    }

    /// Sends a signal to all of it.
    pub(super) fn send_signal(&self, signal: Signal) {
        self.process.send_signal(signal);
    }

    /// What has become of it. To be asked after each SIGCHLD.
    pub(super) fn state(&self) -> std::io::Result<CommandState> {
        let look = |what| waitid(WaitId::Pid(self.group), what | WaitIdOptions::NOHANG);
        if look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?.is_some() {
            return Ok(CommandState::Exited);
        }
        let stopped = look(WaitIdOptions::STOPPED)?.and_then(|status| status.stopping_signal());
        Ok(stopped.and_then(Signal::from_named_raw).map_or(CommandState::Running, CommandState::Stopped))
    }

    /// It was stopped: by its wish for the terminal, or by somebody there who wants to do something else.
    ///
    /// Then we stop as well, and with us all that was started with us, until the shell continues us.
    /// Meanwhile nobody extends the lock; if it has ended by then the command is not continued.
    pub(super) fn handle_stop(&mut self, by: Signal, lock: &Guard) {
        let wants_terminal = matches!(by, Signal::TTIN | Signal::TTOU);
        if wants_terminal && self.terminal.give_to(self.group) {
            return self.send_signal(Signal::CONT);
        }
        // Any other stop is not the terminal's: whoever sent it will continue it.
        if !wants_terminal && by != Signal::TSTP {
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

    /// Collects it. Its terminal is ours again.
    pub(super) async fn wait(mut self) -> std::io::Result<ExitStatus> {
        self.terminal.take_back();
        self.process.wait().await
    }
}

/// Whether our parent can be the shell of our session, which continues what was stopped.
fn has_job_control_shell() -> bool {
    let session = getppid().and_then(|parent| getsid(Some(parent)).ok());
    session.is_some() && session == getsid(None).ok()
}

/// The exit code of a command, as shells have it.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNAL_EXIT_BASE + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::exit::FAILURE)
}
