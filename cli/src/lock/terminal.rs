//! The terminal, which only one group of processes may read from at a time.
//!
//! A command has a group of its own, so that it can be ended as a whole. It gets the terminal when it reaches for it, not
//! before: until then the terminal is that of whoever stands beside us in a pipeline.

use std::fs::File;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

pub(super) struct ControllingTerminal {
    /// The one that controls us, if there is one.
    tty: Option<File>,
    given_to: Option<Pid>,
}

impl ControllingTerminal {
    pub(super) fn open() -> ControllingTerminal {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok();
        ControllingTerminal { tty, given_to: None }
    }

    /// Gives it to a group, if it is ours to give.
    pub(super) fn give_to(&mut self, group: Pid) -> bool {
        let Some(tty) = &self.tty else {
            return false;
        };
        let gave = tcgetpgrp(tty) == Ok(getpgrp()) && tcsetpgrp(tty, group).is_ok();
        self.given_to = gave.then_some(group);
        gave
    }

    /// Takes it back, unless somebody else has done so. Answers whether it was given away.
    pub(super) fn take_back(&mut self) -> bool {
        let (Some(tty), Some(group)) = (&self.tty, self.given_to.take()) else {
            return false;
        };
        if matches!(tcgetpgrp(tty), Ok(other) if other != group) {
            return true;
        }
        // Whoever is in the background and reaches for the terminal is stopped, unless it blocks this signal.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        if let Ok(before) = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
            let _ = tcsetpgrp(tty, getpgrp());
            let _ = before.thread_set_mask();
        }
        true
    }
}

impl Drop for ControllingTerminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
