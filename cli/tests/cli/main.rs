//! Tests of the binary with real processes: exit codes, stdout and stderr.

mod admin;
mod backend;
mod call;
mod cron;
mod debugging;
mod demo;
mod documents;
mod exit_codes;
mod lock;
mod nodes;
mod output;
mod push;
mod redis;
mod sandbox;
mod security;
mod server;
mod settings;
mod shutdown;
mod sidekiq;
mod transfer;
mod work;
