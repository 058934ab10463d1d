//! Pushes a job inside your own transaction: the job exists if and only if the transaction commits.

use duly::rusqlite::Connection;
use duly::{Args, Ctx, Duly};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct SendInvoice {
    order: i64,
}

impl Args for SendInvoice {
    const KIND: &'static str = "send_invoice";
}

async fn send_invoice(job: SendInvoice, _: Ctx) {
    println!("invoice for order {}", job.order);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("shop.db");
    let duly = Duly::open(file.display().to_string()).await?; // duly's tables are named duly_*

    let mut shop = Connection::open(&file)?;
    shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")?;

    // Do not await a duly operation while the transaction is open: it holds the write lock of the file.
    let tx = shop.transaction()?;
    tx.execute("INSERT INTO orders (id, item) VALUES (7, 'lamp')", [])?;
    let after_commit = duly.push_in(&tx, [SendInvoice { order: 7 }])?;
    tx.commit()?;
    after_commit.wake();

    // Rolled back: neither an order nor a job.
    let tx = shop.transaction()?;
    tx.execute("INSERT INTO orders (id, item) VALUES (8, 'chair')", [])?;
    let _never = duly.push_in(&tx, [SendInvoice { order: 8 }])?;
    tx.rollback()?;

    let summary = duly.worker().on(send_invoice).drain().await?;
    assert_eq!(summary.acked, 1);
    Ok(())
}
