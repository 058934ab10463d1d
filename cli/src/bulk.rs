//! Selects jobs by ids or by a filter, and changes all jobs of a filter: count, confirm, apply.

use clap::Args;
use duly::admin::BulkReport;
use duly::job::IdPart;
use duly::{Filter, JobId};
use duly_http::views::{Action, JobView};

use crate::Setup;
use crate::backend::{Backend, BulkEnd, BulkTarget};
use crate::escape::escape_text;
use crate::events::short_id;
use crate::exit::{self, CliError};
use crate::input;
use crate::output::pluralize;

/// The most jobs that a question names.
const NAMED_JOBS_MAX: usize = 10;

/// The jobs that a verb changes.
#[derive(Debug, Args)]
pub(crate) struct JobSelector {
    /// Ids, or 4 or more digits of their beginning or end; or a filter, such as `state:dead kind:mail since:1h`
    #[arg(value_name = "ID|FILTER")]
    words: Vec<String>,
    /// All jobs, without a filter
    #[arg(long, conflicts_with = "words")]
    all: bool,
    /// Only count the matching jobs
    #[arg(long)]
    dry_run: bool,
}

/// The selected jobs.
pub(crate) enum JobSelection {
    /// Ids and parts of ids, as entered.
    Ids(Vec<String>),
    Filter(Box<Filter>),
}

impl JobSelector {
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Returns true if the command line selects no jobs.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty() && !self.all
    }

    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    /// Returns the selected jobs; an empty selection is an error.
    pub(crate) fn parse(&self) -> anyhow::Result<JobSelection> {
        if self.all {
            return Ok(JobSelection::Filter(Box::new(Filter::all())));
        }
        if self.words.is_empty() {
            return Err(CliError::new(
                exit::USAGE,
                "no job is selected; give ids, a filter such as state:dead, or --all",
            ));
        }
        if self.words.iter().any(|word| word.trim().is_empty()) {
            let reason = "an empty word selects no job; a variable may be unset; to select all jobs, use --all";
            return Err(CliError::new(exit::USAGE, reason));
        }
        match self.words.iter().all(|word| IdPart::is_id_like(word)) {
            true => Ok(JobSelection::Ids(self.words.clone())),
            // Rejects a filter with an id among its words.
            false => Ok(JobSelection::Filter(Box::new(Filter::parse_for_change(&join_filter_words(&self.words))?))),
        }
    }
}

/// Returns a word that is an id, a part of one, or the jid that Sidekiq has for a job.
pub(crate) fn check_id(word: &str) -> Result<String, String> {
    word.parse::<IdPart>().map(|_| word.to_owned()).map_err(|error| error.to_string())
}

/// Finds the jobs with these ids or parts of ids, all or none. Each job comes once.
pub(crate) async fn find_ids(backend: &Backend, words: &[String]) -> anyhow::Result<Vec<JobId>> {
    let mut ids = Vec::new();
    for word in words {
        let id = backend.find_id(word).await?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Asks before these jobs are removed, by name: a part of an id may be that of another job than the one that was meant.
/// A single job named by its whole id needs no question.
pub(crate) async fn confirm_removal(
    setup: &Setup,
    backend: &Backend,
    words: &[String],
    ids: &[JobId],
) -> anyhow::Result<()> {
    let is_whole = |word: &String| word.parse::<JobId>().is_ok() || duly::compat::id_of_jid(word).is_some();
    if setup.yes || (words.iter().all(is_whole) && ids.len() == 1) {
        return Ok(());
    }
    let mut names = Vec::new();
    for id in ids.iter().take(NAMED_JOBS_MAX) {
        names.extend(backend.find_job(*id).await?.as_ref().map(describe_job));
    }
    let question = match (&names[..], ids.len()) {
        ([name], 1) => format!("Remove {name}?"),
        ([], count) => format!("Remove {}?", pluralize(count as u64, "job", "jobs")),
        (names, count) => {
            let more = if names.len() < count { "; ..." } else { "" };
            format!("Remove {count} jobs: {}{more}?", names.join("; "))
        }
    };
    match input::confirm(&escape_text(&question))? {
        true => Ok(()),
        false => Err(CliError::new(exit::FAILURE, "nothing was removed")),
    }
}

/// Names a job for people: kind, end of the id, queue and state.
fn describe_job(job: &JobView) -> String {
    format!("job {} …{} in queue {} ({})", job.kind, short_id(&job.id), job.queue, job.state)
}

/// Parses a filter from command-line words; restores the quotes that the shell removed.
pub(crate) fn parse_filter(words: &[String]) -> anyhow::Result<Filter> {
    Ok(join_filter_words(words).parse()?)
}

/// Joins command-line words to the text of a filter.
pub(crate) fn join_filter_words(words: &[String]) -> String {
    match words {
        [one] => one.clone(),
        many => many.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quote_word(word: &str) -> String {
    if !word.contains(char::is_whitespace) || word.contains('"') {
        return word.to_owned();
    }
    match word.split_once(':').filter(|(name, _)| !name.contains(char::is_whitespace)) {
        Some((name, value)) => format!("{name}:\"{value}\""),
        None => format!("\"{word}\""),
    }
}

/// Counts the jobs, asks for confirmation, applies the change and prints a report.
pub(crate) async fn confirm_and_run(
    setup: &Setup,
    backend: &Backend,
    target: BulkTarget,
    dry_run: bool,
) -> anyhow::Result<()> {
    let (verb, done) = words_of(&target);
    let count = backend.count_jobs(&target).await?;
    let jobs = match count.is_complete {
        true => pluralize(count.matching, "job", "jobs"),
        false => format!("{} or more jobs", count.matching),
    };
    if dry_run {
        if setup.out.is_json() {
            return setup.out.print_json(&count);
        }
        return setup.out.print_line(&format!("{jobs} would be {done}"));
    }
    let question = format!("{verb} {jobs}?");
    if count.matching > 0 && !setup.yes && !input::confirm(&question)? {
        return Err(CliError::new(exit::FAILURE, format!("nothing was {done}")));
    }
    let out = setup.out;
    let progress = move |so_far: u64| out.print_hint(&format!("{done} so far: {so_far}"));
    let end = backend.change_jobs(&target, progress).await?;
    print_report(setup, &end, done)
}

/// Returns the verb of the question (`Remove`), and of the report (`removed`).
fn words_of(target: &BulkTarget) -> (&'static str, &'static str) {
    match target {
        BulkTarget::Queue(_) | BulkTarget::Filter(Action::Remove, _) => ("Remove", "removed"),
        BulkTarget::Filter(Action::Cancel, _) => ("Cancel", "cancelled"),
        BulkTarget::Filter(..) => ("Retry", "retried"),
    }
}

fn print_report(setup: &Setup, end: &BulkEnd, done: &str) -> anyhow::Result<()> {
    let operation = &end.operation;
    if setup.out.is_json() {
        setup.out.print_json(operation)?;
    } else {
        setup.out.print_line(&format!("{} {done}", pluralize(operation.done, "job", "jobs")))?;
    }
    let failed = match &end.report {
        Some(report) => {
            print_skipped(setup, report);
            // A job that changed before its turn is not a failure.
            report.skipped_running + report.skipped_moving + report.skipped_unique + report.failed
        }
        None if operation.skipped > 0 => {
            let jobs = pluralize(operation.skipped, "job was", "jobs were");
            setup.out.print_message(&format!("{jobs} skipped: running, moving, changed meanwhile, or not changeable"));
            operation.skipped
        }
        None => 0,
    };
    if operation.has_more {
        setup.out.print_message("there may be more: run it again");
    }
    match failed {
        0 => Ok(()),
        _ => Err(CliError::new(exit::CONFLICT, format!("{} could not be {done}", pluralize(failed, "job", "jobs")))),
    }
}

/// Prints why jobs of a store were skipped.
fn print_skipped(setup: &Setup, report: &BulkReport) {
    let reasons = [
        (report.skipped_running, "running"),
        (report.skipped_moving, "their queue is moving to another store"),
        (report.skipped_unique, "another job has their unique key now"),
        (report.skipped_changed, "their state has changed meanwhile"),
        (report.failed, "failed"),
    ];
    for (count, reason) in reasons.into_iter().filter(|(count, _)| *count > 0) {
        setup.out.print_message(&format!("{count} skipped: {reason}"));
    }
    for (id, error) in &report.errors {
        setup.out.print_message(&format!("job {id}: {}", crate::escape::escape_text(error)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_are_quoted_again() {
        let words = ["state:dead", "error:timed out", "two words"].map(str::to_owned);
        let filter = parse_filter(&words).expect("a filter");
        assert_eq!(filter.to_string(), r#"state:dead error:"timed out" "two words""#);
        let one = parse_filter(&["state:dead kind:mail".to_owned()]).expect("a filter");
        assert_eq!(one.to_string(), "state:dead kind:mail");
    }
}
