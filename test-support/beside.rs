//! sqlx, diesel and duly in one program and on one file: rows of both become jobs, and rows that are rolled back do not.
//! `test-support/docs.sh` builds and runs it with the newest sqlx and diesel.
//!
//! The functions `push_with_sqlx` and `push_with_diesel` contain the blocks of `docs/guide/jobs.md`; a test of duly-cli
//! compares them.

use std::error::Error;
use std::time::Duration;

use diesel::sql_types::Text;
use diesel::{Connection, Insertable, RunQueryDsl, SqliteConnection};
use duly::{CancellationToken, Ctx, Duly};
use serde_json::json;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

const TIMEOUT: Duration = Duration::from_secs(60);
const CREATE_ORDERS: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)";

diesel::table! {
    orders (id) {
        id -> Integer,
        item -> Text,
    }
}

#[derive(Insertable)]
#[diesel(table_name = orders)]
struct Order {
    id: i32,
    item: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("the path of a file that does not exist is missing")?;
    let duly = Duly::open_file(&file).await?;
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly.worker().on_kind("mail", move |ctx: Ctx| {
        let _ = sender.send(ctx.job().args.clone());
        async {}
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));

    // SQLite may be one of those with the bug that the guide describes.
    let options = SqliteConnectOptions::new().filename(&file).pragma("wal_autocheckpoint", "0");
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query(CREATE_ORDERS).execute(&pool).await?;
    roll_back_with_sqlx(&pool).await?;
    push_with_sqlx(&pool).await?;
    pool.close().await;
    let args = tokio::time::timeout(TIMEOUT, received.recv()).await?;
    assert_eq!(args.as_deref(), Some(r#"{"from":"sqlx"}"#));

    let path = file.clone();
    tokio::task::spawn_blocking(move || push_both_ways(&path).map_err(|error| error.to_string())).await??;
    let args = tokio::time::timeout(TIMEOUT, received.recv()).await?;
    assert_eq!(args.as_deref(), Some(r#"{"from":"diesel"}"#));

    stop.cancel();
    run.await??;
    assert!(received.try_recv().is_err(), "a job of a transaction that was rolled back has run");
    let report = duly.verify().await?;
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    println!("jobs of sqlx and diesel ran");
    Ok(())
}

async fn push_with_sqlx(pool: &SqlitePool) -> Result<(), Box<dyn Error>> {
    let mail = json!({ "from": "sqlx" });
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO orders (id, item) VALUES (7, 'lamp')").execute(&mut *tx).await?;
    sqlx::query("INSERT INTO duly_inbox (kind, args) VALUES (?, ?)")
        .bind("mail").bind(serde_json::to_string(&mail)?).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn roll_back_with_sqlx(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO duly_inbox (kind) VALUES ('mail')").execute(&mut *tx).await?;
    tx.rollback().await
}

fn push_both_ways(file: &str) -> Result<(), Box<dyn Error>> {
    let mut conn = SqliteConnection::establish(file)?;
    diesel::sql_query("PRAGMA busy_timeout = 5000").execute(&mut conn)?;
    diesel::sql_query("PRAGMA wal_autocheckpoint = 0").execute(&mut conn)?;
    let rolled_back: Result<(), diesel::result::Error> = conn.immediate_transaction(|conn| {
        diesel::sql_query("INSERT INTO duly_inbox (kind) VALUES ('mail')").execute(conn)?;
        Err(diesel::result::Error::RollbackTransaction)
    });
    assert!(rolled_back.is_err());
    push_with_diesel(&mut conn)?;
    Ok(())
}

fn push_with_diesel(conn: &mut SqliteConnection) -> diesel::QueryResult<()> {
    let lamp = Order { id: 8, item: "lamp".to_owned() };
    let args = json!({ "from": "diesel" }).to_string();
    conn.immediate_transaction(|conn| {
        diesel::insert_into(orders::table).values(&lamp).execute(conn)?;
        diesel::sql_query("INSERT INTO duly_inbox (kind, args) VALUES (?, ?)")
            .bind::<Text, _>("mail").bind::<Text, _>(&args).execute(conn)
    })?;
    Ok(())
}
