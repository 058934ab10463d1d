//! From a URL to a store: the one place that knows which stores there are.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::node::LEASE;

/// How long done jobs stay, unless the URL or the push says otherwise.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 3600);
/// How long dead jobs stay.
pub(crate) const KEEP_DEAD: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long ids of gone jobs are remembered.
pub(crate) const REMEMBER: Duration = Duration::from_secs(600);
/// Shortest and longest lease: beats must fit in, and a crash must be noticed some day.
const LEASE_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(300)..=Duration::from_secs(3600);

/// What an acknowledged push survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Crash of the process and loss of power: every commit is synced to the disk.
    #[default]
    Fsync,
    /// Crash of the process; a loss of power may cost the last second.
    Second,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) durability: Durability,
    pub(crate) lease: Duration,
    pub(crate) keep: Duration,
    pub(crate) keep_dead: Duration,
    pub(crate) remember: Duration,
    pub(crate) clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            durability: Durability::Fsync,
            lease: LEASE,
            keep: KEEP,
            keep_dead: KEEP_DEAD,
            remember: REMEMBER,
            clock: Clock::system(),
        }
    }
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Memory,
    File(PathBuf),
}

/// Opens the store that a URL names; its options stand over those given.
pub(crate) async fn open(url: &str, options: Options) -> Result<(Arc<dyn Store>, Options)> {
    let (target, options) = parse(url, options)?;
    let store = open_target(target, &options).await?;
    Ok((store, options))
}

#[cfg(feature = "sqlite")]
async fn open_target(target: Target, options: &Options) -> Result<Arc<dyn Store>> {
    let options = options.clone();
    // Opening touches the disk, and may wait for other processes.
    tokio::task::spawn_blocking(move || match target {
        Target::Memory => super::sqlite::Sqlite::in_memory(&options),
        Target::File(path) => super::sqlite::Sqlite::open(&path, &options),
    })
    .await
    .map_err(|e| Error::store("open", e.to_string()))?
    .map(|store| Arc::new(store) as Arc<dyn Store>)
}

#[cfg(not(feature = "sqlite"))]
async fn open_target(_target: Target, _options: &Options) -> Result<Arc<dyn Store>> {
    Err(Error::invalid("store", "this build has no store; turn on the feature `sqlite`"))
}

/// The file that a URL names, if it names one.
#[cfg(feature = "sqlite")]
pub(crate) fn file_of(url: &str) -> Result<Option<PathBuf>> {
    Ok(match parse(url, Options::default())?.0 {
        Target::File(path) => Some(path),
        Target::Memory => None,
    })
}

/// A path, `sqlite:PATH` or `:memory:`, each with `?name=value&...` behind it.
pub(crate) fn parse(url: &str, options: Options) -> Result<(Target, Options)> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let target = parse_target(place)?;
    let mut options = options;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        set(&mut options, name, value)?;
    }
    check(&options)?;
    Ok((target, options))
}

fn parse_target(place: &str) -> Result<Target> {
    let path = match place.split_once(':') {
        Some(("sqlite", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some((scheme, rest)) if rest.starts_with("//") => {
            return Err(Error::invalid(
                "store",
                format!(
                    "{scheme}:// is not a store this build knows; give the path of a file, sqlite:PATH or :memory:"
                ),
            ));
        }
        _ => place,
    };
    match path {
        "" => Err(Error::invalid("store", "names no file; give a path such as duly.db, or :memory:")),
        ":memory:" => Ok(Target::Memory),
        path if path.contains('\0') => Err(Error::invalid("store", "has a NUL character in it")),
        path => Ok(Target::File(PathBuf::from(path))),
    }
}

fn set(options: &mut Options, name: &str, value: &str) -> Result<()> {
    match name {
        "durability" => {
            options.durability = match value {
                "fsync" => Durability::Fsync,
                "second" => Durability::Second,
                _ => {
                    return Err(Error::invalid("durability", format!("{value:?} is neither fsync nor second")));
                }
            }
        }
        "lease" => options.lease = parse_duration("lease", value)?,
        "keep" => options.keep = parse_duration("keep", value)?,
        "keep_dead" => options.keep_dead = parse_duration("keep_dead", value)?,
        "remember" => options.remember = parse_duration("remember", value)?,
        _ => {
            return Err(Error::invalid(
                "store",
                format!("has no option {name:?}; it has durability, lease, keep, keep_dead, remember"),
            ));
        }
    }
    Ok(())
}

/// Rules that hold however the options came.
pub(crate) fn check(options: &Options) -> Result<()> {
    if !LEASE_RANGE.contains(&options.lease) {
        return Err(Error::invalid("lease", "must be from 300ms to 1h"));
    }
    Ok(())
}

fn parse_duration(field: &'static str, text: &str) -> Result<Duration> {
    duration(text).map_err(|reason| Error::invalid(field, format!("{text:?} is {reason}")))
}

/// A duration as people write it: `500ms`, `90s`, `1h30m`, `7d`, `0`. If it is none, what is wrong with it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "not a duration; write 500ms, 90s, 1h30m or 7d".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let signed = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    Duration::try_from(signed).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(url: &str) -> Target {
        parse(url, Options::default()).expect("a good URL").0
    }

    fn refused(url: &str) -> String {
        parse(url, Options::default()).expect_err("a bad URL").to_string()
    }

    #[test]
    fn paths_and_schemes() {
        assert_eq!(target("duly.db"), Target::File("duly.db".into()));
        assert_eq!(target("sqlite:duly.db"), Target::File("duly.db".into()));
        assert_eq!(target("sqlite:///var/lib/duly.db"), Target::File("/var/lib/duly.db".into()));
        assert_eq!(target("/tmp/a:b.db"), Target::File("/tmp/a:b.db".into()));
        assert_eq!(target(":memory:"), Target::Memory);
        assert!(refused("mysql://host/0").contains("mysql:// is not a store"));
        assert!(refused("").contains("names no file"));
    }

    #[test]
    fn options_in_the_url() {
        let (_, options) =
            parse("duly.db?durability=second&lease=5s&keep=0&keep_dead=7d", Options::default()).expect("good");
        assert_eq!(options.durability, Durability::Second);
        assert_eq!(options.lease, Duration::from_secs(5));
        assert_eq!(options.keep, Duration::ZERO);
        assert_eq!(options.keep_dead, Duration::from_secs(7 * 86_400));
        assert!(refused("duly.db?speed=9").contains("has no option"));
        assert!(refused("duly.db?lease=1ms").contains("300ms"));
        assert!(refused("duly.db?lease=-5s").contains("not a duration"));
        assert!(refused("duly.db?durability=maybe").contains("neither"));
    }

    proptest! {
        #[test]
        fn any_url_parses_or_is_refused(url in ".*") {
            let _ = parse(&url, Options::default());
        }

        #[test]
        fn any_duration_parses_or_is_refused(text in ".*") {
            let _ = parse_duration("keep", &text);
        }

        #[test]
        fn whole_seconds_survive(secs in 0u64..100_000_000) {
            prop_assert_eq!(parse_duration("keep", &format!("{secs}s")).expect("good"), Duration::from_secs(secs));
        }
    }
}
