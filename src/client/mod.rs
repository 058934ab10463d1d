//! The client: everything a program does with duly goes through [`Duly`]. It checks input and calls the store.
//!
//! This file opens a store. `builder` has its options, and `push`, `jobs`, `queues`, `locks` and `calls` have the
//! operations on each subject. Cron rules, administration and transfers add their own operations in their modules.

mod builder;
mod calls;
mod find_job;
mod jobs;
mod locks;
mod push;
mod queues;
#[cfg(feature = "sqlite")]
mod transactions;

use std::sync::{Arc, OnceLock};

pub use self::builder::Builder;
pub use self::calls::Nodes;
pub use self::jobs::Jobs;
pub use self::locks::Locks;
pub(crate) use self::push::has_current_trace;
pub use self::queues::Queues;
use crate::error::Result;
use crate::peers::Peers;
use crate::store::{self, Health, HealthStore, Store, StoreOptions};
use crate::worker::Worker;
use crate::worker::kind_stats::KindStatsBuffer;
use crate::worker::middleware::Layers;

/// A handle to a store. Cheap to clone; clones share the store.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// let duly = Duly::open(":memory:").await?;
/// let same = duly.clone();
/// let id = same.push(Push::new("mail", "{}")).await?.id();
/// assert!(duly.jobs().get(id).await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Duly {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Arc<StoreOptions>,
    pub(crate) url: Arc<str>,
    /// This process as a peer, once it takes part in calls, locks or waits.
    pub(crate) peers: Arc<OnceLock<Arc<Peers>>>,
    pub(crate) middleware: Arc<Layers>,
    /// Statistics by kind of this process that are not yet in the store.
    pub(crate) kind_stats: Arc<KindStatsBuffer>,
}

impl Duly {
    /// Opens a store.
    ///
    /// `url` is the path of a file, which is created if missing, or `:memory:`. With the feature `redis`, it may also be
    /// the URL of a server: `redis://host`, `redis+sentinel://s1,s2,s3/mymaster` or `redis+cluster://a,b,c`.
    ///
    /// Options follow a `?`: `duly.db?durability=second&lease=5s&keep=1h`.
    /// The path in a `file:` or `sqlite:` URL is percent-decoded; [`Duly::open_file`] opens any path.
    ///
    /// A URL with TLS, such as `rediss://host`, needs a crypto provider of `rustls`, which belongs to the whole process.
    /// If the program has installed none, this installs `ring`. A program that uses another one must call
    /// `install_default()` before it opens the store, because that fails afterwards.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the URL or an option is invalid, or if the store needs a feature
    /// that is not enabled.
    /// Returns [`Error::Store`](crate::Error::Store) if the file cannot be opened or the server cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::open(":memory:?lease=5s&keep=1h").await?;
    /// assert!(Duly::open("duly.db?lease=forever").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(url: impl Into<String>) -> Result<Duly> {
        Duly::builder(url).open().await
    }

    /// Opens a store in a file, which is created if missing. The path may contain any character.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`](crate::Error::Store) if the file cannot be opened.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("what?.db");
    /// let duly = Duly::open_file(&path).await?;
    /// assert!(path.exists());
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    pub async fn open_file(path: impl AsRef<std::path::Path>) -> Result<Duly> {
        Duly::file_builder(path).open().await
    }

    /// Returns a builder that opens a store in a file with options. The path may contain any character.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Durability, Duly};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("duly.db");
    /// let duly = Duly::file_builder(&path).durability(Durability::Second).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn file_builder(path: impl AsRef<std::path::Path>) -> Builder {
        Duly::builder(store::file_url(path.as_ref()))
    }

    /// Returns a builder that opens a store with options.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").lease(Duration::from_secs(5)).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder { url: url.into(), options: StoreOptions::default(), middleware: Vec::new() }
    }

    /// Sends the remaining statistics and drops this handle. The last handle also closes the file or the connections;
    /// `close` returns when that is done.
    ///
    /// Dropping the last handle closes the store too, but blocks the thread meanwhile and may lose the last seconds of
    /// the statistics by kind. Clones, workers, lock guards and pending requests keep the store open.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("duly.db");
    /// let duly = Duly::open_file(&path).await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// duly.close().await;
    /// std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(self) {
        self.kind_stats.flush(&*self.store).await;
        // Dropping waits for threads. It cannot fail: a panic there has been reported.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }

    /// Returns whether the store has a capability, by its name in the contract: `jobs`, `admin`, `crons`, `locks` or
    /// `access`. Stores on the keys of another system lack some.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// assert!(Duly::open(":memory:").await?.supports("crons"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn supports(&self, capability: &str) -> bool {
        let has = self.store.capabilities();
        match capability {
            "jobs" => has.jobs.is_some(),
            "admin" => has.admin.is_some(),
            "crons" => has.crons.is_some(),
            "locks" => has.locks.is_some(),
            "access" => has.access.is_some(),
            _ => false,
        }
    }

    /// Returns the store, for tests of the contract, not for programs.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Returns a new worker on this store; add queues and handlers to it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// let summary = duly.worker().on_kind("mail", |_: Ctx| async {}).drain().await?;
    /// assert_eq!(summary.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn worker(&self) -> Worker {
        Worker::new(self.clone())
    }

    /// Returns a report on the store: durability, versions, sizes, warnings.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`](crate::Error::Store) if the store cannot be reached. Problems of a store that answers
    /// are in the report: [`Health::warnings`](crate::admin::Health::warnings).
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let health = duly.health().await?;
    /// assert!(health.warnings.is_empty(), "{:?}", health.warnings);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn health(&self) -> Result<Health> {
        self.store.health().await
    }

    /// Returns the current time by the store's clock, without a request: on a server it is an estimate.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let push = Push::new("mail", "{}").at(duly.now() + Duration::from_secs(60));
    /// duly.push(push).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn now(&self) -> std::time::SystemTime {
        self.store.now()
    }

    /// Returns how long done jobs are kept whose push does not set it ([`Builder::keep`]).
    #[must_use]
    pub fn default_keep(&self) -> std::time::Duration {
        self.options.keep
    }

    /// Returns the address of the store without passwords, for logs and messages.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// assert_eq!(duly.display_url(), ":memory:");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn display_url(&self) -> String {
        store::display_url(&self.url, &self.options)
    }
}

impl std::fmt::Debug for Duly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = store::StoreUrl::parse(&self.url).map_or(String::new(), |url| url.to_string());
        f.debug_struct("Duly").field("url", &url).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::Outcome;
    use crate::store::{AttemptTiming, KindStatsQuery, StatsStore, outcome_index};

    #[tokio::test]
    async fn close_sends_the_remaining_statistics() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("duly.db");
        let duly = Duly::open_file(&path).await.expect("opens");
        let timing = AttemptTiming { lateness: Duration::ZERO, duration: Duration::from_millis(5) };
        duly.kind_stats.record(&duly.store, "mail", outcome_index(&Outcome::Ack), timing);
        duly.close().await;

        let duly = Duly::open_file(&path).await.expect("opens");
        let kinds = duly.store.kind_stats(KindStatsQuery::last_hours(2)).await.expect("reads");
        assert!(kinds.iter().any(|stats| stats.kind == "mail"), "{kinds:?}");
    }
}
