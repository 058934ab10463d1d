//! Logs of the library on stderr. Few by default, because verbs print the important events themselves.

use tracing_subscriber::EnvFilter;

use crate::args::{Global, LogFormat};
use crate::config::Config;
use crate::exit::{self, CliError};

/// `work` prints attempts and worker events on stdout, so the log omits them.
const DEFAULT_FILTER: &str = "warn,duly::worker=off,duly::worker::heartbeat=error,duly::worker::remote=warn";

/// A server also logs each entry of the audit log.
const SERVER_FILTER: &str =
    "warn,duly::audit=info,duly::worker=off,duly::worker::heartbeat=error,duly::worker::remote=warn";

/// Starts logging with the level and format from flags, environment and settings.
pub(crate) fn init_logging(global: &Global, config: &Config, is_server: bool) -> anyhow::Result<()> {
    let format = global.log_format.or(config.log_format);
    let level = match (&global.log, global.verbose, global.quiet) {
        (Some(filter), ..) => filter.as_str(),
        // JSON logs are for collection, so they must be complete.
        (None, 0, _) if format == Some(LogFormat::Json) => "info",
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
    let _ = match format {
        Some(LogFormat::Json) => builder.json().try_init(),
        _ => builder.try_init(),
    };
    Ok(())
}
