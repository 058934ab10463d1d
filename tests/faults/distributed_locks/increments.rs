//! Increments under lock and fence: no update is lost, even if a process is paused at any point.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::distributed_locks::child::{Child, Start};
use crate::distributed_locks::counter::{Counter, TTL};
use crate::distributed_locks::location::{LONG, Location, MS, ms};
use crate::runtime;
#[cfg(feature = "redis")]
use test_support::servers::{Binary, Fsync, Options, Server};

const PROCESSES: usize = 4;
/// Number of increments by default.
const INCREMENTS: u64 = 2_000;
/// Far longer than an increment takes.
const EACH_MAX: Duration = Duration::from_millis(50);

fn no_update_is_lost(on: &str, location: &Location) {
    let (goal, file) =
        (test_support::env_number("DULY_INCREMENTS").unwrap_or(INCREMENTS), location.dir().join("counter"));
    let start = Instant::now();
    let mut children: Vec<Child> =
        (0..PROCESSES).map(|_| Start::on("counter", location.url(), &file, goal).run()).collect();
    let timeout = LONG + EACH_MAX * u32::try_from(goal).expect("fits");
    // The children stop themselves in the middle of an increment. This loop resumes them after their lock has expired.
    let mut paused: [Option<Instant>; PROCESSES] = [None; PROCESSES];
    while children.iter_mut().any(|child| !child.has_ended()) {
        assert!(start.elapsed() < timeout, "{}", describe_state(location, &mut children, &file));
        for (child, resume_at) in children.iter().zip(&mut paused) {
            if child.is_paused() {
                let resume_at = resume_at.get_or_insert_with(|| Instant::now() + TTL + ms(50..300));
                if *resume_at <= Instant::now() {
                    child.resume();
                }
            } else {
                *resume_at = None;
            }
        }
        std::thread::sleep(2 * MS);
    }
    let mut totals = [0; 3];
    for child in &mut children {
        for (sum, number) in totals.iter_mut().zip(child.next_message().split(' ')) {
            *sum += number.parse::<u64>().expect("a number");
        }
    }
    let [counted, rejected, paused] = totals;
    println!(
        "{on}: {counted} increments in {:?}, {paused} paused in their middle, {rejected} rejected",
        start.elapsed()
    );
    assert_eq!(Counter::at(&file).value(), goal);
    assert_eq!(counted, goal, "each write that was accepted counts");
    assert!(paused > 0 && rejected > 0, "a process was paused for too long, and rejected");
}

/// Describes the holder of the lock and the state of the processes.
fn describe_state(location: &Location, children: &mut [Child], file: &Path) -> String {
    let holder = runtime().block_on(async { location.open().await.lock("counter").holder().await });
    let running: Vec<_> = children.iter_mut().map(|child| (!child.has_ended(), child.is_paused())).collect();
    format!("no progress at {}; running, paused: {running:?}; {holder:?}", Counter::at(file).value())
}

#[test]
fn on_a_file_no_update_is_lost() {
    no_update_is_lost("file", &Location::file());
}

#[cfg(feature = "redis")]
fn server() -> Server {
    Options::new(Binary::Redis).aof(Fsync::Always).start()
}

#[cfg(feature = "redis")]
#[test]
fn on_a_server_no_update_is_lost() {
    let server = server();
    no_update_is_lost("server", &Location::on(&server.url()));
}

/// A holder is paused until its lock has expired, another client increments meanwhile, and then the first writes its
/// stale value. Returns the first one's report and the final value.
fn late_write(location: &Location, mode: &str) -> (String, u64) {
    let file = location.dir().join(mode);
    let mut writer = Start::on("late_writer", location.url(), &file, mode).run();
    assert_eq!(writer.next_message(), "has read");
    writer.pause();
    let counter = Counter::at(&file);
    runtime().block_on(async {
        let duly = location.open().await;
        let guard = duly.lock("counter").ttl(TTL).wait(LONG).acquire().await.expect("the lock expires");
        let value = counter.read(guard.fence()).expect("is the newest");
        counter.set(value + 1, guard.fence()).expect("is the newest");
        guard.release().await.expect("is held");
    });
    writer.go();
    writer.resume();
    let report = writer.next_message();
    assert_eq!(writer.next_message(), "noticed", "its guard reports the loss");
    (report, counter.value())
}

fn only_the_fence_protects(location: &Location) {
    let (report, value) = late_write(location, "without_fence");
    assert_eq!((report.as_str(), value), ("wrote", 1), "two increments, one lost: a lock alone cannot prevent this");
    let (report, value) = late_write(location, "checked");
    assert_eq!(
        (report.as_str(), value),
        ("rejected", 1),
        "one increment; the other process knows that its own was rejected"
    );
}

#[test]
fn on_a_file_late_write_is_rejected_only_by_the_fence() {
    only_the_fence_protects(&Location::file());
}

#[cfg(feature = "redis")]
#[test]
fn on_a_server_late_write_is_rejected_only_by_the_fence() {
    let server = server();
    only_the_fence_protects(&Location::on(&server.url()));
}
