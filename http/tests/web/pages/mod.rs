//! The dashboard as HTML: the status and the content of each page, roles, and escaping.

mod client;
mod content;
mod copied;
mod cron;
mod escaping;
mod foreign_stores;
mod roles;
