//! The real Sidekiq of Debian, and duly on the same Redis.

mod child;
mod entries;
mod faults;
mod mixed;
mod places;
mod shared;
mod support;
mod web;
