//! Middleware: tags every push with a tenant and prints the duration of every attempt.

use std::time::Instant;

use duly::worker::{AttemptFuture, Next};
use duly::{Args, Ctx, Duly, Middleware, Push};
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

/// Tags every job with its tenant.
struct TenantTag(&'static str);

impl Middleware for TenantTag {
    fn before_push(&self, job: Push) -> duly::Result<Push> {
        Ok(job.tag(self.0))
    }
}

/// Prints the duration of every attempt.
struct AttemptTimer;

impl Middleware for AttemptTimer {
    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        Box::pin(async move {
            let started = Instant::now();
            let report = next.run(ctx).await;
            println!("{} for {}: {report:?} after {:?}", ctx.job().kind, ctx.job().tags.join(" "), started.elapsed());
            report
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> duly::Result<()> {
    let duly = Duly::builder(":memory:").middleware(TenantTag("acme")).middleware(AttemptTimer).open().await?;
    duly.push(Greet { name: "Ada".into() }).await?;
    let summary = duly.worker().on(greet).drain().await?;
    assert_eq!(summary.acked, 1);
    Ok(())
}
