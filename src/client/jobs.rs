//! Jobs in the store: reading, waiting, changing, cancelling. `admin` adds bulk changes, and the reason why a job waits.

use crate::client::Duly;
use crate::error::{ConflictKind, Error, Result};
use crate::job::push::{Due, check_args, check_name};
use crate::job::{JobId, JobRecord, State};
use crate::store::{
    AdminStore, CancelReply, CancelResult, ChangeResult, DeadGroup, Filter, JobEdit, JobPage, JobStore,
};

/// The jobs in a store, from [`Duly::jobs`].
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let id = duly.push(Push::new("mail", "{}")).await?.id();
/// assert!(duly.jobs().get(id).await?.is_some());
/// duly.jobs().remove(id).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Jobs<'d> {
    pub(crate) duly: &'d Duly,
}

impl Duly {
    /// Returns a handle to the jobs in the store: read, list, change, cancel and remove them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// duly.jobs().remove(id).await?;
    /// assert!(duly.jobs().get(id).await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs { duly: self }
    }

    /// Checks a filter and resolves its relative times.
    pub(crate) fn resolve_filter(&self, filter: &Filter) -> Result<Filter> {
        if let Some(queue) = &filter.queue {
            check_name("queue", queue)?;
        }
        filter.check_order()?;
        Ok(filter.clone().resolve_times(self.store.now()))
    }
}

impl Jobs<'_> {
    /// Returns one job with its runs, progress, log and result.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`] if the store cannot be reached. A missing job is not an error.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push, State};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// let record = duly.jobs().get(id).await?.expect("is in the store");
    /// assert_eq!(record.state, State::Ready);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(self, id: JobId) -> Result<Option<JobRecord>> {
        self.duly.store.get(id).await
    }

    /// Parses the id of a job: a UUID. On Sidekiq's keys, also the jid that Ruby gave it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the text is not an id of a job in this store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// assert!(duly.jobs().parse_id("0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c11").is_ok());
    /// // This one needs a store on Sidekiq's keys.
    /// assert!(duly.jobs().parse_id("0123456789abcdef01234567").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn parse_id(self, text: &str) -> Result<JobId> {
        self.duly.store.parse_job_id(text)
    }

    /// Waits until a job is done, dead or cancelled, and returns it. Returns `None` if the job is not in the store:
    /// it was never pushed, was removed, or is done and not kept.
    ///
    /// Waiting does not poll: the store notifies this process of completed jobs, once for all its callers that wait.
    /// On stores that use another system's keys, the process polls each awaited job every 250 ms or less often.
    /// To limit the time, use `tokio::time::timeout`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`] if the store cannot be reached when the wait begins or when the job ends. The wait can be
    /// repeated: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push, State};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// let worker = duly.worker().on_kind("mail", |_: Ctx| async {}).drain();
    /// let (record, _) = tokio::try_join!(duly.jobs().wait(id), worker)?;
    /// assert_eq!(record.expect("is kept for a day").state, State::Done);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(self, id: JobId) -> Result<Option<JobRecord>> {
        self.duly.peers()?.wait_for_completion(id).await
    }

    /// Returns a page of jobs.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the filter or its cursor is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}").queue("mail")).await?;
    /// let page = duly.jobs().list("queue:mail state:ready".parse()?).await?;
    /// assert_eq!(page.jobs.len(), 1);
    /// assert!(page.next_cursor.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(self, filter: Filter) -> Result<JobPage> {
        self.duly.list_page(self.duly.resolve_filter(&filter)?).await
    }

    /// Changes args or priority of a job that is not running.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: the store has no such job.
    /// - [`Error::Conflict`]: the job is running, has just changed, or its queue is moving to another store.
    /// - [`Error::Invalid`]: the new args are not JSON, or too long.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Priority, Push, admin::JobEdit};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// duly.jobs().edit(id, JobEdit::new().args(r#"{"to":"ada"}"#.to_owned()).priority(Priority::High)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn edit(self, id: JobId, edit: JobEdit) -> Result<()> {
        if let Some(args) = &edit.args {
            check_args(args)?;
        }
        check_change(id, self.duly.store.edit(id, edit).await?)
    }

    /// Gives a job that is not running a new due time. A dead or cancelled job starts over and keeps its history.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: the store has no such job.
    /// - [`Error::Conflict`]: the job is running, has just changed, or its queue is moving to another store.
    ///   The unique key of the job may also belong to another job now.
    /// - [`Error::Invalid`]: the due time is too late.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Duly, Push, job::Due};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// duly.jobs().reschedule(id, Due::After(Duration::from_secs(60))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reschedule(self, id: JobId, due: Due) -> Result<()> {
        due.check()?;
        check_change(id, self.duly.store.reschedule(id, due).await?)
    }

    /// Deletes a job that is not running.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: the store has no such job.
    /// - [`Error::Conflict`]: the job is running, has just changed, or its queue is moving to another store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// duly.jobs().remove(id).await?;
    /// assert!(duly.jobs().get(id).await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove(self, id: JobId) -> Result<()> {
        check_change(id, self.duly.store.remove(id).await?)
    }

    /// Cancels a job: it does not run again. The job may wait or run, on any node.
    ///
    /// A job that waits ends at once, in the state [`State::Cancelled`]; the result is [`CancelResult::Cancelled`].
    /// A running job is marked in the store; the result is [`CancelResult::Cancelling`]. Its handler is notified
    /// immediately ([`Ctx::cancelled`](crate::Ctx::cancelled)) and has a few seconds to end. If the handler still
    /// succeeds, the job is done. Otherwise the job ends in the state cancelled, even if its node dies first.
    ///
    /// Cancelling a job again changes nothing. For a job that is done or dead, the result is [`CancelResult::Ended`].
    /// A cancelled job is kept as long as a dead one, and [`Jobs::reschedule`] lets it run after all.
    ///
    /// On the keys of another system, only a running job can be cancelled; it ends dead, and is retried if its node dies
    /// first.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: the store has no such job.
    /// - [`Error::Conflict`]: the queue of the job is moving to another store.
    /// - [`Error::Unsupported`]: the job waits on the keys of another system.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push, State, admin::CancelResult};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// match duly.jobs().cancel(id).await? {
    ///     CancelResult::Cancelled => println!("it does not run"),
    ///     CancelResult::Cancelling { node } => println!("it still runs on {node}, which has been notified"),
    ///     CancelResult::Ended(state) => println!("it was {state} before"),
    ///     other => println!("{other:?}"),
    /// }
    /// assert_eq!(duly.jobs().get(id).await?.expect("is kept").state, State::Cancelled);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel(self, id: JobId) -> Result<CancelResult> {
        let store = &self.duly.store;
        if store.capabilities().admin.is_none() {
            return self.cancel_on_foreign_keys(id).await;
        }
        match store.cancel(id, self.duly.options.keep_dead).await? {
            CancelReply::Cancelled => Ok(CancelResult::Cancelled),
            CancelReply::Cancelling(node) => Ok(CancelResult::Cancelling { node }),
            CancelReply::Ended(state) => Ok(CancelResult::Ended(state)),
            CancelReply::NotFound => Err(Error::not_found("job", id)),
            CancelReply::Moving => Err(moving_error(id)),
        }
    }

    /// Cancels a running job on a store that cannot mark it: its node buries it.
    async fn cancel_on_foreign_keys(self, id: JobId) -> Result<CancelResult> {
        let record = self.get(id).await?.ok_or_else(|| Error::not_found("job", id))?;
        let node = match (record.state, record.node) {
            (State::Running, Some(node)) => node,
            (state, _) if state.is_final() => return Ok(CancelResult::Ended(state)),
            (State::Running, None) => {
                let (store, capability) = (self.duly.store.name(), "cancelling jobs that no node of duly runs");
                return Err(Error::Unsupported { store, capability, advice: "stop it in the program that runs it" });
            }
            (_, _) => {
                let (store, capability) = (self.duly.store.name(), "cancelling jobs that wait");
                return Err(Error::Unsupported { store, capability, advice: "remove the job instead" });
            }
        };
        match self.duly.call("duly.cancel", &serde_json::json!({ "id": id })).node(node).reply::<bool>().await {
            Ok(true) => Ok(CancelResult::Cancelling { node }),
            Ok(false) => Err(Error::conflict(
                ConflictKind::Changed,
                format!("job {id} has just ended on node {node}; read it again to see how"),
            )),
            Err(Error::NotFound { .. }) => Err(Error::conflict(
                ConflictKind::Unresponsive,
                format!(
                    "node {node} runs job {id} but does not respond; cancel again shortly: if the node is dead, another one takes the job over"
                ),
            )),
            Err(error) => Err(error),
        }
    }

    /// Returns the dead jobs of one queue, or of all, grouped by kind and error, the largest groups first.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the name of the queue is invalid.
    /// - [`Error::Unsupported`]: the store uses the keys of another system.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Filter, job::Due};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// for group in duly.jobs().dead_groups(Some("mail")).await? {
    ///     println!("{} x {}: {}", group.count, group.kind, group.error);
    ///     duly.jobs().reschedule_all(Filter::all().group(group.id), Due::Now).run().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dead_groups(self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        if let Some(queue) = queue {
            check_name("queue", queue)?;
        }
        self.duly.store.dead_groups(queue).await
    }
}

fn moving_error(id: JobId) -> Error {
    Error::conflict(
        ConflictKind::Moving,
        format!(
            "the queue of job {id} is moving to another store; wait until that is complete, then look for the job there"
        ),
    )
}

/// Converts the result of a change, with the kind of conflict that a caller can decide by.
fn check_change(id: JobId, result: ChangeResult) -> Result<()> {
    match result {
        ChangeResult::Applied => Ok(()),
        ChangeResult::NotFound => Err(Error::not_found("job", id)),
        ChangeResult::Running => Err(Error::conflict(
            ConflictKind::Running,
            format!("job {id} is running; wait until its attempt has ended"),
        )),
        ChangeResult::Moving => Err(moving_error(id)),
        ChangeResult::Changed => {
            Err(Error::conflict(ConflictKind::Changed, format!("job {id} has just changed its state; read it again")))
        }
        ChangeResult::Unreadable => Err(Error::conflict(
            ConflictKind::Corrupted,
            format!("job {id} is corrupted (checksum mismatch); push it again and remove this one"),
        )),
        ChangeResult::Existing(other) => Err(Error::conflict(
            ConflictKind::UniqueKeyTaken,
            format!(
                "the unique key of job {id} belongs to job {other} now; try again when that job has ended, or remove it"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refused_change_has_its_kind_of_conflict() {
        let id = JobId::from_name("job");
        let kind = |result| match check_change(id, result) {
            Err(Error::Conflict { kind, reason }) => {
                assert!(reason.contains(&id.to_string()) && reason.contains("; "), "no remedy: {reason}");
                Some(kind)
            }
            _ => None,
        };
        assert_eq!(kind(ChangeResult::Running), Some(ConflictKind::Running));
        assert_eq!(kind(ChangeResult::Moving), Some(ConflictKind::Moving));
        assert_eq!(kind(ChangeResult::Changed), Some(ConflictKind::Changed));
        assert_eq!(kind(ChangeResult::Unreadable), Some(ConflictKind::Corrupted));
        assert_eq!(kind(ChangeResult::Existing(id)), Some(ConflictKind::UniqueKeyTaken));
        assert_eq!(kind(ChangeResult::Applied), None);
        assert_eq!(kind(ChangeResult::NotFound), None);
    }
}
