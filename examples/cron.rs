//! A cron rule: its next ticks, and a test that advances the clock to fire it.
//!
//! `cargo run --example cron`

use std::time::Duration;

use duly::cron::{Overlap, Schedule};
use duly::{Args, Clock, Ctx, Duly};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Report {
    to: String,
}
impl Args for Report {
    const KIND: &'static str = "report";
}

async fn report(job: Report, ctx: Ctx) {
    println!("report for {}, job {}", job.to, ctx.job().id);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> duly::Result<()> {
    // A schedule without a store: print the next ticks.
    let nightly = Schedule::parse("30 2 * * *", "Europe/Berlin")?;
    println!("{}", nightly.describe());
    for tick in nightly.ticks_after(Clock::system().now()).take(3) {
        println!("  {} {}", nightly.format_in_zone(tick), nightly.dst_note(tick).unwrap_or_default());
    }

    // A rule in a store. Registering the same rule again is a no-op, so this can be startup code.
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await?;
    let rule = duly.cron("report", "30 2 * * *").tz("Europe/Berlin").overlap(Overlap::Skip);
    rule.push(Report { to: "ada".into() }).await?;

    // A service calls `run`; a test advances the clock and drains.
    for day in 1..=3 {
        clock.advance(Duration::from_secs(24 * 3600));
        let summary = duly.worker().on(report).drain().await?;
        println!("day {day}: {} done", summary.acked);
        assert_eq!(summary.acked, 1);
    }
    Ok(())
}
