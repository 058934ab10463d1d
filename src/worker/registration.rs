//! The handlers of a worker and their retries.

use std::collections::HashMap;
use std::future::Future;

use crate::error::{Error, Result};
use crate::job::args::Args;
use crate::job::retry::Retry;
use crate::worker::Worker;
use crate::worker::ctx::Ctx;
use crate::worker::handler::Handlers;
use crate::worker::into_outcome::IntoOutcome;

/// How failed attempts are retried, by kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    by_kind: HashMap<String, Retry>,
    pub(super) default: Retry,
    /// The first kind that was given two retries.
    duplicate: Option<String>,
}

impl Retries {
    pub(super) fn new(default: Retry) -> Self {
        Retries { default, ..Retries::default() }
    }

    fn insert(&mut self, kind: String, retry: Retry) {
        if self.by_kind.insert(kind.clone(), retry).is_some() {
            self.duplicate.get_or_insert(kind);
        }
    }

    pub(super) fn get(&self, kind: &str) -> Retry {
        self.by_kind.get(kind).copied().unwrap_or(self.default)
    }

    /// Returns an error if a retry would never be used.
    pub(super) fn check(&self, handlers: &Handlers) -> Result<()> {
        if let Some(kind) = &self.duplicate {
            return Err(Error::invalid("retry", format!("{kind} has two retries in this worker; remove one of them")));
        }
        match self.by_kind.keys().find(|kind| handlers.get(kind).is_none()) {
            Some(kind) => {
                Err(Error::invalid("retry", format!("{kind} has no handler in this worker; add one with `on`")))
            }
            None => Ok(()),
        }
    }
}

impl Worker {
    /// Runs jobs of the kind `A::KIND` with this function.
    ///
    /// The handler may return `()`, an [`Outcome`](crate::Outcome), a [`JobResult`](crate::JobResult), or a `Result` of
    /// one of them with any error type. An error means that the attempt has failed; the job is retried later.
    /// A second handler for the same kind is an error when the worker starts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Ctx;
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl duly::Args for Mail { const KIND: &'static str = "mail"; }
    /// duly.worker().on(async |mail: Mail, _: Ctx| println!("to {}", mail.to))
    /// # }
    /// ```
    pub fn on<A, F, Fut, R>(mut self, handler: F) -> Self
    where
        A: Args,
        F: Fn(A, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_typed(handler);
        self
    }

    /// Runs jobs of the kind `A::KIND` with this function, which also gets a clone of the state.
    ///
    /// The state is shared by handlers: a database pool, a client, settings. The compiler rejects a handler without it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// # use duly::{Args, Ctx, Duly};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    ///
    /// struct Mailer { from: String }
    ///
    /// async fn send(mail: Mail, _: Ctx, mailer: Arc<Mailer>) {
    ///     println!("from {} to {}", mailer.from, mail.to);
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let mailer = Arc::new(Mailer { from: "duly".into() });
    /// duly.push(Mail { to: "ada".into() }).await?;
    /// assert_eq!(duly.worker().on_with(mailer, send).drain().await?.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// ```compile_fail
    /// # use duly::{Args, Ctx, Duly};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// # struct Mailer;
    /// async fn send(mail: Mail, _: Ctx, mailer: std::sync::Arc<Mailer>) {}
    /// # fn worker(duly: Duly) {
    /// let worker = duly.worker().on(send); // the state is missing
    /// # }
    /// ```
    pub fn on_with<S, A, F, Fut, R>(mut self, state: S, handler: F) -> Self
    where
        S: Clone + Send + Sync + 'static,
        A: Args,
        F: Fn(A, Ctx, S) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_typed(move |args: A, ctx| handler(args, ctx, state.clone()));
        self
    }

    /// Runs jobs of this kind with a function that decodes the args from [`Ctx::job`] itself.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// async fn greet(ctx: Ctx) -> duly::Result<()> {
    ///     let args: serde_json::Value = ctx.args()?;
    ///     println!("hello {}", args["name"]);
    ///     Ok(())
    /// }
    /// duly.push(Push::new("greet", r#"{"name":"ada"}"#)).await?;
    /// assert_eq!(duly.worker().on_kind("greet", greet).drain().await?.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_kind<F, Fut, R>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_untyped(Some(kind.into()), handler);
        self
    }

    /// Runs jobs of all kinds without a handler of their own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("greet", r#"{"name":"ada"}"#)).await?;
    /// let worker = duly.worker().on_any_kind(async |ctx: Ctx| println!("{} {}", ctx.job().kind, ctx.job().args));
    /// assert_eq!(worker.drain().await?.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_any_kind<F, Fut, R>(mut self, handler: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_untyped(None, handler);
        self
    }

    /// Sets how failed attempts of the kind `A::KIND` are retried. The worker must have a handler for it.
    ///
    /// A second retry for the same kind is an error when the worker starts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Args, Ctx, Duly};
    /// use duly::Retry;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # async fn send(mail: Mail, _: Ctx) {}
    /// let worker = duly.worker().on(send).retry::<Mail>(Retry::fixed(Duration::from_secs(60)));
    /// # worker.drain().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry<A: Args>(self, retry: Retry) -> Self {
        self.retry_kind(A::KIND, retry)
    }

    /// Sets how failed attempts of one kind are retried. The worker must have a handler for it.
    ///
    /// A second retry for the same kind is an error when the worker starts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Ctx, Duly, Retry};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # async fn send(ctx: Ctx) {}
    /// let every_minute = Retry::fixed(Duration::from_secs(60));
    /// duly.worker().on_kind("mail", send).retry_kind("mail", every_minute).drain().await?;
    ///
    /// let error = duly.worker().on_kind("mail", send).retry_kind("mial", every_minute).drain().await.unwrap_err();
    /// assert_eq!(error.code(), "invalid");
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry_kind(mut self, kind: impl Into<String>, retry: Retry) -> Self {
        self.retries.insert(kind.into(), retry);
        self
    }

    /// Sets how failed attempts of all other kinds are retried.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Retry;
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().default_retry(Retry::fixed(std::time::Duration::from_secs(60)))
    /// # }
    /// ```
    pub fn default_retry(mut self, retry: Retry) -> Self {
        self.retries.default = retry;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_retry_for_a_kind_is_refused() {
        let mut handlers = Handlers::default();
        handlers.insert_untyped(Some("mail".to_owned()), |_: Ctx| async {});
        let mut retries = Retries::default();
        retries.insert("mail".to_owned(), Retry::default());
        retries.check(&handlers).expect("each kind has one");
        retries.insert("mail".to_owned(), Retry::default());
        let error = retries.check(&handlers).expect_err("one of them would never be used").to_string();
        assert_eq!(error, "retry: mail has two retries in this worker; remove one of them");
    }
}
