//! The values that handlers return: nothing, an outcome, a result, or an error.

use serde::Serialize;

use crate::error::BoxError;
use crate::job::Outcome;
use crate::worker::ctx::Ctx;
use crate::worker::handler::HandlerResult;

/// The result of a job: a handler that returns it succeeds and sets the result.
///
/// The result is stored as JSON and kept as long as the job; see [`JobRecord::result`](crate::JobRecord::result).
/// A result that cannot be written or is too long fails the attempt.
///
/// # Examples
///
/// ```
/// use duly::{Args, Ctx, Duly, JobResult};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Count { text: String }
/// impl Args for Count { const KIND: &'static str = "count"; }
///
/// #[derive(Serialize, Deserialize)]
/// struct Words { words: usize }
///
/// async fn count(job: Count, _: Ctx) -> Result<JobResult<Words>, std::io::Error> {
///     Ok(JobResult(Words { words: job.text.split(' ').count() }))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let id = duly.push(Count { text: "jobs run on time".into() }).await?.id();
/// duly.worker().on(count).drain().await?;
/// let record = duly.jobs().get(id).await?.expect("is kept");
/// assert_eq!(record.result::<Words>()?.expect("is done").words, 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobResult<T>(pub T);

/// The return value of a handler: `()`, an [`Outcome`], a [`JobResult`], or a `Result` of one of them with any error.
pub trait IntoOutcome: sealed::IntoHandlerResult {}

mod sealed {
    use serde::Serialize;

    use super::{BoxError, Ctx, HandlerResult, HandlerResultBox, JobResult, Outcome};

    pub trait IntoHandlerResult {
        /// Whether the return value contains a result, so that the context is needed to store it.
        #[doc(hidden)]
        const HAS_RESULT: bool = false;

        /// The context is given if there may be a result.
        #[doc(hidden)]
        fn into_handler_result(self, ctx: Option<&Ctx>) -> HandlerResultBox;
    }
    impl IntoHandlerResult for () {
        fn into_handler_result(self, _ctx: Option<&Ctx>) -> HandlerResultBox {
            HandlerResultBox(HandlerResult::Outcome(Outcome::Ack))
        }
    }
    impl IntoHandlerResult for Outcome {
        fn into_handler_result(self, _ctx: Option<&Ctx>) -> HandlerResultBox {
            HandlerResultBox(HandlerResult::Outcome(self))
        }
    }
    impl<T: Serialize> IntoHandlerResult for JobResult<T> {
        const HAS_RESULT: bool = true;

        fn into_handler_result(self, ctx: Option<&Ctx>) -> HandlerResultBox {
            match ctx.map_or(Ok(()), |ctx| ctx.set_result(&self.0)) {
                Ok(()) => HandlerResultBox(HandlerResult::Outcome(Outcome::Ack)),
                Err(error) => HandlerResultBox(HandlerResult::Failed(error.into())),
            }
        }
    }
    impl<T: IntoHandlerResult, E: Into<BoxError>> IntoHandlerResult for Result<T, E> {
        const HAS_RESULT: bool = T::HAS_RESULT;

        fn into_handler_result(self, ctx: Option<&Ctx>) -> HandlerResultBox {
            match self {
                Ok(value) => value.into_handler_result(ctx),
                Err(error) => HandlerResultBox(HandlerResult::Failed(error.into())),
            }
        }
    }
}

/// Keeps [`HandlerResult`] out of the public API.
#[doc(hidden)]
#[derive(Debug)]
pub struct HandlerResultBox(pub(super) HandlerResult);

impl IntoOutcome for () {}
impl IntoOutcome for Outcome {}
impl<T: Serialize> IntoOutcome for JobResult<T> {}
impl<T: IntoOutcome, E: Into<BoxError>> IntoOutcome for Result<T, E> {}
