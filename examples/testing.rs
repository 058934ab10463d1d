//! Tests of your own jobs: a store in memory, a manual clock, and a worker that drains the queue.

use std::time::Duration;

use duly::{Args, Clock, Ctx, Duly, PushExt, Retry, State};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Remind {
    user: u64,
}

impl Args for Remind {
    const KIND: &'static str = "remind";
}

/// Fails on its first attempt.
async fn remind(job: Remind, ctx: Ctx) -> Result<(), String> {
    match ctx.attempt() {
        1 => Err(format!("no answer from the mail server for user {}", job.user)),
        _ => Ok(()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> duly::Result<()> {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await?;
    let id = duly.push(Remind { user: 7 }.after(Duration::from_secs(24 * 3600))).await?.id();
    let drain = || duly.worker().on(remind).retry::<Remind>(Retry::fixed(Duration::from_secs(60))).drain();

    assert_eq!(drain().await?.settled(), 0, "not before tomorrow");
    clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(drain().await?.retried, 1, "the first attempt fails");
    clock.advance(Duration::from_secs(60));
    assert_eq!(drain().await?.acked, 1, "the second does not");

    let record = duly.jobs().get(id).await?.expect("is kept for a day");
    assert_eq!(record.state, State::Done);
    println!("done after {} failed attempt: {}", record.attempts, record.failures[0].error);
    Ok(())
}
