//! duly-bench: compares duly to a baseline on its store and to its peers, in one run.
//!
//! Each measurement has its own file and returns lines of one table.
//! Both sides alternate, and ratios are computed per round, so that noise affects both sides.

mod baseline;
mod call;
mod child;
mod config;
mod cron;
mod flood;
mod growth;
mod history;
mod http;
mod lifecycle;
mod list;
mod lock;
mod machine;
mod options;
mod peers;
mod plot;
mod push;
mod redis;
mod reopen;
mod report;
mod shrink;
mod single_job;
mod stats;
mod wake;
mod worker;

use anyhow::{Context, Result, ensure};

use crate::config::BenchConfig;
use crate::machine::{CpuTime, Machine};
use crate::options::{Group, Options};
use crate::report::ReportLine;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = child::parse_role(&args)? {
        return child::run_role(role).await;
    }
    let options = match Options::parse(&args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n\n{}", options::USAGE);
            std::process::exit(2);
        }
    };
    std::fs::create_dir_all(&options.dir).with_context(|| format!("cannot make {}", options.dir.display()))?;
    let machine = Machine::detect(&options.dir);
    println!("{machine}");
    if machine.is_in_memory() {
        println!("The files are in memory, where a sync costs nothing: name a directory on a disk with --dir.");
    }
    let before = CpuTime::read();
    let config = BenchConfig { dir: options.dir.join("duly-bench"), is_quick: options.quick };
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for group in &options.groups {
        eprintln!("{}", group.name());
        // A failed group does not discard the figures of the others.
        match run_group(*group, &config).await {
            Ok(measured) => lines.extend(measured),
            Err(error) => failed.push(format!("{}: {error:#}", group.name())),
        }
    }
    let _ = std::fs::remove_dir_all(&config.dir);
    // `redis-peers` prints its own table and returns no lines.
    if !lines.is_empty() {
        println!("\n{}", report::format_table(&lines));
    }
    if let (Some(before), Some(after)) = (before, CpuTime::read()) {
        println!("Of the processors' time meanwhile the host gave {:.1}% to others.", after.stolen_since(before));
    }
    if options.json {
        println!("{}", serde_json::json!({ "machine": machine, "lines": lines }));
    }
    if let Some(file) = &options.plot {
        std::fs::write(file, plot::render_svg(&machine, &lines))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    ensure!(failed.is_empty(), "not measured\n{}", failed.join("\n"));
    Ok(())
}

async fn run_group(group: Group, config: &BenchConfig) -> Result<Vec<ReportLine>> {
    match group {
        Group::Push => push::run(config).await,
        Group::Lifecycle => lifecycle::compare_with_baseline(config).await,
        Group::Peers => lifecycle::compare_with_peers(config).await,
        Group::SingleJob => single_job::run(config).await,
        Group::Growth => growth::run(config).await,
        Group::Flood => flood::run(config).await,
        Group::Reopen => reopen::run(config).await,
        Group::Wake => wake::run(config).await,
        Group::Shrink => shrink::run(config).await,
        Group::Lock => lock::run(config).await,
        Group::Call => call::run(config).await,
        Group::Cron => cron::run(config).await,
        Group::List => list::run(config).await,
        Group::Http => http::run(config).await,
        Group::History => history::run(config).await,
        Group::RedisPush => redis::push(config).await,
        Group::RedisPushPaths => redis::push_paths(config).await,
        Group::RedisDrain => redis::drain(config).await,
        Group::RedisLifecycle => redis::lifecycle(config).await,
        Group::RedisWake => redis::wake(config).await,
        Group::RedisLateness => redis::lateness(config).await,
        Group::RedisMemory => redis::memory(config).await,
        Group::RedisGrowth => redis::growth(config).await,
        Group::RedisFailover => redis::failover(config).await,
        Group::RedisLock => redis::lock(config).await,
        Group::RedisCall => redis::call(config).await,
        Group::SidekiqDrain => redis::sidekiq_drain(config).await,
        Group::RedisCron => redis::cron(config).await,
        Group::RedisHistory => redis::history(config).await,
        Group::RedisList => redis::list(config).await,
        Group::RedisPeers => redis::peers(config).await,
    }
}
