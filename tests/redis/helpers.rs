//! Helpers of tests on servers.

use std::error::Error as _;
use std::time::Duration;

use duly::{Duly, Error, JobId};

pub use test_support::until;

/// Timeout of all waits; every wait of a passing test is far shorter.
pub const LONG: Duration = Duration::from_secs(20);

/// Returns the URL with a unique key prefix.
pub fn own_prefix(url: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}prefix={}", JobId::fresh())
}

pub async fn open(url: impl Into<String>) -> Duly {
    Duly::open(url).await.unwrap_or_else(|error| panic!("does not open: {}", error_chain(&error)))
}

/// Returns the error of an open that must fail.
pub async fn open_error(url: impl Into<String>) -> Error {
    Duly::open(url).await.expect_err("must not open")
}

/// Returns all texts of an error: its message, its `Debug` output, and every cause.
pub fn error_chain(error: &Error) -> String {
    let mut text = format!("{error}\n{error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("\n{error}\n{error:?}"));
        cause = error.source();
    }
    text
}
