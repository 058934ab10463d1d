//! A job that exists if, and only if, the rows it is about exist: pushed inside your own transaction.

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
    let duly = Duly::open(file.display().to_string()).await?; // duly's tables are named duly_*, yours as you like

    let mut shop = Connection::open(&file)?;
    shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")?;

    // Await nothing of duly's while the transaction is open: it holds the file's write lock.
    let tx = shop.transaction()?;
    tx.execute("INSERT INTO orders (id, item) VALUES (7, 'lamp')", [])?;
    let after_commit = duly.push_in(&tx, [SendInvoice { order: 7 }])?;
    tx.commit()?;
    after_commit.wake();

    // Rolled back: no order, and no invoice either.
    let tx = shop.transaction()?;
    tx.execute("INSERT INTO orders (id, item) VALUES (8, 'chair')", [])?;
    let _never = duly.push_in(&tx, [SendInvoice { order: 8 }])?;
    tx.rollback()?;

    let tally = duly.worker().on(send_invoice).drain().await?;
    assert_eq!(tally.acked, 1);
    Ok(())
}
