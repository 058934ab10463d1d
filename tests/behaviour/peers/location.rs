//! A place that several handles open, each as if it were a process of its own.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

#[cfg(feature = "redis")]
use duly::JobId;
use duly::{Builder, Duly};
pub use test_support::{in_time, until};

/// Far longer than anything here takes; a test that waits this long has failed.
pub const LONG: Duration = Duration::from_secs(20);
pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Where a test's store is.
pub struct Location {
    url: String,
    /// A store in memory has one handle only, which all share.
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

    /// On a server that others use too: under a prefix of its own.
    #[cfg(feature = "redis")]
    pub fn on(server: String) -> Self {
        Location { url: format!("{server}?prefix={}", JobId::fresh()), shared: None, _dir: None }
    }

    pub fn is_memory(&self) -> bool {
        self.shared.is_some()
    }

    /// On a server that is neither of a cluster nor watched by Sentinels.
    pub fn is_one_server(&self) -> bool {
        self.url.starts_with("redis://")
    }

    pub fn builder(&self) -> Builder {
        Duly::builder(self.url.clone())
    }

    /// A handle of its own, where there can be several; in memory the only one.
    pub async fn open(&self) -> Duly {
        match &self.shared {
            Some(one) => one.get_or_init(async || self.builder().open().await.expect("opens")).await.clone(),
            None => self.builder().open().await.expect("opens"),
        }
    }

    /// How many nodes the handles of `n` calls of `open` are.
    pub fn nodes(&self, n: usize) -> usize {
        if self.is_memory() { 1 } else { n }
    }
}

/// Its output, if it is ready at the first look.
pub async fn poll_once<T>(work: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *work).poll(cx))).await;
    match polled {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
