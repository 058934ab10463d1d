//! All failures at once, in rounds: workers and pushers are killed, workers are paused for longer than the lease, the
//! clock of the store jumps, a server is killed, and jobs kill the processes that run them. Then it is calm until the
//! jobs of the killed and paused workers are recovered.
//!
//! No acknowledged job is lost, settled twice, or buried though it is healthy and ran beside others at each crash. Recovery has a bound: the lease, plus the
//! time that the clock was wrong or the server down. `DULY_STORM_SECONDS=n` sets the duration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use duly::{Duly, JobId, State};
#[cfg(feature = "redis")]
use test_support::servers::Server;

use crate::crash::checker::{Fault, History, was_alone_at_the_end};
use crate::crash::child::{Child, ChildEvent, POISON_MS, Role};
use crate::runtime;
use crate::skewed_clock::SkewedClock;

/// Duration of the rounds by default.
const SECONDS: u64 = 3;
const LEASE: Duration = Duration::from_secs(1);
/// Longer than the lease.
const PAUSE_MIN: Duration = Duration::from_millis(1_500);
/// How much longer than its bound recovery may take: several heartbeats, and the start of processes on a busy machine.
const MARGIN: Duration = Duration::from_secs(5);
/// Timeout for the last jobs. A job that kills its process takes several leases.
const END_TIMEOUT: Duration = Duration::from_secs(120);
/// How often a job that kills its process is pushed.
const POISON_INTERVAL_MS: &str = "8000";
const WORKERS: usize = 4;
const PUSHERS: usize = 3;
/// The pusher of the jobs that kill their process. It is not killed, so that it keeps its interval.
const POISON_PUSHER: usize = WORKERS;
/// Errors of the clock, in seconds: within a lease and far beyond it, but shorter than jobs are kept.
const CLOCK_ERRORS: [i64; 8] = [1, -1, 20, -20, 3_600, -3_600, 86_400, -86_400];
/// Maximum number of faults in a failure message.
const FAULTS_SHOWN: usize = 20;
/// How often the store is asked about jobs that no process has reported again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Jobs that are read at once.
const READ_BATCH: usize = 100;

/// The store of a storm.
struct Site {
    url: String,
    /// The clock of the processes that use a file, or of the server.
    clock: SkewedClock,
    #[cfg(feature = "redis")]
    server: Option<Server>,
    /// Done jobs are not kept. A job that has started and is gone counts as done.
    forgets_done: bool,
    _dir: test_support::TempDir,
}

impl Site {
    fn file() -> Site {
        let dir = test_support::temp_dir();
        Site {
            url: format!("{}?lease=1s&keep=30d", dir.path().join("storm.db").display()),
            clock: SkewedClock::build(dir.path()),
            #[cfg(feature = "redis")]
            server: None,
            forgets_done: false,
            _dir: dir,
        }
    }

    #[cfg(feature = "redis")]
    fn redis() -> Site {
        use test_support::servers::{Binary, Fsync, Options};
        let dir = test_support::temp_dir();
        let clock = SkewedClock::build(dir.path());
        let durable = Options::new(Binary::Redis).aof(Fsync::Always);
        let with_clock = |options: Options, (name, value): (&'static str, &Path)| {
            options.env(name, value.to_str().expect("a plain path"))
        };
        let server = clock.env().into_iter().fold(durable, with_clock).start();
        let url = format!("{}?lease=1s&keep=30d", server.url());
        Site { url, clock, server: Some(server), forgets_done: false, _dir: dir }
    }

    #[cfg(feature = "compat")]
    fn sidekiq() -> Site {
        let site = Site::redis();
        let url = site.url.replacen("redis", "sidekiq", 1).replace("&keep=30d", "");
        Site { url, forgets_done: true, ..site }
    }

    /// Returns the environment of the processes that use the store.
    fn env(&self) -> Vec<(&'static str, &Path)> {
        #[cfg(feature = "redis")]
        if self.server.is_some() {
            return Vec::new();
        }
        self.clock.env().into()
    }

    /// Kills the server and starts it again; returns how long it was down.
    fn kill_server(&self) -> Option<Duration> {
        #[cfg(feature = "redis")]
        if let Some(server) = &self.server {
            let killed_at = Instant::now();
            server.kill();
            server.restart();
            return Some(killed_at.elapsed());
        }
        None
    }
}

struct Process {
    child: Child,
    /// Differs between all processes of a storm.
    number: usize,
    paused_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Counts {
    kills: usize,
    /// Processes that ended by themselves, because of a job.
    crashes: usize,
    pauses: usize,
    clock_jumps: usize,
    server_kills: usize,
}

struct Storm<'s> {
    site: &'s Site,
    runtime: tokio::runtime::Runtime,
    duly: Duly,
    random: fastrand::Rng,
    processes: Vec<Process>,
    started: usize,
    history: History,
    /// The reports of each process.
    reports: BTreeMap<usize, Vec<ChildEvent>>,
    /// The process that reported the last start of each unfinished job.
    running: BTreeMap<JobId, usize>,
    /// Jobs of killed and paused processes, until they are recovered.
    unrecovered: BTreeSet<JobId>,
    counts: Counts,
    slowest_recovery: Duration,
}

impl<'s> Storm<'s> {
    fn begin(site: &'s Site, seed: u64) -> Storm<'s> {
        let runtime = runtime();
        let duly = runtime.block_on(Duly::open(&site.url)).expect("opens");
        let mut storm = Storm {
            site,
            runtime,
            duly,
            random: fastrand::Rng::with_seed(seed),
            processes: Vec::new(),
            started: 0,
            history: History::default(),
            reports: BTreeMap::new(),
            running: BTreeMap::new(),
            unrecovered: BTreeSet::new(),
            counts: Counts::default(),
            slowest_recovery: Duration::ZERO,
        };
        for index in 0..WORKERS + PUSHERS {
            let process = storm.start_process(index);
            storm.processes.push(process);
        }
        storm
    }

    fn start_process(&mut self, index: usize) -> Process {
        let role = if index < WORKERS { Role::Worker } else { Role::StormPusher };
        let mut env = self.site.env();
        if index == POISON_PUSHER {
            env.push((POISON_MS, Path::new(POISON_INTERVAL_MS)));
        }
        self.started += 1;
        Process { child: Child::start_with(role, &self.site.url, &env), number: self.started, paused_at: None }
    }

    /// Reads the reports of all processes, and replaces those that have ended.
    fn read_reports(&mut self) {
        for index in 0..self.processes.len() {
            let process = &mut self.processes[index];
            let (events, number) = (process.child.take_events(), process.number);
            let has_ended = process.child.has_ended();
            self.record(events, number);
            if has_ended {
                self.counts.crashes += 1;
                self.replace(index);
            }
        }
    }

    fn record(&mut self, events: Vec<ChildEvent>, number: usize) {
        for event in &events {
            match event {
                ChildEvent::Started { id, .. } => {
                    self.running.insert(*id, number);
                    self.unrecovered.remove(id);
                }
                ChildEvent::Acked(id, _) => {
                    self.running.remove(id);
                    self.unrecovered.remove(id);
                }
                ChildEvent::Joined | ChildEvent::Pushed(_) | ChildEvent::Lost(_) | ChildEvent::Poison(_) => {}
            }
        }
        self.reports.entry(number).or_default().extend(events.iter().cloned());
        self.history.add(events);
    }

    /// Kills a process, and starts another in its place.
    fn replace(&mut self, index: usize) {
        let next = self.start_process(index);
        let killed = std::mem::replace(&mut self.processes[index], next);
        let number = killed.number;
        let events = killed.child.kill();
        self.record(events, number);
        self.expect_recovery(number);
    }

    /// Expects that the jobs of a process are recovered.
    fn expect_recovery(&mut self, number: usize) {
        self.unrecovered.extend(self.running.iter().filter(|(_, holder)| **holder == number).map(|(id, _)| *id));
    }

    /// Runs a storm, and then waits until all jobs are recovered.
    fn run_round(&mut self) {
        let until = Instant::now() + Duration::from_millis(self.random.u64(500..1_500));
        let (mut wrong_since, mut down) = (None, Duration::ZERO);
        while Instant::now() < until {
            // The nemesis has no event to wait for: its moments are random on purpose.
            std::thread::sleep(Duration::from_millis(self.random.u64(50..250)));
            self.read_reports();
            match self.random.u8(..10) {
                0..5 => {
                    self.counts.kills += 1;
                    let worker = self.random.usize(..WORKERS);
                    self.replace(worker);
                }
                5 => {
                    self.counts.kills += 1;
                    let pusher = self.random.usize(POISON_PUSHER + 1..WORKERS + PUSHERS);
                    self.replace(pusher);
                }
                6 | 7 => self.pause_worker(),
                8 => {
                    self.counts.clock_jumps += 1;
                    self.site.clock.set(*self.random.choice(&CLOCK_ERRORS).expect("some"));
                    wrong_since.get_or_insert_with(Instant::now);
                }
                _ if down.is_zero() => {
                    down = self.site.kill_server().unwrap_or_default();
                    self.counts.server_kills += usize::from(!down.is_zero());
                }
                _ => {}
            }
        }
        self.resume_workers();
        self.site.clock.set(0);
        let wrong = wrong_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.wait_for_recovery(LEASE + wrong + down + MARGIN);
    }

    /// Pauses a worker, but never the last one that runs.
    fn pause_worker(&mut self) {
        let running: Vec<usize> = (0..WORKERS).filter(|index| self.processes[*index].paused_at.is_none()).collect();
        if running.len() > 1 {
            let process = &mut self.processes[running[self.random.usize(..running.len())]];
            if !process.child.has_ended() {
                process.child.pause();
                process.paused_at = Some(Instant::now());
                let number = process.number;
                self.counts.pauses += 1;
                self.expect_recovery(number);
            }
        }
    }

    /// Waits until each paused worker was paused for longer than the lease, and continues all.
    fn resume_workers(&mut self) {
        let paused = self.processes.iter().filter_map(|process| process.paused_at).max();
        if let Some(at) = paused {
            std::thread::sleep(PAUSE_MIN.saturating_sub(at.elapsed()));
        }
        for process in self.processes.iter_mut().filter(|process| process.paused_at.is_some()) {
            process.child.resume();
            process.paused_at = None;
        }
    }

    /// Waits until all jobs are recovered. A worker may take jobs back once it was alive for a lease, so each crash in the
    /// meantime extends the bound by a lease.
    fn wait_for_recovery(&mut self, calm_bound: Duration) {
        let (calm_since, crashes_before) = (Instant::now(), self.counts.crashes);
        let mut bound;
        loop {
            self.read_reports();
            bound = calm_bound + LEASE * u32::try_from(self.counts.crashes - crashes_before).expect("few");
            let poisons = self.history.poisons();
            // It is recovered if it is done, or waits for a worker.
            let ids: Vec<JobId> = self.unrecovered.difference(&poisons).copied().collect();
            for (id, state) in self.read_states(&ids) {
                if state != Some(State::Running) {
                    self.unrecovered.remove(&id);
                }
            }
            self.unrecovered.retain(|id| !poisons.contains(id));
            if self.unrecovered.is_empty() || calm_since.elapsed() > bound {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.slowest_recovery = self.slowest_recovery.max(calm_since.elapsed());
        for id in std::mem::take(&mut self.unrecovered) {
            println!("{id} is not recovered after {bound:?}: {:?}", self.read_states(&[id]));
            self.history.add_recovery(id, calm_since.elapsed(), bound);
        }
    }

    fn read_states(&self, ids: &[JobId]) -> BTreeMap<JobId, Option<State>> {
        let read = async |id: &JobId| (*id, self.duly.jobs().get(*id).await.expect("a reply").map(|job| job.state));
        let batch = |ids: &[JobId]| self.runtime.block_on(futures_util::future::join_all(ids.iter().map(read)));
        ids.chunks(READ_BATCH).flat_map(batch).collect()
    }

    /// Ends the pushers, waits until all jobs have ended, and returns the faults.
    fn end(mut self) -> (History, Counts, Duration, Vec<Fault>) {
        while self.processes.len() > WORKERS {
            let pusher = self.processes.pop().expect("a pusher");
            let number = pusher.number;
            let events = pusher.child.kill();
            self.record(events, number);
        }
        let deadline = Instant::now() + END_TIMEOUT;
        let is_empty = |storm: &Storm<'_>| {
            let counts = storm.runtime.block_on(storm.duly.queues().counts()).expect("counts");
            counts.iter().all(|queue| queue.scheduled + queue.ready + queue.running == 0)
        };
        while !is_empty(&self) && Instant::now() < deadline {
            self.read_reports();
            std::thread::sleep(POLL_INTERVAL);
        }
        while let Some(worker) = self.processes.pop() {
            let number = worker.number;
            let events = worker.child.kill();
            self.record(events, number);
        }
        let ids: Vec<JobId> = self.history.pushed().union(&self.history.poisons()).copied().collect();
        let mut states = self.read_states(&ids);
        if self.site.forgets_done {
            let started = self.history.started();
            let forgotten = states.iter_mut().filter(|(id, state)| state.is_none() && started.contains(*id));
            forgotten.for_each(|(_, state)| *state = Some(State::Done));
        }
        let mut faults = self.history.check(states);
        for fault in &faults {
            if let Fault::Buried(id) | Fault::Unfinished(id) = fault {
                let record = self.runtime.block_on(self.duly.jobs().get(*id)).expect("a reply");
                println!("{fault:?}: {record:?}");
            }
        }
        // A paused worker is rejected, and a jump of the clock makes a job due early. A healthy job that was alone in
        // processes that were killed looks like one that kills them. One report is enough: a process may also be killed
        // after the job was marked and before its start was reported.
        let looks_like_poison = |id| self.reports.values().any(|events| was_alone_at_the_end(events, id));
        faults.retain(|fault| match fault {
            Fault::Buried(id) => !looks_like_poison(*id),
            Fault::OutcomeRejected(_) | Fault::Early(_) => false,
            _ => true,
        });
        (self.history, self.counts, self.slowest_recovery, faults)
    }
}

fn run(name: &str, site: &Site) {
    let seconds = test_support::env_number("DULY_STORM_SECONDS").unwrap_or(SECONDS);
    let (seed, deadline) = (fastrand::u64(..), Instant::now() + Duration::from_secs(seconds));
    println!("{name}: seed {seed}");
    let (mut storm, mut rounds) = (Storm::begin(site, seed), 0);
    while rounds == 0 || Instant::now() < deadline {
        storm.run_round();
        rounds += 1;
    }
    let (history, counts, slowest, faults) = storm.end();
    let count = |matches: fn(&Fault) -> bool| faults.iter().filter(|fault| matches(fault)).count();
    println!(
        "{name}: {rounds} rounds, {} kills, {} crashes, {} pauses, {} clock jumps, {} server kills, {} pushes, \
         {} jobs that kill their process; {} lost, {} buried, {} recovered late, {} faults; slowest recovery {slowest:?}",
        counts.kills,
        counts.crashes,
        counts.pauses,
        counts.clock_jumps,
        counts.server_kills,
        history.pushed().len(),
        history.poisons().len(),
        count(|fault| matches!(fault, Fault::Lost(_))),
        count(|fault| matches!(fault, Fault::Buried(_))),
        count(|fault| matches!(fault, Fault::RecoveredLate(_))),
        faults.len(),
    );
    assert!(history.pushed().len() > 20, "the run did something: {} pushes", history.pushed().len());
    assert!(faults.is_empty(), "seed {seed}, first faults: {:?}", &faults[..faults.len().min(FAULTS_SHOWN)]);
}

#[test]
fn storm_on_file_loses_nothing() {
    run("file", &Site::file());
}

#[cfg(feature = "redis")]
#[test]
fn storm_on_redis_loses_nothing() {
    run("redis", &Site::redis());
}

#[cfg(feature = "compat")]
#[test]
fn storm_on_sidekiq_loses_nothing() {
    run("sidekiq", &Site::sidekiq());
}
