//! `duly verify`: checks the invariants of the store and repairs violations.

use std::path::PathBuf;

use clap::Args;
use duly::admin::VerifyReport;
use serde_json::json;

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::pluralize;
use crate::{Setup, audit, input, store, time};

/// Check the invariants of the store; exit code 1 if it finds violations
///
/// Checks that every job is in exactly one state and held by a known node, and that indexes, unique keys and counts match.
/// Workers may run meanwhile.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Repair the violations after writing a backup: no job is lost, but a job may run again
    #[arg(long)]
    repair: bool,

    /// The file of that backup [default: ./duly-before-repair-TIME.db]
    #[arg(long, value_name = "FILE", requires = "repair")]
    backup: Option<PathBuf>,
}

pub(crate) async fn run(verb: VerifyArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let report = duly.verify().await?;
    print_report(setup, &report)?;
    if report.violations.is_empty() {
        return Ok(());
    }
    if report.damaged {
        let reason = "the file itself is damaged and cannot be repaired; stop all workers and restore a backup";
        return Err(CliError::new(exit::FAILURE, reason));
    }
    let violations = pluralize(report.violations.len() as u64, "violation", "violations");
    if !verb.repair {
        return Err(CliError::new(
            exit::FAILURE,
            format!("{violations}; --repair writes a backup and repairs what it can"),
        ));
    }
    if !setup.yes && !input::confirm(&format!("Repair {violations}?"))? {
        return Err(CliError::new(exit::FAILURE, "nothing was changed"));
    }
    let backup =
        verb.backup.unwrap_or_else(|| format!("duly-before-repair-{}.db", time::to_micros(time::now())).into());
    let repaired = audit::record_steps(&[&duly], "store.repair", &violations, duly.repair(&backup), || None).await?;
    setup.out.print_message(&format!("the backup of the store is in {}", backup.display()));
    let remaining = repaired.after.violations.len();
    if remaining > 0 {
        print_report(setup, &repaired.after)?;
        let remaining = pluralize(remaining as u64, "violation is", "violations are");
        return Err(CliError::new(
            exit::FAILURE,
            format!("{remaining} left; see their descriptions, or restore a backup"),
        ));
    }
    setup.out.print_message(&format!(
        "{} repaired",
        pluralize(repaired.before.violations.len() as u64, "violation was", "violations were")
    ));
    Ok(())
}

fn print_report(setup: &Setup, report: &VerifyReport) -> anyhow::Result<()> {
    let out = &setup.out;
    if out.is_json() {
        let json = json!({"jobs": report.jobs, "violations": report.violations, "damaged": report.damaged});
        return out.print_json(&json);
    }
    for violation in &report.violations {
        out.print_line(&escape_text(&violation.to_string()))?;
    }
    if report.violations.is_empty() {
        out.print_message(&match report.jobs {
            1 => "1 job checked, no violation".to_owned(),
            jobs => format!("{jobs} jobs checked, no violation"),
        });
    }
    Ok(())
}
