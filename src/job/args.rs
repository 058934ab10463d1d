//! The args of a job: any type that serde can write and read, with the name of its kind.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::push::{Push, UniqueConflict};
use super::{JobId, Priority};

/// The args of one kind of job.
///
/// A value can be pushed as it is; [`PushExt`] adds options to it.
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
    /// The kind of job that these are the args of.
    const KIND: &'static str;
}

/// Options of a push, set directly on the args.
///
/// Each method turns the args into a [`Push`] with one option set; further options are methods of [`Push`].
/// If a type has methods of the same names, use `Push::from(args)` instead of importing this trait.
///
/// ```
/// use std::time::Duration;
/// use duly::{Args, PushExt};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct Resize { image: u64, width: u32 }
/// # impl Args for Resize { const KIND: &'static str = "resize"; }
///
/// let push = Resize { image: 7, width: 640 }.after(Duration::from_secs(60)).tag("thumbnail");
/// ```
pub trait PushExt: Args + Sized {
    /// Makes the job due after this delay.
    fn after(self, delay: Duration) -> Push {
        Push::from(self).after(delay)
    }
    /// Makes the job due at this time.
    fn at(self, time: SystemTime) -> Push {
        Push::from(self).at(time)
    }
    /// Puts the job into this queue.
    fn queue(self, queue: impl Into<String>) -> Push {
        Push::from(self).queue(queue)
    }
    /// Sets the priority among ready jobs of the queue.
    fn priority(self, priority: Priority) -> Push {
        Push::from(self).priority(priority)
    }
    /// Pushes only if no unfinished job of the queue has this key.
    fn unique(self, key: impl Into<String>) -> Push {
        Push::from(self).unique(key)
    }
    /// Replaces a waiting job with the same unique key.
    fn replace(self, key: impl Into<String>) -> Push {
        Push::from(self).unique(key).on_conflict(UniqueConflict::Replace)
    }
    /// Sets the id; pushing the same id again changes nothing.
    fn id(self, id: JobId) -> Push {
        Push::from(self).id(id)
    }
    /// Sets how many attempts may fail before the job is dead.
    fn max_attempts(self, attempts: u32) -> Push {
        Push::from(self).max_attempts(attempts)
    }
    /// Sets how long one attempt may run.
    fn timeout(self, timeout: Duration) -> Push {
        Push::from(self).timeout(timeout)
    }
    /// Sets how long the job is kept once it is done.
    fn keep(self, keep: Duration) -> Push {
        Push::from(self).keep(keep)
    }
    /// Adds a tag that filters can find.
    fn tag(self, tag: impl Into<String>) -> Push {
        Push::from(self).tag(tag)
    }
}

impl<A: Args> PushExt for A {}

impl<A: Args> From<A> for Push {
    fn from(args: A) -> Push {
        let json = serde_json::to_string(&args).map_err(|error| format!("cannot be written as JSON: {error}"));
        Push::with_args(A::KIND.to_owned(), json)
    }
}
