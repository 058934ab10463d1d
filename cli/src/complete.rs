//! Shell completion of queues, kinds, cron rules, locks, nodes and jobs, from the store or server of the command line.
//!
//! The shell runs `duly` for each completion. It waits a bounded time for a bounded number of candidates, and any error
//! means none.

use std::ffi::OsString;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use duly::Filter;

use crate::Setup;
use crate::backend::Backend;
use crate::config::Config;
use crate::escape::escape_text;
use crate::output::{Format, Output};

/// The variable that asks for completions.
pub(crate) const COMPLETE_ENV: &str = "DULY_COMPLETE";
/// How long a shell may wait. A build for tests is slow, and runs on busy machines.
const TIMEOUT: Duration = if cfg!(debug_assertions) { Duration::from_secs(30) } else { Duration::from_millis(800) };
/// The most candidates.
const CANDIDATES_MAX: usize = 100;

/// The values of an argument.
#[derive(Clone, Copy, Debug)]
enum Values {
    Queues,
    Kinds,
    Rules,
    Locks,
    Nodes,
    Jobs,
}

/// A value, and its description.
type Candidate = (String, String);

/// Adds completion to the arguments of a verb that name things of the store.
pub(crate) fn add_candidates(verb: Command, path: &str) -> Command {
    // These name a store of their own.
    if path == "move" {
        return verb;
    }
    verb.mut_args(|arg| match find_values(path, &arg) {
        Some(values) => arg.add(ArgValueCandidates::new(move || find_candidates(values))),
        None => arg,
    })
}

fn find_values(path: &str, arg: &Arg) -> Option<Values> {
    let is_in = |verbs: &[&str]| verbs.iter().any(|verb| path == *verb || path.starts_with(&format!("{verb} ")));
    match arg.get_id().as_str() {
        "queue" | "queues" => Some(Values::Queues),
        "kind" | "kinds" => Some(Values::Kinds),
        "name" | "names" if is_in(&["cron"]) && path != "cron add" => Some(Values::Rules),
        "name" if is_in(&["lock"]) => Some(Values::Locks),
        "node" => Some(Values::Nodes),
        "id" | "ids" | "words" if is_in(&["jobs", "logs"]) => Some(Values::Jobs),
        _ => None,
    }
}

fn find_candidates(values: Values) -> Vec<CompletionCandidate> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || sender.send(load(values).unwrap_or_default()));
    let found = receiver.recv_timeout(TIMEOUT).unwrap_or_default();
    let candidate = |(order, (value, help)): (usize, Candidate)| {
        let help = escape_text(&help).into_owned();
        let help = (!help.is_empty()).then(|| help.into());
        CompletionCandidate::new(value).help(help).display_order(Some(order))
    };
    let is_safe = |(value, _): &Candidate| is_plain_word(value);
    found.into_iter().filter(is_safe).take(CANDIDATES_MAX).enumerate().map(candidate).collect()
}

/// Returns whether a value means only itself in a shell. Shells insert candidates without quotes, and other clients choose
/// the names of locks and kinds: `$(...)` would be run, and a name that begins with `-` would be an option.
fn is_plain_word(value: &str) -> bool {
    let is_plain = |char: char| char.is_alphanumeric() || "_.:/@%+,-".contains(char);
    value.starts_with(|char: char| char.is_alphanumeric() || char == '_') && value.chars().all(is_plain)
}

fn load(values: Values) -> anyhow::Result<Vec<Candidate>> {
    let setup = read_setup()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let backend = Backend::open_existing(&setup).await?;
        Ok(match values {
            Values::Queues => {
                let queues = backend.queues().await?.queues.into_iter();
                queues.map(|queue| (queue.queue, format!("{} ready", queue.ready))).collect()
            }
            Values::Kinds => backend.kinds().await?.into_iter().map(|kind| (kind, String::new())).collect(),
            Values::Rules => {
                backend.rules().await?.rules.into_iter().map(|rule| (rule.name, rule.description)).collect()
            }
            Values::Locks => backend.locks(None).await?.locks.into_iter().map(|lock| (lock.name, lock.note)).collect(),
            Values::Nodes => backend.nodes().await?.nodes.into_iter().map(|node| (node.id, node.host)).collect(),
            Values::Jobs => {
                let jobs = backend.list_jobs(Filter::all().limit(CANDIDATES_MAX)).await?.jobs.into_iter();
                jobs.map(|job| (job.id, format!("{} {}", job.state, job.kind))).collect()
            }
        })
    })
}

/// Reads the options that name the store from the words to complete.
fn read_setup() -> anyhow::Result<Setup> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let option = |name: &str| {
        let joined = format!("{name}=");
        words.iter().enumerate().find_map(|(index, word)| match word.to_str()?.strip_prefix(&joined) {
            Some(value) => Some(value.to_owned()),
            None if word == name => words.get(index + 1)?.to_str().map(str::to_owned),
            None => None,
        })
    };
    Ok(Setup {
        out: Output::new(Format::Table, true),
        config: Config::load(option("--config").as_deref().map(std::path::Path::new))?,
        store_flag: option("--store"),
        server: option("--server"),
        yes: false,
    })
}

#[cfg(test)]
mod tests {
    use super::is_plain_word;

    #[test]
    fn only_plain_words_are_offered() {
        for word in ["default", "mail.welcome", "Billing::Job", "user:7", "a/b@c", "größe", "0198-7c11"] {
            assert!(is_plain_word(word), "{word}");
        }
        for word in
            ["", "$(touch x)", "`id`", "*", "a b", "--server=http://x", "-n", "a;b", "a'b", "a\nb", "~root", "a&b"]
        {
            assert!(!is_plain_word(word), "{word:?}");
        }
    }
}
