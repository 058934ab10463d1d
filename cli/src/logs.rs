//! Logs on stderr, as text or as JSON. Few by default, because verbs print the important events themselves.
//!
//! With JSON logs every line on stderr is one object: the logs of the library, the messages of verbs, errors, and the
//! output of jobs. So are the lines on stdout of verbs that run until they are stopped.

use std::ffi::OsString;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::{Map, Value};
use tracing_subscriber::EnvFilter;

use crate::args::{Global, LogFormat};
use crate::config::Config;
use crate::escape::escape_json;
use crate::exit::{self, CliError};
use crate::time;

/// `work` prints attempts and worker events on stdout, so the log omits them.
const DEFAULT_FILTER: &str = "warn,duly::worker=off,duly::worker::heartbeat=error,duly::worker::remote=warn";

/// A server also logs each entry of the audit log.
const SERVER_FILTER: &str =
    "warn,duly::audit=info,duly::worker=off,duly::worker::heartbeat=error,duly::worker::remote=warn";

/// Selects the format; errors in the command line need it before the command line is parsed.
const FORMAT_OPTION: &str = "--log-format";
const FORMAT_ENV: &str = "DULY_LOG_FORMAT";

/// Whether logs are JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Returns whether logs are JSON.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Selects the format of messages until [`init_logging`] knows all settings.
pub(crate) fn detect_format() {
    let format = requested_format(std::env::args_os(), std::env::var(FORMAT_ENV).ok());
    IS_JSON.store(format.as_deref() == Some("json"), Ordering::Relaxed);
}

/// Returns the format that a command line selects, or the one from the environment.
fn requested_format(args: impl Iterator<Item = OsString>, mut format: Option<String>) -> Option<String> {
    let mut args = args.take_while(|arg| arg != "--").filter_map(|arg| arg.into_string().ok());
    while let Some(arg) = args.next() {
        match arg.strip_prefix(FORMAT_OPTION) {
            Some("") => format = args.next(),
            Some(value) => format = value.strip_prefix('=').map(str::to_owned).or(format),
            None => {}
        }
    }
    format
}

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
}

/// A line of a JSON log, with the same fields first as those of the library.
#[derive(Serialize)]
struct LogLine<'a> {
    timestamp: String,
    level: Level,
    message: &'a str,
    #[serde(flatten)]
    fields: Map<String, Value>,
    target: &'a str,
}

/// Formats a line of a JSON log.
pub(crate) fn format_line(level: Level, target: &str, message: &str, fields: Map<String, Value>) -> String {
    let line = LogLine { timestamp: time::format_utc(time::now()), level, message, fields, target };
    // Serializing our own fields cannot fail.
    escape_json(&serde_json::to_string(&line).unwrap_or_default(), true)
}

/// Writes a line of a JSON log to stderr.
pub(crate) fn print_line(level: Level, message: &str, fields: Map<String, Value>) {
    // A closed stderr leaves no way to report anything.
    let _ = writeln!(std::io::stderr().lock(), "{}", format_line(level, "duly::cli", message, fields));
}

/// Starts logging with the level and format from flags, environment and settings.
pub(crate) fn init_logging(global: &Global, config: &Config, is_server: bool) -> anyhow::Result<()> {
    let is_json = global.log_format.or(config.log_format) == Some(LogFormat::Json);
    IS_JSON.store(is_json, Ordering::Relaxed);
    let level = match (&global.log, global.verbose, global.quiet) {
        (Some(filter), ..) => filter.as_str(),
        // JSON logs are for collection, so they must be complete.
        (None, 0, _) if is_json => "info",
        (None, 0, true) => "error,duly::worker=off,duly::worker::remote=error",
        (None, 0, false) if is_server => SERVER_FILTER,
        (None, 0, false) => DEFAULT_FILTER,
        (None, 1, _) => "info",
        (None, 2, _) => "debug",
        (None, ..) => "trace",
    };
    let filter = EnvFilter::try_new(level)
        .map_err(|error| CliError::new(exit::USAGE, format!("DULY_LOG: {error}; write info or duly=debug")))?;
    let ansi = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // An existing logger can only be our own.
    let _ = match is_json {
        true => builder.json().flatten_event(true).try_init(),
        false => builder.try_init(),
    };
    if is_json {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(|place| Value::from(place.to_string()));
            let fields = place.map(|place| ("location".to_owned(), place)).into_iter().collect();
            let text = panic.payload().downcast_ref::<String>().map(String::as_str);
            let message = text.or_else(|| panic.payload().downcast_ref().copied()).unwrap_or("unknown");
            print_line(Level::Error, &format!("panic: {message}; report this as a bug"), fields);
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_one_object_on_one_line() {
        let fields = Map::from_iter([("path".to_owned(), Value::from("a\u{202e}b"))]);
        let line = format_line(Level::Warn, "duly::cli", "first\nsecond \u{1b}[31m", fields);
        assert!(line.chars().all(|c| (' '..='~').contains(&c)), "{line}");
        let read: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["message"], "first\nsecond \u{1b}[31m");
        assert_eq!((&read["level"], &read["target"]), (&Value::from("WARN"), &Value::from("duly::cli")));
        assert_eq!(read["path"], "a\u{202e}b");
    }

    #[test]
    fn format_is_found_before_the_command_line_is_parsed() {
        for (args, expected) in [
            (&["duly", "--log-format", "json", "nonsense"][..], "json"),
            (&["duly", "--log-format=json"], "json"),
            (&["duly", "push", "--", "--log-format=json"], "text"),
        ] {
            let format = requested_format(args.iter().map(OsString::from), Some("text".to_owned()));
            assert_eq!(format.as_deref(), Some(expected), "{args:?}");
        }
    }
}
