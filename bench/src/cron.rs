//! Cron: the lateness of ticks, the time for many simultaneous rules, and the cost of many idle rules.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use duly::cron::CronRule;
use duly::{Duly, Filter, Push};
use tokio::task::JoinSet;

use crate::child::{BenchProcess, TimedJob, wall_us};
use crate::config::{BenchConfig, DEFAULTS, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::stats::Samples;

const GROUP: &str = "cron";
/// Rules that fire each second.
const RULES_PER_SECOND: usize = 100;
const MEASURED_SECONDS: usize = 20;
const GOAL_LATE_MS: f64 = 20.0;
/// The number of simultaneous rules, and of idle rules.
const MANY_RULES: usize = 10_000;
const GOAL_FIRED_S: f64 = 1.0;
/// As much as an idle worker may use without any rule.
const GOAL_CPU_PERCENT: f64 = 0.5;
/// Rules that are put concurrently.
const RULES_PER_BATCH: usize = 500;
/// The minimum time from putting the rules to their common tick.
const LEAD_TIME: Duration = Duration::from_secs(3);

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = config.fresh_dir("cron")?.join("duly.db");
    let duly = open_store(&file, DEFAULTS).await?;
    let child = BenchProcess::start_worker(&store_url(&file, DEFAULTS))?;
    let lines = measure(GROUP, config, &duly, &child).await?;
    child.kill()?;
    Ok(lines)
}

/// Measures any store with a worker on it.
pub(crate) async fn measure(
    group: &'static str,
    config: &BenchConfig,
    duly: &Duly,
    child: &BenchProcess,
) -> Result<Vec<ReportLine>> {
    let rules = if config.is_quick { 1_000 } else { MANY_RULES };
    let without_rules = measure_idle_cpu(config, child).await?;
    put_rules(duly, rules, "0 0 1 1 *").await?;
    let with_rules = measure_idle_cpu(config, child).await?;
    remove_rules(duly, rules).await?;
    let lateness = measure_lateness(config, duly, child).await?;
    let fired = measure_simultaneous_rules(duly, child, rules).await?;
    let line = |name: String, value, unit| ReportLine::single(group, name, value, unit);
    Ok(vec![
        line(
            format!("{RULES_PER_SECOND} rules each second, start after the tick, p50"),
            lateness.median(),
            Unit::Millis,
        )
        .with_goal("never early", lateness.min() >= 0.0),
        line(
            format!("{RULES_PER_SECOND} rules each second, start after the tick, p99"),
            lateness.percentile(99.0),
            Unit::Millis,
        )
        .value_below(GOAL_LATE_MS),
        line(format!("{rules} rules at one moment, until the last has fired"), fired.as_secs_f64(), Unit::Seconds)
            .value_below(GOAL_FIRED_S),
        line("CPU of an idle worker without rules".into(), without_rules, Unit::Percent),
        line(format!("CPU of an idle worker with {rules} rules"), with_rules, Unit::Percent)
            .value_below(GOAL_CPU_PERCENT),
    ])
}

fn build_rule(number: usize, pattern: &str) -> Result<CronRule> {
    Ok(CronRule::new(format!("rule-{number}"), pattern, Push::from(TimedJob::new(number)))?)
}

async fn put_rules(duly: &Duly, rules: usize, pattern: &str) -> Result<()> {
    for from in (0..rules).step_by(RULES_PER_BATCH) {
        let mut puts = JoinSet::new();
        for number in from..rules.min(from + RULES_PER_BATCH) {
            let (duly, rule) = (duly.clone(), build_rule(number, pattern)?);
            puts.spawn(async move { duly.crons().put(rule).await });
        }
        while let Some(put) = puts.join_next().await {
            put??;
        }
    }
    Ok(())
}

async fn remove_rules(duly: &Duly, rules: usize) -> Result<()> {
    for from in (0..rules).step_by(RULES_PER_BATCH) {
        let mut removes = JoinSet::new();
        for number in from..rules.min(from + RULES_PER_BATCH) {
            let duly = duly.clone();
            removes.spawn(async move { duly.crons().remove(&format!("rule-{number}")).await });
        }
        while let Some(removed) = removes.join_next().await {
            removed??;
        }
    }
    Ok(())
}

async fn measure_idle_cpu(config: &BenchConfig, child: &BenchProcess) -> Result<f64> {
    let time = Duration::from_secs(if config.is_quick { 2 } else { 10 });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (begin, before) = (Instant::now(), child.cpu_time()?);
    tokio::time::sleep(time).await;
    let used = child.cpu_time()? - before;
    Ok(used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0)
}

/// Returns the milliseconds from each tick, a full second, to the start of its job.
async fn measure_lateness(config: &BenchConfig, duly: &Duly, child: &BenchProcess) -> Result<Samples> {
    let seconds = if config.is_quick { 3 } else { MEASURED_SECONDS };
    put_rules(duly, RULES_PER_SECOND, "* * * * * *").await?;
    // Ticks before all rules are put do not count.
    let from = wall_us(SystemTime::now()).div_ceil(1_000_000) * 1_000_000;
    let end = from + seconds as u64 * 1_000_000;
    let mut lateness = Samples::default();
    loop {
        let start = child.next_start()?;
        if start.wall_us >= end {
            break;
        }
        if start.wall_us >= from {
            lateness.record((start.wall_us % 1_000_000) as f64 / 1_000.0);
        }
    }
    remove_rules(duly, RULES_PER_SECOND).await?;
    while child.next_start_within(Duration::from_secs(1))?.is_some() {}
    let expected = seconds * RULES_PER_SECOND;
    ensure!(lateness.len() == expected, "{} starts in {seconds} s instead of {expected}", lateness.len());
    Ok(lateness)
}

/// Returns the time from the common tick of all rules until the last of their jobs is pushed.
async fn measure_simultaneous_rules(duly: &Duly, child: &BenchProcess, rules: usize) -> Result<Duration> {
    // The first put, with a tick far away, measures how long putting takes.
    let begin = Instant::now();
    put_rules(duly, rules, "0 0 1 1 *").await?;
    let moment = wall_us(SystemTime::now() + LEAD_TIME + 2 * begin.elapsed()) / 1_000_000;
    let (second, minute, hour) = (moment % 60, moment / 60 % 60, moment / 3600 % 24);
    put_rules(duly, rules, &format!("{second} {minute} {hour} * * *")).await?;
    ensure!(wall_us(SystemTime::now()) / 1_000_000 < moment, "the rules were put too late");
    for _ in 0..rules {
        child.next_start()?;
    }
    let (mut last, mut cursor) = (Duration::ZERO, None);
    loop {
        let page = duly.jobs().list(Filter::all().limit(1_000).cursor(cursor)).await?;
        for record in &page.jobs {
            let after = wall_us(record.job.pushed).saturating_sub(moment * 1_000_000);
            last = last.max(Duration::from_micros(after));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(last);
        }
    }
}
