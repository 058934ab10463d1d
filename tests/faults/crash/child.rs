//! A child process: its start, its work and its reports.

use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use duly::worker::Event;
use duly::{Ctx, Duly, JobId, Outcome, Push, Worker};
use test_support::{LineChild, report};

use crate::crash::LONG;

const ROLE: &str = "DULY_CRASH_ROLE";
const STORE: &str = "DULY_CRASH_STORE";
/// How often a storm pusher pushes a job that kills its process, if it does.
pub const POISON_MS: &str = "DULY_CRASH_POISON_MS";

#[derive(Clone, Copy)]
pub enum Role {
    Worker,
    /// Two workers, each with a handle of its own: one for the queue `other`, and one for the rest.
    TwoWorkers,
    Pusher,
    /// Pushes until it is killed, whatever happens to the store, and from time to time a job that kills its process.
    StormPusher,
    /// Holds the write lock of a file.
    LockHolder,
}

impl Role {
    const ALL: [Role; 5] = [Role::Worker, Role::TwoWorkers, Role::Pusher, Role::StormPusher, Role::LockHolder];

    fn name(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::TwoWorkers => "two_workers",
            Role::Pusher => "pusher",
            Role::StormPusher => "storm_pusher",
            Role::LockHolder => "lock_holder",
        }
    }
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
    /// A push of a job that kills the process that runs it.
    Poison(JobId),
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
            ["poison", id] => ChildEvent::Poison(id.parse().ok()?),
            _ => return None,
        })
    }
}

pub struct Child {
    child: LineChild,
    events: Vec<ChildEvent>,
}

impl Child {
    pub fn start(role: Role, store: &str) -> Self {
        Child::start_with(role, store, &[])
    }

    /// Starts a process with more variables in its environment.
    pub fn start_with(role: Role, store: &str, env: &[(&str, &Path)]) -> Self {
        let mut command = crate::child_command();
        command.env(ROLE, role.name()).env(STORE, store).envs(env.iter().copied());
        Child { child: LineChild::start(&command), events: Vec::new() }
    }

    /// Kills the process with SIGKILL and returns all its reports.
    pub fn kill(mut self) -> Vec<ChildEvent> {
        let rest = self.child.kill();
        self.events.extend(rest.iter().filter_map(|line| ChildEvent::parse(line)));
        std::mem::take(&mut self.events)
    }

    /// Stops the process until [`resume`](Child::resume).
    pub fn pause(&self) {
        self.child.process.pause();
    }

    pub fn resume(&self) {
        self.child.process.resume();
    }

    pub fn id(&self) -> u32 {
        self.child.process.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.process.has_ended()
    }

    /// Returns the reports since the last call.
    pub fn take_events(&mut self) -> Vec<ChildEvent> {
        let mut events = std::mem::take(&mut self.events);
        events.extend(self.child.arrived().filter_map(|line| ChildEvent::parse(&line)));
        events
    }

    /// Waits until the process has reported a matching event.
    pub fn wait(&mut self, matches: impl Fn(&ChildEvent) -> bool) -> ChildEvent {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(event) = self.events.iter().find(|event| matches(event)) {
                return event.clone();
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            let line = self.child.next(remaining).expect("reports it in time");
            self.events.extend(ChildEvent::parse(&line));
        }
    }

    /// Returns whether the process has reported a matching event by now, or does so within a millisecond.
    pub fn has_reported(&mut self, matches: impl Fn(&ChildEvent) -> bool) -> bool {
        while let Ok(line) = self.child.next(Duration::from_millis(1)) {
            self.events.extend(ChildEvent::parse(&line));
        }
        self.events.iter().any(matches)
    }

    /// Waits until the process ends or `done` returns true; returns all its reports.
    pub fn wait_for_end_or(&mut self, done: impl Fn() -> bool) -> Vec<ChildEvent> {
        loop {
            match self.child.next(Duration::from_millis(50)) {
                Ok(line) => self.events.extend(ChildEvent::parse(&line)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if done() => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        std::mem::take(&mut self.events)
    }
}

/// Runs the role of a child process; returns at once in any other process.
pub fn run_role() {
    let (Ok(role), Ok(store)) = (std::env::var(ROLE), std::env::var(STORE)) else { return };
    crate::runtime().block_on(async {
        match Role::ALL.into_iter().find(|known| known.name() == role).expect("a role") {
            Role::Worker => work(on_all_queues(open(&store).await.worker())).await,
            Role::TwoWorkers => {
                let (many, other) = (open(&store).await, open(&store).await);
                tokio::join!(work(many.worker().queue("default", 8)), work(other.worker().queue("other", 1)));
            }
            Role::Pusher => push(&open(&store).await).await,
            Role::StormPusher => push_in_storm(&open(&store).await).await,
            Role::LockHolder => hold_write_lock(&store),
        }
    });
}

/// Opens the store, also one that is down at the moment.
async fn open(store: &str) -> Duly {
    let deadline = Instant::now() + LONG;
    loop {
        match Duly::open(store).await {
            Ok(duly) => return duly,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn hold_write_lock(file: &str) {
    let conn = duly::rusqlite::Connection::open(file).expect("opens");
    conn.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    report("joined");
    // Until the test ends, or is killed.
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn on_all_queues(worker: Worker) -> Worker {
    worker.queue("default", 8).queue("other", 1).queue("many", 40).concurrency(49)
}

async fn work(worker: Worker) {
    let worker = worker
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
    // A worker that cannot join ends, and a supervisor starts it again.
    if let Err(error) = worker.run().await {
        eprintln!("a worker ends: {error}");
    }
}

/// Pushes until the store refuses a push, singly and in batches, now and later, and reports each acknowledged push.
async fn push(duly: &Duly) {
    loop {
        let job = |_| {
            let push = Push::new("sleep", fastrand::u64(..15).to_string());
            match fastrand::bool() {
                true => push,
                false => push.after(Duration::from_millis(fastrand::u64(..700))),
            }
        };
        let pushed = match duly.push_all((0..fastrand::usize(1..6)).map(job)).await {
            Ok(pushed) => pushed,
            // Some tests make the store refuse pushes. A panic would print a page for each.
            Err(error) => return eprintln!("a pusher ends: {error}"),
        };
        pushed.iter().for_each(|pushed| report(format_args!("pushed {}", pushed.id())));
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await;
    }
}

/// Pushes jobs that are ready at once. A push whose result is unknown is repeated with the same ids.
async fn push_in_storm(duly: &Duly) {
    let interval = std::env::var(POISON_MS).ok().map(|ms| Duration::from_millis(ms.parse().expect("a number")));
    let mut poison_at = Instant::now();
    loop {
        let is_poison = interval.is_some() && poison_at <= Instant::now();
        let kind = if is_poison { "abort" } else { "sleep" };
        if is_poison {
            poison_at += interval.unwrap_or_default();
        }
        let count = if is_poison { 1 } else { fastrand::usize(1..6) };
        let ids: Vec<JobId> = (0..count).map(|_| JobId::fresh()).collect();
        let job = |id: &JobId| Push::new(kind, fastrand::u64(..20).to_string()).id(*id);
        let event = if is_poison { "poison" } else { "pushed" };
        loop {
            match duly.push_all(ids.iter().map(job)).await {
                Ok(pushed) => break pushed.iter().for_each(|pushed| report(format_args!("{event} {}", pushed.id()))),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..40))).await;
    }
}
