//! The signals that stop a service: the first in good order, the second at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// Listens for SIGTERM and SIGINT until it is dropped.
///
/// [`Worker::run`](crate::Worker::run) does so by itself; this is for programs that have more to stop than one worker.
#[must_use = "listens until it is dropped"]
#[derive(Debug)]
pub struct ShutdownSignals(AbortHandle);

impl ShutdownSignals {
    /// The first signal cancels `stop`, the second `at_once`: made for
    /// [`Worker::run_until_either`](crate::Worker::run_until_either).
    pub fn listen(stop: CancellationToken, at_once: CancellationToken) -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Error::store("run", format!("cannot listen for signals: {e}")));
        let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let listening = tokio::spawn(async move {
            for token in [stop, at_once] {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(ShutdownSignals(listening.abort_handle()))
    }
}

impl Drop for ShutdownSignals {
    fn drop(&mut self) {
        self.0.abort();
    }
}
