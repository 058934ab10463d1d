//! Lines of a running worker, written by a thread of their own: a slow reader must not slow the worker.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use duly::CancellationToken;

/// Lines that may wait to be written; beyond that they are left out, and counted.
const QUEUED_LINES_MAX: usize = 10_000;
/// How long the end of the program waits for a reader that has stopped reading.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it looks, in that time, whether there is room again.
const FINISH_TRIES_MAX: u32 = 100;

enum PrintRequest {
    /// Data.
    Stdout(String),
    /// Words, and what jobs write.
    Stderr(String),
    /// Everything before this is written.
    Flush(SyncSender<()>),
}

/// Takes lines and never waits.
#[derive(Clone)]
pub(crate) struct Printer {
    lines: SyncSender<PrintRequest>,
    dropped_lines: Arc<AtomicU64>,
}

impl Printer {
    /// Starts writing; cancels `closed` once nobody reads stdout any more.
    pub(crate) fn start(closed: CancellationToken) -> anyhow::Result<Printer> {
        let (lines, waiting) = sync_channel(QUEUED_LINES_MAX);
        let left_out = Arc::new(AtomicU64::new(0));
        let counted = left_out.clone();
        let write = move || write_lines(&waiting, &counted, &closed);
        std::thread::Builder::new().name("printer".to_owned()).spawn(write).context("cannot start a thread")?;
        Ok(Printer { lines, dropped_lines: left_out })
    }

    pub(crate) fn print_stdout(&self, line: String) {
        self.enqueue(PrintRequest::Stdout(line));
    }

    pub(crate) fn print_stderr(&self, line: String) {
        self.enqueue(PrintRequest::Stderr(line));
    }

    fn enqueue(&self, line: PrintRequest) {
        if self.lines.try_send(line).is_err() {
            self.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, within bounds.
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

fn write_lines(waiting: &Receiver<PrintRequest>, left_out: &AtomicU64, closed: &CancellationToken) {
    while let Ok(line) = waiting.recv() {
        let missing = left_out.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _ =
                writeln!(anstream::stderr(), "duly: {missing} lines left out: the reader of this output is too slow");
        }
        let written = match line {
            PrintRequest::Stdout(line) => {
                let mut stdout = anstream::stdout().lock();
                writeln!(stdout, "{line}").and_then(|()| stdout.flush())
            }
            PrintRequest::Stderr(line) => {
                // Nobody on stderr is no reason to stop.
                let _ = writeln!(anstream::stderr(), "{line}");
                Ok(())
            }
            PrintRequest::Flush(done) => {
                let _ = done.try_send(());
                Ok(())
            }
        };
        if written.is_err() {
            closed.cancel();
        }
    }
}
