//! The location of a store that several handles open, each like a process of its own.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

#[cfg(feature = "redis")]
use duly::JobId;
use duly::{Builder, Duly};
pub use test_support::{in_time, until};

/// Far longer than anything here takes; a test that waits this long has failed.
pub const TIMEOUT: Duration = Duration::from_secs(20);
pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// The location of a test's store.
pub struct Location {
    url: String,
    /// A store in memory has a single handle, shared by all callers of `open`.
    shared: Option<tokio::sync::OnceCell<Duly>>,
    _dir: Option<test_support::TempDir>,
}

impl Location {
    pub fn memory() -> Self {
        Location { url: ":memory:".into(), shared: Some(tokio::sync::OnceCell::new()), _dir: None }
    }

    pub fn file() -> Self {
        let dir = test_support::temp_dir();
        let url = dir.path().join("duly.db").to_str().expect("a plain path").to_owned();
        Location { url, shared: None, _dir: Some(dir) }
    }

    /// A store on a shared server, under its own prefix.
    #[cfg(feature = "redis")]
    pub fn on(server: String) -> Self {
        Location { url: format!("{server}?prefix={}", JobId::fresh()), shared: None, _dir: None }
    }

    pub fn is_memory(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns whether the store is on a single server, without Cluster or Sentinel.
    pub fn is_one_server(&self) -> bool {
        self.url.starts_with("redis://")
    }

    pub fn builder(&self) -> Builder {
        Duly::builder(self.url.clone())
    }

    /// Opens a new handle; in memory, returns the only one.
    pub async fn open(&self) -> Duly {
        match &self.shared {
            Some(one) => one.get_or_init(async || self.builder().open().await.expect("opens")).await.clone(),
            None => self.builder().open().await.expect("opens"),
        }
    }

    /// Returns how many nodes `n` calls of `open` create.
    pub fn nodes(&self, n: usize) -> usize {
        if self.is_memory() { 1 } else { n }
    }
}

/// Polls a future once. Returns its output if it is ready.
pub async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await;
    match polled {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
