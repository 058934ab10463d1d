//! duly-bench: what duly costs, beside the limit of its store and beside its peers, in one run.
//!
//! Each measurement is a file of its own and answers lines of one table.
//! Rounds of both sides take turns, and a ratio is taken inside a round: a noisy neighbour hits both alike.

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
    let given: Vec<String> = std::env::args().skip(1).collect();
    if let Some(role) = child::parse_role(&given)? {
        return child::run_role(role).await;
    }
    let options = match Options::parse(&given) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n\n{}", options::USAGE);
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
    let setting = BenchConfig { dir: options.dir.join("duly-bench"), is_quick: options.quick };
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for group in &options.groups {
        eprintln!("{}", group.name());
        // One that fails does not take the others' figures with it.
        match run_group(*group, &setting).await {
            Ok(measured) => lines.extend(measured),
            Err(error) => failed.push(format!("{}: {error:#}", group.name())),
        }
    }
    let _ = std::fs::remove_dir_all(&setting.dir);
    // The peers alone have printed a table of their own.
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

async fn run_group(group: Group, setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    match group {
        Group::Push => push::run(setting).await,
        Group::Lifecycle => lifecycle::compare_with_baseline(setting).await,
        Group::Peers => lifecycle::compare_with_peers(setting).await,
        Group::SingleJob => single_job::run(setting).await,
        Group::Growth => growth::run(setting).await,
        Group::Flood => flood::run(setting).await,
        Group::Reopen => reopen::run(setting).await,
        Group::Wake => wake::run(setting).await,
        Group::Shrink => shrink::run(setting).await,
        Group::Lock => lock::run(setting).await,
        Group::Call => call::run(setting).await,
        Group::Cron => cron::run(setting).await,
        Group::List => list::run(setting).await,
        Group::Http => http::run(setting).await,
        Group::History => history::run(setting).await,
        Group::RedisPush => redis::push(setting).await,
        Group::RedisDrain => redis::drain(setting).await,
        Group::RedisLifecycle => redis::life(setting).await,
        Group::RedisWake => redis::wake(setting).await,
        Group::RedisLateness => redis::late(setting).await,
        Group::RedisMemory => redis::memory(setting).await,
        Group::RedisGrowth => redis::growth(setting).await,
        Group::RedisFailover => redis::failover(setting).await,
        Group::RedisLock => redis::lock(setting).await,
        Group::RedisCall => redis::call(setting).await,
        Group::SidekiqDrain => redis::sidekiq_drain(setting).await,
        Group::RedisCron => redis::cron(setting).await,
        Group::RedisHistory => redis::history(setting).await,
        Group::RedisList => redis::list(setting).await,
        Group::RedisPeers => redis::peers(setting).await,
    }
}
