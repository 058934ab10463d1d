//! Child processes: how they are started, killed and paused, and their roles.

use std::path::{Path, PathBuf};

use test_support::LineChild;
pub use test_support::report;

use crate::distributed_locks::location::{KEY, LONG};
use crate::distributed_locks::{client, clock, counter, flood};
use crate::runtime;

const ROLE: &str = "DULY_LOCK_ROLE";
const STORE: &str = "DULY_LOCK_STORE";
const FILE: &str = "DULY_LOCK_FILE";
const ARG: &str = "DULY_LOCK_ARG";

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

    /// Starts the process.
    pub fn run(&self) -> Child {
        let mut command = crate::child_command();
        command.env(ROLE, self.role).env(STORE, &self.store).env(FILE, &self.file).env(ARG, &self.arg);
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        Child(LineChild::start(&command))
    }
}

/// A running process. Killed when dropped.
pub struct Child(LineChild);

impl Child {
    pub fn pause(&self) {
        self.0.process.pause();
    }

    pub fn resume(&self) {
        self.0.process.resume();
    }

    /// Sends SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) {
        self.0.process.kill();
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.process.has_ended()
    }

    pub fn is_paused(&self) -> bool {
        self.0.process.is_stopped()
    }

    /// Waits for the next message of the process.
    pub fn next_message(&mut self) -> String {
        self.0.next(LONG).expect("a message in time")
    }

    /// Sends the line for which [`wait_for_go`] waits.
    pub fn go(&mut self) {
        self.0.send("go");
    }

    /// Returns its resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let file = format!("/proc/{}/status", self.0.process.id());
        let status = std::fs::read_to_string(file).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a VmRSS line");
        1024 * line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
    }
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
