//! Output of a running worker. A separate thread writes it, so a slow reader cannot slow the worker.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use duly::CancellationToken;

use crate::exit;
use crate::sync::start_thread;

/// Lines that may be queued; further lines are dropped and counted.
const QUEUED_LINES_MAX: usize = 10_000;
/// How long the exit of the program waits for a reader that has stopped reading.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// How often `finish` checks for free room during that time.
const FINISH_TRIES_MAX: u32 = 100;

enum PrintRequest {
    /// A line of data.
    Stdout(String),
    /// A message, or output of a job.
    Stderr(String),
    /// Confirms that all earlier lines are written.
    Flush(SyncSender<()>),
}

/// Queues lines without blocking.
#[derive(Clone)]
pub(crate) struct Printer {
    lines: SyncSender<PrintRequest>,
    dropped_lines: Arc<AtomicU64>,
    error: Arc<OnceLock<std::io::Error>>,
}

impl Printer {
    /// Starts the thread; it cancels `closed` if stdout can no longer be written.
    pub(crate) fn start(closed: CancellationToken) -> anyhow::Result<Printer> {
        let (lines, requests) = sync_channel(QUEUED_LINES_MAX);
        let dropped_lines = Arc::new(AtomicU64::new(0));
        let error = Arc::new(OnceLock::new());
        let printer = Printer { lines, dropped_lines: dropped_lines.clone(), error: error.clone() };
        let write = move || write_lines(&requests, &dropped_lines, &error, &closed);
        start_thread("printer", write)?;
        Ok(printer)
    }

    pub(crate) fn print_stdout(&self, line: String) {
        self.enqueue(PrintRequest::Stdout(line));
    }

    pub(crate) fn print_stderr(&self, line: String) {
        self.enqueue(PrintRequest::Stderr(line));
    }

    fn enqueue(&self, request: PrintRequest) {
        if self.lines.try_send(request).is_err() {
            self.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns why stdout cannot be written; `None` if its reader has only gone away, as in `duly work | head`.
    pub(crate) fn write_error(&self) -> Option<&std::io::Error> {
        self.error.get().filter(|error| error.kind() != ErrorKind::BrokenPipe)
    }

    /// Waits until all lines are written, at most about 2 s.
    pub(crate) fn finish(&self) {
        for _ in 0..FINISH_TRIES_MAX {
            let (done, wait) = sync_channel(1);
            if self.lines.try_send(PrintRequest::Flush(done)).is_ok() {
                let _ = wait.recv_timeout(FINISH_TIMEOUT);
                return;
            }
            std::thread::sleep(FINISH_TIMEOUT / FINISH_TRIES_MAX);
        }
    }
}

fn write_lines(
    requests: &Receiver<PrintRequest>,
    dropped_lines: &AtomicU64,
    first_error: &OnceLock<std::io::Error>,
    closed: &CancellationToken,
) {
    while let Ok(request) = requests.recv() {
        let dropped = dropped_lines.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            exit::print_error(&format!("{dropped} lines dropped: the reader of this output is too slow"));
        }
        let written = match request {
            PrintRequest::Stdout(line) => {
                let mut stdout = anstream::stdout().lock();
                writeln!(stdout, "{line}").and_then(|()| stdout.flush())
            }
            PrintRequest::Stderr(line) => {
                // A closed stderr does not stop the worker.
                let _ = writeln!(anstream::stderr(), "{line}");
                Ok(())
            }
            PrintRequest::Flush(done) => {
                let _ = done.try_send(());
                Ok(())
            }
        };
        if let Err(error) = written {
            // The first error is the cause.
            let _ = first_error.set(error);
            closed.cancel();
        }
    }
}
