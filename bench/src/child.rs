//! Child processes: this program itself in another role, so that something can be killed, or wait elsewhere.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use duly::{Args, Ctx, Duly, Event};
use serde::{Deserialize, Serialize};

use crate::config::{Noop, noop, push_jobs};
use crate::{call, lock, redis};

/// First word of a child's command line.
const CHILD_FLAG: &str = "--child";

/// What a child does.
pub(crate) enum ChildRole {
    /// Pushes so many jobs in bulk, says `full`, then pushes one at a time until it is killed.
    Fill(String, usize),
    /// Works the store of this URL, says `joined`, and a [`Start`] for each job that is told.
    Work(String),
    /// Says `ready`, then takes the locks that the parent hands on, and says a [`Start`] for each.
    TakeLocks(String),
    /// So many at once take one lock, so often each; says `ready`, and a [`Start`] when all are done.
    ContendForLock(String, usize, usize),
    /// Answers calls; says `ready`, and as which node.
    AnswerCalls(String),
    /// Publishes back what is published to it; says `ready`.
    EchoMessages(String),
    /// Blocks in a bare pop; says `ready`, and a [`Start`] for each number that it gets.
    PopList(String),
}

/// A job that a child tells the start of.
#[derive(Serialize, Deserialize)]
pub(crate) struct TimedJob {
    no: usize,
    /// How long it runs.
    hold_ms: u64,
}

impl Args for TimedJob {
    const KIND: &'static str = "told";
}

impl TimedJob {
    /// One that ends at once.
    pub(crate) fn new(no: usize) -> Self {
        TimedJob { no, hold_ms: 0 }
    }

    /// One that runs for so long.
    pub(crate) fn running_for(no: usize, time: Duration) -> Self {
        TimedJob { no, hold_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// When a child's handler began.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartReport {
    pub(crate) no: usize,
    pub(crate) monotonic_us: u64,
    pub(crate) wall_us: u64,
}

/// The role that a command line gives, if it gives one.
pub(crate) fn parse_role(given: &[String]) -> Result<Option<ChildRole>> {
    let words: Vec<&str> = given.iter().map(String::as_str).collect();
    match words[..] {
        [CHILD_FLAG, "fill", url, jobs] => Ok(Some(ChildRole::Fill(url.to_owned(), jobs.parse()?))),
        [CHILD_FLAG, "work", url] => Ok(Some(ChildRole::Work(url.to_owned()))),
        [CHILD_FLAG, "take", url] => Ok(Some(ChildRole::TakeLocks(url.to_owned()))),
        [CHILD_FLAG, "crowd", url, waiters, times] => {
            Ok(Some(ChildRole::ContendForLock(url.to_owned(), waiters.parse()?, times.parse()?)))
        }
        [CHILD_FLAG, "answer", url] => Ok(Some(ChildRole::AnswerCalls(url.to_owned()))),
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
            let tell = |event: &Event<'_>| {
                if let Event::Joined { .. } = event {
                    println!("joined");
                }
            };
            duly.worker().queue("default", 10).on(run_timed_job).on(noop).on_event(tell).run().await?;
            Ok(())
        }
        ChildRole::TakeLocks(url) => lock::run_lock_taker(&Duly::open(url).await?).await,
        ChildRole::ContendForLock(url, waiters, times) => {
            lock::run_lock_contenders(&Duly::open(url).await?, waiters, times).await
        }
        ChildRole::AnswerCalls(url) => call::run_callee(&Duly::open(url).await?).await,
        ChildRole::EchoMessages(url) => redis::run_echo(&url).await,
        ChildRole::PopList(url) => redis::run_popper(&url).await,
    }
}

/// Tells the parent that something begins now.
pub(crate) fn report_start(no: usize) -> Result<(), serde_json::Error> {
    let start = StartReport { no, monotonic_us: monotonic_us(), wall_us: wall_us(SystemTime::now()) };
    println!("{}", serde_json::to_string(&start)?);
    Ok(())
}

async fn run_timed_job(job: TimedJob, _ctx: Ctx) -> Result<(), serde_json::Error> {
    report_start(job.no)?;
    if job.hold_ms > 0 {
        tokio::time::sleep(Duration::from_millis(job.hold_ms)).await;
    }
    Ok(())
}

/// A child under way, of this program or of a peer's. Killed when it goes out of scope.
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
        BenchProcess::start_role(&["crowd", url, &waiters.to_string(), &times.to_string()], "ready")
    }

    pub(crate) fn start_callee(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["answer", url], "ready")
    }

    pub(crate) fn start_echo(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["echo", url], "ready")
    }

    pub(crate) fn start_popper(url: &str) -> Result<Self> {
        BenchProcess::start_role(&["pop", url], "ready")
    }

    /// Starts this program in a role and waits for its first word.
    fn start_role(words: &[&str], first: &str) -> Result<Self> {
        BenchProcess::spawn(Command::new(std::env::current_exe()?).arg(CHILD_FLAG).args(words), first)
    }

    /// Starts a program and waits for its first word.
    pub(crate) fn spawn(command: &mut Command, first: &str) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("the child's output is a pipe")?).lines();
        let (say, said) = channel();
        // A thread that reads, so that a wait for a line can end without one.
        std::thread::spawn(move || {
            for line in lines {
                if say.send(line).is_err() {
                    return;
                }
            }
        });
        let playing = BenchProcess { child, output_lines: said };
        let line = playing.next_line()?;
        anyhow::ensure!(line == first, "the child said {line:?} instead of {first:?}");
        Ok(playing)
    }

    /// The next line that the child says. Blocks until then.
    pub(crate) fn next_line(&self) -> Result<String> {
        Ok(self.output_lines.recv().context("the child has ended")??)
    }

    /// The next start that the child tells. Blocks until then.
    pub(crate) fn next_start(&self) -> Result<StartReport> {
        Ok(serde_json::from_str(&self.next_line()?)?)
    }

    /// The next start that the child tells, if there is one within this time.
    pub(crate) fn next_start_within(&self, time: Duration) -> Result<Option<StartReport>> {
        match self.output_lines.recv_timeout(time) {
            Ok(line) => Ok(Some(serde_json::from_str(&line?)?)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the child has ended"),
        }
    }

    /// The most memory that it has had.
    pub(crate) fn peak_rss_mb(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in its status")?;
        Ok(peak.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }

    /// CPU time of all threads so far. Finer than the ticks of `/proc/PID/stat`: an idle process uses less than one.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
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

impl Drop for BenchProcess {
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
