//! `duly verify`: is everything in the store as it must be?

use std::path::PathBuf;

use clap::Args;
use duly::VerifyReport;
use serde_json::json;

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::pluralize;
use crate::{Setup, input, store, time};

/// Check that everything in the store is as it must be; exit code 1 if it is not
///
/// Every job is in exactly one state, every index has what it should have, what is held is held by a node that is known,
/// unique keys name their jobs, counts are right. Workers may go on meanwhile.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Put right what is found, after a backup was written: no job is lost, one may run again
    #[arg(long)]
    repair: bool,

    /// Where that backup goes [default: duly-before-repair-TIME.db here]
    #[arg(long, value_name = "FILE", requires = "repair")]
    backup: Option<PathBuf>,
}

pub(crate) async fn run(verb: VerifyArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let found = duly.verify().await?;
    print_report(setup, &found)?;
    if found.violations.is_empty() {
        return Ok(());
    }
    if found.damaged {
        let why = "the file itself is damaged, and no repair helps: stop all workers and restore a backup";
        return Err(CliError::new(exit::FAILURE, why));
    }
    let many = pluralize(found.violations.len() as u64, "breach", "breaches");
    if !verb.repair {
        return Err(CliError::new(
            exit::FAILURE,
            format!("{many}; --repair writes a backup and puts right what it can"),
        ));
    }
    if !setup.yes && !input::confirm(&format!("Repair {many}?"))? {
        return Err(CliError::new(exit::FAILURE, "nothing was changed"));
    }
    let backup =
        verb.backup.unwrap_or_else(|| format!("duly-before-repair-{}.db", time::to_micros(time::now())).into());
    let repaired = duly.repair(&backup).await?;
    setup.out.print_message(&format!("the store as it was is in {}", backup.display()));
    let left = repaired.after.violations.len();
    if left > 0 {
        print_report(setup, &repaired.after)?;
        let left = pluralize(left as u64, "breach is", "breaches are");
        return Err(CliError::new(exit::FAILURE, format!("{left} left: see what they say, or restore a backup")));
    }
    setup.out.print_message(&format!(
        "{} put right",
        pluralize(repaired.before.violations.len() as u64, "breach was", "breaches were")
    ));
    Ok(())
}

fn print_report(setup: &Setup, verified: &VerifyReport) -> anyhow::Result<()> {
    let out = &setup.out;
    if out.is_json() {
        return out
            .print_json(&json!({"jobs": verified.jobs, "breaches": verified.violations, "damaged": verified.damaged}));
    }
    for breach in &verified.violations {
        out.print_line(&escape_text(&breach.to_string()))?;
    }
    if verified.violations.is_empty() {
        out.print_message(&match verified.jobs {
            1 => "1 job, as it must be".to_owned(),
            jobs => format!("{jobs} jobs, all as they must be"),
        });
    }
    Ok(())
}
