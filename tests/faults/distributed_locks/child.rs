//! Child processes: how they are started, killed and paused, and their roles.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal};

use crate::distributed_locks::location::{KEY, LONG, runtime};
use crate::distributed_locks::{client, clock, counter, flood};

const ROLE: &str = "DULY_LOCK_ROLE";
const STORE: &str = "DULY_LOCK_STORE";
const FILE: &str = "DULY_LOCK_FILE";
const ARG: &str = "DULY_LOCK_ARG";
/// Prefix of a child's messages to its parent, which separates them from output of the test harness.
const MARK: &str = "child: ";

/// The configuration of a child process.
pub struct Start {
    role: &'static str,
    pub store: String,
    pub file: PathBuf,
    pub arg: String,
    /// A library for `LD_PRELOAD`.
    pub preload: Option<PathBuf>,
}

impl Start {
    pub fn new(role: &'static str) -> Self {
        Start { role, store: String::new(), file: PathBuf::new(), arg: String::new(), preload: None }
    }

    pub fn on(role: &'static str, store: &str, file: &Path, arg: impl ToString) -> Self {
        Start { role, store: store.into(), file: file.into(), arg: arg.to_string(), preload: None }
    }

    /// Starts the process. The system kills it when the calling thread ends, even if it is paused or the tests are
    /// killed.
    pub fn run(&self) -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(std::env::current_exe().expect("the path of this binary"));
        command.args(test_support::child_test_args("distributed_locks::child_process"));
        command.env(ROLE, self.role).env(STORE, &self.store).env(FILE, &self.file).env(ARG, &self.arg);
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().expect("starts");
        let out = process.stdout.take().expect("piped");
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, message)) = line.split_once(MARK) {
                    let _ = sender.send(message.to_owned());
                }
            }
        });
        Child { process, messages }
    }
}

/// A running process. Killed when dropped.
pub struct Child {
    process: std::process::Child,
    messages: Receiver<String>,
}

impl Child {
    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.process), signal).expect("can be signalled");
    }

    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for the next message of the process.
    pub fn next_message(&mut self) -> String {
        self.messages.recv_timeout(LONG).expect("a message in time")
    }

    /// Sends the line for which [`wait_for_go`] waits.
    pub fn go(&mut self) {
        self.process.stdin.as_mut().expect("piped").write_all(b"go\n").expect("it listens");
    }

    pub fn is_paused(&self) -> bool {
        // The state follows the name, which is in parentheses and may contain any character.
        self.proc("stat").rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    }

    /// Returns its resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a VmRSS line");
        1024 * line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.process.id())).unwrap_or_default()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a message to the parent.
pub fn report(message: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // Fails only if the parent is gone.
    let _ = writeln!(out, "{MARK}{message}");
}

/// Waits for [`Child::go`].
pub fn wait_for_go() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Runs the role of a child process; returns at once in any other process.
pub fn run_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let read = |variable| std::env::var(variable).unwrap_or_default();
    let (store, file, arg) = (read(STORE), PathBuf::from(read(FILE)), read(ARG));
    match role.as_str() {
        "client" => runtime().block_on(client::run(&store, &file)),
        "counter" => runtime().block_on(counter::run(&store, &file, arg.parse().expect("a number"))),
        "late_writer" => runtime().block_on(counter::run_late_writer(&store, &file, arg == "checked")),
        "node" => runtime().block_on(flood::run(&store, KEY)),
        "clock" => report(clock::compare()),
        other => panic!("no role {other}"),
    }
}
