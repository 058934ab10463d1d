//! `duly logs`: prints the log lines of a job, and follows them until it ends.

use std::time::Duration;

use clap::Args;
use duly_http::views::LineView;

use crate::backend::{self, Backend, WaitEnd};
use crate::escape::escape_text;
use crate::output::Output;
use crate::time;

/// How often a followed job is read. The end of the job is reported at once.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Print the log lines of a job; -f follows them until the job ends
///
/// Handlers write them with `Ctx::log`, workers over HTTP with their progress.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The id of the job, or 4 or more digits of its beginning or end
    #[arg(value_parser = crate::bulk::check_id)]
    id: String,
    /// Follow new lines until the job ends
    #[arg(short, long)]
    follow: bool,
}

pub(crate) async fn run(backend: &Backend, logs: LogsArgs, out: &Output) -> anyhow::Result<()> {
    let id = backend.find_id(&logs.id).await?;
    let mut job = backend.get_job(id).await?;
    let mut printed: Vec<LineView> = Vec::new();
    loop {
        print_new_lines(&printed, &job.log, out)?;
        printed = std::mem::take(&mut job.log);
        if !logs.follow || backend::is_final(&job) {
            break;
        }
        job = match backend.wait_for_job(id, Some(POLL_INTERVAL)).await? {
            WaitEnd::Final(job) => *job,
            WaitEnd::TimedOut(_) => match backend.find_job(id).await? {
                Some(job) => job,
                None => return end_of_removed(out),
            },
            WaitEnd::Gone => return end_of_removed(out),
        };
    }
    if printed.is_empty() {
        out.print_message("the job has no log lines");
    }
    if logs.follow {
        out.print_message(&format!("the job is {}", escape_text(&job.state)));
    }
    Ok(())
}

fn end_of_removed(out: &Output) -> anyhow::Result<()> {
    out.print_message("the job is gone: it is done and not kept, or was removed");
    Ok(())
}

/// Prints the lines that are not among the printed ones.
fn print_new_lines(printed: &[LineView], lines: &[LineView], out: &Output) -> anyhow::Result<()> {
    let known = count_known_lines(printed, lines);
    if known == 0 && !printed.is_empty() && !lines.is_empty() {
        out.print_message("some lines may be missing: only the newest lines of a job are kept");
    }
    lines[known..].iter().try_for_each(|line| print_log_line(line, out))
}

/// Returns how many lines at the start of `lines` are the last ones of `printed`. The oldest lines of a job are dropped
/// while it logs. Times cannot identify a line: many lines share one, and a clock may be set back.
fn count_known_lines(printed: &[LineView], lines: &[LineView]) -> usize {
    let key = |line: &LineView| (line.attempt, line.at_ms, line.line.clone());
    let (printed, lines): (Vec<_>, Vec<_>) = (printed.iter().map(key).collect(), lines.iter().map(key).collect());
    (0..=printed.len()).map(|dropped| &printed[dropped..]).find(|rest| lines.starts_with(rest)).map_or(0, <[_]>::len)
}

fn print_log_line(line: &LineView, out: &Output) -> anyhow::Result<()> {
    if out.is_json() {
        return out.print_json(line);
    }
    let at = time::format_date_time(time::from_millis(line.at_ms));
    out.print_line(&format!("{at}  attempt {}  {}", line.attempt, escape_text(&line.line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[(i64, &str)]) -> Vec<LineView> {
        let line = |(at_ms, line): &(i64, &str)| {
            let line = serde_json::json!({"at": "", "at_ms": at_ms, "attempt": 1, "line": line});
            serde_json::from_value(line).expect("a line")
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn new_lines_follow_the_last_printed_line() {
        let printed = [(1, "a"), (2, "same"), (2, "same")];
        for (now, known, why) in [
            (&printed[..], 3, "nothing is new"),
            (&[(1, "a"), (2, "same"), (2, "same"), (2, "same")], 3, "the same line once more"),
            (&[(2, "same"), (2, "same"), (1, "set back")], 2, "the oldest is dropped, the clock is set back"),
            (&[(2, "same"), (2, "b")], 1, "two are dropped"),
            (&[(2, "b"), (2, "c")], 0, "all are dropped within a millisecond"),
        ] {
            assert_eq!(count_known_lines(&lines(&printed), &lines(now)), known, "{why}");
        }
        assert_eq!(count_known_lines(&[], &lines(&printed)), 0, "the first poll");
    }
}
