//! A child process: its start, its work and its reports.

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

/// One report of a process, printed as one line.
#[derive(Clone, Debug)]
pub enum ChildEvent {
    Joined,
    Pushed(JobId),
    /// `late` is in microseconds, negative if the job was early.
    Started {
        id: JobId,
        fence: u64,
        late: i64,
    },
    Acked(JobId, u64),
    Lost(JobId),
}

impl ChildEvent {
    pub fn starts(&self, job: JobId) -> bool {
        matches!(self, ChildEvent::Started { id, .. } if *id == job)
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Some(match words[..] {
            ["joined"] => ChildEvent::Joined,
            ["pushed", id] => ChildEvent::Pushed(id.parse().ok()?),
            ["started", id, fence, late] => {
                ChildEvent::Started { id: id.parse().ok()?, fence: fence.parse().ok()?, late: late.parse().ok()? }
            }
            ["acked", id, fence] => ChildEvent::Acked(id.parse().ok()?, fence.parse().ok()?),
            ["lost", id] => ChildEvent::Lost(id.parse().ok()?),
            _ => return None,
        })
    }
}

pub struct Child {
    process: std::process::Child,
    lines: Receiver<ChildEvent>,
    events: Vec<ChildEvent>,
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
                if let Some(event) = ChildEvent::parse(&line) {
                    let _ = sender.send(event);
                }
            }
        });
        Child { process, lines, events: Vec::new() }
    }

    /// Kills the process with SIGKILL and returns all its reports.
    pub fn kill(mut self) -> Vec<ChildEvent> {
        self.process.kill().expect("can be killed");
        self.process.wait().expect("ends");
        let mut events = std::mem::take(&mut self.events);
        events.extend(self.lines.iter());
        events
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("can be signalled");
    }

    /// Waits until the process has reported a matching event.
    pub fn wait(&mut self, matches: impl Fn(&ChildEvent) -> bool) -> ChildEvent {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(event) = self.events.iter().find(|event| matches(event)) {
                return event.clone();
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            self.events.push(self.lines.recv_timeout(remaining).expect("reports it in time"));
        }
    }

    /// Returns whether the process has reported a matching event by now, or does so within a millisecond.
    pub fn has_reported(&mut self, matches: impl Fn(&ChildEvent) -> bool) -> bool {
        while let Ok(event) = self.lines.recv_timeout(Duration::from_millis(1)) {
            self.events.push(event);
        }
        self.events.iter().any(matches)
    }

    /// Waits until the process ends or `done` returns true; returns all its reports.
    pub fn wait_for_end_or(&mut self, done: impl Fn() -> bool) -> Vec<ChildEvent> {
        loop {
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(event) => self.events.push(event),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if done() => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        std::mem::take(&mut self.events)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the role of a child process; returns at once in any other process.
pub fn run_role() {
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

fn report(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // Fails only if the parent is gone.
    let _ = writeln!(out, "{line}");
}

async fn work(duly: &Duly) {
    let worker = duly
        .worker()
        .queue("default", 8)
        // A pruned job could not be distinguished from a lost one.
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
            Event::Joined { .. } => report(format_args!("joined")),
            Event::Started { held, .. } => {
                let now = SystemTime::now();
                let late = match now.duration_since(held.due) {
                    Ok(late) => late.as_micros() as i64,
                    Err(early) => -(early.duration().as_micros() as i64),
                };
                report(format_args!("started {} {} {late}", held.job.id, held.fence));
            }
            Event::Settled { held, outcome: Outcome::Ack, .. } => {
                report(format_args!("acked {} {}", held.job.id, held.fence));
            }
            Event::Lost { id, .. } => report(format_args!("lost {id}")),
            _ => {}
        });
    worker.run().await.expect("works");
}

/// Pushes forever, singly and in batches, now and later, and reports each acknowledged push.
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
        pushed.iter().for_each(|pushed| report(format_args!("pushed {}", pushed.id())));
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await;
    }
}
