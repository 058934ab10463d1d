//! Processes that take part: how they are started, killed and paused, and what they are.

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
/// What a child says to its parent, told apart from what the test harness says.
const MARK: &str = "says: ";

/// A process to be started.
pub struct Start {
    role: &'static str,
    pub store: String,
    pub file: PathBuf,
    pub arg: String,
    /// A library that it loads before all others.
    pub preload: Option<PathBuf>,
}

impl Start {
    pub fn new(role: &'static str) -> Self {
        Start { role, store: String::new(), file: PathBuf::new(), arg: String::new(), preload: None }
    }

    pub fn on(role: &'static str, store: &str, file: &Path, arg: impl ToString) -> Self {
        Start { role, store: store.into(), file: file.into(), arg: arg.to_string(), preload: None }
    }

    /// The system kills it when the thread that calls this ends: also if it is paused then, or the tests are killed.
    pub fn run(&self) -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(std::env::current_exe().expect("knows itself"));
        command.args(test_support::child_test_args("distributed_locks::child_process"));
        command.env(ROLE, self.role).env(STORE, &self.store).env(FILE, &self.file).env(ARG, &self.arg);
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().expect("starts");
        let out = process.stdout.take().expect("piped");
        let (sender, words) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, word)) = line.split_once(MARK) {
                    let _ = sender.send(word.to_owned());
                }
            }
        });
        Child { process, words }
    }
}

/// A running process. Killed when dropped.
pub struct Child {
    process: std::process::Child,
    words: Receiver<String>,
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

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for the next thing it says.
    pub fn word(&mut self) -> String {
        self.words.recv_timeout(LONG).expect("says something in time")
    }

    /// Tells it to go on: it waits for a line.
    pub fn go(&mut self) {
        self.process.stdin.as_mut().expect("piped").write_all(b"go\n").expect("it listens");
    }

    pub fn is_paused(&self) -> bool {
        // The state stands after the name, which is in brackets and may hold anything.
        self.proc("stat").rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    }

    /// How much memory it has, in bytes.
    pub fn memory(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("is told");
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

/// Says something to the parent.
pub fn say(word: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // Whoever listened may be gone; then it does not matter.
    let _ = writeln!(out, "{MARK}{word}");
}

/// Waits until the parent says go.
pub fn wait_for_go() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// What a child process does; returns at once in any other.
pub fn live() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let of = |variable| std::env::var(variable).unwrap_or_default();
    let (store, file, arg) = (of(STORE), PathBuf::from(of(FILE)), of(ARG));
    match role.as_str() {
        "client" => runtime().block_on(client::live(&store, &file)),
        "counter" => runtime().block_on(counter::live(&store, &file, arg.parse().expect("a number"))),
        "late" => runtime().block_on(counter::late(&store, &file, arg == "checked")),
        "node" => runtime().block_on(flood::live(&store, KEY)),
        "clock" => say(clock::compare()),
        other => panic!("no role {other}"),
    }
}
