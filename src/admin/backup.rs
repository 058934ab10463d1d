//! Backup and verify as programs see them: a copy of everything in one new file, and a look whether all is as it must be.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::{Fence, JobId, JobRecord, State};
use crate::node::NodeId;
use crate::store::{
    Filter, PAGE_SIZE_MAX, PutCron, Store, TRANSFER_BATCH_MAX, TransferBatch, TransferBatchResult, TransferCheckpoint,
    VerifyReport,
};

/// What became of a repair.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct RepairReport {
    /// What was found.
    pub before: VerifyReport,
    /// What is left: nothing, if all could be put right.
    pub after: VerifyReport,
}

impl Duly {
    /// Looks through the whole store and says what is not as it must be. Changes nothing; others may go on working.
    pub async fn verify(&self) -> Result<VerifyReport> {
        self.store.verify().await
    }

    /// Writes a backup to this file, then puts right what [`Duly::verify`] finds. If nothing is found nothing is written.
    ///
    /// No job is lost by it: one that may have run already is rather run again.
    pub async fn repair(&self, backup: impl AsRef<Path>) -> Result<RepairReport> {
        let found = self.store.verify().await?;
        if found.violations.is_empty() {
            return Ok(RepairReport { after: found.clone(), before: found });
        }
        self.backup(backup).await?;
        self.store.repair().await?;
        Ok(RepairReport { before: found, after: self.store.verify().await? })
    }

    /// Writes a copy of everything that is in the store into a new SQLite file, while everybody goes on working.
    ///
    /// The file has this name only once it is whole and on the disk, and one that is there already is never touched.
    /// To use it, open it; `duly move` brings what is in it to another store.
    /// Of a file it is the state at one moment. Of a server it has every job that was there all the while, in a state that it
    /// had meanwhile; what was running is ready in it, and locks are not in it.
    pub async fn backup(&self, file: impl AsRef<Path>) -> Result<()> {
        let file = file.as_ref();
        let partial = PartialFile::create_beside(file)?;
        match self.store.backup(&partial.path).await {
            Err(Error::Unsupported { .. }) => export_store(&*self.store, &partial.path, self.options.keep_dead).await?,
            written => written?,
        }
        partial.finish(file).map_err(|error| backup_error(file, &error))
    }
}

fn backup_error(file: &Path, error: &io::Error) -> Error {
    let shown = file.display();
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Conflict(format!("{shown} is there already; name a file that is not")),
        io::ErrorKind::NotFound => Error::invalid("file", format!("the directory of {shown} does not exist")),
        _ => Error::store("backup", format!("{shown}: {error}")),
    }
}

/// A file that is being written, under a name that nobody takes for a backup; gone with the value.
struct PartialFile {
    path: PathBuf,
}

impl PartialFile {
    fn create_beside(file: &Path) -> Result<Self> {
        let name = file.file_name().ok_or_else(|| Error::invalid("file", "names no file"))?;
        if fs::symlink_metadata(file).is_ok() {
            return Err(backup_error(file, &io::ErrorKind::AlreadyExists.into()));
        }
        let mut partial = name.to_owned();
        partial.push(format!(".partial-{}", NodeId::fresh()));
        let path = file.with_file_name(partial);
        // Empty, and nobody else's to read.
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path).map_err(|error| backup_error(file, &error))?;
        Ok(PartialFile { path })
    }

    /// On the disk first, then under its name: never over another file.
    fn finish(&self, file: &Path) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        fs::hard_link(&self.path, file)?;
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Whatever of it is there.
        let _ = fs::remove_file(&self.path);
        for end in ["-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(with_suffix(&self.path, end));
        }
        let _ = fs::remove_dir_all(with_suffix(&self.path, "-nodes"));
    }
}

fn with_suffix(path: &Path, end: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(end);
    PathBuf::from(text)
}

/// Everything of a store that cannot copy itself, job by job.
async fn export_store(from: &dyn Store, path: &Path, keep_dead: std::time::Duration) -> Result<()> {
    let to = crate::store::create_file_store(path).await?;
    for count in from.counts().await? {
        let mut queue =
            QueueExport { to: &*to, queue: count.queue, batch_number: 0, transfer_id: NodeId::fresh(), keep_dead };
        queue.copy_ready(from).await?;
        queue.copy_all(from).await?;
        queue.copy_cron_rules(from).await?;
        if count.paused {
            to.set_paused(&queue.queue, true).await?;
        }
        if !count.capacity.is_unlimited() {
            to.set_capacity(&queue.queue, count.capacity).await?;
        }
    }
    Ok(())
}

/// A queue on its way into a file.
struct QueueExport<'s> {
    to: &'s dyn Store,
    queue: String,
    batch_number: u64,
    transfer_id: NodeId,
    keep_dead: std::time::Duration,
}

impl QueueExport<'_> {
    /// Ready jobs first, in their order.
    async fn copy_ready(&mut self, from: &dyn Store) -> Result<()> {
        let mut filter = Filter {
            queue: Some(self.queue.clone()),
            state: Some(State::Ready),
            limit: PAGE_SIZE_MAX,
            with_details: true,
            ..Filter::default()
        };
        loop {
            let page = from.list(filter.clone()).await?;
            self.put_jobs(page.jobs).await?;
            match page.next_cursor {
                Some(next) => filter.cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Then every job; those that are in already are left out.
    async fn copy_all(&mut self, from: &dyn Store) -> Result<()> {
        let mut cursor = None;
        loop {
            let page = from.scan(&self.queue, cursor.as_deref()).await?;
            self.put_jobs(page.jobs).await?;
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return self.remove_checkpoint().await,
            }
        }
    }

    /// Its cron rules, each with the tick it is at.
    async fn copy_cron_rules(&self, from: &dyn Store) -> Result<()> {
        let mut cursor = None;
        loop {
            let page = match from.crons(Some(&self.queue), cursor.as_deref()).await {
                // It has none to tell of.
                Err(Error::Unsupported { .. }) => return Ok(()),
                page => page?,
            };
            for record in page.rules {
                // One that is told of twice has changed meanwhile: the newer stays.
                let was = self.to.cron(&record.rule.name).await?.map(|there| there.revision);
                if was.is_none_or(|was| was < record.revision) {
                    self.to.put_cron(PutCron { record, expected_revision: was }).await?;
                }
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn put_jobs(&mut self, mut jobs: Vec<JobRecord>) -> Result<()> {
        for record in jobs.iter_mut().filter(|record| record.state == State::Running) {
            (record.state, record.node, record.fence) = (State::Ready, None, None);
        }
        // One that is told of twice goes in once.
        let mut ids = std::collections::HashSet::new();
        jobs.retain(|record| ids.insert(record.job.id));
        while !jobs.is_empty() {
            let rest = jobs.split_off(jobs.len().min(TRANSFER_BATCH_MAX));
            let batch = std::mem::replace(&mut jobs, rest);
            if let TransferBatchResult::UniqueTaken(ids) = self.put_batch(batch.clone()).await? {
                self.put_batch(without_unique_keys(batch, &ids)).await?;
            }
        }
        Ok(())
    }

    /// Takes the marker away.
    async fn remove_checkpoint(&self) -> Result<()> {
        if self.batch_number > 0 {
            self.send_batch(Vec::new(), Some(self.batch_number.to_string()), None).await?;
        }
        Ok(())
    }

    async fn put_batch(&mut self, jobs: Vec<JobRecord>) -> Result<TransferBatchResult> {
        let was = (self.batch_number > 0).then(|| self.batch_number.to_string());
        let is = Some((self.batch_number + 1).to_string());
        let moved = self.send_batch(jobs, was, is).await?;
        if matches!(moved, TransferBatchResult::Applied { .. }) {
            self.batch_number += 1;
        }
        Ok(moved)
    }

    async fn send_batch(
        &self,
        jobs: Vec<JobRecord>,
        was: Option<String>,
        is: Option<String>,
    ) -> Result<TransferBatchResult> {
        let marker = TransferCheckpoint { begun_by: self.transfer_id, expected: was, replacement: is };
        let jobs: Arc<[JobRecord]> = jobs.into();
        let (queue, keep_dead) = (self.queue.clone(), self.keep_dead);
        self.to.transfer_in(TransferBatch { queue, jobs, checkpoint: marker, fence_floor: Fence(0), keep_dead }).await
    }
}

/// Two unfinished jobs with one key were never there at once: the first has ended since it was read.
fn without_unique_keys(mut jobs: Vec<JobRecord>, ids: &[JobId]) -> Vec<JobRecord> {
    for record in jobs.iter_mut().filter(|record| ids.contains(&record.job.id)) {
        record.job.unique = None;
    }
    jobs
}
