//! The HTTP API and the dashboard, over real sockets and in a real browser.

mod api;
mod browser;
mod fixture;
mod pages;
mod send_mail;

use test_support::servers;
