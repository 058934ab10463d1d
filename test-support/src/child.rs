//! Child processes: this test binary started again, and processes that are killed on drop.

use std::process::{Child, Command};

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
