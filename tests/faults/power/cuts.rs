//! Cuts the power again and again along one log, and looks at what is left each time.

use std::collections::BTreeMap;
use std::path::Path;

use duly::rusqlite::Connection;
use duly::rusqlite::config::DbConfig;
use duly::store::PAGE_SIZE_MAX;
use duly::{Duly, Filter, JobId, Push};

use crate::power::disk::{Disk, Fate, Image};
use crate::power::ledger::{Fault, Found, Ledger};
use crate::power::trace::{Event, Part};

/// What all cuts together have shown.
#[derive(Debug, Default)]
pub struct Sum {
    pub states: usize,
    /// Acknowledged pushes at the end of the log.
    pub pushed: usize,
    pub syncs: usize,
    /// Times that the WAL was copied into the main file.
    pub checkpoints: usize,
    /// States in which acknowledged work was lost, and most jobs lost in one.
    pub lossy: usize,
    pub lost_max: usize,
    /// States in which anything else was wrong.
    pub corrupt: usize,
    /// The first few of all faults, to be shown.
    pub examples: Vec<String>,
}

const EXAMPLES_MAX: usize = 5;
/// Of four states at least one is a random one, however many boundaries there are.
const BOUNDARIES_OF_FOUR: usize = 3;

/// Cuts are shared out among so many threads at most.
const THREADS_MAX: usize = 4;

/// One cut of the power.
#[derive(Clone, Copy)]
struct Cut {
    /// The number of the event before which it happens.
    at: usize,
    fate: Fate,
    /// Its own, so that it is the same cut whichever thread makes it.
    seed: u64,
}

/// Cuts the power in about `states` ways and checks each.
pub fn sweep(events: &[Event], disk: fn() -> Disk, states: usize, seed: u64, scratch: &Path) -> Sum {
    let cuts = choose(events, states, &mut fastrand::Rng::with_seed(seed));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
    let mut sum = Sum::of(events);
    std::thread::scope(|scope| {
        let shares = (0..threads).map(|no| {
            let cuts: Vec<Cut> = cuts.iter().skip(no).step_by(threads).copied().collect();
            let dir = scratch.join(no.to_string());
            std::fs::create_dir(&dir).expect("a new directory");
            scope.spawn(move || sweep_share(events, disk(), &cuts, &dir))
        });
        let shares: Vec<_> = shares.collect();
        shares.into_iter().for_each(|share| sum.merge(share.join().expect("no thread fails")));
    });
    sum
}

/// Goes along the log once and makes these cuts, which are in its order.
fn sweep_share(events: &[Event], mut disk: Disk, cuts: &[Cut], scratch: &Path) -> Sum {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut sum = Sum::default();
    let mut ledger = Ledger::default();
    let mut next = cuts.iter().peekable();
    for at in 0..=events.len() {
        let mut looked = false;
        while let Some(cut) = next.next_if(|cut| cut.at == at) {
            // Without anything unsynced all fates are the same.
            if disk.is_synced() && std::mem::replace(&mut looked, true) {
                continue;
            }
            let image = disk.cut(cut.fate, &mut fastrand::Rng::with_seed(cut.seed));
            let faults = runtime.block_on(examine(&image, &ledger, &scratch.join(sum.states.to_string())));
            sum.add(cut, &faults);
        }
        if let Some(event) = events.get(at) {
            disk.apply(event);
            if let Event::Said(line) = event {
                ledger.hear(line);
            }
        }
    }
    sum
}

/// Every sync boundary with all and with nothing of what is unsynced, then moments after the child said something,
/// and for the rest any moment at all with parts of it. A random choice, where there is not room for all.
fn choose(events: &[Event], states: usize, random: &mut fastrand::Rng) -> Vec<Cut> {
    let is_word = |event: Option<&Event>| matches!(event, Some(Event::Said(_)));
    let (mut cuts, mut words) = (Vec::new(), Vec::new());
    for at in 0..=events.len() {
        if matches!(events.get(at), Some(Event::Sync(_) | Event::SyncDir)) {
            cuts.extend([(at, Fate::Dropped), (at, Fate::Kept)]);
        } else if at > 0 && is_word(events.get(at - 1)) && !is_word(events.get(at)) {
            words.push((at, Fate::Dropped));
        }
    }
    random.shuffle(&mut cuts);
    random.shuffle(&mut words);
    cuts.append(&mut words);
    cuts.truncate(states * BOUNDARIES_OF_FOUR / 4);
    while cuts.len() < states {
        cuts.push((random.usize(..=events.len()), [Fate::Some, Fate::Torn][random.usize(..2)]));
    }
    cuts.sort_by_key(|(at, _)| *at);
    cuts.into_iter().map(|(at, fate)| Cut { at, fate, seed: random.u64(..) }).collect()
}

impl Sum {
    /// What the log itself says.
    fn of(events: &[Event]) -> Self {
        let mut ledger = Ledger::default();
        events.iter().for_each(|event| {
            if let Event::Said(line) = event {
                ledger.hear(line)
            }
        });
        let count = |what: fn(&Event) -> bool| events.iter().filter(|event| what(event)).count();
        Sum {
            pushed: ledger.pushed(),
            syncs: count(|event| matches!(event, Event::Sync(_) | Event::SyncDir)),
            // The main file is synced once when it is made, and then at each checkpoint.
            checkpoints: count(|event| *event == Event::Sync(Part::Main)).saturating_sub(1),
            ..Sum::default()
        }
    }

    fn add(&mut self, cut: &Cut, faults: &[Fault]) {
        self.states += 1;
        let lost = faults.iter().filter(|fault| fault.is_loss()).count();
        self.lossy += usize::from(lost > 0);
        self.lost_max = self.lost_max.max(lost);
        self.corrupt += usize::from(lost < faults.len());
        // Damage before loss: where loss is allowed, damage is what needs to be shown.
        if let Some(fault) = faults.iter().find(|fault| !fault.is_loss()).or(faults.first()) {
            let Cut { at, fate, seed } = cut;
            let example = format!("before event {at}, {fate:?} (seed {seed}): {} faults, {fault:?}", faults.len());
            match fault.is_loss() {
                true => self.examples.push(example),
                false => self.examples.insert(0, example),
            }
            self.examples.truncate(EXAMPLES_MAX);
        }
    }

    fn merge(&mut self, share: Sum) {
        self.states += share.states;
        self.lossy += share.lossy;
        self.lost_max = self.lost_max.max(share.lost_max);
        self.corrupt += share.corrupt;
        self.examples.extend(share.examples);
    }
}

/// Opens what a cut has left, first with SQLite alone, then with duly, and judges it.
///
/// Each in a directory of its own: a store that is closing still may touch the last one.
async fn examine(image: &Image, ledger: &Ledger, dir: &Path) -> Vec<Fault> {
    std::fs::create_dir(dir).expect("a new directory");
    let main = dir.join("power.db");
    for (part, content) in image {
        std::fs::write(format!("{}{}", main.display(), part.suffix()), content).expect("there is room");
    }
    let looked = match integrity(&main) {
        Ok(()) => look(&main).await.map_err(|e| e.to_string()),
        Err(damage) => Err(damage),
    };
    std::fs::remove_dir_all(dir).expect("can go");
    match looked {
        Ok(found) => ledger.judge(&found),
        Err(damage) => vec![Fault::Corrupt(damage)],
    }
}

fn integrity(main: &Path) -> Result<(), String> {
    let check = || {
        let conn = Connection::open(main)?;
        // Leaves the WAL as it is, so that duly too has to recover from it.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        conn.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0))
    };
    match check() {
        Ok(answer) if answer == "ok" => Ok(()),
        Ok(damage) => Err(damage),
        Err(e) => Err(e.to_string()),
    }
}

/// All jobs in the store, which must also take a new one.
async fn look(main: &Path) -> duly::Result<BTreeMap<JobId, Found>> {
    let duly = Duly::open(main.to_str().expect("a plain path")).await?;
    let mut found = BTreeMap::new();
    let mut cursor = None;
    loop {
        let page = duly.list(Filter { limit: PAGE_SIZE_MAX, cursor, ..Filter::default() }).await?;
        for record in page.jobs {
            let (job, state, attempts) = (record.job, record.state, record.attempts);
            found.insert(job.id, Found { kind: job.kind, args: job.args, state, attempts });
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    duly.push(Push::new("good", "null")).await?;
    Ok(found)
}
