//! Jobs: push, claim and settle, and every query and change of a job.

pub(crate) mod claim;
pub(crate) mod edit;
pub(crate) mod job_index;
pub(crate) mod list;
pub(crate) mod push;
pub(crate) mod query;
pub(crate) mod settle;
