//! The controlling terminal, which only one process group may read at a time.
//!
//! The command has its own group, so that it can be killed as a whole. It gets the terminal on its first access.
//! Until then, the terminal stays with the group of the shell's pipeline.

use std::fs::File;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

pub(super) struct ControllingTerminal {
    /// The controlling terminal of this process, if it has one.
    tty: Option<File>,
    given_to: Option<Pid>,
}

impl ControllingTerminal {
    pub(super) fn open() -> ControllingTerminal {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok();
        ControllingTerminal { tty, given_to: None }
    }

    /// Makes `group` the foreground group, if this process is in the foreground. Returns true on success.
    pub(super) fn give_to(&mut self, group: Pid) -> bool {
        let Some(tty) = &self.tty else {
            return false;
        };
        let given = tcgetpgrp(tty) == Ok(getpgrp()) && tcsetpgrp(tty, group).is_ok();
        self.given_to = given.then_some(group);
        given
    }

    /// Takes the terminal back, unless another group has it now. Returns true if it was given away.
    pub(super) fn take_back(&mut self) -> bool {
        let (Some(tty), Some(group)) = (&self.tty, self.given_to.take()) else {
            return false;
        };
        if matches!(tcgetpgrp(tty), Ok(other) if other != group) {
            return true;
        }
        // The kernel stops a background process that accesses the terminal, unless it blocks SIGTTOU.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        if let Ok(previous) = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
            let _ = tcsetpgrp(tty, getpgrp());
            let _ = previous.thread_set_mask();
        }
        true
    }
}

impl Drop for ControllingTerminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
