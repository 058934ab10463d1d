//! A program with only a worker, to measure the memory of a worker.
//!
//! `worker URL` prints `joined` and works the queue `default` of that store until it is killed.

use anyhow::{Context, Result};
use duly::Duly;
use duly::worker::Event;

/// The same concurrency as every worker that is measured idle.
const CONCURRENCY: usize = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("usage: worker URL")?;
    let report_joined = |event: &Event<'_>| {
        if let Event::Joined { .. } = event {
            println!("joined");
        }
    };
    let worker = Duly::open(url).await?.worker().queue("default", CONCURRENCY);
    worker.on_kind("noop", |_| async {}).on_event(report_joined).run().await?;
    Ok(())
}
