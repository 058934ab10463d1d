//! One worker process of the demo. It runs the demo's handlers and prints each event as a JSON line.

use std::io::Read;

use clap::Args;
use duly::{CancellationToken, Ctx, Retry};

use super::plan::{FLAKY_KIND, FLAKY_RETRY_DELAY, PING_DURATION, PING_KIND, REPORT_DURATION, REPORT_KIND};
use crate::events::EventRecord;
use crate::printer::Printer;
use crate::{Setup, child, store};

/// Enough slots to start all ready jobs at once, so that the demo measures lateness and not contention.
const CONCURRENCY: usize = 20;

/// One worker process of the demo
#[derive(Debug, Args)]
pub(crate) struct DemoWorkerArgs {
    /// The demo's process
    #[arg(long)]
    parent: i32,
}

pub(crate) async fn run(verb: DemoWorkerArgs, setup: &Setup) -> anyhow::Result<()> {
    child::die_with_parent(verb.parent)?;
    let duly = store::open_existing(setup).await?;
    let stop = CancellationToken::new();
    let printer = Printer::start(stop.clone())?;
    stop_at_end_of_input(stop.clone());
    let event_printer = printer.clone();
    let worker =
        duly.worker()
            .queue(duly::bounds::DEFAULT_QUEUE, CONCURRENCY)
            .on_kind(PING_KIND, |_: Ctx| tokio::time::sleep(PING_DURATION))
            .on_kind(REPORT_KIND, |_: Ctx| tokio::time::sleep(REPORT_DURATION))
            .on_kind(FLAKY_KIND, |ctx: Ctx| async move {
                if ctx.attempt() == 1 { Err("connection refused") } else { Ok(()) }
            })
            .retry_kind(FLAKY_KIND, Retry::fixed(FLAKY_RETRY_DELAY))
            .on_event(move |event| {
                if let Some(Ok(line)) = EventRecord::from_event(event).map(|record| serde_json::to_string(&record)) {
                    event_printer.print_stdout(line);
                }
            });
    worker.run_until(stop).await?;
    printer.finish();
    Ok(())
}

/// Cancels `stop` when stdin closes: the demo stops its workers that way.
fn stop_at_end_of_input(stop: CancellationToken) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1)) {}
        stop.cancel();
    });
}
