//! Logs of the library, on stderr: quiet by default, since verbs say themselves what matters.

use tracing_subscriber::EnvFilter;

use crate::args::{Global, LogFormat};
use crate::config::Config;
use crate::exit::{self, CliError};

/// What `work` shows on stdout is not told a second time.
const DEFAULT_FILTER: &str = "warn,duly::attempt=off,duly::worker=off,duly::worker::beat=error";

/// Starts logging as flags, environment and settings say.
pub(crate) fn init_logging(global: &Global, config: &Config) -> anyhow::Result<()> {
    let format = global.log_format.or(config.log_format);
    let level = match (&global.log, global.verbose, global.quiet) {
        (Some(filter), ..) => filter.as_str(),
        // Whoever asks for JSON logs collects them: there they must be whole.
        (None, 0, _) if format == Some(LogFormat::Json) => "info",
        (None, 0, true) => "error,duly::attempt=off,duly::worker=off",
        (None, 0, false) => DEFAULT_FILTER,
        (None, 1, _) => "info",
        (None, 2, _) => "debug",
        (None, ..) => "trace",
    };
    let filter = EnvFilter::try_new(level)
        .map_err(|error| CliError::new(exit::USAGE, format!("DULY_LOG: {error}; write info or duly=debug")))?;
    let ansi = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // A logger that is already there can only be our own.
    let _ = match format {
        Some(LogFormat::Json) => builder.json().try_init(),
        _ => builder.try_init(),
    };
    Ok(())
}
