//! A store after a busy day, made in seconds: tests move its clock, and set how long attempts took. Real workers run
//! the running jobs.

use std::time::Duration;

use duly::admin::{Histogram, StatCounters};
use duly::lock::Guard;
use duly::store::Node;
use duly::store::{AttemptEnd, AttemptTiming, Claim, JobStore, StatsStore};
use duly::{CancellationToken, Clock, Ctx, Duly, JobId, Outcome, Priority, Push};
use duly_http::Server;

const MINUTE: Duration = Duration::from_secs(60);
/// How long done jobs are kept.
const KEEP: Duration = Duration::from_secs(2 * 3600);

/// A store with a server.
pub struct Fixture {
    pub duly: Duly,
    pub url: String,
    pub clock: Clock,
    stop: CancellationToken,
    /// The locks that are held as long as the fixture exists.
    _guards: Vec<Guard>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Returns a new store without jobs.
pub async fn empty() -> Fixture {
    empty_on(":memory:").await
}

/// As [`empty`], on this store.
pub async fn empty_on(store: &str) -> Fixture {
    let clock = Clock::manual();
    let duly = Duly::builder(store).clock(clock.clone()).open().await.expect("opens");
    serve(duly, clock, Vec::new(), |server| server).await
}

/// Returns an empty store in this file, with the clock of the machine.
pub async fn at(path: &str) -> Fixture {
    let duly = Duly::open(path).await.expect("opens");
    serve(duly, Clock::system(), Vec::new(), |server| server).await
}

/// Returns a store after a busy day.
pub async fn full() -> Fixture {
    full_with(|server| server).await
}

/// As [`full`], with these options of the server.
pub async fn full_with(options: impl FnOnce(Server) -> Server) -> Fixture {
    full_on(":memory:", options).await
}

/// As [`full_with`], on this store.
pub async fn full_on(store: &str, options: impl FnOnce(Server) -> Server) -> Fixture {
    let clock = Clock::manual();
    let duly = Duly::builder(store).clock(clock.clone()).keep(KEEP).open().await.expect("opens");
    past(&duly, &clock).await;
    present(&duly).await;
    let guards = locks_and_methods(&duly).await;
    serve(duly, clock, guards, options).await
}

/// Returns a server on this store, which may have no tokens; with the clock of the machine.
pub async fn open_to_all(duly: Duly) -> Fixture {
    serve(duly, Clock::system(), Vec::new(), Server::open_to_all).await
}

async fn serve(duly: Duly, clock: Clock, guards: Vec<Guard>, options: impl FnOnce(Server) -> Server) -> Fixture {
    let stop = CancellationToken::new();
    let server = options(Server::new(duly.clone()));
    let listening = server.listen("127.0.0.1:0".parse().expect("an address")).await.expect("listens");
    let url = format!("http://{}", listening.address());
    let until = stop.clone();
    tokio::spawn(async move { listening.serve_until(until).await.expect("serves") });
    Fixture { duly, url, clock, stop, _guards: guards }
}

/// Starts a worker like that of a service, as long as the fixture exists.
pub fn work(fixture: &Fixture) {
    let worker = fixture
        .duly
        .worker()
        .queue("default", 8)
        .queue("mail", 6)
        .queue("media", 4)
        .on_kind("report.build", report)
        .on_kind("video.encode", encode)
        .on_kind("mail.welcome", |_: Ctx| async { Ok::<_, std::io::Error>(()) })
        .run_until(fixture.stop.clone());
    tokio::spawn(worker);
}

async fn report(ctx: Ctx) -> Result<(), std::io::Error> {
    ctx.log("read 18,204 rows");
    ctx.set_progress(0.4, "page 12 of 30");
    ctx.log("rendered page 12");
    ctx.cancelled().await;
    Ok(())
}

async fn encode(ctx: Ctx) -> Result<(), std::io::Error> {
    ctx.set_progress(0.72, "pass 2 of 2");
    ctx.cancelled().await;
    Ok(())
}

/// The traffic of one minute: queue, kind, the fewest jobs, the most further ones, the duration in milliseconds.
const TRAFFIC: [(&str, &str, u64, u64, u64); 5] = [
    ("default", "thumbnail.make", 9, 5, 180),
    ("mail", "mail.welcome", 14, 8, 90),
    ("mail", "mail.receipt", 5, 4, 120),
    ("media", "video.encode", 1, 2, 5_200),
    ("billing", "invoice.charge", 3, 2, 640),
];
const ERRORS: [(&str, &str); 4] = [
    ("mail", "smtp: connection to mx1.example.com timed out after 30000 ms"),
    ("billing", "card 4242 was declined: insufficient_funds"),
    ("media", "ffmpeg: exit status 1\n  at encode (src/media/encode.rs:118)\n  moov atom not found"),
    ("default", "image 81 is 0 bytes long: nothing to make a thumbnail of"),
];
/// An error that every queue has now and then.
const OUTAGE: &str = "store.example.com: connection reset by peer";

/// Returns a random error of this queue.
fn error(queue: &str, chance: &mut fastrand::Rng) -> &'static str {
    let own = ERRORS.iter().find(|(of, _)| *of == queue).map_or(OUTAGE, |(_, error)| *error);
    if chance.u32(0..4) == 0 { OUTAGE } else { own }
}

/// Simulates twenty-three and a half hours in large steps, then half an hour minute by minute.
async fn past(duly: &Duly, clock: &Clock) {
    let store = duly.store();
    let node = Node::fresh(TRAFFIC.iter().map(|traffic| traffic.0.to_owned()).collect());
    store.heartbeat(&node).await.expect("joins");
    let chance = &mut fastrand::Rng::with_seed(7);
    for minute in (0..1_440u64).filter(|minute| *minute >= 1_350 || minute % 5 == 0) {
        let step = if minute >= 1_350 { 1 } else { 5 };
        // More traffic by day than by night, with a burst an hour ago.
        let tide = 0.45 + 0.55 * ((minute as f64 / 1_440.0) * std::f64::consts::TAU - 2.0).sin().abs();
        let burst = if (1_385..1_397).contains(&minute) { 2.4 } else { 1.0 };
        for (queue, kind, least, beside, took) in TRAFFIC {
            let most = least + chance.u64(0..=beside);
            let jobs = ((most * step) as f64 * tide * burst) as u64;
            minute_of(duly, chance, &node, (queue, kind, took), jobs, burst).await;
        }
        clock.advance(MINUTE * step as u32);
        store.heartbeat(&node).await.expect("sends a heartbeat");
    }
    store.leave(node.id).await.expect("leaves");
}

/// Pushes jobs and settles them as if each had taken about the given time.
async fn minute_of(
    duly: &Duly,
    chance: &mut fastrand::Rng,
    node: &Node,
    what: (&str, &str, u64),
    jobs: u64,
    burst: f64,
) {
    let (queue, kind, took) = what;
    let store = duly.store();
    let push = |no: u64| {
        let args = format!(r#"{{"order":{},"to":"user{no}@example.com","locale":"en"}}"#, 9_007_199_254_740_993 + no);
        Push::new(kind, args).queue(queue).max_attempts(3)
    };
    duly.push_all((0..jobs).map(push)).await.expect("pushed");
    let claim = Claim::new(queue, 1_000);
    let held = store.claim(node.id, claim).await.expect("claims").jobs;
    let (mut ends, mut counters) = (Vec::new(), StatCounters::default());
    for held in held {
        let wobble = 0.4 + 1.6 * chance.f64().powi(3);
        let duration = Duration::from_micros((took as f64 * 1_000.0 * wobble) as u64);
        let lateness = Duration::from_micros((1_500.0 + 9_000.0 * chance.f64().powi(4) * burst.powi(3)) as u64);
        let outcome = match chance.u32(0..300) {
            0 | 1 => Outcome::bury(error(queue, chance)),
            2..8 => Outcome::retry(Duration::from_secs(chance.u64(30..7_200)), error(queue, chance)),
            _ => Outcome::Ack,
        };
        match outcome {
            Outcome::Ack => counters.done += 1,
            Outcome::Retry { .. } => counters.retried += 1,
            _ => counters.buried += 1,
        }
        counters.duration.buckets[Histogram::bucket_of(duration)] += 1;
        counters.lateness.buckets[Histogram::bucket_of(lateness)] += 1;
        let keep = if outcome == Outcome::Ack { KEEP } else { 90 * 24 * 60 * MINUTE };
        let mut end = AttemptEnd::from_held(&held, outcome, keep);
        end.timing = Some(AttemptTiming { lateness, duration });
        end.started = Some(duly.now() - duration);
        ends.push(end);
    }
    store.settle(node.id, ends).await.expect("settles");
    // A worker does the same.
    store.add_kind_stats(vec![(kind.to_owned(), counters)]).await.expect("adds");
}

/// Pushes the waiting and the ready jobs.
async fn present(duly: &Duly) {
    let later = |no: u64| {
        Push::new("mail.digest", format!(r#"{{"team":{no}}}"#))
            .queue("mail")
            .after(Duration::from_secs(90 + no * no * 17))
    };
    duly.push_all((0..24).map(later)).await.expect("pushed");
    let ready = |no: u64| {
        let args = format!(r#"{{"file":"img_{no}.jpg","sizes":[320,640,1280],"api_token":"s3cr3t"}}"#);
        Push::new("export.rows", args).queue("reports").priority(if no == 0 {
            Priority::High
        } else {
            Priority::Normal
        })
    };
    duly.push_all((0..12).map(ready)).await.expect("pushed");
    let report = r#"{"report":"monthly","account":123456789012345678901234567890,"filters":{"country":["de","fr"],"paid":true,"password":"hunter2"},"to":"ada@example.com"}"#;
    duly.push(Push::new("report.build", report).id(JobId::from_name("report")).tag("monthly").unique("report:monthly"))
        .await
        .expect("pushed");
    duly.push(Push::new("video.encode", r#"{"video":"v_81","preset":"1080p"}"#).queue("media")).await.expect("pushed");
    duly.push(Push::new("video.encode", r#"{"video":"v_82","preset":"720p"}"#).queue("media")).await.expect("pushed");
    duly.queues().pause("reports").await.expect("paused");
    let rule =
        |name, pattern, kind| duly.cron(name, pattern).tz("Europe/Berlin").push(Push::new(kind, "{}").queue("default"));
    rule("nightly-backup", "0 3 * * *", "backup.run").await.expect("a rule");
    rule("cache-warm", "*/15 * * * *", "cache.warm").await.expect("a rule");
    rule("weekly-report", "30 8 * * MON", "report.weekly").await.expect("a rule");
    duly.crons().pause("weekly-report").await.expect("paused");
}

/// Acquires locks and registers methods.
async fn locks_and_methods(duly: &Duly) -> Vec<Guard> {
    let mut guards = Vec::new();
    for name in ["deploy", "invoices:2030-01"] {
        guards.push(
            duly.lock(name)
                .note("web-3, deploy of 4f1c2a")
                .ttl(3_600 * Duration::from_secs(1))
                .acquire()
                .await
                .expect("free"),
        );
    }
    for no in 1..=3 {
        let lock = duly.lock("gpu").slots(3).note(format!("render-{no}")).ttl(3_600 * Duration::from_secs(1));
        guards.push(lock.acquire().await.expect("free"));
    }
    let clear = |_: serde_json::Value, _| async { Ok::<_, std::io::Error>(true) };
    duly.on_call("cache.clear", clear).await.expect("registered");
    guards
}

/// Advances the clock of a fixture in real time.
pub fn tick(fixture: &Fixture) {
    let (clock, stop) = (fixture.clock.clone(), fixture.stop.clone());
    tokio::spawn(async move {
        while stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(100))).await.is_some() {
            clock.advance(Duration::from_millis(100));
        }
    });
}
