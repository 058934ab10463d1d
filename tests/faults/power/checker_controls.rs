//! Controls of the checkers: each is shown to fail if something is wrong.

use std::collections::BTreeMap;

use duly::{JobId, State};

use crate::power::child;
use crate::power::disk::{Disk, Image, SECTOR, UnsyncedWrites, sectors};
use crate::power::ledger::{Fault, JobAfterCut, Ledger};
use crate::power::trace::{Event, Log, Part};

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
}

fn parse(lines: &[String]) -> Result<Vec<Event>, String> {
    let mut log = Log::new("/d/p.db");
    lines.iter().try_for_each(|line| log.read(line))?;
    Ok(log.events)
}

#[test]
fn log_is_read_in_order_of_call_ends() {
    let (main, wal, shm, dir) = (hex("/d/p.db"), hex("/d/p.db-wal"), hex("/d/p.db-shm"), hex("/d"));
    let message = hex("pushed 1\n");
    let lines = [
        format!(r#"7 openat(AT_FDCWD<{dir}>, "{wal}", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 9<{wal}>"#),
        format!(r#"7 pwrite64(9<{wal}>, "\x00\x7f\xff", 3, 32 <unfinished ...>"#),
        format!(r#"8 write(1</dev/null>, "{message}", 9) = 9"#),
        "7 <... pwrite64 resumed>)             = 2".into(),
        format!(r#"7 pwrite64(10<{shm}>, "\x00", 1, 0) = 1"#),
        format!(r#"7 fsync(9<{wal}>)       = 0"#),
        format!(r#"7 fsync(9<{wal}>)       = -1 EIO (Input/output error)"#),
        format!(r#"7 fdatasync(11<{dir}>) = 0"#),
        format!(r#"7 ftruncate(12<{main}>, 4096) = 0"#),
        format!(r#"7 unlink("{wal}")      = 0"#),
        format!(r#"7 mmap(NULL, 9, PROT_READ, MAP_SHARED, 10<{shm}>, 0) = 0x7f"#),
        "8 +++ killed by SIGKILL +++".into(),
    ];
    let expected = [
        Event::Created(Part::Wal),
        Event::Reported("pushed 1".into()),
        Event::Write { part: Part::Wal, offset: 32, bytes: vec![0, 0x7f] },
        Event::Sync(Part::Wal),
        Event::SyncDir,
        Event::Truncate { part: Part::Main, len: 4096 },
        Event::Unlink(Part::Wal),
    ];
    assert_eq!(parse(&lines).expect("a good log"), expected);
}

#[test]
fn unreadable_log_is_rejected() {
    let wal = hex("/d/p.db-wal");
    let error = |lines: &[String]| parse(lines).expect_err("a bad log");
    let cut_short = format!(r#"7 pwrite64(9<{wal}>, "\x00"..., 4096, 0) = 4096"#);
    assert!(error(&[cut_short]).contains("cut short"));
    let mapped = format!("7 mmap(NULL, 9, PROT_READ|PROT_WRITE, MAP_SHARED, 9<{wal}>, 0) = 0x7f");
    assert!(error(&[mapped]).contains("unexpected call"));
    let vector = format!(r#"7 pwritev(9<{wal}>, [{{iov_base="\x00", iov_len=1}}], 1, 0) = 1"#);
    assert!(error(&[vector]).contains("unexpected call"));
    let syncing = format!("7 fsync(9<{wal}> <unfinished ...>");
    let meanwhile = format!(r#"8 pwrite64(9<{wal}>, "\x00", 1, 0) = 1"#);
    assert!(error(&[syncing, meanwhile]).contains("while it is synced"));
    assert!(error(&["7 <... fsync resumed>) = 0".into()]).contains("did not begin"));
}

fn write(offset: usize, byte: u8, len: usize) -> Event {
    Event::Write { part: Part::Main, offset, bytes: vec![byte; len] }
}

/// A disk with three synced sectors of 1, then three unsynced of 2 and one unsynced of 3.
fn disk() -> Disk {
    let mut disk = Disk::default();
    let synced = [Event::Created(Part::Main), write(0, 1, 3 * SECTOR), Event::Sync(Part::Main), Event::SyncDir];
    synced.iter().for_each(|event| disk.apply(event));
    assert!(disk.is_synced());
    disk.apply(&write(0, 2, 3 * SECTOR));
    disk.apply(&write(3 * SECTOR, 3, SECTOR));
    disk
}

/// Returns the first byte of each sector after many cuts.
fn images(disk: &Disk, unsynced: UnsyncedWrites) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    let start = |image: Image| image[&Part::Main].iter().step_by(SECTOR).copied().collect();
    let mut images: Vec<Vec<u8>> = (0..500).map(|_| start(disk.cut(unsynced, &mut random))).collect();
    images.sort();
    images.dedup();
    images
}

#[test]
fn cut_drops_keeps_and_tears_unsynced_data() {
    let mut disk = disk();
    assert_eq!(images(&disk, UnsyncedWrites::Dropped), [[1, 1, 1]]);
    assert_eq!(images(&disk, UnsyncedWrites::Kept), [[2, 2, 2, 3]]);
    let some = images(&disk, UnsyncedWrites::Some);
    assert_eq!(some, [&[1, 1, 1][..], &[1, 1, 1, 0], &[1, 1, 1, 3], &[2, 2, 2], &[2, 2, 2, 0], &[2, 2, 2, 3]]);
    let torn = images(&disk, UnsyncedWrites::Torn);
    assert_eq!(torn.len(), 9, "each sector of the first write old or new, or the second write on top: {torn:?}");
    assert!(torn.contains(&vec![2, 1, 2]) && !torn.contains(&vec![1, 1, 1, 3]), "{torn:?}");
    disk.apply(&Event::Sync(Part::Main));
    assert_eq!(images(&disk, UnsyncedWrites::Dropped), [[2, 2, 2, 3]]);
    assert_eq!(
        sectors(500, &[0; 600]).iter().map(|(offset, part)| (*offset, part.len())).collect::<Vec<_>>(),
        [(500, 12), (512, 512), (1024, 76)]
    );
}

#[test]
fn names_are_durable_after_a_directory_sync() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut disk = Disk::default();
    [Event::Created(Part::Main), write(0, 1, 1), Event::Sync(Part::Main)].iter().for_each(|event| disk.apply(event));
    assert_eq!(disk.cut(UnsyncedWrites::Dropped, &mut random), Image::new(), "content without a name");
    disk.apply(&Event::SyncDir);
    disk.apply(&Event::Unlink(Part::Main));
    assert_eq!(disk.cut(UnsyncedWrites::Kept, &mut random), Image::new());
    assert_eq!(disk.cut(UnsyncedWrites::Dropped, &mut random), Image::from([(Part::Main, vec![1])]), "it reappears");
    disk.apply(&Event::SyncDir);
    assert_eq!(disk.cut(UnsyncedWrites::Dropped, &mut random), Image::new());
}

#[test]
fn checker_finds_every_fault() {
    let id = JobId::from_name("one");
    let check = |reports: &[&str], found: Option<JobAfterCut>| {
        let mut ledger = Ledger::default();
        reports.iter().for_each(|line| ledger.record(&line.replace("ID", &id.to_string())));
        ledger.check(&found.map(|found| (id, found)).into_iter().collect())
    };
    let job = |state| JobAfterCut { kind: "good".into(), args: child::args(id), state, attempts: 0 };
    let pushed = ["running 1 test", "pushing ID", "pushed ID"];
    let after = |reports: &[&'static str]| [&pushed[..], reports].concat();

    assert_eq!(check(&["pushing ID"], None), [], "nothing is acknowledged yet");
    assert_eq!(check(&["pushing ID"], Some(job(State::Ready))), [], "but it may exist");
    assert_eq!(check(&pushed, Some(job(State::Running))), []);
    assert_eq!(check(&pushed, None), [Fault::Lost(id)]);
    assert_eq!(check(&pushed, Some(JobAfterCut { args: "0".into(), ..job(State::Ready) })), [Fault::Args(id)]);
    assert_eq!(check(&pushed, Some(job(State::Done))), [Fault::Unrequested(id)]);
    assert_eq!(check(&[], Some(job(State::Ready))), [Fault::Unrequested(id)]);

    assert_eq!(check(&after(&["acking ID"]), Some(job(State::Ready))), []);
    assert_eq!(check(&after(&["acking ID"]), Some(job(State::Dead))), [Fault::Unrequested(id)]);
    assert_eq!(check(&after(&["acking ID", "acked ID"]), Some(job(State::Done))), []);
    assert_eq!(check(&after(&["acking ID", "acked ID"]), Some(job(State::Running))), [Fault::Undone(id)]);
    assert_eq!(check(&after(&["burying ID", "buried ID"]), Some(job(State::Ready))), [Fault::Undone(id)]);
    assert_eq!(check(&after(&["retried ID 1"]), Some(job(State::Ready))), [Fault::Undone(id)]);

    assert_eq!(check(&after(&["removing ID"]), None), []);
    assert_eq!(check(&after(&["removing ID", "removed ID"]), Some(job(State::Ready))), [Fault::Undone(id)]);

    let bulk = JobAfterCut { kind: "bulk-1".into(), ..job(State::Ready) };
    assert_eq!(check(&pushed, Some(bulk)), [Fault::Split("bulk-1".into())], "one of many");
    assert_eq!(Ledger::default().check(&BTreeMap::new()), []);
}
