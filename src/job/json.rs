//! Args and results: as values of the program's types, and inside the JSON of a record.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRecord};

impl Job {
    /// Returns the args, decoded.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the args do not decode as `T`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("add", "[1, 2]")).await?.id();
    /// let record = duly.jobs().get(id).await?.expect("is in the store");
    /// assert_eq!(record.job.decode_args::<(u32, u32)>()?, (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn decode_args<T: DeserializeOwned>(&self) -> Result<T> {
        decode_json("args", self.id, &self.args)
    }
}

impl JobRecord {
    /// Returns the result of the job, decoded; `None` if it has none.
    ///
    /// Only records that [`Jobs::get`](crate::admin::Jobs::get) returns have a result. A handler sets it by returning a
    /// [`JobResult`](crate::JobResult) or with [`Ctx::set_result`](crate::Ctx::set_result).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the result does not decode as `T`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, JobResult, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("answer", "null")).await?.id();
    /// duly.worker().on_kind("answer", |_: Ctx| async { JobResult(42) }).drain().await?;
    /// let record = duly.jobs().get(id).await?.expect("is kept");
    /// assert_eq!(record.result::<u32>()?, Some(42));
    /// # Ok(())
    /// # }
    /// ```
    pub fn result<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.result.as_deref().map(|json| decode_json("result", self.job.id, json)).transpose()
    }
}

fn decode_json<T: DeserializeOwned>(field: &'static str, id: JobId, json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| {
        let reason = format!("cannot decode the JSON of job {id} as {}: {error}", std::any::type_name::<T>());
        Error::invalid(field, reason)
    })
}

pub(super) fn result_as_json<S: serde::Serializer>(
    result: &Option<String>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    match result {
        Some(result) => args_as_json(result, serializer),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn args_as_json<S: serde::Serializer>(args: &str, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    // Kept as text, so that numbers beyond 2^53 and the order of keys survive.
    match serde_json::value::RawValue::from_string(args.to_owned()) {
        Ok(raw) => raw.serialize(serializer),
        Err(_) => args.serialize(serializer),
    }
}

pub(crate) fn as_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    (u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
}
