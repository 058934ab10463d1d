//! Child processes that report to the test in lines on their output.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::KillOnDrop;

/// Prefix of a report, which separates it from the output of the test harness.
const MARK: &str = "child: ";

/// Sends a report from a child process to its parent.
pub fn report(message: impl Display) {
    // Fails only if the parent is gone. The harness may have begun the line.
    let _ = writeln!(std::io::stdout().lock(), "{MARK}{message}");
}

/// Starts a process, and passes each of its reports to `receive` on a thread.
///
/// On Linux, the system kills the process when the calling thread ends, even if the process is stopped or the tests are
/// killed.
pub fn start_reporting(command: &Command, mut receive: impl FnMut(String) + Send + 'static) -> KillOnDrop {
    let mut wrapped = if cfg!(target_os = "linux") {
        let mut wrapped = Command::new("setpriv");
        wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
        wrapped
    } else {
        Command::new(command.get_program())
    };
    wrapped.args(command.get_args());
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut process = wrapped.spawn().unwrap_or_else(|error| panic!("{wrapped:?} cannot be started: {error}"));
    let out = process.stdout.take().expect("piped");
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if let Some((_, message)) = line.split_once(MARK) {
                receive(message.to_owned());
            }
        }
    });
    KillOnDrop(process)
}

/// A child process and its reports. Killed when dropped.
#[derive(Debug)]
pub struct LineChild {
    pub process: KillOnDrop,
    reports: Receiver<String>,
}

impl LineChild {
    /// Starts the process, as [`start_reporting`] does.
    pub fn start(command: &Command) -> LineChild {
        let (sender, reports) = channel();
        let process = start_reporting(command, move |line| {
            // Fails only if the test has dropped the child.
            let _ = sender.send(line);
        });
        LineChild { process, reports }
    }

    /// Returns the next report.
    pub fn next(&self, timeout: Duration) -> Result<String, RecvTimeoutError> {
        self.reports.recv_timeout(timeout)
    }

    /// Returns the reports that have arrived.
    pub fn arrived(&self) -> impl Iterator<Item = String> {
        self.reports.try_iter()
    }

    /// Sends SIGKILL. Returns the reports that were not read yet, when the process is gone.
    pub fn kill(&mut self) -> Vec<String> {
        self.process.kill();
        self.reports.iter().collect()
    }

    /// Sends a line to the standard input of the process.
    pub fn send(&mut self, line: &str) {
        let input = self.process.0.stdin.as_mut().expect("piped");
        input.write_all(format!("{line}\n").as_bytes()).expect("it listens");
    }
}
