//! `duly backup`: copies the store into a new file.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::{Setup, store};

/// Write a copy of the store to a new SQLite file, even while workers run
///
/// Never overwrites a file, and the file appears only when it is complete.
/// The copy of a server has every job that existed throughout. Running jobs are ready in it, and locks are not included.
/// To use it, open it with --store, or move its jobs to another store with `duly move`, which empties the copy.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The new file
    file: PathBuf,
}

pub(crate) async fn run(verb: BackupArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    duly.backup(&verb.file).await?;
    let bytes = std::fs::metadata(&verb.file).map_or(0, |file| file.len());
    if setup.out.is_json() {
        return setup.out.print_json(&json!({"file": verb.file, "bytes": bytes}));
    }
    setup.out.print_message(&format!("{}: {bytes} bytes", verb.file.display()));
    Ok(())
}
