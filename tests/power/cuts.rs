//! Cuts the power again and again along one log, and looks at what is left each time.

use std::collections::BTreeMap;
use std::path::Path;

use duly::rusqlite::Connection;
use duly::rusqlite::config::DbConfig;
use duly::store::PAGE_MAX;
use duly::{Duly, Filter, JobId, Push};

use crate::disk::{Disk, Fate, Image};
use crate::ledger::{Fault, Found, Ledger};
use crate::trace::{Event, Part};

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

/// A cut before the event of this number.
type Cut = (usize, Fate);

/// Cuts the power in about `states` ways and checks each.
pub fn sweep(events: &[Event], mut disk: Disk, states: usize, seed: u64, scratch: &Path) -> Sum {
    let mut random = fastrand::Rng::with_seed(seed);
    let cuts = choose(events, states, &mut random);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let count = |what: fn(&Event) -> bool| events.iter().filter(|event| what(event)).count();
    let mut sum = Sum {
        syncs: count(|event| matches!(event, Event::Sync(_) | Event::SyncDir)),
        // The main file is synced once when it is made, and then at each checkpoint.
        checkpoints: count(|event| *event == Event::Sync(Part::Main)).saturating_sub(1),
        ..Sum::default()
    };
    let mut ledger = Ledger::default();
    let mut next = cuts.iter().peekable();
    for at in 0..=events.len() {
        let mut looked = false;
        while let Some((_, fate)) = next.next_if(|(cut, _)| *cut == at) {
            // Without anything unsynced all fates are the same.
            if disk.is_synced() && std::mem::replace(&mut looked, true) {
                continue;
            }
            let image = disk.cut(*fate, &mut random);
            let faults = runtime.block_on(examine(&image, &ledger, &scratch.join(sum.states.to_string())));
            sum.add(at, *fate, &faults);
        }
        if let Some(event) = events.get(at) {
            disk.apply(event);
            if let Event::Said(line) = event {
                ledger.hear(line);
            }
        }
    }
    sum.pushed = ledger.pushed();
    sum
}

/// Every sync boundary with all and with nothing of what is unsynced, every moment after the child said something
/// (a random choice of these, if they are too many), and for the rest any moment at all with parts of it.
fn choose(events: &[Event], states: usize, random: &mut fastrand::Rng) -> Vec<Cut> {
    let is_word = |event: Option<&Event>| matches!(event, Some(Event::Said(_)));
    let mut cuts: Vec<Cut> = Vec::new();
    for at in 0..=events.len() {
        if matches!(events.get(at), Some(Event::Sync(_) | Event::SyncDir)) {
            cuts.extend([(at, Fate::Dropped), (at, Fate::Kept)]);
        } else if at > 0 && is_word(events.get(at - 1)) && !is_word(events.get(at)) {
            cuts.push((at, Fate::Dropped));
        }
    }
    random.shuffle(&mut cuts);
    cuts.truncate(states * BOUNDARIES_OF_FOUR / 4);
    while cuts.len() < states {
        cuts.push((random.usize(..=events.len()), [Fate::Some, Fate::Torn][random.usize(..2)]));
    }
    cuts.sort_by_key(|(at, _)| *at);
    cuts
}

impl Sum {
    fn add(&mut self, at: usize, fate: Fate, faults: &[Fault]) {
        self.states += 1;
        let lost = faults.iter().filter(|fault| fault.is_loss()).count();
        self.lossy += usize::from(lost > 0);
        self.lost_max = self.lost_max.max(lost);
        self.corrupt += usize::from(lost < faults.len());
        if let (Some(fault), true) = (faults.first(), self.examples.len() < EXAMPLES_MAX) {
            self.examples
                .push(format!("before event {at}, unsynced {fate:?}: {} faults, first {fault:?}", faults.len()));
        }
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
        let page = duly.list(Filter { limit: PAGE_MAX, cursor, ..Filter::default() }).await?;
        for record in page.jobs {
            let (job, state, attempts) = (record.job, record.state, record.attempts);
            found.insert(job.id, Found { kind: job.kind, args: job.args, state, attempts });
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    duly.push(Push::new("good", "null")).await?;
    Ok(found)
}
