//! The dashboard as HTML: each page's status and what is on it, roles, and that nothing anybody wrote becomes markup.

mod client;
mod content;
mod cron;
mod escaping;
mod roles;
