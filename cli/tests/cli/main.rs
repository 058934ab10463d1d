//! The binary as people and scripts meet it: real processes, exit codes, what stands on stdout and stderr.

mod bed;
mod call;
mod codes;
mod cron;
mod demo;
mod documents;
mod lock;
mod moving;
mod nodes;
mod operate;
mod output;
mod push;
mod server;
mod settings;
mod stop;
mod tools;
mod work;
