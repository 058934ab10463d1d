//! Lines of a running worker, written by a thread of their own: a slow reader must not slow the worker.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use duly::CancellationToken;

/// Lines that may wait to be written; beyond that they are left out, and counted.
const LINES_MAX: usize = 10_000;
/// How long the end of the program waits for a reader that has stopped reading.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How often it looks, in that time, whether there is room again.
const LAST_LOOKS: u32 = 100;

enum Line {
    /// Data.
    Out(String),
    /// Words, and what jobs write.
    Err(String),
    /// Everything before this is written.
    End(SyncSender<()>),
}

/// Takes lines and never waits.
#[derive(Clone)]
pub(crate) struct Printer {
    lines: SyncSender<Line>,
    left_out: Arc<AtomicU64>,
}

impl Printer {
    /// Starts writing; cancels `closed` once nobody reads stdout any more.
    pub(crate) fn start(closed: CancellationToken) -> anyhow::Result<Printer> {
        let (lines, waiting) = sync_channel(LINES_MAX);
        let left_out = Arc::new(AtomicU64::new(0));
        let counted = left_out.clone();
        let write = move || write_all(&waiting, &counted, &closed);
        std::thread::Builder::new().name("printer".to_owned()).spawn(write).context("cannot start a thread")?;
        Ok(Printer { lines, left_out })
    }

    pub(crate) fn out(&self, line: String) {
        self.put(Line::Out(line));
    }

    pub(crate) fn err(&self, line: String) {
        self.put(Line::Err(line));
    }

    fn put(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, within bounds.
    pub(crate) fn finish(&self) {
        for _ in 0..LAST_LOOKS {
            let (done, wait) = sync_channel(1);
            if self.lines.try_send(Line::End(done)).is_ok() {
                let _ = wait.recv_timeout(LAST_LINES);
                return;
            }
            std::thread::sleep(LAST_LINES / LAST_LOOKS);
        }
    }
}

fn write_all(waiting: &Receiver<Line>, left_out: &AtomicU64, closed: &CancellationToken) {
    while let Ok(line) = waiting.recv() {
        let missing = left_out.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _ =
                writeln!(anstream::stderr(), "duly: {missing} lines left out: the reader of this output is too slow");
        }
        let written = match line {
            Line::Out(line) => {
                let mut stdout = anstream::stdout().lock();
                writeln!(stdout, "{line}").and_then(|()| stdout.flush())
            }
            Line::Err(line) => {
                // Nobody on stderr is no reason to stop.
                let _ = writeln!(anstream::stderr(), "{line}");
                Ok(())
            }
            Line::End(done) => {
                let _ = done.try_send(());
                Ok(())
            }
        };
        if written.is_err() {
            closed.cancel();
        }
    }
}
