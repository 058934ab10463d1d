//! The public behaviour of the worker: handlers, outcomes, retries, limits, shutdown.

mod cron;
mod events;
mod handlers;
mod held_jobs;
mod queues;
mod shutdown;

use std::time::Duration;

use duly::{Args, Duly};
use serde::{Deserialize, Serialize};

/// Far longer than anything here takes; a test that waits this long has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Mail {
    to: String,
}
impl Args for Mail {
    const KIND: &'static str = "mail";
}

fn mail() -> Mail {
    Mail { to: "ada".into() }
}

async fn memory() -> Duly {
    Duly::open(":memory:").await.expect("opens")
}

async fn job_record(duly: &Duly, id: duly::JobId) -> duly::JobRecord {
    duly.jobs().get(id).await.expect("reads").expect("is there")
}
