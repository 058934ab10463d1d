//! Selects jobs by ids or by a filter, and changes all jobs of a filter: count, confirm, apply.

use clap::Args;
use duly::admin::{AuditOutcome, BulkOperation, BulkReport};
use duly::{Duly, Filter, JobId};

use crate::Setup;
use crate::audit::BulkAction;
use crate::exit::{self, CliError};
use crate::input;
use crate::output::pluralize;

/// The digits of an id that `duly work` prints.
const SHORT_ID_LEN: usize = 8;

/// The jobs that a verb changes.
#[derive(Debug, Args)]
pub(crate) struct JobSelector {
    /// Ids, as printed by push; or a filter, such as `state:dead kind:mail since:1h`
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
    Ids(Vec<JobId>),
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
        match self.words.iter().any(|word| looks_like_id(word)) {
            true => {
                self.words.iter().map(|word| parse_job_id(word)).collect::<anyhow::Result<_>>().map(JobSelection::Ids)
            }
            false => Ok(JobSelection::Filter(Box::new(parse_filter(&self.words)?))),
        }
    }
}

/// Returns true for an id, even if mistyped or cut to at least eight digits, as `duly work` prints it. As a filter, such a
/// word would select other jobs: those with it in their args.
fn looks_like_id(word: &str) -> bool {
    let digits = word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_cut = word.len() >= SHORT_ID_LEN && !word.contains('-');
    parse_id(word).is_ok() || (digits && (is_cut || word.find('-') == Some(8) || word.matches('-').count() == 4))
}

fn parse_job_id(word: &str) -> anyhow::Result<JobId> {
    let invalid = |_: String| {
        let reason = "is not the id of a job; ids have 36 characters (see `duly jobs ls`) and cannot be combined with a \
                      filter; to select jobs by a text in their args, use args.PATH:TEXT";
        CliError::new(exit::USAGE, format!("`{}` {reason}", crate::escape::escape_text(word)))
    };
    parse_id(word).map_err(invalid)
}

/// Parses the id of a job, or the jid that Sidekiq has for it.
pub(crate) fn parse_id(word: &str) -> Result<JobId, String> {
    word.parse().or_else(|error: duly::Error| duly::compat::id_of_jid(word).ok_or_else(|| error.to_string()))
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
///
/// `verb` is for the question (`Remove`), `done` for the report (`removed`).
pub(crate) async fn confirm_and_run(
    setup: &Setup,
    action: BulkAction<'_>,
    bulk: BulkOperation<'_>,
    verb: &str,
    done: &str,
    dry_run: bool,
) -> anyhow::Result<()> {
    let count = bulk.dry_run().await?;
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
    // Jobs may change even if this process is killed.
    action.record(AuditOutcome::Started, None).await;
    let out = setup.out;
    let result =
        bulk.on_progress(move |so_far| out.print_hint(&format!("{done} so far: {}", so_far.applied))).run().await;
    match &result {
        Ok(report) => action.record(AuditOutcome::Done, Some(report.applied)).await,
        Err(_) => action.record(AuditOutcome::Unknown, None).await,
    }
    let report = result?;
    print_report(setup, &report, done)
}

fn print_report(setup: &Setup, report: &BulkReport, done: &str) -> anyhow::Result<()> {
    let failed = report.skipped_running + report.skipped_moving + report.skipped_unique + report.failed;
    if setup.out.is_json() {
        setup.out.print_json(report)?;
    } else {
        setup.out.print_line(&format!("{} {done}", pluralize(report.applied, "job", "jobs")))?;
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
    if report.has_more {
        setup.out.print_message("there may be more: run it again");
    }
    // A job that changed before its turn is not a failure.
    match failed {
        0 => Ok(()),
        _ => Err(CliError::new(exit::CONFLICT, format!("{} could not be {done}", pluralize(failed, "job", "jobs")))),
    }
}

/// Returns the operation that makes all jobs of a filter due now.
pub(crate) fn retry_all(duly: &Duly, filter: Filter) -> BulkOperation<'static> {
    duly.jobs().reschedule_all(filter, duly::job::Due::Now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_like_word_is_not_a_filter() {
        let id = JobId::fresh().to_string();
        for word in [&id[..], &id[..35], &id[..13], &id[..8], &id[28..], &id.replace('-', "")] {
            assert!(looks_like_id(word), "{word}");
        }
        for word in ["beef", "kind:mail", "2026-11-18", "a-b-c-d-no"] {
            assert!(!looks_like_id(word), "{word}");
        }
    }

    #[test]
    fn words_with_spaces_are_quoted_again() {
        let words = ["state:dead", "error:timed out", "two words"].map(str::to_owned);
        let filter = parse_filter(&words).expect("a filter");
        assert_eq!(filter.to_string(), r#"state:dead error:"timed out" "two words""#);
        let one = parse_filter(&["state:dead kind:mail".to_owned()]).expect("a filter");
        assert_eq!(one.to_string(), "state:dead kind:mail");
    }
}
