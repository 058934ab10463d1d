//! `duly jobs get`: prints a job for people.

use std::time::Duration;

use duly_http::views::{JobView, RunView};

use crate::escape::escape_text;
use crate::output::{Format, Output};
use crate::time;

/// The longest duration that is shown, in milliseconds: a server could send any number.
const DURATION_MS_MAX: f64 = 1e15;

/// Prints a job with its attempts, log, progress and result.
pub(crate) fn print_job(job: &JobView, out: &Output) -> anyhow::Result<()> {
    if out.is_json() {
        return out.print_json(job);
    }
    if out.format == Format::Name {
        return out.print_line(&escape_text(&job.id));
    }
    for (name, value) in describe_job(job) {
        out.print_line(&format!("{name:<12} {}", escape_text(&value)))?;
    }
    Ok(())
}

/// Returns the lines of a job: names and values.
pub(crate) fn describe_job(job: &JobView) -> Vec<(&'static str, String)> {
    let format_ms = |ms| {
        let moment = time::from_millis(ms);
        format!("{} ({})", time::format_date_time(moment), time::format_relative(moment))
    };
    let raw = |json: &Option<Box<serde_json::value::RawValue>>| json.as_ref().map(|json| json.get().to_owned());
    let unique = job.unique.as_ref().map(|unique| match &job.unique_scope {
        Some(scope) => format!("{unique} (scope: {scope})"),
        None => unique.clone(),
    });
    let progress = job.progress.as_ref().map(|progress| {
        let at = time::format_relative(time::from_millis(progress.at_ms));
        format!("{:.0} % {} ({at})", 100.0 * progress.fraction, progress.message)
    });
    let cancelling = if job.cancelling { ", cancelling" } else { "" };
    let lines = [
        ("id", Some(job.id.clone())),
        ("state", Some(format!("{}{cancelling}", job.state))),
        ("kind", Some(job.kind.clone())),
        ("queue", Some(job.queue.clone())),
        ("priority", Some(job.priority.clone())),
        ("args", Some(raw(&job.args).unwrap_or_else(|| "not shown to this token".to_owned()))),
        ("pushed", Some(format_ms(job.pushed_ms))),
        ("due", Some(format_ms(job.due_ms))),
        ("attempts", Some(format!("{} of at most {}, {} failed", job.attempts_made(), job.max_attempts, job.attempts))),
        ("crashes", Some(job.crashes.to_string())),
        ("timeout", Some(time::format_duration(Duration::from_millis(job.timeout_ms)))),
        ("keep", Some(time::format_duration(Duration::from_millis(job.keep_ms)))),
        ("unique", unique),
        ("tags", (!job.tags.is_empty()).then(|| job.tags.join(" "))),
        ("traceparent", job.traceparent.clone()),
        ("node", job.node.clone()),
        ("fence", job.fence.map(|fence| fence.to_string())),
        ("ended", job.ended_ms.map(format_ms)),
        ("progress", progress),
        ("result", raw(&job.result)),
    ];
    let mut lines: Vec<_> = lines.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    job.runs.iter().for_each(|run| describe_run(run, &mut lines));
    lines.extend(job.log.iter().map(|entry| {
        let at = time::format_date_time(time::from_millis(entry.at_ms));
        ("log", format!("attempt {}  {at}  {}", entry.attempt, entry.line))
    }));
    lines
}

/// Adds what an attempt did: how it ended, when it started, how long it took and where; its error and its output.
fn describe_run(run: &RunView, lines: &mut Vec<(&'static str, String)>) {
    let format_ms = |ms| time::format_date_time(time::from_millis(ms));
    let started = run.started_ms.map(|ms| format!("started {}", format_ms(ms)));
    let took = run.duration_ms.map(|ms| Duration::from_secs_f64(ms.clamp(0.0, DURATION_MS_MAX) / 1e3));
    let took = took.map(|duration| format!("took {}", time::format_duration(duration)));
    let ended = started.is_none().then(|| format!("ended {}", format_ms(run.ended_ms)));
    let facts: Vec<String> = [started, took, ended].into_iter().flatten().collect();
    lines.push(("attempt", format!("{} {}  {}  node {}", run.attempt, run.outcome, facts.join("  "), run.node)));
    for (name, text) in [("  error", &run.error), ("  output", &run.output)] {
        let text = text.as_deref().unwrap_or_default().trim_end();
        lines.extend(text.lines().map(|line| (name, line.to_owned())));
    }
}
