//! Turns an error into an exit code and one line on stderr.

use std::ffi::OsString;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::escape::escape_text;
use crate::logs::{self, Level};

/// The most lines of an error below its first.
const MARKED_LINES_MAX: usize = 10;

pub(crate) const FAILURE: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const NOT_FOUND: u8 = 3;
pub(crate) const CONFLICT: u8 = 4;
pub(crate) const STORE_FAILED: u8 = 5;
/// The lock was lost while its command ran.
pub(crate) const LOCK_LOST: u8 = 6;
pub(crate) const TIMED_OUT: u8 = 124;

/// A failure with an exit code of its own.
#[derive(Debug)]
pub(crate) struct CliError {
    code: u8,
    message: String,
}

impl CliError {
    /// Returns an `anyhow::Error`, for `return Err(CliError::new(..))`.
    #[expect(clippy::new_ret_no_self, reason = "it is only ever wanted as an error")]
    pub(crate) fn new(code: u8, message: impl Into<String>) -> anyhow::Error {
        CliError { code, message: message.into() }.into()
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

/// The exit code of a command that has already printed its own error.
#[derive(Debug)]
pub(crate) struct SilentExit(pub(crate) u8);

impl fmt::Display for SilentExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the command ended with exit code {}", self.0)
    }
}

impl std::error::Error for SilentExit {}

/// Returns the exit code for an error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(cli_error) = error.downcast_ref::<CliError>() {
        return cli_error.code;
    }
    match error.downcast_ref::<duly::Error>() {
        Some(duly::Error::Invalid { .. } | duly::Error::Unsupported { .. }) => USAGE,
        Some(duly::Error::NotFound { .. }) => NOT_FOUND,
        Some(duly::Error::Conflict { .. } | duly::Error::Full { .. }) => CONFLICT,
        Some(duly::Error::Store { .. } | duly::Error::Unknown { .. }) => STORE_FAILED,
        Some(duly::Error::Timeout { .. }) => TIMED_OUT,
        _ => FAILURE,
    }
}

/// Prints the error and returns its exit code.
pub(crate) fn report_error(error: &anyhow::Error) -> ExitCode {
    // The reader closed our output, as `head` does: not a failure.
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if let Some(SilentExit(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    let line = format_error(error);
    let (line, marked_lines) = split_marked_line(&line);
    if logs::is_json() {
        let code = ("exit_code".to_owned(), Value::from(exit_code(error)));
        let marks = Some(marked_lines.join("\n")).filter(|marks| !marks.is_empty());
        let marks = marks.map(|marks| ("input".to_owned(), Value::from(marks)));
        logs::print_line(Level::Error, &join_lines(line), marks.into_iter().chain([code]).collect());
        return ExitCode::from(exit_code(error));
    }
    print_error(line);
    for marked_line in marked_lines {
        let _ = writeln!(anstream::stderr().lock(), "{}", escape_text(marked_line));
    }
    ExitCode::from(exit_code(error))
}

/// Splits off the indented lines that may end an error: the given text with marks below its wrong part, or a list.
fn split_marked_line(text: &str) -> (&str, Vec<&str>) {
    let lines: Vec<&str> = text.lines().collect();
    match lines.split_first() {
        Some((first, rest)) if rest.iter().all(|line| line.starts_with("  ")) && rest.len() <= MARKED_LINES_MAX => {
            (first, rest.to_vec())
        }
        _ => (text, Vec::new()),
    }
}

/// Formats an error with its causes, each once: many errors repeat their cause in their own text.
pub(crate) fn format_error(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) && !cause.contains("Error code ") {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<std::io::Error>()).any(|e| e.kind() == ErrorKind::BrokenPipe)
}

/// Returns the text on one line.
fn join_lines(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Prints one line on stderr.
pub(crate) fn print_error(message: &str) {
    let line = join_lines(message);
    if logs::is_json() {
        return logs::print_line(Level::Error, &line, Map::new());
    }
    // A closed stderr leaves no way to report anything.
    let _ = writeln!(anstream::stderr().lock(), "duly: {}", escape_text(&line));
}

/// Returns the first filter word before `--` that begins with a minus; option names contain no colon.
fn find_negated_word(args: impl Iterator<Item = OsString>) -> Option<String> {
    let words = args.take_while(|arg| arg != "--").filter_map(|arg| arg.into_string().ok());
    let mut names = words.filter(|word| {
        let name = word.strip_prefix('-').and_then(|rest| rest.split_once([':', '<', '>'])).map(|(name, _)| name);
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.contains(['=', ' ']))
    });
    names.next()
}

/// Prints clap's error as one line; help and version go to stdout unchanged.
pub(crate) fn report_usage_error(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayVersion => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(USAGE);
        }
        _ => {}
    }
    let text = error.render().to_string();
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let mut message = lines.join("; ").replace(":; ", ": ");
    if message.contains("<PATTERN>") && error.kind() == clap::error::ErrorKind::MissingRequiredArgument {
        message.push_str("; write the name, the pattern and the job: duly cron add backup '0 3 * * *' -- ./backup");
    }
    if let (clap::error::ErrorKind::UnknownArgument, Some(word)) =
        (error.kind(), find_negated_word(std::env::args_os()))
    {
        message = format!("{word:?} begins with a minus; put such a filter after --, and options before it");
    }
    print_error(&format!("{} (see --help)", message.strip_prefix("error: ").unwrap_or(&message)));
    ExitCode::from(USAGE)
}
