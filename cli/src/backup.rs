//! `duly backup`: copies the store into a new file.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::{Setup, store};

/// Write a copy of the store into a new SQLite file, while workers go on
///
/// Never over a file that is there, and never half a file under its name.
/// A copy of a server has every job that was there all the while; what was running is ready in it, and locks are not in it.
/// To use it, open it with --store, or bring what is in it to another store with `duly move`.
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
