//! One worker process of the demo: the demo's handlers, and one JSON line on stdout for everything that happens.

use std::io::Read;

use clap::Args;
use duly::{CancellationToken, Ctx, Retry};

use super::plan::{FLAKY, FLAKY_AGAIN, PING, PING_TAKES, REPORT, REPORT_TAKES};
use crate::events::Told;
use crate::printer::Printer;
use crate::{Setup, child, store};

/// So many jobs at once: those for now start at once, so that what is measured is lateness and not a crowd.
const CONCURRENCY: usize = 20;

/// One worker process of the demo
#[derive(Debug, Args)]
pub(crate) struct DemoWorker {
    /// The demo's process
    #[arg(long)]
    parent: i32,
}

pub(crate) async fn run(verb: DemoWorker, setup: &Setup) -> anyhow::Result<()> {
    child::die_with_parent(verb.parent)?;
    let duly = store::open(setup).await?;
    let stop = CancellationToken::new();
    let printer = Printer::start(stop.clone())?;
    stop_at_end_of_input(stop.clone());
    let lines = printer.clone();
    let worker = duly
        .worker()
        .queue(duly::DEFAULT_QUEUE, CONCURRENCY)
        .on_kind(PING, |_: Ctx| tokio::time::sleep(PING_TAKES))
        .on_kind(REPORT, |_: Ctx| tokio::time::sleep(REPORT_TAKES))
        .on_kind(FLAKY, |ctx: Ctx| async move { if ctx.attempt() == 1 { Err("connection refused") } else { Ok(()) } })
        .retry(FLAKY, Retry::every(FLAKY_AGAIN))
        .on_event(move |event| {
            if let Some(Ok(line)) = Told::of(event).map(|told| serde_json::to_string(&told)) {
                lines.out(line);
            }
        });
    worker.run_until(stop).await?;
    printer.finish();
    Ok(())
}

/// The demo ends its workers by closing their stdin.
fn stop_at_end_of_input(stop: CancellationToken) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1)) {}
        stop.cancel();
    });
}
