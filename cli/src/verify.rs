//! `duly verify`: is everything in the store as it must be?

use std::path::PathBuf;

use clap::Args;
use duly::Verified;
use serde_json::json;

use crate::escape::safe;
use crate::exit::{self, Fail};
use crate::output::counted;
use crate::{Setup, input, store, time};

/// Check that everything in the store is as it must be; exit code 1 if it is not
///
/// Every job is in exactly one state, every index has what it should have, what is held is held by a node that is known,
/// unique keys name their jobs, counts are right. Workers may go on meanwhile.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Put right what is found, after a backup was written: no job is lost, one may run again
    #[arg(long)]
    repair: bool,

    /// Where that backup goes [default: duly-before-repair-TIME.db here]
    #[arg(long, value_name = "FILE", requires = "repair")]
    backup: Option<PathBuf>,
}

pub(crate) async fn run(verb: Verify, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    let found = duly.verify().await?;
    tell(setup, &found)?;
    if found.breaches.is_empty() {
        return Ok(());
    }
    if found.damaged {
        let why = "the file itself is damaged, and no repair helps: stop all workers and restore a backup";
        return Err(Fail::new(exit::FAILURE, why));
    }
    let many = counted(found.breaches.len() as u64, "breach", "breaches");
    if !verb.repair {
        return Err(Fail::new(exit::FAILURE, format!("{many}; --repair writes a backup and puts right what it can")));
    }
    if !setup.yes && !input::confirmed(&format!("Repair {many}?"))? {
        return Err(Fail::new(exit::FAILURE, "nothing was changed"));
    }
    let backup = verb.backup.unwrap_or_else(|| format!("duly-before-repair-{}.db", time::micros(time::now())).into());
    let repaired = duly.repair(&backup).await?;
    setup.out.say(&format!("the store as it was is in {}", backup.display()));
    let left = repaired.left.breaches.len();
    if left > 0 {
        tell(setup, &repaired.left)?;
        let left = counted(left as u64, "breach is", "breaches are");
        return Err(Fail::new(exit::FAILURE, format!("{left} left: see what they say, or restore a backup")));
    }
    setup
        .out
        .say(&format!("{} put right", counted(repaired.found.breaches.len() as u64, "breach was", "breaches were")));
    Ok(())
}

fn tell(setup: &Setup, verified: &Verified) -> anyhow::Result<()> {
    let out = &setup.out;
    if out.is_json() {
        return out.json(&json!({"jobs": verified.jobs, "breaches": verified.breaches, "damaged": verified.damaged}));
    }
    for breach in &verified.breaches {
        out.line(&safe(&breach.to_string()))?;
    }
    if verified.breaches.is_empty() {
        out.say(&match verified.jobs {
            1 => "1 job, as it must be".to_owned(),
            jobs => format!("{jobs} jobs, all as they must be"),
        });
    }
    Ok(())
}
