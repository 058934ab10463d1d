//! Processes that we start, so that none outlives the hold on its job or its lock.
//!
//! Each runs in a process group of its own, which is killed as a whole when its attempt is over.
//! Two more things cover that we are killed ourselves and can do nothing any more:
//! the kernel kills the child ([`become_it`] asks it to), and a small process beside us,
//! [`guard`], kills the rest of the group when its pipe from us ends.

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

use crate::systemd;

/// Starts that may wait for the thread that carries them out.
const SPAWN_REQUESTS_MAX: usize = 1_024;
/// Groups that the guard keeps in mind: as many as a worker may run jobs.
const GROUPS_MAX: usize = 100_000;
/// The longest line that the guard is sent: a sign and a number.
const LINE_BYTES_MAX: u64 = 32;
/// The exit codes of a program that is not there or cannot be started, as shells have them.
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

/// Asks the kernel to kill us with our parent, then turns into the program.
pub(crate) fn exec_program(child: &RunChildArgs) -> anyhow::Result<()> {
    die_with_parent(child.parent)?;
    let (program, args) = child.argv.split_first().context("no program is named")?;
    let error = Command::new(program).args(args).exec();
    // On stderr, which a worker keeps as the job's error.
    crate::exit::print_error(&format!("cannot run {}: {error}", program.display()));
    std::process::exit(if error.kind() == ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_CANNOT_RUN })
}

/// From here on this process does not outlive the one that started it.
pub(crate) fn die_with_parent(parent: i32) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot follow the process that started this one")?;
    // It may have died before it could be followed.
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the process that started this one is gone");
    Ok(())
}

/// Reads `+GROUP` and `-GROUP` lines; at the end of its input, kills the groups that are left.
pub(crate) fn guard_children() -> anyhow::Result<()> {
    let mut groups = HashSet::new();
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    // Ends with the worker, which holds the other end of the pipe.
    loop {
        line.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        let whole = matches!(read, Ok(bytes) if bytes > 0) && line.ends_with('\n');
        let Some((sign, group)) = whole.then(|| line.trim_end().split_at(1)) else {
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

/// What to start.
pub(crate) struct ChildSpec {
    pub(crate) argv: Vec<OsString>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) stdio: ChildStdio,
}

/// Whom a process talks to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildStdio {
    /// We read what it writes.
    Captured,
    /// The same, and something will be written to its stdin.
    CapturedWithInput,
    /// Whoever we talk to, and also to systemd: it stands in our place.
    Inherited,
}

type SpawnReply = oneshot::Sender<std::io::Result<ChildProcess>>;

/// Starts processes, all from one thread that lives as long as the worker:
/// the kernel takes the end of the thread that started a process for the death of its parent.
#[derive(Clone)]
pub(crate) struct Spawner {
    requests: mpsc::Sender<(ChildSpec, SpawnReply)>,
}

impl Spawner {
    pub(crate) fn start() -> anyhow::Result<Spawner> {
        let (starts, mut waiting) = mpsc::channel::<(ChildSpec, SpawnReply)>(SPAWN_REQUESTS_MAX);
        let runtime = tokio::runtime::Handle::current();
        let guard = Arc::new(ProcessGuard::start());
        let work = move || {
            let _runtime = runtime.enter();
            while let Some((start, answer)) = waiting.blocking_recv() {
                // If nobody waits for it any more it is killed here.
                let _ = answer.send(spawn_child(start, &guard));
            }
        };
        std::thread::Builder::new().name("spawner".to_owned()).spawn(work).context("cannot start a thread")?;
        Ok(Spawner { requests: starts })
    }

    pub(crate) async fn spawn(&self, start: ChildSpec) -> std::io::Result<ChildProcess> {
        let gone = || std::io::Error::other("the worker is ending");
        let (answer, started) = oneshot::channel();
        self.requests.send((start, answer)).await.map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

/// Starts a process. The thread that does so must not end before the process.
pub(crate) fn spawn_child(start: ChildSpec, guard: &Arc<ProcessGuard>) -> std::io::Result<ChildProcess> {
    let mut command = tokio::process::Command::from(own_program_command()?);
    command.arg("run-child").arg("--parent").arg(std::process::id().to_string()).arg("--").args(&start.argv);
    command.envs(start.env).process_group(0);
    if let Some(dir) = &start.dir {
        command.current_dir(dir);
    }
    if start.stdio != ChildStdio::Inherited {
        for name in systemd::SYSTEMD_ENV {
            command.env_remove(name);
        }
        command.stdin(if start.stdio == ChildStdio::CapturedWithInput { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let child = command.spawn()?;
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    guard.send_group('+', group);
    Ok(ChildProcess { child, group, guard: guard.clone() })
}

/// This very program, also if its file has been replaced since it started.
pub(crate) fn own_program_command() -> std::io::Result<Command> {
    let named = std::env::current_exe()?;
    let mut command = Command::new(if named.exists() { named } else { PathBuf::from("/proc/self/exe") });
    command.arg0("duly");
    Ok(command)
}

/// A process with its group. Dropped before its end is known, the whole group is killed.
pub(crate) struct ChildProcess {
    pub(crate) child: Child,
    /// Its own process, too: the first of the group.
    pub(crate) group: Option<Pid>,
    guard: Arc<ProcessGuard>,
}

impl ChildProcess {
    pub(crate) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Sends a signal to the whole group.
    pub(crate) fn send_signal(&self, signal: Signal) {
        // Once the child is waited for, its number may be somebody else's.
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

/// Our end of the guard's pipe. The guard is a help, not a need: without it things go on.
pub(crate) struct ProcessGuard {
    pipe: Mutex<Option<std::process::ChildStdin>>,
}

impl ProcessGuard {
    pub(crate) fn start() -> ProcessGuard {
        let started = own_program_command().and_then(|mut command| {
            command.arg("guard-children").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            // In a group of its own: a Ctrl-C at the terminal is not meant for it.
            command.process_group(0).spawn()
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "no guard: if this process is killed, what its commands have started may live on");
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
