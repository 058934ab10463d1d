//! Debian's Sidekiq and duly on the same Redis.

mod child;
mod entries;
mod faults;
mod mixed_formats;
mod sandbox;
mod shared_jobs;
mod tls_and_sentinel;
mod web;
