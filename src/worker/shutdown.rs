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
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`] if the program cannot listen for signals.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{CancellationToken, Ctx, Duly, worker::ShutdownSignals};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    /// let _signals = ShutdownSignals::listen(stop.clone(), stop_now.clone())?;
    /// # stop.cancel();
    /// let worker = |queue: &str| duly.worker().queue(queue, 5).on_any_kind(async |_: Ctx| ());
    /// let mail = worker("mail").run_with_shutdown(stop.clone(), stop_now.clone());
    /// let bulk = worker("bulk").run_with_shutdown(stop, stop_now);
    /// tokio::try_join!(mail, bulk)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen(stop: CancellationToken, stop_now: CancellationToken) -> Result<Self> {
        let listen = |kind| {
            signal(kind).map_err(|e| {
                Error::store(
                    "run",
                    format!("cannot listen for signals: {e}; use `run_until` with a shutdown of your own"),
                )
            })
        };
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
