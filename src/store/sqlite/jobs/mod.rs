//! Jobs in the file: push, claim, settle, and every query and change of a job.

pub(crate) mod capacity;
pub(crate) mod claim;
pub(crate) mod counts;
pub(crate) mod deferred;
pub(crate) mod edit;
pub(crate) mod failures;
pub(crate) mod job_index;
pub(crate) mod list;
pub(crate) mod progress;
pub(crate) mod push;
pub(crate) mod push_in;
pub(crate) mod query;
pub(crate) mod settle;
pub(crate) mod state;
