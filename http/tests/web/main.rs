//! The HTTP API and the dashboard, over real sockets and in a real browser.

mod api;
mod browser;
mod fixture;
mod pages;

use test_support::servers;
