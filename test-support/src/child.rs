//! Child processes: this test binary started again, and processes that are killed on drop.

use std::process::{Child, Command};

use crate::wait_for;

/// Returns the arguments with which a test binary runs one test and prints its output.
///
/// `test` is the path of the test without the name of the binary, as in `crash::child_process`.
pub fn child_test_args(test: &str) -> [&str; 4] {
    ["--exact", test, "--include-ignored", "--nocapture"]
}

/// Returns a command that runs one test of this binary in its own process.
///
/// Usually the child is marked by an environment variable; without it, the test returns at once.
pub fn child_test(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this binary"));
    command.args(child_test_args(test));
    command
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl KillOnDrop {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Sends SIGSTOP; returns when the process has stopped, or has ended before that.
    pub fn pause(&self) {
        self.signal("STOP");
        wait_for("a stopped process", || match self.state() {
            Some('T' | 'Z') => Ok(()),
            state => Err(format!("its state is {state:?}")),
        });
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    // Uses the shell's built-in `kill`: std can only send SIGKILL.
    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.id())]).status();
        assert!(status.is_ok_and(|status| status.success()), "SIG{name} to process {}", self.id());
    }

    pub fn is_stopped(&self) -> bool {
        self.state() == Some('T')
    }

    /// Returns the state of the process, as `/proc` names it.
    fn state(&self) -> Option<char> {
        // It follows the name, which is in parentheses and may contain any character.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        stat.rsplit(") ").next()?.chars().next()
    }

    /// Sends SIGKILL, and returns when the process is gone.
    pub fn kill(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}
