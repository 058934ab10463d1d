//! Signals that stop a service: the first one gracefully, the second one at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// Listens for SIGTERM and SIGINT until it is dropped.
///
/// [`Worker::run`](crate::Worker::run) does this itself; use this type if your program stops more than one worker.
#[must_use = "listens until it is dropped"]
#[derive(Debug)]
pub struct ShutdownSignals(AbortHandle);

impl ShutdownSignals {
    /// Cancels `stop` at the first signal and `stop_now` at the second. Pass both to
    /// [`Worker::run_with_shutdown`](crate::Worker::run_with_shutdown).
    pub fn listen(stop: CancellationToken, stop_now: CancellationToken) -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Error::store("run", format!("cannot listen for signals: {e}")));
        let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let task = tokio::spawn(async move {
            for token in [stop, stop_now] {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(ShutdownSignals(task.abort_handle()))
    }
}

impl Drop for ShutdownSignals {
    fn drop(&mut self) {
        self.0.abort();
    }
}
