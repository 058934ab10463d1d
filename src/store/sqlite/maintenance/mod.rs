//! Maintenance of the file: health, verify, repair, backup, upkeep and read-only SQL.

pub(crate) mod backup;
pub(crate) mod health;
pub(crate) mod repair;
pub(crate) mod sql;
pub(crate) mod upkeep;
pub(crate) mod verify;
