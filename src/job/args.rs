//! The args of a job: any type that serde can write and read, with the name of its kind.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::push::{Due, Push};
use super::unique::{UniqueConflict, UniqueScope};
use super::{JobId, Priority};

/// The args of one kind of job.
///
/// A value can be pushed as it is; [`PushExt`] adds options to it.
///
/// # Examples
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize)]
/// struct Resize { image: u64, width: u32 }
///
/// impl duly::Args for Resize {
///     const KIND: &'static str = "resize";
/// }
/// ```
pub trait Args: Serialize + DeserializeOwned + Send + 'static {
    /// The kind of the jobs that have these args.
    const KIND: &'static str;

    /// Sets the options that every push of these args has, unless the push sets others.
    ///
    /// They are part of the program that pushes: jobs of this kind that [`Push::new`], the command line or the HTTP API
    /// pushes do not have them. A cron rule that is stored with these args takes them over, except for the id, the due
    /// time, the unique key and the trace context, which each tick sets itself.
    ///
    /// A push unsets them with [`Push::no_unique`], [`Push::now`] and [`Push::no_tags`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Args, Duly, Push, PushExt};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Invoice { customer: u64 }
    ///
    /// impl Args for Invoice {
    ///     const KIND: &'static str = "invoice";
    ///
    ///     fn defaults(&self, push: Push) -> Push {
    ///         push.queue("billing").max_attempts(5).timeout(Duration::from_secs(60)).tag("money")
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Invoice { customer: 7 }.max_attempts(3)).await?.id();
    /// let job = duly.jobs().get(id).await?.expect("is in the store").job;
    /// assert_eq!((job.queue.as_str(), job.max_attempts), ("billing", 3));
    /// # Ok(())
    /// # }
    /// ```
    fn defaults(&self, push: Push) -> Push {
        push
    }
}

/// Options of a push, set directly on the args.
///
/// Each method turns the args into a [`Push`] with one option set; further options are methods of [`Push`].
/// If a type has methods of the same names, use `Push::from(args)` instead of importing this trait.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use duly::{Args, Priority, PushExt};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Resize { image: u64, width: u32 }
/// # impl Args for Resize { const KIND: &'static str = "resize"; }
///
/// let later = Resize { image: 7, width: 640 }.after(Duration::from_secs(60)).tag("thumbnail");
/// let urgent = Resize { image: 8, width: 640 }.priority(Priority::High).queue("images");
/// let once = Resize { image: 9, width: 640 }.unique("image:9").max_attempts(3);
/// ```
pub trait PushExt: Args + Sized {
    /// Makes the job due after this delay.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let reminder = Mail { user: 7 }.after(std::time::Duration::from_secs(24 * 3600));
    /// ```
    fn after(self, delay: Duration) -> Push {
        Push::from(self).after(delay)
    }
    /// Makes the job due at this time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let midnight = std::time::UNIX_EPOCH + std::time::Duration::from_secs(4_102_444_800);
    /// let greeting = Mail { user: 7 }.at(midnight);
    /// ```
    fn at(self, time: SystemTime) -> Push {
        Push::from(self).at(time)
    }
    /// Puts the job into this queue.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// assert_eq!(Mail { user: 7 }.queue("newsletter").job_queue(), "newsletter");
    /// ```
    fn queue(self, queue: impl Into<String>) -> Push {
        Push::from(self).queue(queue)
    }
    /// Sets the priority among ready jobs of the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let password_reset = Mail { user: 7 }.priority(duly::Priority::High);
    /// ```
    fn priority(self, priority: Priority) -> Push {
        Push::from(self).priority(priority)
    }
    /// Pushes only if no unfinished job of the same kind and queue has this key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let mail = Mail { user: 7 };
    /// let key = format!("welcome:{}", mail.user);
    /// let push = mail.unique(key);
    /// ```
    fn unique(self, key: impl Into<String>) -> Push {
        Push::from(self).unique(key)
    }
    /// Sets whether jobs of other kinds may have the same unique key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// use duly::job::UniqueScope;
    ///
    /// // A job of any kind in this queue with the key `user:7` prevents this push.
    /// let push = Mail { user: 7 }.unique_scope(UniqueScope::Queue).unique("user:7");
    /// ```
    fn unique_scope(self, scope: UniqueScope) -> Push {
        Push::from(self).unique_scope(scope)
    }
    /// Unsets the unique key of [`Args::defaults`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// assert_eq!(Mail { user: 7 }.no_unique().job_unique(), None);
    /// ```
    fn no_unique(self) -> Push {
        Push::from(self).no_unique()
    }
    /// Makes the job due now, even if [`Args::defaults`] sets a due time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// assert_eq!(Mail { user: 7 }.now().job_due(), duly::job::Due::Now);
    /// ```
    fn now(self) -> Push {
        Push::from(self).now()
    }
    /// Replaces a waiting job with the same unique key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// // While this job waits, each further push moves it, so one mail follows the last change.
    /// let push = Mail { user: 7 }.replace("changes:7").after(std::time::Duration::from_secs(60));
    /// ```
    fn replace(self, key: impl Into<String>) -> Push {
        Push::from(self).unique(key).on_conflict(UniqueConflict::Replace)
    }
    /// Sets the id; pushing the same id again changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let push = Mail { user: 7 }.id(duly::JobId::from_name("welcome:7")); // a second push changes nothing
    /// ```
    fn id(self, id: JobId) -> Push {
        Push::from(self).id(id)
    }
    /// Sets how many attempts may fail before the job is dead.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let once = Mail { user: 7 }.max_attempts(1); // no retry
    /// ```
    fn max_attempts(self, attempts: u32) -> Push {
        Push::from(self).max_attempts(attempts)
    }
    /// Sets how long one attempt may run.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let push = Mail { user: 7 }.timeout(std::time::Duration::from_secs(30));
    /// ```
    fn timeout(self, timeout: Duration) -> Push {
        Push::from(self).timeout(timeout)
    }
    /// Sets how long the job is kept once it is done.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// let push = Mail { user: 7 }.keep(std::time::Duration::ZERO); // deleted once it is done
    /// ```
    fn keep(self, keep: Duration) -> Push {
        Push::from(self).keep(keep)
    }
    /// Adds a tag that filters can find.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, PushExt};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { user: u64 }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// assert_eq!(Mail { user: 7 }.tag("welcome").job_tags(), ["welcome"]);
    /// ```
    fn tag(self, tag: impl Into<String>) -> Push {
        Push::from(self).tag(tag)
    }
}

impl<A: Args> PushExt for A {}

impl<A: Args> From<A> for Push {
    fn from(args: A) -> Push {
        let json = serde_json::to_string(&args).map_err(|error| format!("cannot be written as JSON: {error}"));
        let mut push = args.defaults(Push::with_args(A::KIND.to_owned(), json));
        push.defaulted = DefaultedOptions {
            id: !push.has_fresh_id,
            due: push.due != Due::Now,
            unique: push.unique.is_some(),
            traceparent: push.traceparent.is_some(),
        };
        push
    }
}

/// The options of a push that come from [`Args::defaults`] and that each tick of a cron rule sets itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DefaultedOptions {
    pub(crate) id: bool,
    pub(crate) due: bool,
    pub(crate) unique: bool,
    pub(crate) traceparent: bool,
}

impl Push {
    /// Makes the job due now, even if [`Args::defaults`] sets a due time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::{Push, job::Due};
    ///
    /// let push = Push::new("mail", "{}").after(Duration::from_secs(60)).now();
    /// assert_eq!(push.job_due(), Due::Now);
    /// ```
    #[must_use]
    pub fn now(self) -> Self {
        self.with_due(Due::Now)
    }

    /// Removes all tags, including those of [`Args::defaults`].
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("mail", "{}").tag("eu").no_tags().tag("us").job_tags(), ["us"]);
    /// ```
    #[must_use]
    pub fn no_tags(mut self) -> Self {
        self.tags.clear();
        self
    }

    pub(super) fn with_due(mut self, due: Due) -> Self {
        self.due = due;
        self.defaulted.due = false;
        self
    }

    /// Removes the options that a tick of a cron rule sets itself, if they come from [`Args::defaults`].
    pub(crate) fn without_defaults_of_ticks(mut self) -> Self {
        let DefaultedOptions { id, due, unique, traceparent } = std::mem::take(&mut self.defaulted);
        if id {
            (self.id, self.has_fresh_id) = (JobId::fresh(), true);
        }
        if due {
            self.due = Due::Now;
        }
        if unique {
            self = self.no_unique();
        }
        if traceparent {
            self.traceparent = None;
        }
        self
    }
}
