//! Power cuts, simulated: the log of a real process's writes and syncs is replayed on a disk that forgets,
//! cut at every sync boundary and in between, and whatever is left is opened and judged.
//!
//! At the default durability nothing acknowledged is lost and nothing is damaged.
//! At `durability=second` the same checker sees loss (or it would be worth nothing), but no damage.
//! The child is this same test binary, started again under strace with a role in its environment.
//! `DULY_POWER_STATES=n` cuts more often, `DULY_POWER_SEED=n` repeats a run's choices.

mod checker_controls;
mod child;
mod cuts;
mod disk;
mod ledger;
mod trace;

use std::sync::OnceLock;
use std::time::Instant;

use child::Role;
use cuts::Sum;
use disk::Disk;
use test_support::env_number;
use trace::{EVERYTHING, Event, Part, Run, Sync};

/// Cuts in an ordinary run.
const STATES: usize = 2_000;
/// What all tests here together need at once, and more: their logs, and an image for each thread.
const SCRATCH_BYTES: u64 = 1 << 30;
/// A write this far into the WAL is one of those with which duly grows it once: rolled back, never valid.
const GROWN: usize = 7 * 1024 * 1024;

/// Not a test: the way into a child process.
#[test]
fn child_process() {
    child::live();
}

/// In memory if there is enough to write to, since thousands of files are made and removed here.
fn scratch() -> test_support::TempDir {
    const MEMORY: &str = "/dev/shm";
    let free = rustix::fs::statvfs(MEMORY).map_or(0, |memory| memory.f_bavail * memory.f_frsize);
    let dir = if free >= SCRATCH_BYTES { tempfile::tempdir_in(MEMORY) } else { tempfile::tempdir() };
    dir.expect("a temporary directory")
}

/// What the child does at the default durability; recorded once for all tests.
fn at_the_default() -> &'static [Event] {
    static EVENTS: OnceLock<Vec<Event>> = OnceLock::new();
    EVENTS.get_or_init(|| trace::record(scratch().path(), "", &EVERYTHING))
}

fn cut(what: &str, events: &[Event], disk: fn() -> Disk, states: usize) -> Sum {
    let since = Instant::now();
    let seed = env_number("DULY_POWER_SEED").unwrap_or_else(|| fastrand::u64(..));
    let states =
        env_number("DULY_POWER_STATES").map_or(states, |n| usize::try_from(n).expect("fits") * states / STATES);
    let sum = cuts::sweep(events, disk, states, seed, scratch().path());
    println!(
        "{what}: {} states along {} syncs, {} checkpoints and {} acknowledged pushes: \
         {} with loss (at most {} jobs), {} corrupt; seed {seed}, {:.1} s",
        sum.states,
        sum.syncs,
        sum.checkpoints,
        sum.pushed,
        sum.lossy,
        sum.lost_max,
        sum.corrupt,
        since.elapsed().as_secs_f64()
    );
    sum
}

/// A run that did too little proves too little.
fn check_enough(events: &[Event], sum: &Sum) {
    assert!(sum.pushed > 100 && sum.checkpoints > 2, "{sum:?}");
    let grows = |event: &Event| matches!(event, Event::Write { part: Part::Wal, at, .. } if *at > GROWN);
    assert!(events.iter().any(grows), "frames that were rolled back lie in the WAL");
}

#[test]
fn power_cut_at_default_durability_loses_nothing() {
    let sum = cut("default", at_the_default(), Disk::default, STATES);
    assert_eq!((sum.lossy, sum.corrupt), (0, 0), "{:#?}", sum.examples);
    check_enough(at_the_default(), &sum);
    assert!(2 * sum.syncs <= STATES * 3 / 4, "there is room for every sync boundary: {} syncs", sum.syncs);
}

#[test]
fn checker_finds_loss_at_durability_second() {
    let events = trace::record(scratch().path(), "?durability=second", &EVERYTHING);
    let sum = cut("second", &events, Disk::default, STATES / 4);
    assert_eq!(sum.corrupt, 0, "a relaxed durability loses the last moments, it damages nothing: {:#?}", sum.examples);
    check_enough(&events, &sum);
    assert!(sum.lossy > 0, "a checker that sees no loss here would see none anywhere");
}

#[test]
fn checker_finds_damage_on_a_lying_disk() {
    let sum = cut("lying disk", at_the_default(), Disk::lying, STATES / 20);
    assert!(sum.corrupt > 0 && sum.lossy > 0, "a checker that sees no damage here would see none anywhere: {sum:?}");
}

/// What stands behind this word in each line that begins with it.
fn said(events: &[Event], word: &str) -> Vec<String> {
    let with = |event: &Event| match event {
        Event::Said(line) => line.strip_prefix(word).map(|rest| rest.trim().to_owned()),
        _ => None,
    };
    events.iter().filter_map(with).collect()
}

/// A process is killed between the write and the sync of a push. The next one finds the job, and answers that it exists:
/// then it must be as durable as any, or whoever pushed again because the first answer was lost is deceived.
#[test]
fn push_answered_with_existing_is_durable() {
    const DIES_IN_SYNC: usize = 9;
    let runs = [Some((DIES_IN_SYNC, Sync::Dies)), None].map(|sync| Run { role: Role::Again, sync });
    let events = trace::record(scratch().path(), "", &runs);
    let (pushed, existing) = (said(&events, "pushed "), said(&events, "existing "));
    let unsure: Vec<_> = existing.iter().filter(|id| !pushed.contains(id)).collect();
    assert_eq!(unsure.len(), 1, "one push was written and not answered: {pushed:?}, {existing:?}");
    let sum = cut("pushed again", &events, Disk::default, STATES / 10);
    assert_eq!((sum.lossy, sum.corrupt), (0, 0), "{:#?}", sum.examples);
}

/// The disk fails in the sync of a push, and nobody knows what it has kept: the push is unknown, and pushed again
/// under the same id it is there once, as durable as any.
#[test]
fn push_with_failed_sync_can_be_repeated() {
    const FAILS_IN_SYNC: usize = 9;
    let run = Run { role: Role::Again, sync: Some((FAILS_IN_SYNC, Sync::Fails)) };
    let events = trace::record(scratch().path(), "", &[run]);
    assert_eq!(said(&events, "unknown ").len(), 1, "one push was not answered for");
    let sum = cut("a sync failed", &events, Disk::default, STATES / 10);
    assert_eq!((sum.lossy, sum.corrupt), (0, 0), "{:#?}", sum.examples);
}
