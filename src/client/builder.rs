//! The options of a store, set in code.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Duly;
use crate::clock::Clock;
use crate::error::Result;
use crate::peers::call::ClusterKeys;
use crate::store::{self, Durability, StoreOptions};
use crate::worker::middleware::{Layers, Middleware};

/// Options for [`Duly::open`] in code instead of in the URL.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use duly::Duly;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// let duly = Duly::builder(":memory:")
///     .lease(Duration::from_secs(5))
///     .keep(Duration::from_secs(3600))
///     .open()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "call `open`"]
#[derive(Clone)]
pub struct Builder {
    pub(super) url: String,
    pub(super) options: StoreOptions,
    pub(super) middleware: Layers,
}

// The URL and the options may contain secrets.
impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("durability", &self.options.durability)
            .field("lease", &self.options.lease)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets which failures an acknowledged push survives.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Durability};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").durability(Durability::Second).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// Sets how long a node keeps its jobs without a heartbeat (default 3 s).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").lease(Duration::from_secs(10)).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets how long done jobs are kept (default 24 h); zero deletes them immediately.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").keep(Duration::ZERO).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep(mut self, keep: Duration) -> Self {
        self.options.keep = keep;
        self
    }

    /// Sets how long dead and cancelled jobs are kept (default 90 days).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").keep_dead(Duration::from_secs(30 * 24 * 3600)).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_dead(mut self, keep: Duration) -> Self {
        self.options.keep_dead = keep;
        self
    }

    /// Sets the minimum time for which the ids of removed jobs are remembered (default 10 minutes). Pushing such an id
    /// again changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").remember_ids(Duration::from_secs(3600)).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn remember_ids(mut self, remember_ids: Duration) -> Self {
        self.options.remember_ids = remember_ids;
        self
    }

    /// Sets whether this handle keeps statistics by minute (default true).
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").history(false).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn history(mut self, history: bool) -> Self {
        self.options.history = history;
        self
    }

    /// Sets whether workers of this handle record what each attempt did: its start, duration, node and output (default
    /// true). Failures are recorded in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").attempts(false).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn attempts(mut self, attempts: bool) -> Self {
        self.options.attempts = attempts;
        self
    }

    /// Sets a secret of at least 32 bytes that all nodes share. Nodes sign every message with it, and reject messages
    /// without a valid signature.
    ///
    /// To rotate it, call this twice: the first key signs, all of them verify. Deploy the new key to every node as the
    /// second key, then as the first, then remove the old one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let (new, old) = ("n".repeat(32), "o".repeat(32));
    /// let duly = Duly::builder(":memory:").cluster_key(new).cluster_key(old).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cluster_key(mut self, key: impl Into<String>) -> Self {
        self.options.cluster_keys.push(key.into());
        self
    }

    /// Sets the clock, so that a test can control the time with [`Clock::manual`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Clock, Duly};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let clock = Clock::manual();
    /// let duly = Duly::builder(":memory:").clock(clock.clone()).open().await?;
    /// clock.advance(Duration::from_secs(3600));
    /// # Ok(())
    /// # }
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.options.clock = clock;
        self
    }

    /// Adds a middleware that runs before and after every push, and around every attempt of this program.
    /// The first one added is the outermost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Middleware, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// struct TenantTag;
    /// impl Middleware for TenantTag {
    ///     fn before_push(&self, job: Push) -> duly::Result<Push> {
    ///         Ok(job.tag("acme"))
    ///     }
    /// }
    /// let duly = Duly::builder(":memory:").middleware(TenantTag).open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Duly::open`], and [`Error::Invalid`](crate::Error::Invalid) if a cluster key is too short.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::builder(":memory:").open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(self) -> Result<Duly> {
        // Checked before anything is opened, because an invalid key is the caller's mistake.
        ClusterKeys::new(&self.options.cluster_keys)?;
        crate::metrics::describe_metrics();
        let (store, options) = store::open(&self.url, self.options).await?;
        let layers = Arc::new(self.middleware);
        let (options, url, kinds) = (Arc::new(options), self.url.into(), Arc::default());
        Ok(Duly { store, options, url, peers: Arc::default(), middleware: layers, kind_stats: kinds })
    }
}
