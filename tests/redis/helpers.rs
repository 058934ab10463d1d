//! Short words for what tests on servers do.

use std::error::Error as _;
use std::time::Duration;

use duly::{Duly, Error, JobId};

use test_support::servers::{Binary, Fsync, Options};
pub use test_support::until;

/// Far longer than anything here takes; a test that waits this long has failed.
pub const LONG: Duration = Duration::from_secs(20);

/// A server that keeps what it is given.
pub fn durable(binary: Binary) -> Options {
    Options::new(binary).aof(Fsync::EverySecond)
}

/// The URL with a key prefix that nobody else has.
pub fn apart(url: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}prefix={}", JobId::fresh())
}

pub async fn open(url: impl Into<String>) -> Duly {
    Duly::open(url).await.unwrap_or_else(|why| panic!("does not open: {}", whole(&why)))
}

/// Why it does not open.
pub async fn refusal(url: impl Into<String>) -> Error {
    Duly::open(url).await.expect_err("must not open")
}

/// All that an error can tell anybody: what it says, how it is printed by `{:?}`, and every cause.
pub fn whole(error: &Error) -> String {
    let mut text = format!("{error}\n{error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("\n{error}\n{error:?}"));
        cause = error.source();
    }
    text
}
