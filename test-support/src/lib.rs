//! Shared support for duly's tests and benchmarks. It does not depend on duly.
//!
//! - [`servers`]: real Redis and Valkey servers, alone, as a Cluster, under Sentinel, and a proxy that fails on demand.
//! - [`until`], [`until_blocking`], [`wait_for`], [`in_time`]: waits with a timeout that name the awaited condition.
//! - [`child_test`], [`KillOnDrop`]: this test binary started again as a child process.
//! - [`LineChild`], [`report`]: a child process that reports in lines.
//! - [`JsonProgram`]: a program in another language that reads and writes lines of JSON.
//! - [`lock()`]: locks a mutex, whether or not another holder has panicked.
//! - [`temp_dir`], [`env_number`]: a directory for one test, and a number that a longer run sets.

mod child;
mod env;
mod json_program;
mod line_child;
mod lock;
pub mod servers;
mod temp;
mod wait;

pub use child::{KillOnDrop, child_test, child_test_args};
pub use env::{env_number, installed_in_target};
pub use json_program::JsonProgram;
pub use line_child::{LineChild, report, start_reporting};
pub use lock::lock;
pub use temp::{TempDir, temp_dir};
pub use wait::{TIMEOUT, in_time, until, until_blocking, wait_for};
