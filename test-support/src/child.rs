//! Child processes: this test binary started again, and processes that end with their value.

use std::process::{Child, Command};

/// The arguments with which a test binary runs one test and prints what the test prints.
///
/// `test` is the path of the test without the name of the binary, as in `crash::child_process`.
pub fn child_test_args(test: &str) -> [&str; 4] {
    ["--exact", test, "--include-ignored", "--nocapture"]
}

/// A command that runs one test of this binary in a process of its own.
///
/// An environment variable usually tells that test that it is the child; without it the test returns at once.
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
        // Both fail only if the process has already ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}
