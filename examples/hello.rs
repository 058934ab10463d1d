//! Pushes two jobs, runs the one that is due, and prints the state of both.

use std::time::Duration;

use duly::{Args, Ctx, Duly, PushExt};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Args for Greet {
    const KIND: &'static str = "greet";
}

async fn greet(job: Greet, ctx: Ctx) {
    println!("hello {} (attempt {}, fence {})", job.name, ctx.attempt(), ctx.fence());
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> duly::Result<()> {
    let duly = Duly::open(":memory:").await?; // or "duly.db"
    let ada = duly.push(Greet { name: "Ada".into() }).await?.id();
    let bob = duly.push(Greet { name: "Bob".into() }.after(Duration::from_secs(3600))).await?.id();

    // A service calls `.run()`, which works until SIGTERM.
    let summary = duly.worker().queue("default", 10).on(greet).drain().await?;

    println!("{} done", summary.acked);
    for id in [ada, bob] {
        if let Some(record) = duly.jobs().get(id).await? {
            println!("{id} is {}", record.state);
        }
    }
    Ok(())
}
