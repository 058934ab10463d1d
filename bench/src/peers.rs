//! The peers: each a program of its own below `peers/`, built or installed here, run as a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::config::{ARGS_BYTES, BenchConfig};

/// Jobs of a peer's round.
const ROUND_JOBS: usize = 3_000;
/// Jobs of apalis' rounds: its cost per job grows with the jobs that are done, so it is shown in two sizes.
/// With each the goal, if it has one.
const APALIS_JOBS: [(usize, Option<f64>); 2] = [(1_000, None), (10_000, Some(20.0))];
/// The peers in Python, each by the name of its package.
const PYTHON_PEERS: [&str; 2] = ["huey", "litequeue"];
/// A smoke run takes so many times fewer.
const QUICK_DIVISOR: usize = 10;

/// What a peer prints.
#[derive(Debug, Deserialize)]
pub(crate) struct SqlitePeerFigures {
    pub(crate) single_push_per_s: f64,
    pub(crate) life_per_s: f64,
}

/// A peer that is ready to run.
pub(crate) struct SqlitePeer {
    pub(crate) name: String,
    /// How many times as many lives a second as the peer duly should have.
    pub(crate) goal: Option<f64>,
    program: PathBuf,
    script: Option<PathBuf>,
    jobs: usize,
}

impl SqlitePeer {
    /// Builds what is to be built and installs what is to be installed, once.
    pub(crate) fn prepare_all(setting: &BenchConfig) -> Result<Vec<SqlitePeer>> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let apalis = build_peer(&here.join("peers/apalis"))?;
        let python = prepare_venv(&here.join("target/venv"), &PYTHON_PEERS)?;
        let fewer = if setting.is_quick { QUICK_DIVISOR } else { 1 };
        let mut peers = Vec::new();
        for (jobs, goal) in APALIS_JOBS {
            let (name, jobs) = (format!("apalis, {} jobs", jobs / fewer), jobs / fewer);
            peers.push(SqlitePeer { name, goal, program: apalis.clone(), script: None, jobs });
        }
        for name in PYTHON_PEERS {
            let script = Some(here.join("peers").join(name).join("peer.py"));
            let (name, program, jobs) = (name.to_owned(), python.clone(), ROUND_JOBS / fewer);
            peers.push(SqlitePeer { name, goal: Some(10.0), program, script, jobs });
        }
        Ok(peers)
    }

    /// One round in this directory.
    pub(crate) fn run(&self, dir: &Path) -> Result<SqlitePeerFigures> {
        let output = Command::new(&self.program)
            .args(&self.script)
            .args([self.jobs.to_string(), ARGS_BYTES.to_string()])
            .arg(dir)
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed: {told}", self.name);
        serde_json::from_slice(&output.stdout).with_context(|| format!("{} printed no figures: {told}", self.name))
    }
}

/// Builds a peer in Rust and answers its program.
pub(crate) fn build_peer(dir: &Path) -> Result<PathBuf> {
    eprintln!("building {}", dir.display());
    let built = cargo_command()
        .args(["build", "--release", "--locked", "-j2"])
        // Cargo has set it for our own build; the peer's directory has a setting of its own.
        .env_remove("LIBSQLITE3_FLAGS")
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .current_dir(dir)
        .status()?;
    ensure!(built.success(), "cargo build in {} failed", dir.display());
    let name = dir.file_name().and_then(|name| name.to_str()).context("a peer has a name")?;
    Ok(dir.join("target/release").join(format!("peer-{name}")))
}

/// The one that was used to start us, else the one in the path: it finds the right compiler for either.
pub(crate) fn cargo_command() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Makes a virtual environment with these packages and answers its Python.
fn prepare_venv(dir: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = dir.join("bin/python");
    let imports = packages.iter().map(|package| format!("import {package}")).collect::<Vec<_>>().join("; ");
    let works = |python: &Path| Command::new(python).args(["-c", &imports]).output().is_ok_and(|o| o.status.success());
    if works(&python) {
        return Ok(python);
    }
    eprintln!("installing {} into {}", packages.join(", "), dir.display());
    let made = Command::new("python3").args(["-m", "venv"]).arg(dir).status();
    match made {
        Ok(status) if status.success() => {}
        _ => bail!("the peers huey and litequeue need python3 with venv: install python3-venv"),
    }
    let got = Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages).status()?;
    ensure!(got.success() && works(&python), "pip could not install {}", packages.join(", "));
    Ok(python)
}
