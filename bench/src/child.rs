//! Child processes: this program in another role, so that a process can be killed or wait elsewhere.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use duly::worker::Event;
use duly::{Args, Ctx, Duly};
use serde::{Deserialize, Serialize};

use crate::config::{Noop, noop, push_jobs};
use crate::{call, lock, redis};

/// The first word of a child's command line.
const CHILD_FLAG: &str = "--child";

/// The role of a child process.
pub(crate) enum ChildRole {
    /// Pushes this many jobs in bulk, prints `full`, then pushes one at a time until it is killed.
    Fill(String, usize),
    /// Works the store at this URL; prints `joined`, and a [`StartReport`] for each timed job.
    Work(String),
    /// Prints `ready`, acquires the locks that the parent releases, and prints a [`StartReport`] for each.
    TakeLocks(String),
    /// This many tasks acquire one lock, this often each; prints `ready`, and a [`StartReport`] at the end.
    ContendForLock(String, usize, usize),
    /// Replies to calls; prints `ready` and the id of its node.
    ReplyToCalls(String),
    /// Publishes each message back; prints `ready`.
    EchoMessages(String),
    /// Blocks in a bare pop; prints `ready`, and a [`StartReport`] for each number it gets.
    PopList(String),
}

/// A job that reports its start.
#[derive(Serialize, Deserialize)]
pub(crate) struct TimedJob {
    number: usize,
    /// How long it runs.
    hold_ms: u64,
}

impl Args for TimedJob {
    const KIND: &'static str = "timed";
}

impl TimedJob {
    /// Creates a job that ends at once.
    pub(crate) fn new(number: usize) -> Self {
        TimedJob { number, hold_ms: 0 }
    }

    /// Creates a job that runs for this duration.
    pub(crate) fn running_for(number: usize, time: Duration) -> Self {
        TimedJob { number, hold_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// When a handler started; peers print it with the field `no`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartReport {
    #[serde(rename = "no")]
    pub(crate) number: usize,
    pub(crate) monotonic_us: u64,
    pub(crate) wall_us: u64,
}

/// Returns the role that a command line names, if any.
pub(crate) fn parse_role(args: &[String]) -> Result<Option<ChildRole>> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        [CHILD_FLAG, "fill", url, jobs] => Ok(Some(ChildRole::Fill(url.to_owned(), jobs.parse()?))),
        [CHILD_FLAG, "work", url] => Ok(Some(ChildRole::Work(url.to_owned()))),
        [CHILD_FLAG, "take", url] => Ok(Some(ChildRole::TakeLocks(url.to_owned()))),
        [CHILD_FLAG, "contend", url, waiters, times] => {
            Ok(Some(ChildRole::ContendForLock(url.to_owned(), waiters.parse()?, times.parse()?)))
        }
        [CHILD_FLAG, "reply", url] => Ok(Some(ChildRole::ReplyToCalls(url.to_owned()))),
        [CHILD_FLAG, "echo", url] => Ok(Some(ChildRole::EchoMessages(url.to_owned()))),
        [CHILD_FLAG, "pop", url] => Ok(Some(ChildRole::PopList(url.to_owned()))),
        [CHILD_FLAG, ..] => bail!("no such role of a child: {words:?}"),
        _ => Ok(None),
    }
}

pub(crate) async fn run_role(role: ChildRole) -> Result<()> {
    match role {
        ChildRole::Fill(url, jobs) => {
            let duly = Duly::open(url).await?;
            push_jobs(&duly, jobs, || Noop::new().into()).await?;
            println!("full");
            loop {
                duly.push(Noop::new()).await?;
            }
        }
        ChildRole::Work(url) => {
            let duly = Duly::open(url).await?;
            let report_joined = |event: &Event<'_>| {
                if let Event::Joined { .. } = event {
                    println!("joined");
                }
            };
            duly.worker().queue("default", 10).on(run_timed_job).on(noop).on_event(report_joined).run().await?;
            Ok(())
        }
        ChildRole::TakeLocks(url) => lock::run_lock_taker(&Duly::open(url).await?).await,
        ChildRole::ContendForLock(url, waiters, times) => {
            lock::run_lock_contenders(&Duly::open(url).await?, waiters, times).await
        }
        ChildRole::ReplyToCalls(url) => call::run_callee(&Duly::open(url).await?).await,
        ChildRole::EchoMessages(url) => redis::run_echo(&url).await,
        ChildRole::PopList(url) => redis::run_popper(&url).await,
    }
}

/// Reports a start to the parent.
pub(crate) fn report_start(number: usize) -> Result<(), serde_json::Error> {
    let start = StartReport { number, monotonic_us: monotonic_us(), wall_us: wall_us(SystemTime::now()) };
    println!("{}", serde_json::to_string(&start)?);
    Ok(())
}

async fn run_timed_job(job: TimedJob, _ctx: Ctx) -> Result<(), serde_json::Error> {
    report_start(job.number)?;
    if job.hold_ms > 0 {
        tokio::time::sleep(Duration::from_millis(job.hold_ms)).await;
    }
    Ok(())
}

/// A running child process, of this program or of a peer. Dropping it kills the process.
pub(crate) struct BenchProcess {
    child: Child,
    output_lines: Receiver<std::io::Result<String>>,
}

impl BenchProcess {
    pub(crate) fn start_filler(url: &str, jobs: usize) -> Result<Self> {
        BenchProcess::start_role(&["fill", url, &jobs.to_string()], "full")
    }

    pub(crate) fn start_worker(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["work", url], "joined")
    }

    pub(crate) fn start_lock_taker(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["take", url], "ready")
    }

    pub(crate) fn start_lock_contenders(url: &str, waiters: usize, times: usize) -> Result<Self> {
        BenchProcess::start_role(&["contend", url, &waiters.to_string(), &times.to_string()], "ready")
    }

    pub(crate) fn start_callee(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["reply", url], "ready")
    }

    pub(crate) fn start_echo(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["echo", url], "ready")
    }

    pub(crate) fn start_popper(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["pop", url], "ready")
    }

    /// Starts this program in a role and waits for its first line.
    fn start_role(words: &[&str], first: &str) -> Result<Self> {
        BenchProcess::spawn(Command::new(std::env::current_exe()?).arg(CHILD_FLAG).args(words), first)
    }

    /// Starts a program and waits for its first line.
    pub(crate) fn spawn(command: &mut Command, first: &str) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("the child's output is a pipe")?).lines();
        let (sender, output_lines) = channel();
        // A thread reads, so that waiting for a line can time out.
        std::thread::spawn(move || {
            for line in lines {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let process = BenchProcess { child, output_lines };
        let line = process.next_line()?;
        anyhow::ensure!(line == first, "the child printed {line:?} instead of {first:?}");
        Ok(process)
    }

    /// Waits for the next line of the child.
    pub(crate) fn next_line(&self) -> Result<String> {
        Ok(self.output_lines.recv().context("the child has ended")??)
    }

    /// Waits for the next start report of the child.
    pub(crate) fn next_start(&self) -> Result<StartReport> {
        Ok(serde_json::from_str(&self.next_line()?)?)
    }

    /// Waits for the next start report of the child, at most this long.
    pub(crate) fn next_start_within(&self, time: Duration) -> Result<Option<StartReport>> {
        match self.output_lines.recv_timeout(time) {
            Ok(line) => Ok(Some(serde_json::from_str(&line?)?)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the child has ended"),
        }
    }

    /// Returns the peak memory of the process.
    pub(crate) fn peak_rss_mb(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in its status")?;
        Ok(peak.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }

    /// Returns the CPU time of all threads, finer than the ticks of `/proc/PID/stat`.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let schedstat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += schedstat.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns microseconds of the monotonic clock, which all processes of the machine share.
pub(crate) fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

pub(crate) fn wall_us(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
