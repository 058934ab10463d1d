//! Shared helpers: locations of stores, and timeouts.

use std::time::Duration;

use duly::Duly;
#[cfg(feature = "redis")]
use duly::JobId;
pub use test_support::in_time;

/// Timeout of all waits; every wait of a passing test is far shorter.
pub const LONG: Duration = Duration::from_secs(60);
pub const MS: Duration = Duration::from_millis(1);
/// The key that the nodes of one cluster share.
pub const KEY: &str = "a secret that all nodes of a cluster share";

pub fn ms(range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}

/// The location of a store. Its files are removed on drop.
pub struct Location {
    url: String,
    dir: test_support::TempDir,
}

impl Location {
    pub fn file() -> Self {
        let dir = test_support::temp_dir();
        Location { url: dir.path().join("duly.db").display().to_string(), dir }
    }

    /// On a server, with its own key prefix.
    #[cfg(feature = "redis")]
    pub fn on(server: &str) -> Self {
        let dir = test_support::temp_dir();
        Location { url: format!("{server}?prefix={}", JobId::fresh()), dir }
    }

    /// Adds an option.
    pub fn with(mut self, option: &str) -> Self {
        self.url += if self.url.contains('?') { "&" } else { "?" };
        self.url += option;
        self
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL of the same store through another address.
    #[cfg(feature = "redis")]
    pub fn through(&self, address: &str) -> String {
        let (_, options) = self.url.split_once('?').expect("options");
        format!("redis://{address}?{options}")
    }

    /// Returns a directory for the test's own files.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub async fn open(&self) -> Duly {
        Duly::open(self.url()).await.expect("opens")
    }

    /// Opens the store with these cluster keys.
    pub async fn open_with(&self, keys: &[&str]) -> Duly {
        let builder = keys.iter().fold(Duly::builder(self.url()), |builder, key| builder.cluster_key(*key));
        builder.open().await.expect("opens")
    }
}
