//! Child processes that never outlive the claim on their job or the lock they run under.
//!
//! Each child has its own process group, which is killed as a whole when its attempt ends.
//! If this process is killed, the kernel kills the child ([`exec_program`] requests that).
//! A small guard process ([`guard_children`]) kills the rest of the group when its pipe closes.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufRead, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, getppid, kill_process_group};
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};

use crate::sync::start_thread;
use crate::systemd;

/// Spawn requests that may be queued.
const SPAWN_REQUESTS_MAX: usize = 1_024;
/// Process groups that the guard tracks: as many as a worker may run jobs.
const GROUPS_MAX: usize = 100_000;
/// Variables with secrets of this process, which the commands of jobs must not inherit: URLs may contain passwords.
const SECRET_ENV: [&str; 7] = [
    "DULY_STORE",
    "DULY_FROM",
    "DULY_TO",
    "DULY_CLUSTER_KEY",
    "DULY_TOKEN",
    "DULY_ADMIN_TOKEN_FILE",
    "DULY_ACTIONHERO_TOKEN",
];
/// The longest line to the guard: a sign and a number.
const LINE_BYTES_MAX: u64 = 32;
/// The exit codes of shells for a program that does not exist or cannot be started.
const EXIT_NOT_FOUND: i32 = 127;
const EXIT_CANNOT_RUN: i32 = 126;

/// Becomes a program that the kernel kills once its parent is dead
#[derive(Debug, Args)]
pub(crate) struct RunChildArgs {
    /// The process that starts it
    #[arg(long)]
    parent: i32,
    #[arg(last = true, required = true)]
    argv: Vec<OsString>,
}

/// Asks the kernel to kill this process with its parent, then replaces it with the program.
pub(crate) fn exec_program(child: &RunChildArgs) -> anyhow::Result<()> {
    die_with_parent(child.parent)?;
    let (program, args) = child.argv.split_first().context("the command names no program")?;
    let error = Command::new(program).args(args).exec();
    // The worker records stderr as the error of the job.
    crate::exit::print_error(&format!("cannot run {}: {error}", program.display()));
    std::process::exit(if error.kind() == ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_CANNOT_RUN })
}

/// Makes the kernel kill this process when its parent dies.
pub(crate) fn die_with_parent(parent: i32) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot follow the process that started this one")?;
    // The parent may have died before that call.
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the process that started this one is gone");
    Ok(())
}

/// Reads `+GROUP` and `-GROUP` lines; at the end of its input, kills the groups that are left.
pub(crate) fn guard_children() -> anyhow::Result<()> {
    let mut groups = HashSet::new();
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    // The pipe closes when the worker ends.
    loop {
        line.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        let is_complete = matches!(read, Ok(bytes) if bytes > 0) && line.ends_with('\n');
        let Some((sign, group)) = is_complete.then(|| line.trim_end().split_at(1)) else {
            break;
        };
        let Some(group) = group.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        match sign {
            "+" if groups.len() < GROUPS_MAX => drop(groups.insert(group)),
            _ => drop(groups.remove(&group)),
        }
    }
    for group in groups {
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(())
}

/// A process to start.
pub(crate) struct ChildSpec {
    pub(crate) argv: Vec<OsString>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) stdio: ChildStdio,
}

/// The streams of a child process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildStdio {
    /// The worker reads stdout and stderr.
    Captured,
    /// Like `Captured`, and the worker writes to its stdin.
    CapturedWithInput,
    /// The child uses the streams of this process, and its connection to systemd.
    Inherited,
}

type SpawnReply = oneshot::Sender<std::io::Result<ChildProcess>>;

/// Starts processes from a single thread that lives as long as the worker:
/// the kernel treats the end of the thread that started a process as the death of its parent.
#[derive(Clone)]
pub(crate) struct Spawner {
    requests: mpsc::Sender<(ChildSpec, SpawnReply)>,
}

impl Spawner {
    pub(crate) fn start() -> anyhow::Result<Spawner> {
        let (requests, mut receiver) = mpsc::channel::<(ChildSpec, SpawnReply)>(SPAWN_REQUESTS_MAX);
        let runtime = tokio::runtime::Handle::current();
        let guard = Arc::new(ProcessGuard::start());
        let work = move || {
            let _runtime = runtime.enter();
            while let Some((spec, reply)) = receiver.blocking_recv() {
                // Without a receiver, the child is dropped here, which kills it.
                let _ = reply.send(spawn_child(spec, &guard));
            }
        };
        start_thread("spawner", work)?;
        Ok(Spawner { requests })
    }

    pub(crate) async fn spawn(&self, spec: ChildSpec) -> std::io::Result<ChildProcess> {
        let ending = || std::io::Error::other("the worker is ending");
        let (reply, started) = oneshot::channel();
        self.requests.send((spec, reply)).await.map_err(|_| ending())?;
        started.await.map_err(|_| ending())?
    }
}

/// Starts a process. The calling thread must not end before the process.
pub(crate) fn spawn_child(spec: ChildSpec, guard: &Arc<ProcessGuard>) -> std::io::Result<ChildProcess> {
    let mut command = tokio::process::Command::from(own_program_command()?);
    command.arg("run-child").arg("--parent").arg(std::process::id().to_string()).arg("--").args(&spec.argv);
    command.envs(spec.env).process_group(0);
    if let Some(dir) = &spec.dir {
        command.current_dir(dir);
    }
    if spec.stdio != ChildStdio::Inherited {
        for name in systemd::SYSTEMD_ENV.into_iter().chain(SECRET_ENV) {
            command.env_remove(name);
        }
        command.stdin(if spec.stdio == ChildStdio::CapturedWithInput { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let child = command.spawn()?;
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    guard.send_group('+', group);
    Ok(ChildProcess { child, group, guard: guard.clone() })
}

/// Returns a command that runs this program, even if its file has been replaced since the start.
pub(crate) fn own_program_command() -> std::io::Result<Command> {
    let path = std::env::current_exe()?;
    let mut command = Command::new(if path.exists() { path } else { PathBuf::from("/proc/self/exe") });
    command.arg0("duly");
    Ok(command)
}

/// A process with its group. Dropping it before the process has been waited for kills the whole group.
pub(crate) struct ChildProcess {
    pub(crate) child: Child,
    /// The id of the group, which is also that of the process.
    pub(crate) group: Option<Pid>,
    guard: Arc<ProcessGuard>,
}

impl ChildProcess {
    pub(crate) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Sends a signal to the whole group.
    pub(crate) fn send_signal(&self, signal: Signal) {
        // After the wait, the process id may belong to another process.
        if let (Some(group), Some(_)) = (self.group, self.child.id()) {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.send_signal(Signal::KILL);
        self.guard.send_group('-', self.group);
    }
}

/// The write end of the guard's pipe. The guard is optional: if it cannot start, jobs run without it.
pub(crate) struct ProcessGuard {
    pipe: Mutex<Option<std::process::ChildStdin>>,
}

impl ProcessGuard {
    pub(crate) fn start() -> ProcessGuard {
        let started = own_program_command().and_then(|mut command| {
            command.arg("guard-children").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            // It needs no variable, and the commands of jobs can read those that it has.
            command.env_clear();
            // A separate group, so that a Ctrl-C at the terminal does not reach it.
            command.process_group(0).spawn()
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "no guard process: children of commands may survive a kill");
        }
        ProcessGuard { pipe: Mutex::new(started.ok().and_then(|mut child| child.stdin.take())) }
    }

    fn send_group(&self, sign: char, group: Option<Pid>) {
        let (Ok(mut pipe), Some(group)) = (self.pipe.lock(), group) else {
            return;
        };
        if let Some(pipe) = pipe.as_mut() {
            let _ = pipe.write_all(format!("{sign}{}\n", group.as_raw_nonzero()).as_bytes());
        }
    }
}
