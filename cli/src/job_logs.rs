//! `duly logs`: prints the log lines of a job, and follows them until it ends.

use std::time::Duration;

use clap::Args;
use duly_http::views::{JobView, LineView};

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
    let mut printed: Option<Position> = None;
    loop {
        print_new_lines(&job, &mut printed, out)?;
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
    if printed.is_none() {
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

/// The last printed line: its attempt and time, and how many lines of that moment are printed.
type Position = (u32, i64, usize);

/// Prints the lines after the last printed one. Only the newest lines of a job are kept, so their number does not tell.
fn print_new_lines(job: &JobView, printed: &mut Option<Position>, out: &Output) -> anyhow::Result<()> {
    for line in &job.log {
        let moment = (line.attempt, line.at_ms);
        let same_moment = job.log.iter().take_while(|other| !std::ptr::eq(*other, line));
        let nth = same_moment.filter(|other| (other.attempt, other.at_ms) == moment).count() + 1;
        let position = (moment.0, moment.1, nth);
        if printed.is_none_or(|last| position > last) {
            print_log_line(line, out)?;
            *printed = Some(position);
        }
    }
    Ok(())
}

fn print_log_line(line: &LineView, out: &Output) -> anyhow::Result<()> {
    if out.is_json() {
        return out.print_json(line);
    }
    let at = time::format_date_time(time::from_millis(line.at_ms));
    out.print_line(&format!("{at}  attempt {}  {}", line.attempt, escape_text(&line.line)))
}
