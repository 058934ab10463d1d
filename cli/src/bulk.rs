//! Which jobs are meant on the command line, ids or a filter; and changes to all that a filter means: counted, asked, done.

use clap::Args;
use duly::{Bulk, Done, Duly, Filter, JobId};

use crate::Setup;
use crate::exit::{self, Fail};
use crate::input;
use crate::output::counted;

/// Which jobs, for verbs that change them.
#[derive(Debug, Args)]
pub(crate) struct Many {
    /// Ids, as push printed them; or a filter, such as `state:dead kind:mail since:1h`
    #[arg(value_name = "ID|FILTER")]
    words: Vec<String>,
    /// All jobs, without a filter
    #[arg(long, conflicts_with = "words")]
    all: bool,
    /// Only count which jobs are meant
    #[arg(long)]
    dry_run: bool,
}

/// What was meant.
pub(crate) enum Meant {
    Ids(Vec<JobId>),
    Filter(Box<Filter>),
}

impl Many {
    pub(crate) fn dry_run(&self) -> bool {
        self.dry_run
    }

    /// Whether nothing was said.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty() && !self.all
    }

    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    /// The jobs that are meant; nothing said is a mistake.
    pub(crate) fn meant(&self) -> anyhow::Result<Meant> {
        if self.all {
            return Ok(Meant::Filter(Box::new(Filter::all())));
        }
        if self.words.is_empty() {
            return Err(Fail::new(
                exit::USAGE,
                "which jobs? name ids, or write a filter such as state:dead, or say --all",
            ));
        }
        if self.words.iter().any(|word| word.trim().is_empty()) {
            let why = "an empty word means no job; is a variable not set? to mean all jobs say --all";
            return Err(Fail::new(exit::USAGE, why));
        }
        match self.words.iter().any(|word| is_like_id(word)) {
            true => self.words.iter().map(|word| id_of(word)).collect::<anyhow::Result<_>>().map(Meant::Ids),
            false => Ok(Meant::Filter(Box::new(filter_of(&self.words)?))),
        }
    }
}

/// Whether a word can only be meant as an id, also one that is mistyped, or cut behind its first eight digits.
fn is_like_id(word: &str) -> bool {
    let digits = word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    word.parse::<JobId>().is_ok() || (digits && (word.find('-') == Some(8) || word.matches('-').count() == 4))
}

fn id_of(word: &str) -> anyhow::Result<JobId> {
    let no_id = |_| {
        let why = "is no id of a job; ids have 36 characters, and stand without a filter beside them";
        Fail::new(exit::USAGE, format!("`{}` {why}", crate::escape::safe(word)))
    };
    word.parse().map_err(no_id)
}

/// A filter from the words of a command line: the shell has taken quotes away that the filter needs.
pub(crate) fn filter_of(words: &[String]) -> anyhow::Result<Filter> {
    Ok(text_of(words).parse()?)
}

/// The text of a filter, from the same words.
pub(crate) fn text_of(words: &[String]) -> String {
    match words {
        [one] => one.clone(),
        many => many.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    if !word.contains(char::is_whitespace) || word.contains('"') {
        return word.to_owned();
    }
    match word.split_once(':').filter(|(name, _)| !name.contains(char::is_whitespace)) {
        Some((name, value)) => format!("{name}:\"{value}\""),
        None => format!("\"{word}\""),
    }
}

/// Counts, asks, changes, and says what was done. `verb` is what is asked (`Remove`), `done` what has been (`removed`).
pub(crate) async fn change(setup: &Setup, bulk: Bulk<'_>, verb: &str, done: &str, dry_run: bool) -> anyhow::Result<()> {
    let found = bulk.dry_run().await?;
    let jobs = match found.whole {
        true => counted(found.matching, "job", "jobs"),
        false => format!("{} or more jobs", found.matching),
    };
    if dry_run {
        if setup.out.is_json() {
            return setup.out.json(&found);
        }
        return setup.out.line(&format!("{jobs} would be {done}"));
    }
    let question = format!("{verb} {jobs}?");
    if found.matching > 0 && !setup.yes && !input::confirmed(&question)? {
        return Err(Fail::new(exit::FAILURE, format!("nothing was {done}")));
    }
    let out = setup.out;
    let told =
        bulk.on_progress(move |so_far| out.say_to_people(&format!("{done} so far: {}", so_far.done))).run().await?;
    tell(setup, &told, done)
}

fn tell(setup: &Setup, told: &Done, done: &str) -> anyhow::Result<()> {
    let left = told.running + told.moving + told.existing + told.changed + told.failed;
    if setup.out.is_json() {
        setup.out.json(told)?;
    } else {
        setup.out.line(&format!("{} {done}", counted(told.done, "job", "jobs")))?;
        let reasons = [
            (told.running, "running"),
            (told.moving, "on the way to another store"),
            (told.existing, "another job has the unique key now"),
            (told.changed, "moved on before it was its turn"),
            (told.failed, "failed"),
        ];
        for (count, why) in reasons.into_iter().filter(|(count, _)| *count > 0) {
            setup.out.say(&format!("{count} left alone: {why}"));
        }
        told.errors.iter().for_each(|(id, why)| setup.out.say(&format!("job {id}: {}", crate::escape::safe(why))));
    }
    if told.more {
        setup.out.say("there may be more: run it again");
    }
    // Those that could not be changed are told of; what had moved on is no failure.
    match left - told.changed {
        0 => Ok(()),
        left => Err(Fail::new(exit::CONFLICT, format!("{} could not be {done}", counted(left, "job", "jobs")))),
    }
}

/// Opens nothing, holds nothing: for verbs whose jobs are named by a filter.
pub(crate) fn retry(duly: &Duly, filter: Filter) -> Bulk<'static> {
    duly.reschedule_all(filter, duly::Due::Now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_like_an_id_is_no_filter() {
        let id = JobId::fresh().to_string();
        for word in [&id[..], &id[..35], &id[..13], &id.replace('-', "")] {
            assert!(is_like_id(word), "{word}");
        }
        for word in ["deadbeef", "kind:mail", "2026-11-18", "a-b-c-d-no"] {
            assert!(!is_like_id(word), "{word}");
        }
    }

    #[test]
    fn quotes_that_the_shell_took_are_given_back() {
        let words = ["state:dead", "error:timed out", "two words"].map(str::to_owned);
        let filter = filter_of(&words).expect("a filter");
        assert_eq!(filter.to_string(), r#"state:dead error:"timed out" "two words""#);
        let one = filter_of(&["state:dead kind:mail".to_owned()]).expect("a filter");
        assert_eq!(one.to_string(), "state:dead kind:mail");
    }
}
