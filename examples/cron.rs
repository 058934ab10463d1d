//! A rule that fires each second, two ways to look at it, and a test's way to let time go by.
//!
//! `cargo run --example cron`

use std::time::Duration;

use duly::{Args, Clock, Ctx, Duly, Overlap, Schedule};
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
    // Without a store: when would it fire?
    let nightly = Schedule::parse("30 2 * * *", "Europe/Berlin")?;
    println!("{}", nightly.describe());
    for tick in nightly.ticks_after(Clock::system().now()).take(3) {
        println!("  {} {}", nightly.format_in_zone(tick), nightly.dst_note(tick).unwrap_or_default());
    }

    // In a store: the same rule again changes nothing, so this may stand where a program starts.
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await?;
    let rule = duly.cron("report", "30 2 * * *").tz("Europe/Berlin").overlap(Overlap::Skip);
    rule.push(Report { to: "ada".into() }).await?;

    // A service calls `run`; a test moves the clock and drains.
    for day in 1..=3 {
        clock.advance(Duration::from_secs(24 * 3600));
        let tally = duly.worker().on(report).drain().await?;
        println!("day {day}: {} done", tally.acked);
        assert_eq!(tally.acked, 1);
    }
    Ok(())
}
