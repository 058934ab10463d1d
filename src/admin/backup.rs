//! Backup and verification: a copy of everything in a new file, and a check of all invariants.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::client::Duly;
use crate::cron::plan_ticks_again;
use crate::error::{ConflictKind, Error, Result};
use crate::job::{Fence, JobId, JobRecord, State};
use crate::node::NodeId;
use crate::store::contract;
use crate::store::{
    AdminStore, CronStore, Filter, Invariant, JobStore, MaintenanceStore, PAGE_SIZE_MAX, PutCron, ScanStore,
    SnapshotStore, Store, TRANSFER_BATCH_MAX, TransferBatch, TransferBatchResult, TransferCheckpoint, TransferStore,
    VerifyReport,
};

/// The result of a repair.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct RepairReport {
    /// The violations before the repair.
    pub before: VerifyReport,
    /// The remaining violations: none if everything was repaired.
    pub after: VerifyReport,
}

impl Duly {
    /// Checks the invariants of the whole store. Changes nothing, and other programs can keep working.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the store uses the keys of another system.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let report = duly.verify().await?;
    /// assert!(report.violations.is_empty(), "{:?}", report.violations);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify(&self) -> Result<VerifyReport> {
        let mut report = self.store.verify().await?;
        for record in self.crons().delayed().await? {
            let (name, queue) = (&record.rule.name, Some(record.rule.queue.clone()));
            let details = format!("cron rule {name} waits too long: its tick was planned while the clock was ahead");
            report.add_violation(Invariant::CronTicks, queue, None, details);
        }
        Ok(report)
    }

    /// Writes a backup to this file, then repairs the violations that [`Duly::verify`] finds. If there are none, writes
    /// and changes nothing.
    ///
    /// No job is lost. A job that may have run already runs again.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Duly::backup`]. Nothing is repaired without a backup.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let report = duly.repair("before-repair.db").await?;
    /// assert!(report.after.violations.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn repair(&self, backup: impl AsRef<Path>) -> Result<RepairReport> {
        let before = self.verify().await?;
        if before.violations.is_empty() {
            return Ok(RepairReport { after: before.clone(), before });
        }
        self.backup(backup).await?;
        self.store.repair().await?;
        let queues: BTreeSet<String> =
            self.crons().delayed().await?.into_iter().map(|record| record.rule.queue).collect();
        for queue in queues {
            plan_ticks_again(&*self.store, &queue, self.store.now()).await?;
        }
        Ok(RepairReport { before, after: self.verify().await? })
    }

    /// Writes a copy of the whole store to a new SQLite file while other programs keep working.
    ///
    /// The file gets this name only once it is complete and synced; an existing file is never overwritten. To use the
    /// backup, open it, or move its jobs to another store with `duly move`, which empties the backup.
    ///
    /// The backup of a SQLite file is a snapshot of one moment. The backup of a server contains every job that existed
    /// from its start to its end, in a state that the job had during that time. Running jobs are ready in the backup,
    /// or cancelled if they were cancelled while they ran. It does not contain locks.
    ///
    /// # Errors
    ///
    /// - [`Error::Conflict`]: the file exists already.
    /// - [`Error::Invalid`]: the path is not that of a file, or its directory does not exist.
    /// - [`Error::Unsupported`]: the store uses the keys of another system.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let duly = Duly::open_file(dir.path().join("duly.db")).await?;
    /// let copy = dir.path().join("backup.db");
    /// duly.backup(&copy).await?;
    /// assert!(copy.exists());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn backup(&self, file: impl AsRef<Path>) -> Result<()> {
        let file = file.as_ref();
        let capabilities = self.store.capabilities();
        if capabilities.snapshot.is_none() && capabilities.scan.is_none() {
            return Err(contract::unsupported(&*self.store, "backups"));
        }
        let partial = PartialFile::create_beside(file)?;
        match capabilities.snapshot {
            Some(_) => self.store.backup(&partial.path).await?,
            None => export_store(&*self.store, &partial.path, self.options.keep_dead).await?,
        }
        partial.finish(file).map_err(|error| backup_error(file, &error))
    }
}

fn backup_error(file: &Path, error: &io::Error) -> Error {
    let shown = file.display();
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::conflict(ConflictKind::Exists, format!("{shown} already exists; choose another name"))
        }
        io::ErrorKind::NotFound => {
            Error::invalid("file", format!("the directory of {shown} does not exist; create it first"))
        }
        _ => Error::store("backup", format!("{shown}: {error}; choose a file in a writable directory with free space")),
    }
}

/// A file being written under a temporary name; deleted when the value is dropped.
struct PartialFile {
    path: PathBuf,
}

impl PartialFile {
    fn create_beside(file: &Path) -> Result<Self> {
        let name = file.file_name().ok_or_else(|| Error::invalid("file", "must be the path of a file"))?;
        if fs::symlink_metadata(file).is_ok() {
            return Err(backup_error(file, &io::ErrorKind::AlreadyExists.into()));
        }
        let mut partial = name.to_owned();
        partial.push(format!(".partial-{}", NodeId::fresh()));
        let path = file.with_file_name(partial);
        // Readable only by the owner.
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path).map_err(|error| backup_error(file, &error))?;
        Ok(PartialFile { path })
    }

    /// Syncs the file, then links it under its final name. Never replaces another file.
    fn finish(&self, file: &Path) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        fs::hard_link(&self.path, file)?;
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Some of these files may not exist.
        let _ = fs::remove_file(&self.path);
        for suffix in ["-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(with_suffix(&self.path, suffix));
        }
        let _ = fs::remove_dir_all(with_suffix(&self.path, "-nodes"));
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    PathBuf::from(text)
}

/// Copies a store that cannot copy itself, job by job.
async fn export_store(from: &dyn Store, path: &Path, keep_dead: std::time::Duration) -> Result<()> {
    let to = crate::store::create_file_store(path).await?;
    for count in from.counts().await? {
        let mut queue =
            QueueExport { to: &*to, queue: count.queue, batch_number: 0, begun_by: NodeId::fresh(), keep_dead };
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

/// The export of one queue into a file.
struct QueueExport<'s> {
    to: &'s dyn Store,
    queue: String,
    batch_number: u64,
    begun_by: NodeId,
    keep_dead: std::time::Duration,
}

impl QueueExport<'_> {
    /// Copies the ready jobs in order. They go first, so that the copy keeps their order.
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
            self.put_jobs(page.jobs, from.now()).await?;
            match page.next_cursor {
                Some(next) => filter.cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Copies every job; those already copied are skipped.
    async fn copy_all(&mut self, from: &dyn Store) -> Result<()> {
        let mut cursor = None;
        loop {
            let page = from.scan(&self.queue, cursor.as_deref()).await?;
            self.put_jobs(page.jobs, from.now()).await?;
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return self.remove_checkpoint().await,
            }
        }
    }

    /// Copies the cron rules, each with its next tick.
    async fn copy_cron_rules(&self, from: &dyn Store) -> Result<()> {
        if from.capabilities().crons.is_none() {
            return Ok(());
        }
        let mut cursor = None;
        loop {
            let page = from.crons(Some(&self.queue), cursor.as_deref()).await?;
            for record in page.rules {
                // A rule that appears twice has changed meanwhile; the newer one stays.
                let copied = self.to.cron(&record.rule.name).await?.map(|copy| copy.revision);
                if copied.is_none_or(|copied| copied < record.revision) {
                    self.to.put_cron(PutCron { record, expected_revision: copied }).await?;
                }
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn put_jobs(&mut self, mut jobs: Vec<JobRecord>, now: SystemTime) -> Result<()> {
        jobs.iter_mut().filter(|record| record.state == State::Running).for_each(|record| end_claim(record, now));
        // A job that appears twice is added once.
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

    /// Removes the checkpoint.
    async fn remove_checkpoint(&self) -> Result<()> {
        if self.batch_number > 0 {
            self.send_batch(Vec::new(), Some(self.batch_number.to_string()), None).await?;
        }
        Ok(())
    }

    async fn put_batch(&mut self, jobs: Vec<JobRecord>) -> Result<TransferBatchResult> {
        let expected = (self.batch_number > 0).then(|| self.batch_number.to_string());
        let replacement = Some((self.batch_number + 1).to_string());
        let result = self.send_batch(jobs, expected, replacement).await?;
        if matches!(result, TransferBatchResult::Applied { .. }) {
            self.batch_number += 1;
        }
        Ok(result)
    }

    async fn send_batch(
        &self,
        jobs: Vec<JobRecord>,
        expected: Option<String>,
        replacement: Option<String>,
    ) -> Result<TransferBatchResult> {
        let checkpoint = TransferCheckpoint { begun_by: self.begun_by, expected, replacement };
        let jobs: Arc<[JobRecord]> = jobs.into();
        let (queue, keep_dead) = (self.queue.clone(), self.keep_dead);
        self.to.transfer_in(TransferBatch { queue, jobs, checkpoint, fence_floor: Fence(0), keep_dead }).await
    }
}

/// Ends the claim of a running job, as if its node had died: it is ready again, or cancelled if it was marked.
fn end_claim(record: &mut JobRecord, now: SystemTime) {
    (record.node, record.fence) = (None, None);
    match std::mem::take(&mut record.cancelling) {
        true => (record.state, record.ended) = (State::Cancelled, Some(now)),
        false => record.state = State::Ready,
    }
}

/// Removes unique keys. Two unfinished jobs never had one key at once: the first has ended since it was read.
fn without_unique_keys(mut jobs: Vec<JobRecord>, ids: &[JobId]) -> Vec<JobRecord> {
    for record in jobs.iter_mut().filter(|record| ids.contains(&record.job.id)) {
        record.job.unique = None;
    }
    jobs
}
