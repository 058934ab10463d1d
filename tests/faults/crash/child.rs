//! A process that takes part: how it is started, what it does, what it says.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use duly::{Ctx, Duly, Event, JobId, Outcome, Push};

use crate::crash::LONG;

const ROLE: &str = "DULY_CRASH_ROLE";
const STORE: &str = "DULY_CRASH_STORE";

#[derive(Clone, Copy)]
pub enum Role {
    Worker,
    Pusher,
}

/// One thing a process has said, one line each.
#[derive(Clone, Debug)]
pub enum Said {
    Joined,
    Pushed(JobId),
    /// `late` is in microseconds, negative if it was early.
    Started {
        id: JobId,
        fence: u64,
        late: i64,
    },
    Acked(JobId, u64),
    Lost(JobId),
}

impl Said {
    pub fn starts(&self, job: JobId) -> bool {
        matches!(self, Said::Started { id, .. } if *id == job)
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Some(match words[..] {
            ["joined"] => Said::Joined,
            ["pushed", id] => Said::Pushed(id.parse().ok()?),
            ["started", id, fence, late] => {
                Said::Started { id: id.parse().ok()?, fence: fence.parse().ok()?, late: late.parse().ok()? }
            }
            ["acked", id, fence] => Said::Acked(id.parse().ok()?, fence.parse().ok()?),
            ["lost", id] => Said::Lost(id.parse().ok()?),
            _ => return None,
        })
    }
}

pub struct Child {
    process: std::process::Child,
    lines: Receiver<Said>,
    said: Vec<Said>,
}

impl Child {
    pub fn start(role: Role, store: &str) -> Self {
        let role = match role {
            Role::Worker => "worker",
            Role::Pusher => "pusher",
        };
        let mut process = test_support::child_test("crash::child_process")
            .env(ROLE, role)
            .env(STORE, store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("starts");
        let out = process.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(said) = Said::parse(&line) {
                    let _ = sender.send(said);
                }
            }
        });
        Child { process, lines, said: Vec::new() }
    }

    /// Ends it with SIGKILL and answers all that it has said.
    pub fn kill(mut self) -> Vec<Said> {
        self.process.kill().expect("can be killed");
        self.process.wait().expect("ends");
        let mut said = std::mem::take(&mut self.said);
        said.extend(self.lines.iter());
        said
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("can be signalled");
    }

    /// Waits until it has said this.
    pub fn wait(&mut self, what: impl Fn(&Said) -> bool) -> Said {
        let until = Instant::now() + LONG;
        loop {
            if let Some(said) = self.said.iter().find(|said| what(said)) {
                return said.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            self.said.push(self.lines.recv_timeout(left).expect("says it in time"));
        }
    }

    /// Whether it has said this by now, or says it within a moment.
    pub fn said(&mut self, what: impl Fn(&Said) -> bool) -> bool {
        while let Ok(said) = self.lines.recv_timeout(Duration::from_millis(1)) {
            self.said.push(said);
        }
        self.said.iter().any(what)
    }

    /// Waits until the process ends by itself or something else has happened; answers all that it has said.
    pub fn wait_for_end_or(&mut self, done: impl Fn() -> bool) -> Vec<Said> {
        loop {
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(said) => self.said.push(said),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if done() => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        std::mem::take(&mut self.said)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a child process does; returns at once in any other.
pub fn live() {
    let (Ok(role), Ok(store)) = (std::env::var(ROLE), std::env::var(STORE)) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let duly = Duly::open(&store).await.expect("opens");
        match role.as_str() {
            "worker" => work(&duly).await,
            _ => push(&duly).await,
        }
    });
}

fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // Whoever listened may be gone; then it does not matter.
    let _ = writeln!(out, "{line}");
}

async fn work(duly: &Duly) {
    let worker = duly
        .worker()
        .queue("default", 8)
        // A done job that was pruned could not be told from one that was lost.
        .keep_done_max(usize::MAX)
        .on_kind("sleep", |ctx: Ctx| async move {
            let ms = ctx.job().args.parse().unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        })
        .on_kind("abort", |ctx: Ctx| async move {
            let ms = ctx.job().args.parse().unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            if ctx.attempt() > 0 {
                std::process::abort()
            }
        })
        .on_event(|event| match event {
            Event::Joined { .. } => say(format_args!("joined")),
            Event::Started { held, .. } => {
                let now = SystemTime::now();
                let late = match now.duration_since(held.due) {
                    Ok(late) => late.as_micros() as i64,
                    Err(early) => -(early.duration().as_micros() as i64),
                };
                say(format_args!("started {} {} {late}", held.job.id, held.fence));
            }
            Event::Settled { held, outcome: Outcome::Ack, .. } => {
                say(format_args!("acked {} {}", held.job.id, held.fence));
            }
            Event::Lost { id } => say(format_args!("lost {id}")),
            _ => {}
        });
    worker.run().await.expect("works");
}

/// Pushes for ever, singly and in batches, now and later, and says what was acknowledged.
async fn push(duly: &Duly) {
    loop {
        let job = |_| {
            let push = Push::new("sleep", fastrand::u64(..15).to_string());
            match fastrand::bool() {
                true => push,
                false => push.after(Duration::from_millis(fastrand::u64(..700))),
            }
        };
        let pushed = duly.push_all((0..fastrand::usize(1..6)).map(job)).await.expect("pushes");
        pushed.iter().for_each(|pushed| say(format_args!("pushed {}", pushed.id())));
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await;
    }
}
