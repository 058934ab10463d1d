//! Files are deleted and replaced under running processes, and the disk is full again and again. No acknowledged job is
//! lost, no living worker loses a job, and a restored backup is not damaged.
//!
//! `DULY_FILE_ATTACK_SECONDS=n` makes each run longer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use duly::{Duly, Push};

use crate::crash::checker::{Fault, History};
use crate::crash::child::{Child, ChildEvent, Role};
use crate::crash::{File, LONG, file};
use crate::{runtime, wait_until_empty};

/// Duration of each run by default.
const SECONDS: u64 = 6;
/// The directory of a small disk, for the process that runs on it.
const SMALL_DISK: &str = "DULY_SMALL_DISK";
const DISK_BYTES: usize = 64 << 20;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(test_support::env_number("DULY_FILE_ATTACK_SECONDS").unwrap_or(SECONDS))
}

fn path(file: &File) -> PathBuf {
    PathBuf::from(file.url.split('?').next().expect("a path"))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", file.display()))
}

/// Deletes the directory `FILE-nodes`, or some of its files.
fn delete_some(nodes: &Path, random: &mut fastrand::Rng) {
    match random.u8(..5) {
        0 => drop(std::fs::remove_dir_all(nodes)),
        1 => drop(std::fs::remove_file(nodes.join("registry"))),
        2 => drop(std::fs::remove_file(nodes.join("identity"))),
        _ => {
            let entries = std::fs::read_dir(nodes).into_iter().flatten().flatten();
            entries.filter(|_| random.bool()).for_each(|entry| drop(std::fs::remove_file(entry.path())));
        }
    }
}

#[test]
fn deleted_directories_cost_no_living_worker_a_job() {
    let file = file("?lease=1s");
    let nodes = with_suffix(&path(&file), "-nodes");
    let (seed, deadline) = (fastrand::u64(..), deadline());
    let mut random = fastrand::Rng::with_seed(seed);
    let mut history = History::default();
    let roles = [Role::Worker, Role::Worker, Role::Worker, Role::Pusher];
    let mut children: Vec<Child> = roles.map(|role| Child::start(role, &file.url)).into();
    let (mut deletions, mut kills) = (0, 0);
    while Instant::now() < deadline {
        // The nemesis has no event to wait for: its moments are random on purpose.
        std::thread::sleep(Duration::from_millis(random.u64(50..800)));
        delete_some(&nodes, &mut random);
        deletions += 1;
        if random.u8(..4) == 0 {
            let index = random.usize(..children.len());
            let killed = std::mem::replace(&mut children[index], Child::start(roles[index], &file.url));
            history.add(killed.kill());
            kills += 1;
        }
    }
    history.add(children.pop().expect("the pusher").kill());
    let runtime = runtime();
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    runtime.block_on(wait_until_empty(&duly));
    children.into_iter().for_each(|worker| history.add(worker.kill()));
    let state = |id| runtime.block_on(duly.jobs().get(id)).expect("a reply").map(|record| record.state);
    let pushed = history.pushed();
    let faults: Vec<Fault> = history.check(pushed.iter().map(|id| (*id, state(*id))).collect());
    println!("seed {seed}: {deletions} deletions, {kills} kills, {} pushes acknowledged", pushed.len());
    assert!(pushed.len() > 100, "the run did something: {} pushes", pushed.len());
    assert!(faults.is_empty(), "seed {seed}: {} faults, first {:?}", faults.len(), &faults[..faults.len().min(20)]);
}

/// All processes stop on their own, and the replacement of the file stays as it is.
#[test]
fn replaced_file_is_not_touched_by_processes_on_the_old_one() {
    let (seed, deadline) = (fastrand::u64(..), deadline());
    let mut random = fastrand::Rng::with_seed(seed);
    let (runtime, mut rounds) = (runtime(), 0);
    while rounds == 0 || Instant::now() < deadline {
        let file = file("?lease=1s");
        let (path, backup) = (path(&file), with_suffix(&path(&file), ".backup"));
        let mut pushers = [Role::Pusher, Role::Pusher].map(|role| Child::start(role, &file.url));
        let workers = [Role::Worker, Role::Worker].map(|role| Child::start(role, &file.url));
        for pusher in &mut pushers {
            pusher.wait(|event| matches!(event, ChildEvent::Pushed(_)));
        }
        runtime.block_on(async {
            let duly = Duly::open(&file.url).await.expect("opens");
            duly.backup(&backup).await.expect("backs up");
        });
        let restored = std::fs::read(&backup).expect("reads");
        std::thread::sleep(Duration::from_millis(random.u64(..300)));
        std::fs::rename(&backup, &path).expect("restores");
        for mut pusher in pushers {
            // A pusher ends with the first push that is refused.
            let started = Instant::now();
            pusher.wait_for_end_or(|| started.elapsed() > LONG);
            assert!(started.elapsed() < LONG, "seed {seed}: it still pushes");
        }
        workers.into_iter().for_each(|worker| drop(worker.kill()));
        assert!(std::fs::read(&path).expect("reads") == restored, "seed {seed}: the restored file was changed");
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(with_suffix(&path, suffix));
        }
        let report = runtime.block_on(async { Duly::open(&file.url).await?.verify().await }).expect("verifies");
        assert!(report.violations.is_empty(), "seed {seed}: {:?}", report.violations);
        rounds += 1;
    }
    println!("seed {seed}: {rounds} files replaced");
}

/// Not a test: the process on the small disk.
#[test]
fn process_on_a_small_disk() {
    let Ok(dir) = std::env::var(SMALL_DISK) else { return };
    let (path, ballast) = (format!("{dir}/duly.db?keep=0&remember_ids=0&lease=1s"), format!("{dir}/ballast"));
    let workers = [Role::Worker, Role::Worker].map(|role| Child::start(role, &path));
    let (mut pushed, mut refused) = (BTreeSet::new(), 0);
    let (deadline, runtime) = (deadline(), runtime());
    let duly = runtime.block_on(Duly::open(&path)).expect("opens");
    while Instant::now() < deadline {
        // Sometimes something else fills the disk, to the last byte.
        match fastrand::u8(..20) {
            0 => drop(std::fs::write(&ballast, vec![1; fastrand::usize(DISK_BYTES / 2..DISK_BYTES)])),
            1 => drop(std::fs::remove_file(&ballast)),
            _ => {}
        }
        let args = format!("\"{}\"", "x".repeat(fastrand::usize(..100_000)));
        match runtime.block_on(duly.push(Push::new("sleep", args))) {
            Ok(result) => {
                pushed.insert(result.id());
            }
            Err(error) => {
                // A commit that fails on a full disk may have an unknown outcome.
                assert!(matches!(error.code(), "store" | "unknown"), "{error}");
                refused += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    let _ = std::fs::remove_file(&ballast);
    runtime.block_on(wait_until_empty(&duly));
    let events = workers.map(Child::kill).concat();
    let acked: BTreeSet<_> =
        events.iter().filter_map(|event| if let ChildEvent::Acked(id, _) = event { Some(*id) } else { None }).collect();
    println!("{} pushes acknowledged, {refused} refused", pushed.len());
    assert!(pushed.len() > 20 && refused > 0, "the disk was full at times");
    assert_eq!(pushed.difference(&acked).count(), 0, "every acknowledged job ran");
}

#[test]
fn full_disk_stops_pushes_and_no_worker() {
    let dir = test_support::temp_dir();
    let binary = std::env::current_exe().expect("has a path");
    let args = test_support::child_test_args("crash::file_attacks::process_on_a_small_disk").join(" ");
    let script = format!(
        "mount -t tmpfs -o size={DISK_BYTES} none {} && exec {} {args}",
        dir.path().display(),
        binary.display()
    );
    let ran = Command::new("unshare").args(["-rm", "sh", "-c", &script]).env(SMALL_DISK, dir.path()).status();
    assert!(ran.expect("unshare is part of util-linux").success(), "needs user namespaces or root");
}
