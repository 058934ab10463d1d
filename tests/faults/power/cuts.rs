//! Cuts the power many times along one log, and checks the result of each cut.

use std::collections::BTreeMap;
use std::path::Path;

use duly::bounds::PAGE_SIZE_MAX;
use duly::rusqlite::Connection;
use duly::rusqlite::config::DbConfig;
use duly::{Duly, Filter, JobId, Push};

use crate::power::disk::{Disk, Image, UnsyncedWrites};
use crate::power::ledger::{Fault, JobAfterCut, Ledger};
use crate::power::trace::{Event, Part};

/// Totals over all cuts.
#[derive(Debug, Default)]
pub struct SweepReport {
    pub states: usize,
    /// Acknowledged pushes at the end of the log.
    pub pushed: usize,
    pub syncs: usize,
    /// Number of times the WAL was copied into the main file.
    pub checkpoints: usize,
    /// States with lost acknowledged work, and the maximum number of lost jobs.
    pub lossy: usize,
    pub lost_max: usize,
    /// States with any other fault.
    pub corrupt: usize,
    /// The first few faults, for the failure message.
    pub examples: Vec<String>,
}

const EXAMPLES_MAX: usize = 5;
/// At least one of four states is random, however many boundaries there are.
const BOUNDARIES_OF_FOUR: usize = 3;

/// Maximum number of threads that share the cuts.
const THREADS_MAX: usize = 4;

/// One power cut.
#[derive(Clone, Copy)]
struct Cut {
    /// The number of the event before which the cut happens.
    event_index: usize,
    unsynced: UnsyncedWrites,
    /// Per cut, so that the result does not depend on the thread.
    seed: u64,
}

/// Cuts the power in about `states` ways and checks each.
pub fn sweep(events: &[Event], disk: fn() -> Disk, states: usize, seed: u64, scratch: &Path) -> SweepReport {
    let cuts = choose(events, states, &mut fastrand::Rng::with_seed(seed));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
    let mut report = SweepReport::of(events);
    std::thread::scope(|scope| {
        let shares = (0..threads).map(|number| {
            let cuts: Vec<Cut> = cuts.iter().skip(number).step_by(threads).copied().collect();
            let dir = scratch.join(number.to_string());
            std::fs::create_dir(&dir).expect("a new directory");
            scope.spawn(move || sweep_share(events, disk(), &cuts, &dir))
        });
        let shares: Vec<_> = shares.collect();
        shares.into_iter().for_each(|share| report.merge(share.join().expect("number thread fails")));
    });
    report
}

/// Replays the log once and makes these cuts, which are in the order of the log.
fn sweep_share(events: &[Event], mut disk: Disk, cuts: &[Cut], scratch: &Path) -> SweepReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut report = SweepReport::default();
    let mut ledger = Ledger::default();
    let mut next = cuts.iter().peekable();
    for index in 0..=events.len() {
        let mut is_examined = false;
        while let Some(cut) = next.next_if(|cut| cut.event_index == index) {
            // If everything is synced, all fates are the same.
            if disk.is_synced() && std::mem::replace(&mut is_examined, true) {
                continue;
            }
            let image = disk.cut(cut.unsynced, &mut fastrand::Rng::with_seed(cut.seed));
            let faults = runtime.block_on(examine(&image, &ledger, &scratch.join(report.states.to_string())));
            report.add(cut, &faults);
        }
        if let Some(event) = events.get(index) {
            disk.apply(event);
            if let Event::Reported(line) = event {
                ledger.record(line);
            }
        }
    }
    report
}

/// Chooses every sync boundary with all and with none of the unsynced writes, then moments after a report of the
/// child. The remaining cuts are random moments with a part of the unsynced writes. A random choice if there are too
/// many.
fn choose(events: &[Event], states: usize, random: &mut fastrand::Rng) -> Vec<Cut> {
    let is_report = |event: Option<&Event>| matches!(event, Some(Event::Reported(_)));
    let (mut cuts, mut after_reports) = (Vec::new(), Vec::new());
    for index in 0..=events.len() {
        if matches!(events.get(index), Some(Event::Sync(_) | Event::SyncDir)) {
            cuts.extend([(index, UnsyncedWrites::Dropped), (index, UnsyncedWrites::Kept)]);
        } else if index > 0 && is_report(events.get(index - 1)) && !is_report(events.get(index)) {
            after_reports.push((index, UnsyncedWrites::Dropped));
        }
    }
    random.shuffle(&mut cuts);
    random.shuffle(&mut after_reports);
    cuts.append(&mut after_reports);
    cuts.truncate(states * BOUNDARIES_OF_FOUR / 4);
    while cuts.len() < states {
        cuts.push((random.usize(..=events.len()), [UnsyncedWrites::Some, UnsyncedWrites::Torn][random.usize(..2)]));
    }
    cuts.sort_by_key(|(index, _)| *index);
    cuts.into_iter().map(|(event_index, unsynced)| Cut { event_index, unsynced, seed: random.u64(..) }).collect()
}

impl SweepReport {
    /// Counts the events of the log.
    fn of(events: &[Event]) -> Self {
        let mut ledger = Ledger::default();
        events.iter().for_each(|event| {
            if let Event::Reported(line) = event {
                ledger.record(line)
            }
        });
        let count = |matches: fn(&Event) -> bool| events.iter().filter(|event| matches(event)).count();
        SweepReport {
            pushed: ledger.pushed(),
            syncs: count(|event| matches!(event, Event::Sync(_) | Event::SyncDir)),
            // The main file is synced once at its creation, then at each checkpoint.
            checkpoints: count(|event| *event == Event::Sync(Part::Main)).saturating_sub(1),
            ..SweepReport::default()
        }
    }

    fn add(&mut self, cut: &Cut, faults: &[Fault]) {
        self.states += 1;
        let lost = faults.iter().filter(|fault| fault.is_loss()).count();
        self.lossy += usize::from(lost > 0);
        self.lost_max = self.lost_max.max(lost);
        self.corrupt += usize::from(lost < faults.len());
        // Damage comes before loss, since some tests allow loss.
        if let Some(fault) = faults.iter().find(|fault| !fault.is_loss()).or(faults.first()) {
            let Cut { event_index, unsynced, seed } = cut;
            let example =
                format!("before event {event_index}, {unsynced:?} (seed {seed}): {} faults, {fault:?}", faults.len());
            match fault.is_loss() {
                true => self.examples.push(example),
                false => self.examples.insert(0, example),
            }
            self.examples.truncate(EXAMPLES_MAX);
        }
    }

    fn merge(&mut self, share: SweepReport) {
        self.states += share.states;
        self.lossy += share.lossy;
        self.lost_max = self.lost_max.max(share.lost_max);
        self.corrupt += share.corrupt;
        self.examples.extend(share.examples);
    }
}

/// Opens the result of a cut, first with SQLite alone, then with duly, and checks it.
///
/// Each result has its own directory: a store that is closing may still write to the last one.
async fn examine(image: &Image, ledger: &Ledger, dir: &Path) -> Vec<Fault> {
    std::fs::create_dir(dir).expect("a new directory");
    let main = dir.join("power.db");
    for (part, content) in image {
        std::fs::write(format!("{}{}", main.display(), part.suffix()), content).expect("there is room");
    }
    let result = match integrity(&main) {
        Ok(()) => read_jobs(&main).await.map_err(|e| e.to_string()),
        Err(damage) => Err(damage),
    };
    std::fs::remove_dir_all(dir).expect("can go");
    match result {
        Ok(found) => ledger.check(&found),
        Err(damage) => vec![Fault::Corrupt(damage)],
    }
}

fn integrity(main: &Path) -> Result<(), String> {
    let check = || {
        let conn = Connection::open(main)?;
        // Keeps the WAL, so that duly also has to recover from it.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        conn.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0))
    };
    match check() {
        Ok(text) if text == "ok" => Ok(()),
        Ok(damage) => Err(damage),
        Err(e) => Err(e.to_string()),
    }
}

/// Returns all jobs in the store, and checks that it accepts a new one.
async fn read_jobs(main: &Path) -> duly::Result<BTreeMap<JobId, JobAfterCut>> {
    let duly = Duly::open(main.to_str().expect("a plain path")).await?;
    let mut found = BTreeMap::new();
    let mut cursor = None;
    loop {
        let page = duly.jobs().list(Filter::all().limit(PAGE_SIZE_MAX).cursor(cursor)).await?;
        for record in page.jobs {
            let (job, state, attempts) = (record.job, record.state, record.attempts);
            found.insert(job.id, JobAfterCut { kind: job.kind, args: job.args, state, attempts });
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    duly.push(Push::new("good", "null")).await?;
    Ok(found)
}
