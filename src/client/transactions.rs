//! Work in transactions that contain tables of your own, on the same SQLite file.

use rusqlite::Transaction;

use crate::client::Duly;
use crate::client::push::{describe_push, push_span, record_failure};
use crate::error::Result;
use crate::job::push::Push;
use crate::store::{self, TransactionStore};
use crate::worker::ctx::Ctx;
use crate::worker::middleware::AfterPush;

impl Duly {
    /// Pushes jobs inside your own SQLite transaction on the store's file.
    ///
    /// The jobs exist if, and only if, you commit. Call [`AfterCommit::wake`](crate::AfterCommit::wake) afterwards.
    /// Until then, metrics and [middleware](crate::Middleware::after_push) do not count them as pushed.
    /// The settings of your connection determine the durability. Do not await other calls of duly while the
    /// transaction is open, because it holds the write lock of the file.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`](crate::Error::Unsupported): the store is not a file.
    /// - [`Error::Invalid`](crate::Error::Invalid): the transaction belongs to another file, or a job is invalid.
    /// - [`Error::Full`](crate::Error::Full): a queue has reached its capacity.
    /// - [`Error::Store`](crate::Error::Store) or [`Error::Timeout`](crate::Error::Timeout): the file cannot be written, or
    ///   was replaced while it was open.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let file = dir.path().join("shop.db");
    /// let duly = Duly::open(file.display().to_string()).await?;
    /// let mut shop = duly::rusqlite::Connection::open(&file)?;
    /// let tx = shop.transaction()?;
    /// let after_commit = duly.push_in(&tx, [Push::new("mail", "{}")])?;
    /// tx.commit()?;
    /// after_commit.wake();
    /// # Ok(())
    /// # }
    /// ```
    pub fn push_in<P: Into<Push>>(
        &self,
        tx: &Transaction<'_>,
        jobs: impl IntoIterator<Item = P>,
    ) -> Result<store::sqlite::AfterCommit> {
        let span = push_span();
        let jobs = span.in_scope(|| self.prepare_jobs(jobs)).inspect_err(|error| record_failure(&span, error))?;
        describe_push(&span, &jobs);
        let after_push = AfterPush::new(&self.middleware, &jobs);
        let Some(path) = self.file_path()? else {
            return Err(store::contract::unsupported(&*self.store, store::contract::transactions::CAPABILITY));
        };
        let pushed = store::sqlite::push_in(tx, &self.store, &path, &self.options.clock, self.options.history, &jobs)?;
        Ok(pushed.then(move |results| after_push.run(results)))
    }

    /// Turns the rows that wait in the table `duly_inbox` into jobs now.
    ///
    /// Programs insert such rows in transactions of their own, with any SQLite library:
    /// `INSERT INTO duly_inbox (kind, args) VALUES ('mail', '{}')`.
    /// A program rarely needs this method: every write of duly takes the rows first, and a running worker notices them
    /// within milliseconds on Linux, and within a heartbeat interval elsewhere.
    /// [Middleware](crate::Middleware) does not see these jobs as pushes. The guide
    /// [Jobs](crate::guide::jobs#from-sqlx-diesel-python-or-sql) lists the columns.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`](crate::Error::Unsupported): the store is not a file.
    /// - [`Error::Store`](crate::Error::Store) or [`Error::Timeout`](crate::Error::Timeout): the file cannot be written.
    ///
    /// A row that cannot become a job is no error here: its column `error` says why.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let file = dir.path().join("shop.db");
    /// let duly = Duly::open_file(&file).await?;
    /// let mut shop = duly::rusqlite::Connection::open(&file)?; // or a pool of sqlx, or another program
    /// let tx = shop.transaction()?;
    /// tx.execute("INSERT INTO duly_inbox (kind, args) VALUES ('mail', '{}')", [])?;
    /// tx.commit()?;
    /// duly.take_inbox().await?;
    /// assert_eq!(duly.queues().counts().await?[0].ready, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take_inbox(&self) -> Result<()> {
        self.store.take_inbox().await
    }

    fn file_path(&self) -> Result<Option<std::path::PathBuf>> {
        Ok(store::StoreUrl::parse(&self.url)?.file().map(std::path::Path::to_owned))
    }
}

impl Ctx {
    /// Acks the job inside your own SQLite transaction on the store's file.
    ///
    /// The job is done if, and only if, you commit. Your rows and the end of the job are then one change: after a crash,
    /// the job runs again only if your rows are not there. The [result](Ctx::set_result) set so far is part of it.
    ///
    /// After the commit, return from the handler. Neither its return value nor a timeout, cancellation or crash has any
    /// effect. Until it returns, the job is shown as running, and keeps its unique key.
    /// If you roll back, the return value decides as usual.
    ///
    /// Do not await other calls of duly while the transaction is open, because it holds the write lock of the file.
    ///
    /// # Errors
    ///
    /// - [`Error::Conflict`](crate::Error::Conflict): this node no longer holds the job
    ///   ([`LeaseLost`](crate::ConflictKind::LeaseLost)). Roll back, because another node runs it.
    /// - [`Error::Unsupported`](crate::Error::Unsupported): the store is not a file.
    /// - [`Error::Invalid`](crate::Error::Invalid): the transaction belongs to another file.
    /// - [`Error::Store`](crate::Error::Store) or [`Error::Timeout`](crate::Error::Timeout): the file cannot be written, or
    ///   was replaced while it was open.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push, State};
    /// use duly::rusqlite::{Connection, TransactionBehavior};
    ///
    /// async fn charge(ctx: Ctx, file: std::path::PathBuf) -> Result<(), duly::BoxError> {
    ///     let mut shop = Connection::open(file)?;
    ///     let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     tx.execute("UPDATE account SET cents = cents - 999 WHERE id = 7", [])?;
    ///     ctx.ack_in(&tx)?;
    ///     tx.commit()?; // charged once, whatever happens
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let file = dir.path().join("shop.db");
    /// # let duly = Duly::open_file(&file).await?;
    /// # Connection::open(&file)?.execute_batch("CREATE TABLE account (id, cents); INSERT INTO account VALUES (7, 5000)")?;
    /// let id = duly.push(Push::new("charge", "{}")).await?.id();
    /// duly.worker().on_kind("charge", move |ctx| charge(ctx, file.clone())).drain().await?;
    /// assert_eq!(duly.jobs().get(id).await?.expect("is kept").state, State::Done);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ack_in(&self, tx: &Transaction<'_>) -> Result<()> {
        let (duly, attempt) = (self.duly(), &self.attempt_state);
        let store = &*duly.store;
        let file = duly.file_path()?.filter(|_| store.capabilities().transactions.is_some());
        let Some(file) = file else {
            return Err(store::contract::unsupported(store, store::contract::transactions::CAPABILITY));
        };
        attempt.ack_in.mark_called();
        let result = self.worker.progress.result(&attempt.held);
        store::sqlite::ack_in(tx, &duly.store, &file, &attempt.held, result.as_deref())
    }
}
