//! Middleware: a tenant on every push, and a line about every attempt.

use std::time::Instant;

use duly::{Args, AttemptFuture, Ctx, Duly, Middleware, Next, Push};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Args for Greet {
    const KIND: &'static str = "greet";
}

async fn greet(job: Greet, _: Ctx) {
    println!("hello {}", job.name);
}

/// Every job is tagged with the tenant for whom it was pushed.
struct TenantTag(&'static str);

impl Middleware for TenantTag {
    fn before_push(&self, job: Push) -> duly::Result<Push> {
        Ok(job.tag(self.0))
    }
}

/// Every attempt is timed.
struct AttemptTimer;

impl Middleware for AttemptTimer {
    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        Box::pin(async move {
            let began = Instant::now();
            let ended = next.run(ctx).await;
            println!("{} for {}: {ended:?} after {:?}", ctx.job().kind, ctx.job().tags.join(" "), began.elapsed());
            ended
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> duly::Result<()> {
    let duly = Duly::builder(":memory:").middleware(TenantTag("acme")).middleware(AttemptTimer).open().await?;
    duly.push(Greet { name: "Ada".into() }).await?;
    let tally = duly.worker().on(greet).drain().await?;
    assert_eq!(tally.acked, 1);
    Ok(())
}
