//! Administration: bulk changes, why a job waits, backup and verify, access tokens and the audit log.

pub(crate) mod access;
pub(crate) mod backup;
pub(crate) mod bulk;
pub(crate) mod token;
pub(crate) mod why;
