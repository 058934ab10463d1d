//! An increment under lock and fence: no update is lost, whoever is paused where.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::distributed_locks::child::{Child, Start};
use crate::distributed_locks::counter::{Counter, TTL};
use crate::distributed_locks::location::{LONG, Location, MS, ms, runtime};
#[cfg(feature = "redis")]
use test_support::servers::{Binary, Fsync, Options, Server};

const PROCESSES: usize = 4;
/// Increments in an ordinary run.
const INCREMENTS: u64 = 2_000;
/// Far longer than an increment takes.
const EACH_MAX: Duration = Duration::from_millis(50);

fn no_update_is_lost(on: &str, location: &Location) {
    let (goal, file) =
        (test_support::env_number("DULY_INCREMENTS").unwrap_or(INCREMENTS), location.dir().join("counter"));
    let began = Instant::now();
    let mut children: Vec<Child> =
        (0..PROCESSES).map(|_| Start::on("counter", location.url(), &file, goal).run()).collect();
    let enough = LONG + EACH_MAX * u32::try_from(goal).expect("fits");
    // They stop themselves, each at the worst moment; here they are let go again, too late.
    let mut paused: [Option<Instant>; PROCESSES] = [None; PROCESSES];
    while children.iter_mut().any(|child| !child.has_ended()) {
        assert!(began.elapsed() < enough, "{}", stands_still(location, &mut children, &file));
        for (child, resumes) in children.iter().zip(&mut paused) {
            if child.is_paused() {
                let resumes = resumes.get_or_insert_with(|| Instant::now() + TTL + ms(50..300));
                if *resumes <= Instant::now() {
                    child.resume();
                }
            } else {
                *resumes = None;
            }
        }
        std::thread::sleep(2 * MS);
    }
    let mut all = [0; 3];
    for child in &mut children {
        for (sum, word) in all.iter_mut().zip(child.word().split(' ')) {
            *sum += word.parse::<u64>().expect("a number");
        }
    }
    let [counted, refused, paused] = all;
    println!("{on}: {counted} increments in {:?}, {paused} paused in their middle, {refused} refused", began.elapsed());
    assert_eq!(Counter::at(&file).value(), goal);
    assert_eq!(counted, goal, "each write that was accepted counts");
    assert!(paused > 0 && refused > 0, "somebody was paused for too long, and refused");
}

/// Who holds the lock, and who is still there.
fn stands_still(location: &Location, children: &mut [Child], file: &Path) -> String {
    let held = runtime().block_on(async { location.open().await.lock("counter").holder().await });
    let there: Vec<_> = children.iter_mut().map(|child| (!child.has_ended(), child.is_paused())).collect();
    format!("stands still at {}; there, paused: {there:?}; {held:?}", Counter::at(file).value())
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

/// A holder is paused past the end of its lock; another counts meanwhile; then it writes what it had in mind.
/// Answers what it said, and the value in the end.
fn late_write(location: &Location, how: &str) -> (String, u64) {
    let file = location.dir().join(how);
    let mut late = Start::on("late", location.url(), &file, how).run();
    assert_eq!(late.word(), "has looked");
    late.pause();
    let counter = Counter::at(&file);
    runtime().block_on(async {
        let duly = location.open().await;
        let guard = duly.lock("counter").ttl(TTL).wait(LONG).acquire().await.expect("its time is over some day");
        let value = counter.look(guard.fence()).expect("is the newest");
        counter.set(value + 1, guard.fence()).expect("is the newest");
        guard.release().await.expect("is held");
    });
    late.go();
    late.resume();
    let said = late.word();
    assert_eq!(late.word(), "knows", "its guard tells it, if somebody asks");
    (said, counter.value())
}

fn the_fence_is_what_protects(location: &Location) {
    let (said, value) = late_write(location, "careless");
    assert_eq!(
        (said.as_str(), value),
        ("wrote", 1),
        "two increments, one lost: this is what a lock alone cannot prevent"
    );
    let (said, value) = late_write(location, "checked");
    assert_eq!((said.as_str(), value), ("refused", 1), "one increment, and the other knows that it was none");
}

#[test]
fn on_a_file_late_write_is_rejected_only_by_the_fence() {
    the_fence_is_what_protects(&Location::file());
}

#[cfg(feature = "redis")]
#[test]
fn on_a_server_late_write_is_rejected_only_by_the_fence() {
    let server = server();
    the_fence_is_what_protects(&Location::on(&server.url()));
}
