//! The HTTP API and the dashboard, over real sockets and in a real browser.

mod api;
mod browser;
mod fixture;
mod pages;
#[path = "../../../tests/support/servers/mod.rs"]
mod servers;
