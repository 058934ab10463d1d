//! The store file of the demo, removed at the end unless the user named it.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use anyhow::Context as _;
use duly::admin::StoreUrl;

use crate::exit::{self, CliError};

pub(super) struct DemoStoreFile {
    url: String,
    /// Removed with its contents at the end.
    dir: Option<PathBuf>,
}

impl DemoStoreFile {
    /// Uses the named file, which must not exist, or a fresh one.
    pub(super) fn new(named: Option<&str>) -> anyhow::Result<DemoStoreFile> {
        if let Some(url) = named {
            let store = StoreUrl::parse(url)?;
            let not_a_file =
                || CliError::new(exit::USAGE, "store: the demo needs a file that does not exist yet; name one");
            let file = store.file().ok_or_else(not_a_file)?;
            if file.exists() {
                let reason = format!("{} exists already; name a file that does not exist yet", file.display());
                return Err(CliError::new(exit::CONFLICT, reason));
            }
            return Ok(DemoStoreFile { url: url.to_owned(), dir: None });
        }
        // Only this user may read the directory.
        let dir = std::env::temp_dir().join(format!("duly-demo-{}", duly::NodeId::fresh()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let url = dir.join("demo.db").to_str().map(str::to_owned);
        let url = url.context("the directory for temporary files is not UTF-8 text; name a file with --store")?;
        Ok(DemoStoreFile { url, dir: Some(dir) })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn describe(&self) -> String {
        let fate = if self.dir.is_some() { "removed at the end" } else { "stays" };
        format!("store {} ({fate})", self.url)
    }
}

impl Drop for DemoStoreFile {
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}
