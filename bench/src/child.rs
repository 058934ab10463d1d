//! Child processes: this program itself in another role, so that something can be killed, or wait elsewhere.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use duly::{Args, Ctx, Event};
use serde::{Deserialize, Serialize};

use crate::setting::{KEEP_NONE, Noop, fill, open};

/// First word of a child's command line.
const MARK: &str = "--child";

/// What a child does.
pub(crate) enum Role {
    /// Pushes so many jobs in bulk, says `full`, then pushes one at a time until it is killed.
    Fill(PathBuf, usize),
    /// Works the file, says `joined`, and a [`Start`] for each job.
    Work(PathBuf),
}

/// A job that a child tells the start of.
#[derive(Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) no: usize,
}

impl Args for Told {
    const KIND: &'static str = "told";
}

/// When a child's handler began.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) no: usize,
    pub(crate) monotonic_us: u64,
    pub(crate) wall_us: u64,
}

/// The role that a command line gives, if it gives one.
pub(crate) fn role(given: &[String]) -> Result<Option<Role>> {
    let words: Vec<&str> = given.iter().map(String::as_str).collect();
    match words[..] {
        [MARK, "fill", file, jobs] => Ok(Some(Role::Fill(file.into(), jobs.parse()?))),
        [MARK, "work", file] => Ok(Some(Role::Work(file.into()))),
        [MARK, ..] => bail!("no such role of a child: {words:?}"),
        _ => Ok(None),
    }
}

pub(crate) async fn play(role: Role) -> Result<()> {
    match role {
        Role::Fill(file, jobs) => {
            let duly = open(&file, KEEP_NONE).await?;
            fill(&duly, jobs, || Noop::new().into()).await?;
            println!("full");
            loop {
                duly.push(Noop::new()).await?;
            }
        }
        Role::Work(file) => {
            let duly = open(&file, KEEP_NONE).await?;
            let tell = |event: &Event<'_>| {
                if let Event::Joined { .. } = event {
                    println!("joined");
                }
            };
            duly.worker().queue("default", 10).on(told).on_event(tell).run().await?;
            Ok(())
        }
    }
}

async fn told(job: Told, _ctx: Ctx) -> Result<(), serde_json::Error> {
    let start = Start { no: job.no, monotonic_us: monotonic_us(), wall_us: wall_us(SystemTime::now()) };
    println!("{}", serde_json::to_string(&start)?);
    Ok(())
}

/// A child under way. Killed when it goes out of scope.
pub(crate) struct Playing {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Playing {
    pub(crate) fn fill(file: &Path, jobs: usize) -> Result<Self> {
        Playing::start(&["fill".as_ref(), file.as_os_str(), jobs.to_string().as_ref()], "full")
    }

    pub(crate) fn work(file: &Path) -> Result<Self> {
        Playing::start(&["work".as_ref(), file.as_os_str()], "joined")
    }

    /// Starts this program in a role and waits for its first word.
    fn start(words: &[&std::ffi::OsStr], first: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?).arg(MARK).args(words).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("the child's output is a pipe")?);
        let mut playing = Playing { child, said };
        let line = playing.line()?;
        anyhow::ensure!(line == first, "the child said {line:?} instead of {first:?}");
        Ok(playing)
    }

    /// The next line that the child says.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.said.read_line(&mut line)?;
        anyhow::ensure!(read > 0, "the child has ended");
        Ok(line.trim_end().to_owned())
    }

    /// The next start that the child tells. Blocks until then.
    pub(crate) fn next_start(&mut self) -> Result<Start> {
        Ok(serde_json::from_str(&self.line()?)?)
    }

    /// CPU time of all threads so far. Finer than the ticks of `/proc/PID/stat`: an idle process uses less than one.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let told = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += told.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Microseconds of a clock that all processes of the machine share and nobody sets.
pub(crate) fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

pub(crate) fn wall_us(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
