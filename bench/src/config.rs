//! Shared by all measurements: the no-op job, the directory of the files, durations and rounds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use duly::{Args, Ctx, Duly};
use serde::{Deserialize, Serialize};

/// Bytes of a job's args, as JSON text.
pub(crate) const ARGS_BYTES: usize = 200;
/// Jobs in one bulk push.
pub(crate) const BULK_JOBS: usize = 1_000;
/// Options of a store that does not keep done jobs.
pub(crate) const KEEP_NONE: &str = "?keep=0";
/// The default options of a store.
pub(crate) const DEFAULTS: &str = "";

/// The job of all measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Noop {
    text: String,
}

impl Args for Noop {
    const KIND: &'static str = "noop";
}

impl Noop {
    pub(crate) fn new() -> Self {
        Noop { text: "x".repeat(ARGS_BYTES - r#"{"text":""}"#.len()) }
    }
}

/// Returns the args of a [`Noop`] as they are stored.
pub(crate) fn noop_args() -> String {
    format!(r#"{{"text":"{}"}}"#, Noop::new().text)
}

/// The handler of all measurements.
pub(crate) async fn noop(_job: Noop, _ctx: Ctx) {}

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct BenchConfig {
    pub(crate) dir: PathBuf,
    /// A smoke run: everything once, small and short; its figures are not meaningful.
    pub(crate) is_quick: bool,
}

impl BenchConfig {
    pub(crate) fn round_count(&self) -> usize {
        if self.is_quick { 1 } else { 5 }
    }

    /// Returns how long one side works in a round.
    pub(crate) fn round_duration(&self) -> Duration {
        Duration::from_millis(if self.is_quick { 300 } else { 2_000 })
    }

    /// Returns the number of jobs of a large store.
    pub(crate) fn many_jobs(&self) -> usize {
        if self.is_quick { 50_000 } else { 1_000_000 }
    }

    /// Creates an empty directory with this name; removes the files of earlier measurements.
    pub(crate) fn fresh_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }
}

/// Returns the URL of a store in a file.
pub(crate) fn store_url(file: &Path, options: &str) -> String {
    format!("{}{options}", file.display())
}

/// Opens duly on a file with these options.
pub(crate) async fn open_store(file: &Path, options: &str) -> Result<Duly> {
    Ok(Duly::open(store_url(file, options)).await?)
}

/// Pushes this many jobs in bulk, each created by `job`.
pub(crate) async fn push_jobs(duly: &Duly, jobs: usize, job: impl Fn() -> duly::Push) -> Result<()> {
    for pushed in (0..jobs).step_by(BULK_JOBS) {
        duly.push_all((0..BULK_JOBS.min(jobs - pushed)).map(|_| job())).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noop_args_have_args_bytes() {
        let pushed = serde_json::to_string(&Noop::new()).expect("a string is JSON");
        assert_eq!(pushed.len(), ARGS_BYTES);
        assert_eq!(pushed, noop_args());
    }
}
