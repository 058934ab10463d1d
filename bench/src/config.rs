//! What every measurement shares: the no-op job, the directory of the files, how long and how often.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use duly::{Args, Ctx, Duly};
use serde::{Deserialize, Serialize};

/// Bytes of a job's args, as JSON text.
pub(crate) const ARGS_BYTES: usize = 200;
/// Jobs in one bulk push.
pub(crate) const BULK_JOBS: usize = 1_000;
/// Options of a store that forgets done jobs at once.
pub(crate) const KEEP_NONE: &str = "?keep=0";
/// Options of a store as it comes.
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

/// The args of a [`Noop`] as they stand in the file.
pub(crate) fn noop_args() -> String {
    format!(r#"{{"text":"{}"}}"#, Noop::new().text)
}

/// The handler of all measurements.
pub(crate) async fn noop(_job: Noop, _ctx: Ctx) {}

/// How and where to measure.
#[derive(Clone, Debug)]
pub(crate) struct BenchConfig {
    pub(crate) dir: PathBuf,
    /// A smoke run: everything once, small and short; its figures say little.
    pub(crate) is_quick: bool,
}

impl BenchConfig {
    pub(crate) fn round_count(&self) -> usize {
        if self.is_quick { 1 } else { 5 }
    }

    /// How long one side works in a round.
    pub(crate) fn round_duration(&self) -> Duration {
        Duration::from_millis(if self.is_quick { 300 } else { 2_000 })
    }

    /// How many jobs "many" are.
    pub(crate) fn many_jobs(&self) -> usize {
        if self.is_quick { 50_000 } else { 1_000_000 }
    }

    /// An empty directory of this name. What an earlier measurement left in it is gone.
    pub(crate) fn fresh_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }
}

/// Where duly finds its store in a file.
pub(crate) fn store_url(file: &Path, options: &str) -> String {
    format!("{}{options}", file.display())
}

/// Opens duly on a file with these options.
pub(crate) async fn open_store(file: &Path, options: &str) -> Result<Duly> {
    Ok(Duly::open(store_url(file, options)).await?)
}

/// Pushes so many jobs in bulk, each made by `job`.
pub(crate) async fn push_jobs(duly: &Duly, jobs: usize, job: impl Fn() -> duly::Push) -> Result<()> {
    for at in (0..jobs).step_by(BULK_JOBS) {
        duly.push_all((0..BULK_JOBS.min(jobs - at)).map(|_| job())).await?;
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
