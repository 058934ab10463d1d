//! The peers on Redis: separate programs below `peers/` with a common command line (`peers/README.md`).

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::server::{INSTALL_HINT, RedisServer};
use crate::child::BenchProcess;
use crate::config::{ARGS_BYTES, BenchConfig};
use crate::peers::build_peer;

/// Jobs per drain of a peer.
const DRAIN_JOBS: usize = 100_000;
/// Jobs per drain of a slow peer.
const SLOW_DRAIN_JOBS: usize = 30_000;
/// apalis-redis supports at most 7,999 waiting jobs: with more, its worker ends with an error.
const APALIS_DRAIN_JOBS: usize = 7_000;
/// A smoke run divides the number of jobs by this.
const QUICK_DIVISOR: usize = 20;

/// The output of a peer; figures that a verb does not measure are absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RedisPeerFigures {
    pub(super) per_s: f64,
    pub(super) rss_mb: f64,
    pub(super) ran: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) earliest_ms: f64,
}

/// A peer that is ready to run.
pub(super) struct RedisPeer {
    pub(super) name: &'static str,
    /// The concurrency of its fastest drain.
    pub(super) concurrency: usize,
    /// Jobs per drain.
    pub(super) drain_jobs: usize,
    /// Whether it supports the 100,000 waiting jobs of the goal.
    pub(super) can_drain_all: bool,
    command_line: Vec<OsString>,
}

impl RedisPeer {
    /// Builds and installs the peers if necessary.
    pub(super) fn prepare_all(config: &BenchConfig) -> Result<Vec<RedisPeer>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let divisor = if config.is_quick { QUICK_DIVISOR } else { 1 };
        let peer = |name, concurrency, jobs: usize, command_line: Vec<OsString>| RedisPeer {
            name,
            concurrency,
            drain_jobs: jobs / divisor,
            can_drain_all: jobs == DRAIN_JOBS,
            command_line,
        };
        Ok(vec![
            peer("Sidekiq", 5, SLOW_DRAIN_JOBS, ruby_command_line(&dir.join("sidekiq"))?),
            peer("BullMQ", 200, DRAIN_JOBS, node_command_line(&dir.join("bullmq"))?),
            peer("rusty-sidekiq", 50, DRAIN_JOBS, rust_command_line(&dir.join("rusty-sidekiq"))?),
            peer("apalis-redis", 200, APALIS_DRAIN_JOBS, rust_command_line(&dir.join("apalis-redis"))?),
            peer("bullmq-official", 50, DRAIN_JOBS, rust_command_line(&dir.join("bullmq-official"))?),
            peer("oxana", 50, SLOW_DRAIN_JOBS, rust_command_line(&dir.join("oxana"))?),
        ])
    }

    /// Prepares Sidekiq and the peers that use its keys.
    pub(super) fn prepare_sidekiqs() -> Result<Vec<RedisPeer>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let peer = |name, concurrency, command_line| RedisPeer {
            name,
            concurrency,
            drain_jobs: DRAIN_JOBS,
            can_drain_all: true,
            command_line,
        };
        Ok(vec![
            peer("Sidekiq", 5, ruby_command_line(&dir.join("sidekiq"))?),
            peer("rusty-sidekiq", 50, rust_command_line(&dir.join("rusty-sidekiq"))?),
        ])
    }

    /// Prepares the peers that provide locks; they run no jobs.
    pub(super) fn prepare_lockers() -> Result<Vec<RedisPeer>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let peer =
            |name, command_line| RedisPeer { name, concurrency: 0, drain_jobs: 0, can_drain_all: false, command_line };
        Ok(vec![
            peer("rslock", rust_command_line(&dir.join("rslock"))?),
            peer("node-redlock", node_command_line(&dir.join("node-redlock"))?),
        ])
    }

    /// Runs a verb to its end.
    pub(super) fn run_verb(&self, server: &RedisServer, verb: &[&str]) -> Result<RedisPeerFigures> {
        let output = self.command(server).args(verb).output().with_context(|| format!("cannot start {}", self.name))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} {} failed: {stderr}", self.name, verb.join(" "));
        serde_json::from_slice(&output.stdout).with_context(|| format!("{} printed no figures: {stderr}", self.name))
    }

    pub(super) fn push(&self, server: &RedisServer, jobs: usize) -> Result<RedisPeerFigures> {
        self.run_verb(server, &["push", &jobs.to_string()])
    }

    /// Drains the waiting jobs.
    pub(super) fn drain(&self, server: &RedisServer, jobs: usize) -> Result<RedisPeerFigures> {
        self.run_verb(server, &["drain", &jobs.to_string(), &self.concurrency.to_string()])
    }

    /// Starts a worker that reports the start of its jobs.
    pub(super) fn start_worker(&self, server: &RedisServer, concurrency: usize) -> Result<BenchProcess> {
        BenchProcess::spawn(self.command(server).args(["work", &concurrency.to_string()]), "ready")
    }

    /// Starts a process that waits for a lock that it holds itself, until it is killed.
    pub(super) fn start_lock_waiter(&self, server: &RedisServer) -> Result<BenchProcess> {
        BenchProcess::spawn(self.command(server).arg("wait"), "ready")
    }

    /// Pushes jobs that report their start and then run for this duration.
    pub(super) fn push_holding_jobs(
        &self,
        server: &RedisServer,
        jobs: usize,
        time: Duration,
    ) -> Result<RedisPeerFigures> {
        self.run_verb(server, &["hold", &jobs.to_string(), &time.as_secs().to_string()])
    }

    fn command(&self, server: &RedisServer) -> Command {
        let mut command = Command::new(&self.command_line[0]);
        command.args(&self.command_line[1..]).env("REDIS_URL", server.url()).env("ARGS_BYTES", ARGS_BYTES.to_string());
        command
    }
}

/// Uses Debian's Ruby for Debian's Sidekiq, even if PATH names another one first.
fn ruby_command_line(dir: &Path) -> Result<Vec<OsString>> {
    // YJIT touches all of its 256 MiB default for compiled code, but uses only a few.
    let command_line: Vec<OsString> = ["/usr/bin/ruby", "--yjit", "--yjit-exec-mem-size=32"].map(OsString::from).into();
    let works = Command::new(&command_line[0])
        .args(&command_line[1..])
        .args(["-e", "require 'sidekiq'; require 'hiredis'"])
        .output();
    ensure!(works.is_ok_and(|output| output.status.success()), "Sidekiq is not here; {INSTALL_HINT}");
    Ok([command_line, vec![dir.join("peer.rb").into()]].concat())
}

fn node_command_line(dir: &Path) -> Result<Vec<OsString>> {
    // npm writes this file last.
    if !dir.join("node_modules/.package-lock.json").exists() {
        eprintln!("installing into {}", dir.display());
        let installed = Command::new("npm")
            .args(["install", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(dir)
            .output();
        let installed = installed.with_context(|| format!("npm is not here; {INSTALL_HINT}"))?;
        ensure!(
            installed.status.success(),
            "npm install in {} failed: {}",
            dir.display(),
            String::from_utf8_lossy(&installed.stderr)
        );
    }
    Ok(vec!["node".into(), dir.join("peer.mjs").into()])
}

fn rust_command_line(dir: &Path) -> Result<Vec<OsString>> {
    Ok(vec![build_peer(dir)?.into()])
}
