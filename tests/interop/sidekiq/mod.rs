//! Debian's Sidekiq and duly on the same Redis.

mod active_job;
mod child;
mod entries;
mod faults;
mod mixed_formats;
mod moves;
mod reserved;
mod sandbox;
mod shared_jobs;
mod tls_and_sentinel;
mod web;
