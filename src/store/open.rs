//! From a URL to a store: the one place that knows which stores there are.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::duration::duration;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::push::check_name;
use crate::node::LEASE;

/// How long done jobs stay, unless the URL or the push says otherwise.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 3600);
/// How long dead jobs stay.
pub(crate) const KEEP_DEAD: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long ids of gone jobs are remembered.
pub(crate) const REMEMBER: Duration = Duration::from_secs(600);
/// What keys on a server begin with, unless the URL says otherwise.
const PREFIX: &str = "duly";
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
    /// Whether what happens is counted minute by minute.
    pub(crate) history: bool,
    /// What every key begins with: several apps on one server.
    pub(crate) prefix: String,
    /// How many replicas must have a push before it is acknowledged.
    pub(crate) replicas: u32,
    /// A server that forgets everything when it stops will do.
    pub(crate) allow_data_loss: bool,
    /// The certificate authority to trust, instead of those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// What we show to a server that asks who we are, and the key to it: both or neither.
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// Sentinels have users of their own.
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    /// What nodes sign messages with: the first signs, all of them check. Never in a URL.
    pub(crate) cluster_keys: Vec<String>,
    pub(crate) clock: Clock,
    /// Options of a URL that only one system of others has, by name.
    pub(crate) foreign: Vec<(String, String)>,
    /// Retries wait as long as such a system lets them.
    pub(crate) fourth_power: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            durability: Durability::Fsync,
            lease: LEASE,
            keep: KEEP,
            keep_dead: KEEP_DEAD,
            remember: REMEMBER,
            history: true,
            prefix: PREFIX.to_owned(),
            replicas: 0,
            allow_data_loss: false,
            ca: None,
            cert: None,
            key: None,
            sentinel_user: None,
            sentinel_password: None,
            cluster_keys: Vec::new(),
            clock: Clock::system(),
            foreign: Vec::new(),
            fourth_power: false,
        }
    }
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Memory,
    File(PathBuf),
    #[cfg(feature = "redis")]
    Redis(super::redis::Place),
    /// On the keys of another system.
    #[cfg(feature = "compat")]
    Foreign(crate::compat::System, super::redis::Place),
}

/// Opens the store that a URL names; its options stand over those given.
pub(crate) async fn open(url: &str, options: Options) -> Result<(Arc<dyn Store>, Options)> {
    let (target, options) = parse(url, options)?;
    let store = open_target(target, &options).await?;
    Ok((store, options))
}

async fn open_target(target: Address, options: &Options) -> Result<Arc<dyn Store>> {
    match target {
        #[cfg(feature = "redis")]
        // Boxed: its type is too deep to become a part of every caller's.
        Address::Redis(place) => Ok(Arc::new(Box::pin(super::redis::Redis::open(place, options)).await?)),
        #[cfg(feature = "compat")]
        Address::Foreign(system, place) => system.open(place, options).await,
        local => open_local(local, options.clone()).await,
    }
}

/// A store in this new file, for a copy of another.
pub(crate) async fn new_file(path: &std::path::Path) -> Result<Arc<dyn Store>> {
    open_local(Address::File(path.to_owned()), Options::default()).await
}

#[cfg(feature = "sqlite")]
async fn open_local(target: Address, options: Options) -> Result<Arc<dyn Store>> {
    let open = move || match target {
        Address::File(path) => super::sqlite::Sqlite::open(&path, &options),
        _ => super::sqlite::Sqlite::in_memory(&options),
    };
    // Opening touches the disk, and may wait for other processes.
    let opened = tokio::task::spawn_blocking(open).await.map_err(|e| Error::store("open", e.to_string()))?;
    opened.map(|store| Arc::new(store) as Arc<dyn Store>)
}

#[cfg(not(feature = "sqlite"))]
async fn open_local(_target: Address, _options: Options) -> Result<Arc<dyn Store>> {
    Err(Error::invalid("store", "names a file, and this build has no SQLite; turn on the feature `sqlite`"))
}

/// Where a store is, and nothing else of its URL: a file by its whole path, a server with the prefix of the keys.
pub(crate) fn place_of(url: &str, options: &Options) -> String {
    let place = url.split_once('?').map_or(url, |(place, _)| place);
    let own = options.foreign.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let prefix = (options.prefix != PREFIX).then_some(("prefix", options.prefix.as_str()));
    let said: Vec<String> = prefix.into_iter().chain(own).map(|(name, value)| format!("{name}={value}")).collect();
    match parse_target(place) {
        Ok(Address::File(path)) => path.canonicalize().unwrap_or(path).display().to_string(),
        Ok(target) if target.is_server() && !said.is_empty() => format!("{}?{}", target.shown(), said.join("&")),
        Ok(target) => target.shown(),
        Err(_) => String::new(),
    }
}

/// A path, `sqlite:PATH`, `:memory:` or the URL of a server, each with `?name=value&...` behind it.
pub(crate) fn parse(url: &str, options: Options) -> Result<(Address, Options)> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    parse_parts(place, query, options).map_err(|error| match query.contains('@') {
        // What stands around the ? may be the halves of a password: neither is repeated.
        true => Error::invalid("store", "has an @ behind its ?; if the password has a ? in it, write %3F instead"),
        false => error,
    })
}

fn parse_parts(place: &str, query: &str, mut options: Options) -> Result<(Address, Options)> {
    let target = parse_target(place)?;
    target.adapt(&mut options);
    let mut names = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if names.contains(&name) {
            return Err(Error::invalid("store", format!("has the option {name:?} twice")));
        }
        names.push(name);
        if target.own_options().contains(&name) {
            options.foreign.push((name.to_owned(), value.to_owned()));
            continue;
        }
        match set(&mut options, name, value)? {
            Known::Nowhere => {
                let own: String = target.own_options().iter().map(|name| format!("; here {name}")).collect();
                return Err(Error::invalid("store", format!("has no option {name:?}; it has {OPTIONS}{own}")));
            }
            Known::Everywhere => {}
            Known::OnServers if target.is_server() => {}
            Known::InFiles if !target.is_server() => {}
            Known::OnServers => return Err(Error::invalid("store", format!("is a file, and has no option {name:?}"))),
            Known::InFiles => {
                let reason = format!("is a server, and has no option {name:?}: there it is a setting of the server");
                return Err(Error::invalid("store", reason));
            }
        }
    }
    check(&options)?;
    Ok((target, options))
}

impl Address {
    /// For people: without what is secret, and without options.
    pub(super) fn shown(&self) -> String {
        match self {
            Address::Memory => ":memory:".to_owned(),
            Address::File(path) => path.display().to_string(),
            #[cfg(feature = "redis")]
            Address::Redis(place) => format!("{place:?}"),
            #[cfg(feature = "compat")]
            Address::Foreign(system, place) => system.shown(place),
        }
    }

    pub(super) fn acl(&self, _options: &Options) -> Result<Option<String>> {
        match self {
            #[cfg(feature = "redis")]
            Address::Redis(_) => Ok(Some(super::redis::acl_rules(&_options.prefix))),
            #[cfg(feature = "compat")]
            Address::Foreign(system, _) => system.acl(_options),
            _ => Ok(None),
        }
    }

    /// Where others keep jobs too, their habits are the default.
    fn adapt(&self, _options: &mut Options) {
        #[cfg(feature = "compat")]
        if let Address::Foreign(system, _) = self {
            system.adapt(_options);
        }
    }

    /// Options that only the system has whose keys are named.
    fn own_options(&self) -> &'static [&'static str] {
        match self {
            #[cfg(feature = "compat")]
            Address::Foreign(system, _) => system.options(),
            _ => &[],
        }
    }

    fn is_server(&self) -> bool {
        !matches!(self, Address::Memory | Address::File(_))
    }
}

fn parse_target(place: &str) -> Result<Address> {
    #[cfg(feature = "redis")]
    if let Some(place) = super::redis::Place::parse(place)? {
        return Ok(Address::Redis(place));
    }
    #[cfg(feature = "compat")]
    if let Some((system, place)) = crate::compat::System::parse(place)? {
        return Ok(Address::Foreign(system, place));
    }
    let path = match place.split_once(':') {
        // As SQLite itself writes it.
        Some(("sqlite" | "file", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some((scheme, rest)) if rest.starts_with("//") => {
            return Err(Error::invalid(
                "store",
                format!(
                    "{scheme}:// is not a store this build knows; give the path of a file, sqlite:PATH, :memory: or redis://HOST"
                ),
            ));
        }
        // Whatever else is in it may be a password, and is not repeated.
        Some((scheme @ ("redis" | "rediss" | "valkey" | "valkeys" | "sidekiq"), _)) => {
            return Err(Error::invalid("store", format!("names no file; if it is a server, write {scheme}://HOST")));
        }
        _ if is_a_server(place) => {
            // What stands before an @ may be a password, and is not repeated.
            let host = place.rsplit('@').next().unwrap_or_default();
            let reason = format!("looks like a server: write redis://{host}, or ./{host} for a file of that name");
            return Err(Error::invalid("store", reason));
        }
        _ => place,
    };
    match path {
        "" => Err(Error::invalid("store", "names no file; give a path such as duly.db, or :memory:")),
        ":memory:" => Ok(Address::Memory),
        path if path.contains('\0') => Err(Error::invalid("store", "has a NUL character in it")),
        path => Ok(Address::File(PathBuf::from(path))),
    }
}

/// Whether somebody has left out what goes before a host and its port: a push must not end up in a file of that name.
fn is_a_server(place: &str) -> bool {
    let (host, number) = place.split_once('/').unwrap_or((place, ""));
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    plain && host.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// All that [`set`] knows.
const OPTIONS: &str = "durability, lease, keep, keep_dead, remember, history; on servers prefix, replicas, allow_data_loss, ca, cert, key, sentinel_user, sentinel_password";

/// Which stores an option is for.
enum Known {
    Nowhere,
    Everywhere,
    InFiles,
    OnServers,
}

fn set(options: &mut Options, name: &str, value: &str) -> Result<Known> {
    match name {
        "lease" => options.lease = parse_duration("lease", value)?,
        "keep" => options.keep = parse_duration("keep", value)?,
        "keep_dead" => options.keep_dead = parse_duration("keep_dead", value)?,
        "remember" => options.remember = parse_duration("remember", value)?,
        "history" => {
            options.history = match value {
                "on" => true,
                "off" => false,
                _ => return Err(Error::invalid("history", format!("{value:?} is neither on nor off"))),
            }
        }
        "durability" => {
            options.durability = match value {
                "fsync" => Durability::Fsync,
                "second" => Durability::Second,
                _ => return Err(Error::invalid("durability", format!("{value:?} is neither fsync nor second"))),
            };
            return Ok(Known::InFiles);
        }
        "prefix" | "replicas" | "allow_data_loss" | "ca" | "cert" | "key" | "sentinel_user" | "sentinel_password" => {
            set_server(options, name, value)?;
            return Ok(Known::OnServers);
        }
        _ => return Ok(Known::Nowhere),
    }
    Ok(Known::Everywhere)
}

fn set_server(options: &mut Options, name: &str, value: &str) -> Result<()> {
    match name {
        "prefix" => options.prefix = value.to_owned(),
        "replicas" => {
            let wrong = |_| Error::invalid("replicas", format!("{value:?} is not a number"));
            options.replicas = value.parse().map_err(wrong)?;
        }
        "allow_data_loss" => {
            options.allow_data_loss = match value {
                "true" => true,
                "false" => false,
                _ => return Err(Error::invalid("allow_data_loss", format!("{value:?} is neither true nor false"))),
            }
        }
        "ca" => options.ca = Some(PathBuf::from(value)),
        "cert" => options.cert = Some(PathBuf::from(value)),
        "key" => options.key = Some(PathBuf::from(value)),
        "sentinel_user" => options.sentinel_user = Some(value.to_owned()),
        _ => options.sentinel_password = Some(value.to_owned()),
    }
    Ok(())
}

/// Rules that hold however the options came.
pub(crate) fn check(options: &Options) -> Result<()> {
    if !LEASE_RANGE.contains(&options.lease) {
        return Err(Error::invalid("lease", "must be from 300ms to 1h"));
    }
    // A brace would change which part of a key says where a Cluster keeps it.
    check_name("prefix", &options.prefix)?;
    match (&options.cert, &options.key) {
        (Some(_), None) => return Err(Error::invalid("cert", "has no key; add key=FILE")),
        (None, Some(_)) => return Err(Error::invalid("key", "has no certificate; add cert=FILE")),
        _ => {}
    }
    if options.sentinel_user.is_some() && options.sentinel_password.is_none() {
        return Err(Error::invalid("sentinel_user", "has no password; add sentinel_password=..."));
    }
    Ok(())
}

fn parse_duration(field: &'static str, text: &str) -> Result<Duration> {
    duration(text).map_err(|reason| Error::invalid(field, format!("{text:?} is {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(url: &str) -> Address {
        parse(url, Options::default()).expect("a good URL").0
    }

    fn refused(url: &str) -> String {
        parse(url, Options::default()).expect_err("a bad URL").to_string()
    }

    #[test]
    fn a_server_is_not_taken_for_a_file() {
        let refused = |url: &str| parse(url, Options::default()).expect_err("is refused").to_string();
        assert!(refused("redis:localhost").contains("redis://HOST"));
        assert!(!refused("redis:me:secret@h").contains("secret"));
        assert!(refused("localhost:6379").contains("redis://localhost:6379"));
        assert!(refused("me:secret@h:6379").contains("redis://h:6379"));
        assert!(!refused("me:secret@h:6379").contains("secret"));
        assert!(refused("[::1]:6379/0").contains("redis://[::1]:6379/0"));
        assert!(refused("a.db?keep=1h&keep=2h").contains("twice"));
        for file in ["./localhost:6379", "C:/a.db", "a:b.db", "redis.db", "x:99999"] {
            assert!(parse(file, Options::default()).is_ok(), "{file}");
        }
    }

    #[test]
    fn paths_and_schemes() {
        assert_eq!(target("duly.db"), Address::File("duly.db".into()));
        assert_eq!(target("sqlite:duly.db"), Address::File("duly.db".into()));
        assert_eq!(target("sqlite:///var/lib/duly.db"), Address::File("/var/lib/duly.db".into()));
        assert_eq!(target("file:duly.db"), Address::File("duly.db".into()));
        assert_eq!(target("file:///var/lib/duly.db"), Address::File("/var/lib/duly.db".into()));
        assert_eq!(target("/tmp/a:b.db"), Address::File("/tmp/a:b.db".into()));
        assert_eq!(target(":memory:"), Address::Memory);
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
        assert!(refused("duly.db?lease=-5s").contains("negative"));
        assert!(refused("duly.db?durability=maybe").contains("neither"));
    }

    #[test]
    #[cfg(feature = "redis")]
    fn what_goes_together_is_asked_for() {
        assert!(refused("rediss://h?cert=a").contains("add key=FILE"));
        assert!(refused("rediss://h?key=a").contains("add cert=FILE"));
        assert!(refused("redis+sentinel://h/m?sentinel_user=me").contains("add sentinel_password="));
        assert!(refused("duly.db?cert=a&key=b").contains("is a file"));
        target("rediss+sentinel://h/m?cert=a&key=b&sentinel_user=me&sentinel_password=secret");
    }

    #[test]
    fn a_place_is_the_same_whatever_the_options() {
        let place = |url: &str| place_of(url, &parse(url, Options::default()).expect("a good URL").1);
        assert_eq!(place("/none/a.db?keep=1h"), place("sqlite:///none/a.db"));
        let here = std::env::current_dir().expect("somewhere").canonicalize().expect("there");
        assert_eq!(place("Cargo.toml"), here.join("Cargo.toml").display().to_string());
        #[cfg(feature = "redis")]
        {
            assert_eq!(place("redis://me:secret@a?keep=1h"), "redis://a:6379");
            assert_eq!(place("redis://a/2?lease=5s&prefix=app"), "redis://a:6379/2?prefix=app");
        }
    }

    proptest! {
        #[test]
        fn any_url_parses_or_is_refused(url in ".*") {
            let _ = parse(&url, Options::default());
        }
    }
}
