//! A store whose clock is set forward and back while workers are killed: recovery and cron go on once it is right again.
//!
//! The clock of the machine stays as it is: a library sets the one of the server, or of the processes that use the file.
//! The workers are this test binary, started again with a store in the environment. `DULY_SKEW_SECONDS=n` sets the
//! duration; the run prints its seed and the longest delays.

mod clock;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use duly::bounds::DEFAULT_LEASE;
use duly::{Ctx, Duly, Push};
use test_support::{KillOnDrop, TIMEOUT, TempDir, env_number};

pub use self::clock::SkewedClock;
use crate::runtime;

const STORE: &str = "DULY_SKEW_STORE";
/// Duration of the run by default.
const SECONDS: u64 = 8;
const WORKERS: usize = 2;
/// Errors of the clock, in seconds: within a lease, beyond it, and beyond everything. The last ones reach 1970 and 2100.
const ERRORS: [i64; 10] =
    [2, -2, 20, -20, 3_600, -3_600, 10 * 31_536_000, -10 * 31_536_000, -50 * 31_536_000, 74 * 31_536_000];
/// How much longer than the lease and the time that the clock was wrong recovery may take: several heartbeats, and the
/// start of a process on a busy machine.
const MARGIN: Duration = Duration::from_secs(5);

/// Runs a worker; returns at once in any other process.
pub fn run_role() {
    if let Ok(store) = std::env::var(STORE) {
        runtime().block_on(work(&store));
    }
}

/// Works until it is killed.
async fn work(store: &str) {
    let duly = Duly::open(store).await.expect("opens");
    let worker = duly.worker().queue("default", 10).on_kind("tick", async |_: Ctx| test_support::report("tick"));
    let worker = worker.on_kind("held", async |ctx: Ctx| {
        let file: String = serde_json::from_str(ctx.job().args.as_str()).expect("a path");
        if std::fs::File::create_new(file).is_ok() {
            test_support::report(format_args!("held {}", std::process::id()));
            std::future::pending::<()>().await;
        }
        test_support::report("returned");
    });
    worker.run().await.expect("works");
}

/// A worker in a process of its own, and the reports of all workers.
struct Workers<'c> {
    store: String,
    /// The clock of the workers, if it is theirs that is skewed.
    clock: Option<&'c SkewedClock>,
    running: Vec<KillOnDrop>,
    sender: Sender<String>,
    events: Receiver<String>,
}

impl<'c> Workers<'c> {
    fn start(store: &str, clock: Option<&'c SkewedClock>) -> Workers<'c> {
        let (sender, events) = channel();
        let mut workers = Workers { store: store.to_owned(), clock, running: Vec::new(), sender, events };
        (0..WORKERS).for_each(|_| workers.start_one());
        workers
    }

    fn start_one(&mut self) {
        let mut command = crate::child_command();
        command.env(STORE, &self.store).envs(self.clock.iter().flat_map(|clock| clock.env()));
        let sender = self.sender.clone();
        self.running.push(test_support::start_reporting(&command, move |event| {
            // Fails only if the test is over.
            let _ = sender.send(event);
        }));
    }

    /// Kills the worker with this process id, and starts another.
    fn kill(&mut self, id: u32) {
        let index = self.running.iter().position(|worker| worker.id() == id).expect("it runs");
        self.running.remove(index).kill();
        self.start_one();
    }

    /// Waits at most this long for an event that begins like this. Returns the rest of it, and how long it took.
    fn wait_for(&self, event: &str, bound: Duration, what: &str) -> (String, Duration) {
        let started = Instant::now();
        loop {
            match self.events.recv_timeout(bound.saturating_sub(started.elapsed())) {
                Ok(found) => {
                    if let Some(rest) = found.strip_prefix(event) {
                        return (rest.trim().to_owned(), started.elapsed());
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("{what}: nothing within {bound:?}"),
                Err(RecvTimeoutError::Disconnected) => unreachable!("this holds a sender"),
            }
        }
    }

    fn forget_events(&self) {
        while self.events.try_recv().is_ok() {}
    }
}

/// Kills workers that hold a job, before, while and after the clock is wrong.
fn run(store: &str, clock: &SkewedClock, workers: &mut Workers<'_>, dir: &TempDir, has_cron: bool) {
    let (runtime, seed) = (runtime(), fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let duly = runtime.block_on(Duly::open(store)).expect("opens");
    if has_cron {
        runtime.block_on(duly.cron("each-second", "* * * * * *").push(Push::new("tick", "null"))).expect("puts");
    }
    let deadline = Instant::now() + Duration::from_secs(env_number("DULY_SKEW_SECONDS").unwrap_or(SECONDS));
    let (mut rounds, mut longest) = (0, [Duration::ZERO; 2]);
    while rounds == 0 || Instant::now() < deadline {
        rounds += 1;
        let error = *random.choice(&ERRORS).expect("some");
        let file = dir.path().join(format!("round-{rounds}")).display().to_string();
        runtime.block_on(duly.push(Push::new("held", serde_json::json!(file).to_string()))).expect("pushes");
        let holder: u32 = workers.wait_for("held", TIMEOUT, "a job starts").0.parse().expect("a process id");
        // The moments wait for no event: they are random on purpose.
        let pause = |random: &mut fastrand::Rng| std::thread::sleep(Duration::from_millis(random.u64(0..2_000)));
        let killed_in = random.u32(..3);
        let mut wrong_since = Instant::now();
        for step in 0..3 {
            if step == killed_in {
                workers.kill(holder);
            }
            match step {
                0 => {
                    clock.set(error);
                    wrong_since = Instant::now();
                }
                1 => pause(&mut random),
                _ => clock.set(0),
            }
        }
        let bound = DEFAULT_LEASE + wrong_since.elapsed() + MARGIN;
        let what = format!("round {rounds}, killed in step {killed_in}, the clock was {error} s off");
        let returned = workers.wait_for("returned", bound, &format!("{what}: recovery"));
        longest[0] = longest[0].max(returned.1);
        if has_cron {
            workers.forget_events();
            longest[1] = longest[1].max(workers.wait_for("tick", bound, &format!("{what}: cron")).1);
        }
    }
    println!(
        "{rounds} rounds, lease {DEFAULT_LEASE:?}: recovery after at most {:?}, the next tick after at most {:?}",
        longest[0], longest[1]
    );
}

#[test]
fn on_file_recovery_and_cron_follow_a_wrong_clock() {
    let dir = test_support::temp_dir();
    let store = dir.path().join("skew.db").display().to_string();
    let clock = SkewedClock::build(dir.path());
    run(&store, &clock, &mut Workers::start(&store, Some(&clock)), &dir, true);
}

#[cfg(feature = "redis")]
mod on_servers {
    use test_support::servers::{Binary, Options, Server};

    use super::*;

    fn start(clock: &SkewedClock) -> Server {
        let options = clock.env().into_iter().fold(Options::durable(Binary::Redis), |options, (name, value)| {
            options.env(name, value.to_str().expect("a plain path"))
        });
        let server = options.start();
        // Control: the server does see the error.
        let seconds = || server.send_command(&["TIME"]).list()[0].text().parse::<i64>().expect("seconds");
        let right = seconds();
        clock.set(3_600);
        assert!(seconds() >= right + 3_600, "the library sets the clock of the server");
        clock.set(0);
        server
    }

    #[test]
    fn on_redis_recovery_and_cron_follow_a_wrong_clock() {
        let dir = test_support::temp_dir();
        let clock = SkewedClock::build(dir.path());
        let server = start(&clock);
        run(&server.url(), &clock, &mut Workers::start(&server.url(), None), &dir, true);
    }

    #[cfg(feature = "compat")]
    #[test]
    fn on_sidekiq_recovery_follows_a_wrong_clock() {
        let dir = test_support::temp_dir();
        let clock = SkewedClock::build(dir.path());
        let server = start(&clock);
        let store = server.url().replacen("redis", "sidekiq", 1);
        run(&store, &clock, &mut Workers::start(&store, None), &dir, false);
    }
}
