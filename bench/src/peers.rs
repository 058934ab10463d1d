//! The peers on SQLite: separate programs below `peers/`, which this module builds, installs and runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::config::{ARGS_BYTES, BenchConfig};

/// Jobs per round of a peer.
const ROUND_JOBS: usize = 3_000;
/// Jobs per round of apalis, with the goal: its cost per job grows with the number of done jobs, so it has two sizes.
const APALIS_JOBS: [(usize, Option<f64>); 2] = [(1_000, None), (10_000, Some(20.0))];
/// The packages of the peers in Python.
const PYTHON_PEERS: [&str; 2] = ["huey", "litequeue"];
/// A smoke run divides the number of jobs by this.
const QUICK_DIVISOR: usize = 10;

/// The output of a peer.
#[derive(Debug, Deserialize)]
pub(crate) struct SqlitePeerFigures {
    pub(crate) single_push_per_s: f64,
    pub(crate) life_per_s: f64,
}

/// A peer that is ready to run.
pub(crate) struct SqlitePeer {
    pub(crate) name: String,
    /// The minimum ratio of lifecycles per second of duly to the peer.
    pub(crate) goal: Option<f64>,
    program: PathBuf,
    script: Option<PathBuf>,
    jobs: usize,
}

impl SqlitePeer {
    /// Builds and installs the peers if necessary.
    pub(crate) fn prepare_all(config: &BenchConfig) -> Result<Vec<SqlitePeer>> {
        let bench_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let apalis = build_peer(&bench_dir.join("peers/apalis"))?;
        let python = prepare_venv(&bench_dir.join("target/venv"), &PYTHON_PEERS)?;
        let divisor = if config.is_quick { QUICK_DIVISOR } else { 1 };
        let mut peers = Vec::new();
        for (jobs, goal) in APALIS_JOBS {
            let (name, jobs) = (format!("apalis, {} jobs", jobs / divisor), jobs / divisor);
            peers.push(SqlitePeer { name, goal, program: apalis.clone(), script: None, jobs });
        }
        for name in PYTHON_PEERS {
            let script = Some(bench_dir.join("peers").join(name).join("peer.py"));
            let (name, program, jobs) = (name.to_owned(), python.clone(), ROUND_JOBS / divisor);
            peers.push(SqlitePeer { name, goal: Some(10.0), program, script, jobs });
        }
        Ok(peers)
    }

    /// Runs one round in this directory.
    pub(crate) fn run(&self, dir: &Path) -> Result<SqlitePeerFigures> {
        let output = Command::new(&self.program)
            .args(&self.script)
            .args([self.jobs.to_string(), ARGS_BYTES.to_string()])
            .arg(dir)
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed: {stderr}", self.name);
        serde_json::from_slice(&output.stdout).with_context(|| format!("{} printed no figures: {stderr}", self.name))
    }
}

/// Builds a peer in Rust and returns the path of its program.
pub(crate) fn build_peer(dir: &Path) -> Result<PathBuf> {
    eprintln!("building {}", dir.display());
    let built = cargo_command()
        .args(["build", "--release", "--locked", "-j2"])
        // Cargo sets this variable for our own build; the peer has its own setting.
        .env_remove("LIBSQLITE3_FLAGS")
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .current_dir(dir)
        .status()?;
    ensure!(built.success(), "cargo build in {} failed", dir.display());
    let name = dir.file_name().and_then(|name| name.to_str()).context("a peer has a name")?;
    Ok(dir.join("target/release").join(format!("peer-{name}")))
}

/// Returns the cargo that started this program, or else the one in PATH.
pub(crate) fn cargo_command() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Creates a virtual environment with these packages and returns the path of its Python.
fn prepare_venv(dir: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = dir.join("bin/python");
    let imports = packages.iter().map(|package| format!("import {package}")).collect::<Vec<_>>().join("; ");
    let works = |python: &Path| Command::new(python).args(["-c", &imports]).output().is_ok_and(|o| o.status.success());
    if works(&python) {
        return Ok(python);
    }
    eprintln!("installing {} into {}", packages.join(", "), dir.display());
    let created = Command::new("python3").args(["-m", "venv"]).arg(dir).status();
    match created {
        Ok(status) if status.success() => {}
        _ => bail!("the peers huey and litequeue need python3 with venv: install python3-venv"),
    }
    let installed = Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages).status()?;
    ensure!(installed.success() && works(&python), "pip could not install {}", packages.join(", "));
    Ok(python)
}
