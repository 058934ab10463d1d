//! The dashboard as HTML: each page's status and what is on it, roles, and that nothing anybody wrote becomes markup.

#![cfg(feature = "http")]

#[path = "../browser/bed.rs"]
mod bed;
mod client;
mod cron;
mod escape;
mod roles;
mod whole;
