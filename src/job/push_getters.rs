//! Reads the options of a job to be pushed, for middleware. The short names belong to the methods that set them.

use std::time::Duration;

use crate::job::push::{Due, Push};
use crate::job::{JobId, Priority, UniqueConflict, UniqueScope};

impl Push {
    /// Returns the id of the job.
    ///
    /// # Examples
    ///
    /// ```
    /// let id = duly::JobId::from_name("invoice:7");
    /// assert_eq!(duly::Push::new("mail", "{}").id(id).job_id(), id);
    /// ```
    #[must_use]
    pub fn job_id(&self) -> JobId {
        self.id
    }

    /// Returns the kind.
    ///
    /// # Examples
    ///
    /// ```
    /// fn is_internal(push: &duly::Push) -> bool {
    ///     push.job_kind().starts_with("internal.")
    /// }
    /// assert!(is_internal(&duly::Push::new("internal.cleanup", "{}")));
    /// ```
    #[must_use]
    pub fn job_kind(&self) -> &str {
        &self.kind
    }

    /// Returns the args as JSON text; `None` if they could not be written as JSON, which the push reports.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("mail", "[7]").job_args(), Some("[7]"));
    /// assert_eq!(duly::Push::new("mail", "no JSON").job_args(), None);
    /// ```
    #[must_use]
    pub fn job_args(&self) -> Option<&str> {
        self.args.as_deref().ok()
    }

    /// Returns the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// /// Keeps the jobs of a test system apart.
    /// fn prefix_queue(push: duly::Push) -> duly::Push {
    ///     let queue = format!("test.{}", push.job_queue());
    ///     push.queue(queue)
    /// }
    /// assert_eq!(prefix_queue(duly::Push::new("mail", "{}")).job_queue(), "test.default");
    /// ```
    #[must_use]
    pub fn job_queue(&self) -> &str {
        &self.queue
    }

    /// Returns the priority.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}");
    /// assert_eq!(push.job_priority(), duly::Priority::Normal);
    /// ```
    #[must_use]
    pub fn job_priority(&self) -> Priority {
        self.priority
    }

    /// Returns when the job is due.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Push, job::Due};
    ///
    /// let push = Push::new("mail", "{}").after(Duration::from_secs(60));
    /// assert_eq!(push.job_due(), Due::After(Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub fn job_due(&self) -> Due {
        self.due
    }

    /// Returns the unique key.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}").unique("welcome:ada");
    /// assert_eq!(push.job_unique(), Some("welcome:ada"));
    /// ```
    #[must_use]
    pub fn job_unique(&self) -> Option<&str> {
        self.unique.as_deref()
    }

    /// Returns the jobs among which the unique key is unique.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}").unique("welcome:ada");
    /// assert_eq!(push.job_unique_scope(), duly::job::UniqueScope::Kind);
    /// ```
    #[must_use]
    pub fn job_unique_scope(&self) -> UniqueScope {
        self.unique_scope
    }

    /// Returns how a push ends if an unfinished job with the same unique key exists.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}").unique("welcome:ada");
    /// assert_eq!(push.job_conflict(), duly::job::UniqueConflict::Keep);
    /// ```
    #[must_use]
    pub fn job_conflict(&self) -> UniqueConflict {
        self.conflict
    }

    /// Returns how many attempts may fail before the job is buried.
    ///
    /// # Examples
    ///
    /// ```
    /// /// Limits the attempts of every job that a program pushes.
    /// fn limit_attempts(push: duly::Push) -> duly::Push {
    ///     let attempts = push.job_max_attempts().min(5);
    ///     push.max_attempts(attempts)
    /// }
    /// assert_eq!(limit_attempts(duly::Push::new("mail", "{}")).job_max_attempts(), 5);
    /// ```
    #[must_use]
    pub fn job_max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Returns how long one attempt may run.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}");
    /// assert_eq!(push.job_timeout(), std::time::Duration::from_secs(3600));
    /// ```
    #[must_use]
    pub fn job_timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns how long the job is kept once it is done; `None` if the option of the store applies.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}");
    /// assert_eq!(push.job_keep(), None);
    /// ```
    #[must_use]
    pub fn job_keep(&self) -> Option<Duration> {
        self.keep
    }

    /// Returns the tags.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}").tag("welcome");
    /// assert!(push.job_tags().iter().any(|tag| tag == "welcome"));
    /// ```
    #[must_use]
    pub fn job_tags(&self) -> &[String] {
        &self.tags
    }

    /// Returns the W3C trace context.
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}");
    /// assert!(push.job_traceparent().is_none(), "a push inside a span may set it");
    /// ```
    #[must_use]
    pub fn job_traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }
}
