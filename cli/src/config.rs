//! `duly.toml`: settings that apply if no flag or environment variable is set.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::Deserialize;

use crate::args::LogFormat;
use crate::exit::{self, CliError};
use crate::file_owner::check_owner;

/// The file that is read without `--config`.
const DEFAULT_FILE: &str = "duly.toml";
/// The maximum size of a settings file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The contents of `duly.toml`. An unknown name is an error: a typo must not silently select a default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) store: Option<String>,
    pub(crate) log_format: Option<LogFormat>,
    pub(crate) cluster_key: Option<ClusterKeySetting>,
    #[serde(default)]
    pub(crate) work: WorkConfig,
    #[serde(default)]
    pub(crate) serve: ServeConfig,
}

/// The `[serve]` section.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServeConfig {
    pub(crate) listen: Option<String>,
}

/// The `[work]` section.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkConfig {
    /// `NAME` or `NAME=WEIGHT`.
    #[serde(default)]
    pub(crate) queues: Vec<String>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) exec: Option<ProgramSetting>,
    pub(crate) grace: Option<String>,
}

/// The keys that sign messages between nodes: one, or several of which the first signs.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum ClusterKeySetting {
    One(String),
    Several(Vec<String>),
}

impl ClusterKeySetting {
    pub(crate) fn into_keys(self) -> Vec<String> {
        match self {
            ClusterKeySetting::One(key) => vec![key],
            ClusterKeySetting::Several(keys) => keys,
        }
    }
}

impl std::fmt::Debug for ClusterKeySetting {
    /// Hides the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKeySetting(..)")
    }
}

/// A program with or without arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ProgramSetting {
    WithoutArgs(String),
    WithArgs(Vec<String>),
}

impl ProgramSetting {
    pub(crate) fn into_argv(self) -> Vec<String> {
        match self {
            ProgramSetting::WithoutArgs(program) => vec![program],
            ProgramSetting::WithArgs(argv) => argv,
        }
    }
}

impl Config {
    /// Reads the named file, or `./duly.toml` if it exists.
    pub(crate) fn load(named: Option<&Path>) -> anyhow::Result<Config> {
        let path = named.unwrap_or(Path::new(DEFAULT_FILE));
        let invalid = |reason: String| CliError::new(exit::USAGE, format!("{}: {reason}", path.display()));
        let unreadable = |error| invalid(format!("cannot be read: {error}"));
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => return Ok(Config::default()),
            opened => opened.map_err(unreadable)?,
        };
        let found = file.metadata().map_err(unreadable)?;
        // A named file was chosen.
        if named.is_none() {
            check_owner(path, &found, "--config ./duly.toml").map_err(invalid)?;
        }
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        if read.map_err(unreadable)? as u64 > FILE_BYTES_MAX {
            return Err(invalid("too large for a settings file; remove what does not belong there".to_owned()));
        }
        Config::parse(&text).map_err(invalid)
    }

    fn parse(text: &str) -> Result<Config, String> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            match line {
                Some(line) => format!("line {line}: {}", error.message()),
                None => error.message().to_owned(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in any::<String>(), value in ".*") {
            let _ = Config::parse(&text);
            let _ = Config::parse(&format!("store = {value}"));
        }
    }

    #[test]
    fn every_setting_is_parsed() {
        let config = Config::parse(
            "store = 'a.db'\nlog_format = 'json'\n[work]\nqueues = ['a', 'b=3']\nconcurrency = 4\nexec = ['sh', 'x']\ngrace = '5s'",
        )
        .expect("good");
        assert_eq!(config.store.as_deref(), Some("a.db"));
        assert_eq!(config.log_format, Some(LogFormat::Json));
        assert_eq!(config.work.queues, ["a", "b=3"]);
        assert_eq!(config.work.exec.expect("given").into_argv(), ["sh", "x"]);
    }

    #[test]
    fn one_or_several_cluster_keys_are_parsed() {
        let keys = |text| Config::parse(text).expect("good").cluster_key.expect("given");
        assert_eq!(keys("cluster_key = 'a'").into_keys(), ["a"]);
        let two = keys("cluster_key = ['new', 'old']");
        assert_eq!(format!("{two:?}"), "ClusterKeySetting(..)");
        assert_eq!(two.into_keys(), ["new", "old"]);
    }

    #[test]
    fn unknown_name_error_names_its_line() {
        let error = Config::parse("store = 'a.db'\nstroe = 1").expect_err("bad");
        assert!(error.contains("line 2") && error.contains("stroe"), "{error}");
        let error = Config::parse("[work]\nthreads = 1").expect_err("bad");
        assert!(error.contains("threads"), "{error}");
    }
}
