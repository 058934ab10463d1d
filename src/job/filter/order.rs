//! The orders of lists across queues.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::job::State;
use crate::job::filter::Filter;

/// An order of jobs across all queues.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Filter, job::JobOrder};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let failed_last = duly.jobs().list("state:dead".parse::<Filter>()?.order(JobOrder::End)).await?;
/// let run_next = duly.jobs().list(Filter::all().order(JobOrder::Due)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobOrder {
    /// Done, dead and cancelled jobs by their end, the last one first.
    End,
    /// Scheduled jobs by their due time, the next one first.
    Due,
}

impl JobOrder {
    /// All orders.
    pub const ALL: [JobOrder; 2] = [JobOrder::End, JobOrder::Due];

    /// Returns the order in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            JobOrder::End => "end",
            JobOrder::Due => "due",
        }
    }

    /// Returns the states that have this order.
    #[must_use]
    pub fn states(self) -> &'static [State] {
        match self {
            JobOrder::End => &[State::Done, State::Dead, State::Cancelled],
            JobOrder::Due => &[State::Scheduled],
        }
    }

    /// Returns whether later times come first.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn is_descending(self, is_reversed: bool) -> bool {
        (self == JobOrder::End) != is_reversed
    }
}

impl fmt::Display for JobOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for JobOrder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        JobOrder::ALL
            .into_iter()
            .find(|order| order.as_str() == text)
            .ok_or_else(|| Error::invalid("sort", format!("{text:?} is not an order; use end or due")))
    }
}

impl Filter {
    /// Sorts the jobs of all queues. Selects only states that have this order.
    #[must_use]
    pub fn order(self, order: impl Into<Option<JobOrder>>) -> Self {
        Filter { order: order.into(), ..self }
    }

    /// Turns the order around.
    #[must_use]
    pub fn reverse(self, reverse: bool) -> Self {
        Filter { reverse, ..self }
    }

    /// Returns an error if no job of the selected state has the order.
    pub(crate) fn check_order(&self) -> Result<()> {
        let state = if self.group.is_some() { self.state.or(Some(State::Dead)) } else { self.state };
        match (self.order, state) {
            (None, _) if self.reverse => Err(Error::invalid("reverse", "needs an order to reverse: end or due")),
            (Some(JobOrder::End), Some(state)) if !state.is_final() => Err(Error::invalid(
                "sort",
                format!("{state} jobs have no end; sort done, dead or cancelled jobs by end"),
            )),
            (Some(JobOrder::Due), Some(state)) if state != State::Scheduled => Err(Error::invalid(
                "sort",
                format!("{state} jobs do not wait for a due time; sort scheduled jobs by due"),
            )),
            _ => Ok(()),
        }
    }
}
