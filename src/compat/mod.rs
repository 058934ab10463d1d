//! Beside other systems, on their own keys. Their words are spoken here and nowhere else.

pub(crate) mod sidekiq;
