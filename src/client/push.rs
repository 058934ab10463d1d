//! Pushing jobs: one, many, or inside a transaction of the caller.

use tracing::Instrument;

use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::push::{PUSH_BYTES_MAX, PUSH_MAX, Push, PushResult};
use crate::store::JobStore;
use crate::worker::middleware::{AfterPush, before_push};

impl Duly {
    /// Pushes one job. Once this returns, the job is stored durably.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the job is invalid; nothing was pushed.
    /// - [`Error::Full`]: the queue has reached its capacity; nothing was pushed.
    /// - [`Error::Unknown`]: the job may have been pushed. Repeat the push with the same [id](Push::id).
    /// - [`Error::Store`]: the store refused the request or could not be reached; nothing was pushed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl duly::Args for Mail { const KIND: &'static str = "mail"; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let pushed = duly.push(Mail { to: "ada".into() }).await?;
    /// let record = duly.jobs().get(pushed.id()).await?.expect("is in the store");
    /// assert_eq!(record.job.kind, "mail");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn push(&self, job: impl Into<Push>) -> Result<PushResult> {
        let mut pushed = self.push_all([job]).await?;
        pushed.pop().ok_or_else(|| Error::store("push", "the store returned no result; please report this as a bug"))
    }

    /// Pushes many jobs in one call. Each has its own queue and due time. Per queue, either all jobs are pushed or none.
    ///
    /// Returns the results in the order of the jobs.
    ///
    /// On a server, a push to several queues can fail after some of them succeeded. The error is then
    /// [`Unknown`](Error::Unknown); pushing all jobs again with the same ids pushes only the missing ones.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Duly::push`]. [`Error::Invalid`] also means that there are more than
    /// [`PUSH_MAX`](crate::bounds::PUSH_MAX) jobs, or more bytes of args than
    /// [`PUSH_BYTES_MAX`](crate::bounds::PUSH_BYTES_MAX).
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let mails = ["ada", "bob"].map(|to| Push::new("mail", format!("{{\"to\":\"{to}\"}}")).queue("mail"));
    /// let pushed = duly.push_all(mails).await?;
    /// assert!(pushed.iter().all(|result| result.is_new()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn push_all<P: Into<Push>>(&self, jobs: impl IntoIterator<Item = P>) -> Result<Vec<PushResult>> {
        let span = push_span();
        let jobs = span.in_scope(|| self.prepare_jobs(jobs)).inspect_err(|error| record_failure(&span, error))?;
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        describe_push(&span, &jobs);
        let after_push = AfterPush::new(&self.middleware, &jobs);
        let pushed = self.store.push(jobs).instrument(span.clone()).await;
        let pushed = pushed.inspect_err(|error| record_failure(&span, error))?;
        after_push.run(&pushed);
        Ok(pushed)
    }

    /// Checks jobs and fills in defaults.
    pub(super) fn prepare_jobs<P: Into<Push>>(&self, jobs: impl IntoIterator<Item = P>) -> Result<Vec<Push>> {
        let mut prepared = Vec::new();
        let mut bytes = 0;
        for job in jobs {
            if prepared.len() == PUSH_MAX {
                return Err(Error::invalid(
                    "jobs",
                    format!("at most {PUSH_MAX} in one push; split them into several pushes"),
                ));
            }
            let mut job: Push = job.into();
            #[cfg(feature = "otel")]
            if job.traceparent.is_none() {
                job.traceparent = crate::otel::current_traceparent();
            }
            job = before_push(&self.middleware, job)?;
            job.check()?;
            bytes += job.args.as_ref().map_or(0, String::len);
            if bytes > PUSH_BYTES_MAX {
                return Err(Error::invalid(
                    "jobs",
                    format!("their args have more than {PUSH_BYTES_MAX} bytes; split them into several pushes"),
                ));
            }
            job.keep = Some(job.keep.unwrap_or(self.options.keep));
            job.scope_unique_key();
            prepared.push(job);
        }
        Ok(prepared)
    }
}

/// Returns the span of a push; without the feature `otel` there is none.
pub(super) fn push_span() -> tracing::Span {
    #[cfg(feature = "otel")]
    return crate::otel::push_span();
    #[cfg(not(feature = "otel"))]
    tracing::Span::none()
}

/// Returns whether a push continues the trace of the current span.
pub(crate) fn has_current_trace() -> bool {
    #[cfg(feature = "otel")]
    return crate::otel::current_traceparent().is_some();
    #[cfg(not(feature = "otel"))]
    false
}

/// Adds to the span of a push where its jobs go.
pub(super) fn describe_push(span: &tracing::Span, jobs: &[Push]) {
    if span.is_disabled() {
        return;
    }
    match jobs {
        [job] => {
            span.record("messaging.message.id", tracing::field::display(&job.id));
        }
        jobs => {
            span.record("messaging.batch.message_count", jobs.len());
        }
    }
    let queue = jobs.first().map(|job| job.queue.as_str());
    match queue.filter(|queue| jobs.iter().all(|job| job.queue == *queue)) {
        Some(queue) => span.record("messaging.destination.name", queue).record("otel.name", format!("send {queue}")),
        None => span.record("otel.name", "send"),
    };
}

pub(super) fn record_failure(span: &tracing::Span, error: &Error) {
    span.record("otel.status_code", "ERROR").record("otel.status_description", tracing::field::display(error));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;
    use crate::store::faulty::{FaultyStore, InjectedFault};

    #[tokio::test]
    async fn repeated_push_after_lost_reply_changes_nothing() {
        let mut duly = Duly::open(":memory:").await.expect("opens");
        let faulty = FaultyStore::new(duly.store());
        duly.store = faulty.clone();
        let id = JobId::from_name("invoice:7");
        let push = async || duly.push(Push::new("mail", "{}").id(id)).await;
        faulty.inject("push", InjectedFault::LoseReply, 1);
        assert_eq!(push().await.expect_err("the reply is lost").code(), "unknown");
        assert_eq!(push().await.expect("pushes"), PushResult::Existing(id));
        let counts = duly.queues().counts().await.expect("counts");
        assert_eq!(counts.iter().map(|queue| queue.ready).sum::<u64>(), 1);
    }
}
