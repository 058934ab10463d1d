//! What several parts need: places for stores, patiences from the environment.

use std::time::Duration;

use duly::Duly;
#[cfg(feature = "redis")]
use duly::JobId;
pub use test_support::in_time;

/// Far longer than anything here takes; a test that waits this long has failed.
pub const LONG: Duration = Duration::from_secs(60);
pub const MS: Duration = Duration::from_millis(1);
/// What nodes of one cluster share.
pub const KEY: &str = "a secret that all nodes of a cluster share";

pub fn ms(range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Where a store is, for as long as this lives.
pub struct Location {
    url: String,
    dir: test_support::TempDir,
}

impl Location {
    pub fn file() -> Self {
        let dir = test_support::temp_dir();
        Location { url: dir.path().join("duly.db").display().to_string(), dir }
    }

    /// On a server: under a prefix of its own.
    #[cfg(feature = "redis")]
    pub fn on(server: &str) -> Self {
        let dir = test_support::temp_dir();
        Location { url: format!("{server}?prefix={}", JobId::fresh()), dir }
    }

    /// With one more option.
    pub fn with(mut self, option: &str) -> Self {
        self.url += if self.url.contains('?') { "&" } else { "?" };
        self.url += option;
        self
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same place by another way to the server.
    #[cfg(feature = "redis")]
    pub fn through(&self, address: &str) -> String {
        let (_, options) = self.url.split_once('?').expect("options");
        format!("redis://{address}?{options}")
    }

    /// For files of the test's own.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub async fn open(&self) -> Duly {
        Duly::open(self.url()).await.expect("opens")
    }

    /// With these keys of the cluster.
    pub async fn open_with(&self, keys: &[&str]) -> Duly {
        let builder = keys.iter().fold(Duly::builder(self.url()), |builder, key| builder.cluster_key(*key));
        builder.open().await.expect("opens")
    }
}
