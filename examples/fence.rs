//! Fences: a resource rejects writes with an older fence.
//! An attempt that pauses beyond its lease therefore cannot overwrite the work of the next attempt.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{Args, Ctx, Duly, Fence, Outcome};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct SetPrice {
    cents: u64,
}

impl Args for SetPrice {
    const KIND: &'static str = "set_price";
}

/// The resource; in a real program a row with a `fence` column and `UPDATE .. WHERE fence <= ?`.
struct Price {
    cents: u64,
    fence: Fence,
}

impl Price {
    fn set_cents(&mut self, cents: u64, fence: Fence) -> Result<(), String> {
        if fence < self.fence {
            return Err(format!("fence {fence} is older than {}", self.fence));
        }
        (self.cents, self.fence) = (cents, fence);
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> duly::Result<()> {
    let duly = Duly::open(":memory:").await?;
    let price = Arc::new(Mutex::new(Price { cents: 0, fence: Fence(0) }));
    duly.push(SetPrice { cents: 100 }).await?;

    let handler = |job: SetPrice, ctx: Ctx, price: Arc<Mutex<Price>>| async move {
        price.lock().map_err(|_| "poisoned")?.set_cents(job.cents, ctx.fence())?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(match ctx.attempt() {
            1 => Outcome::retry(Duration::ZERO, "once more, under a greater fence"),
            _ => Outcome::Ack,
        })
    };
    let summary = duly.worker().on_with(price.clone(), handler).drain().await?;
    assert_eq!((summary.retried, summary.acked), (1, 1));

    let late_write = price.lock().expect("not poisoned").set_cents(1, Fence(1));
    println!("a late writer: {}", late_write.expect_err("is refused"));
    Ok(())
}
