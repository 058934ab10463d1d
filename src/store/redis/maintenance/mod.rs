//! Maintenance of the stored data: health, access rules, verify, repair and scan.

pub(crate) mod acl;
pub(crate) mod health;
pub(crate) mod job_invariants;
pub(crate) mod repair;
pub(crate) mod scan;
pub(crate) mod verify;
pub(crate) mod verify_counts;
pub(crate) mod verify_cron;
