//! A worker and nothing else, as in a program of its own: what this takes of memory is what a worker takes.
//!
//! `worker URL` works the queue `default` of that store until it is killed; says `joined`.

use anyhow::{Context, Result};
use duly::{Duly, Event};

/// Jobs at once, as in every worker that is measured idle.
const CONCURRENCY: usize = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("usage: worker URL")?;
    let tell = |event: &Event<'_>| {
        if let Event::Joined { .. } = event {
            println!("joined");
        }
    };
    let worker = Duly::open(url).await?.worker().queue("default", CONCURRENCY);
    worker.on_kind("noop", |_| async {}).on_event(tell).run().await?;
    Ok(())
}
