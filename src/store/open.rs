//! Opens a store by its URL: the only file that lists the kinds of stores.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::duration::parse_duration;
use super::url::parse_file;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::push::check_name;
use crate::node::DEFAULT_LEASE;

/// Default retention of done jobs; the URL or the push may override it.
pub(crate) const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 3600);
/// Default retention of dead jobs.
pub(crate) const DEFAULT_KEEP_DEAD: Duration = Duration::from_secs(90 * 24 * 3600);
/// Default time for which ids of gone jobs are remembered.
pub(crate) const DEFAULT_REMEMBER_IDS: Duration = Duration::from_secs(600);
/// Default prefix of all keys on a server.
const DEFAULT_PREFIX: &str = "duly";
/// Allowed lease. Several heartbeats must fit in, and a crash must be detected within an hour.
const LEASE_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(300)..=Duration::from_secs(3600);

/// Which failures an acknowledged push survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// A crash of the process and a power loss: every commit is synced to disk.
    #[default]
    Fsync,
    /// A crash of the process. A power loss may lose the last second.
    Second,
}

/// The options of a store.
#[derive(Clone)]
pub(crate) struct StoreOptions {
    pub(crate) durability: Durability,
    pub(crate) lease: Duration,
    pub(crate) keep: Duration,
    pub(crate) keep_dead: Duration,
    pub(crate) remember_ids: Duration,
    /// Whether statistics by minute are kept.
    pub(crate) history: bool,
    /// Whether start, duration, node and output of attempts are kept.
    pub(crate) attempts: bool,
    /// The prefix of every key; separates several apps on one server.
    pub(crate) prefix: String,
    /// How many replicas must confirm a push before it is acknowledged.
    pub(crate) replicas: u32,
    /// Whether to accept a server without persistence; `None` leaves it to the kind of store.
    pub(crate) allow_data_loss: Option<bool>,
    /// The certificate authority to trust instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// The client certificate and its key: both or neither.
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// Credentials for Sentinels, which have their own users.
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    /// Keys that sign messages between nodes: the first signs, all of them verify. Never part of a URL.
    pub(crate) cluster_keys: Vec<String>,
    pub(crate) clock: Clock,
    /// URL options that only one other system has, by name.
    pub(crate) system_options: Vec<(String, String)>,
    /// Whether retries use the backoff of such a system.
    pub(crate) fourth_power_backoff: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            durability: Durability::Fsync,
            lease: DEFAULT_LEASE,
            keep: DEFAULT_KEEP,
            keep_dead: DEFAULT_KEEP_DEAD,
            remember_ids: DEFAULT_REMEMBER_IDS,
            history: true,
            attempts: true,
            prefix: DEFAULT_PREFIX.to_owned(),
            replicas: 0,
            allow_data_loss: None,
            ca: None,
            cert: None,
            key: None,
            sentinel_user: None,
            sentinel_password: None,
            cluster_keys: Vec::new(),
            clock: Clock::system(),
            system_options: Vec::new(),
            fourth_power_backoff: false,
        }
    }
}

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreAddress {
    Memory,
    File(PathBuf),
    #[cfg(feature = "redis")]
    Redis(super::redis::RedisUrl),
    /// On the keys of another system.
    #[cfg(feature = "compat")]
    Foreign(crate::compat::ForeignSystem, super::redis::RedisUrl),
}

/// Opens the store of a URL. Options in the URL override the given ones.
pub(crate) async fn open(url: &str, options: StoreOptions) -> Result<(Arc<dyn Store>, StoreOptions)> {
    let (target, options) = parse_url(url, options)?;
    let store = open_address(target, &options).await?;
    Ok((store, options))
}

async fn open_address(target: StoreAddress, options: &StoreOptions) -> Result<Arc<dyn Store>> {
    match target {
        #[cfg(feature = "redis")]
        // Boxed to keep the deep future type out of the callers' types.
        StoreAddress::Redis(url) => Ok(Arc::new(Box::pin(super::redis::Redis::open(url, options)).await?)),
        #[cfg(feature = "compat")]
        StoreAddress::Foreign(system, url) => system.open(url, options).await,
        local => open_local(local, options.clone()).await,
    }
}

/// Creates a store in a new file, to copy another store into.
pub(crate) async fn create_file_store(path: &std::path::Path) -> Result<Arc<dyn Store>> {
    open_local(StoreAddress::File(path.to_owned()), StoreOptions::default()).await
}

#[cfg(feature = "sqlite")]
async fn open_local(target: StoreAddress, options: StoreOptions) -> Result<Arc<dyn Store>> {
    let open = move || match target {
        StoreAddress::File(path) => super::sqlite::Sqlite::open(&path, &options),
        _ => super::sqlite::Sqlite::in_memory(&options),
    };
    // Opening reads the disk and may wait for other processes.
    let opened = tokio::task::spawn_blocking(open).await.map_err(|e| Error::store("open", e.to_string()))?;
    opened.map(|store| Arc::new(store) as Arc<dyn Store>)
}

#[cfg(not(feature = "sqlite"))]
async fn open_local(_target: StoreAddress, _options: StoreOptions) -> Result<Arc<dyn Store>> {
    Err(Error::invalid("store", "names a file, but this build has no SQLite; enable the feature `sqlite`"))
}

/// Returns the address without credentials and most options: a file by its full path, a server with its key prefix.
pub(crate) fn display_url(url: &str, options: &StoreOptions) -> String {
    let address = url.split_once('?').map_or(url, |(address, _)| address);
    let own = options.system_options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let prefix = (options.prefix != DEFAULT_PREFIX).then_some(("prefix", options.prefix.as_str()));
    let shown: Vec<String> = prefix.into_iter().chain(own).map(|(name, value)| format!("{name}={value}")).collect();
    match parse_address(address) {
        Ok(StoreAddress::File(path)) => path.canonicalize().unwrap_or(path).display().to_string(),
        Ok(target) if target.is_server() && !shown.is_empty() => {
            format!("{}?{}", target.to_display_string(), shown.join("&"))
        }
        Ok(target) => target.to_display_string(),
        Err(_) => String::new(),
    }
}

/// Parses a path, `sqlite:PATH`, `:memory:` or a server URL, each with an optional `?name=value&...`.
pub(crate) fn parse_url(url: &str, options: StoreOptions) -> Result<(StoreAddress, StoreOptions)> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    parse_parts(address, query, options).map_err(|error| match query.contains('@') {
        // Both sides of the ? may be parts of a password, so neither is repeated.
        true => Error::invalid("store", "has an @ after the ?; if the password contains a ?, write %3F instead"),
        false => error,
    })
}

fn parse_parts(address: &str, query: &str, mut options: StoreOptions) -> Result<(StoreAddress, StoreOptions)> {
    let target = parse_address(address)?;
    target.apply_system_defaults(&mut options);
    let mut names = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if names.contains(&name) {
            return Err(Error::invalid("store", format!("has the option {name:?} twice; remove one")));
        }
        names.push(name);
        if target.system_option_names().contains(&name) {
            options.system_options.push((name.to_owned(), value.to_owned()));
            continue;
        }
        match set_option(&mut options, name, value)? {
            OptionScope::Unknown => {
                let own: String = target.system_option_names().iter().map(|name| format!("; here {name}")).collect();
                let reason = format!("has the unknown option {name:?}; valid are {OPTION_NAMES}{own}");
                return Err(Error::invalid("store", reason));
            }
            OptionScope::AllStores => {}
            OptionScope::ServersOnly if target.is_server() => {}
            OptionScope::FilesOnly if !target.is_server() => {}
            OptionScope::ServersOnly => {
                let reason = format!("is a file, but the option {name:?} is for servers only; remove it");
                return Err(Error::invalid("store", reason));
            }
            OptionScope::FilesOnly => {
                let reason = format!("is a server, but {name:?} is for files only; configure it on the server");
                return Err(Error::invalid("store", reason));
            }
        }
    }
    check_options(&options)?;
    Ok((target, options))
}

impl StoreAddress {
    /// Returns the address for people, without secrets and options.
    pub(super) fn to_display_string(&self) -> String {
        match self {
            StoreAddress::Memory => ":memory:".to_owned(),
            StoreAddress::File(path) => path.display().to_string(),
            #[cfg(feature = "redis")]
            StoreAddress::Redis(url) => format!("{url:?}"),
            #[cfg(feature = "compat")]
            StoreAddress::Foreign(system, url) => system.display_url(url),
        }
    }

    pub(super) fn acl(&self, _options: &StoreOptions) -> Result<Option<String>> {
        match self {
            #[cfg(feature = "redis")]
            StoreAddress::Redis(_) => Ok(Some(super::redis::acl_rules(&_options.prefix))),
            #[cfg(feature = "compat")]
            StoreAddress::Foreign(system, _) => system.acl_rules(_options),
            _ => Ok(None),
        }
    }

    /// Applies the defaults of the other system whose keys are used.
    fn apply_system_defaults(&self, _options: &mut StoreOptions) {
        #[cfg(feature = "compat")]
        if let StoreAddress::Foreign(system, _) = self {
            system.apply_defaults(_options);
        }
    }

    /// Returns the options that only this other system has.
    fn system_option_names(&self) -> &'static [&'static str] {
        match self {
            #[cfg(feature = "compat")]
            StoreAddress::Foreign(system, _) => system.url_options(),
            _ => &[],
        }
    }

    fn is_server(&self) -> bool {
        !matches!(self, StoreAddress::Memory | StoreAddress::File(_))
    }
}

fn parse_address(address: &str) -> Result<StoreAddress> {
    #[cfg(feature = "redis")]
    if let Some(url) = super::redis::RedisUrl::parse(address)? {
        return Ok(StoreAddress::Redis(url));
    }
    #[cfg(feature = "compat")]
    if let Some((system, url)) = crate::compat::ForeignSystem::parse(address)? {
        return Ok(StoreAddress::Foreign(system, url));
    }
    let path = match address.split_once(':') {
        // The form that SQLite uses.
        Some(("sqlite" | "file", rest)) => {
            return parse_file(rest.strip_prefix("//").unwrap_or(rest), true);
        }
        Some((scheme, rest)) if rest.starts_with("//") => return Err(unsupported_scheme(scheme)),
        // The rest may contain a password and is not repeated.
        Some((scheme @ ("redis" | "rediss" | "valkey" | "valkeys" | "sidekiq"), _)) => {
            return Err(Error::invalid("store", format!("is not a path; if it is a server, write {scheme}://HOST")));
        }
        _ if is_host_and_port(address) => {
            // The part before an @ may be a password and is not repeated.
            let host = address.rsplit('@').next().unwrap_or_default();
            let reason = format!("looks like a server: write redis://{host}, or ./{host} for a file of that name");
            return Err(Error::invalid("store", reason));
        }
        _ => address,
    };
    parse_file(path, false)
}

/// Returns the error for a URL with this scheme; it names the feature of the crate that the URL needs, if there is one.
fn unsupported_scheme(scheme: &str) -> Error {
    let reason = match required_feature(scheme) {
        Some(feature) => format!("{scheme}:// needs duly's feature `{feature}`; enable it in Cargo.toml"),
        None => format!(
            "{scheme}:// is not a store this build supports; give the path of a file, sqlite:PATH, :memory:, redis://, valkey:// (rediss:// and valkeys:// for TLS), or sidekiq://, actionhero://, redis-in-action://"
        ),
    };
    Error::invalid("store", reason)
}

fn required_feature(scheme: &str) -> Option<&'static str> {
    let (base, _topology) = scheme.split_once('+').unwrap_or((scheme, ""));
    match base {
        "redis" | "rediss" | "valkey" | "valkeys" => Some("redis"),
        "sidekiq" | "sidekiqs" | "actionhero" | "actionheros" | "redis-in-action" | "redis-in-actions" => {
            Some("compat")
        }
        _ => None,
    }
}

/// Returns whether the text looks like a host and port without a scheme: a push must not go to a file of that name.
fn is_host_and_port(address: &str) -> bool {
    let (host, number) = address.split_once('/').unwrap_or((address, ""));
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    is_number && host.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// All options that [`set_option`] accepts.
const OPTION_NAMES: &str = "durability, lease, keep, keep_dead, remember_ids, history, attempts; on servers prefix, replicas, allow_data_loss, ca, cert, key, sentinel_user, sentinel_password";

/// The stores that an option applies to.
enum OptionScope {
    Unknown,
    AllStores,
    FilesOnly,
    ServersOnly,
}

fn parse_switch(name: &'static str, value: &str) -> Result<bool> {
    let parsed = ["on", "off"].contains(&value).then_some(value == "on");
    parsed.ok_or_else(|| Error::invalid(name, format!("{value:?} is not valid; use on or off")))
}

fn set_option(options: &mut StoreOptions, name: &str, value: &str) -> Result<OptionScope> {
    match name {
        "lease" => options.lease = parse_duration_option("lease", value)?,
        "keep" => options.keep = parse_duration_option("keep", value)?,
        "keep_dead" => options.keep_dead = parse_duration_option("keep_dead", value)?,
        "remember_ids" => options.remember_ids = parse_duration_option("remember_ids", value)?,
        "history" => options.history = parse_switch("history", value)?,
        "attempts" => options.attempts = parse_switch("attempts", value)?,
        "durability" => {
            options.durability = match value {
                "fsync" => Durability::Fsync,
                "second" => Durability::Second,
                _ => return Err(Error::invalid("durability", format!("{value:?} is not valid; use fsync or second"))),
            };
            return Ok(OptionScope::FilesOnly);
        }
        "prefix" | "replicas" | "allow_data_loss" | "ca" | "cert" | "key" | "sentinel_user" | "sentinel_password" => {
            set_server_option(options, name, value)?;
            return Ok(OptionScope::ServersOnly);
        }
        _ => return Ok(OptionScope::Unknown),
    }
    Ok(OptionScope::AllStores)
}

fn set_server_option(options: &mut StoreOptions, name: &str, value: &str) -> Result<()> {
    match name {
        "prefix" => options.prefix = value.to_owned(),
        "replicas" => {
            let wrong = |_| Error::invalid("replicas", format!("{value:?} is not a number; use 0, 1 or more"));
            options.replicas = value.parse().map_err(wrong)?;
        }
        "allow_data_loss" => {
            let wrong = |_| Error::invalid("allow_data_loss", format!("{value:?} is not valid; use true or false"));
            options.allow_data_loss = Some(value.parse().map_err(wrong)?);
        }
        "ca" => options.ca = Some(PathBuf::from(value)),
        "cert" => options.cert = Some(PathBuf::from(value)),
        "key" => options.key = Some(PathBuf::from(value)),
        "sentinel_user" => options.sentinel_user = Some(value.to_owned()),
        _ => options.sentinel_password = Some(value.to_owned()),
    }
    Ok(())
}

/// Checks options, whether they came from a URL or from code.
pub(crate) fn check_options(options: &StoreOptions) -> Result<()> {
    if !LEASE_RANGE.contains(&options.lease) {
        return Err(Error::invalid("lease", "must be from 300ms to 1h"));
    }
    // A brace would change the hash slot of a key in a Cluster.
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

fn parse_duration_option(field: &'static str, text: &str) -> Result<Duration> {
    parse_duration(text).map_err(|reason| Error::invalid(field, format!("{text:?} is {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_ok(url: &str) -> StoreAddress {
        parse_url(url, StoreOptions::default()).expect("a good URL").0
    }

    fn parse_error(url: &str) -> String {
        parse_url(url, StoreOptions::default()).map(drop).expect_err("a bad URL").to_string()
    }

    #[test]
    fn server_without_scheme_is_not_opened_as_file() {
        let refused =
            |url: &str| parse_url(url, StoreOptions::default()).map(drop).expect_err("is refused").to_string();
        assert!(refused("redis:localhost").contains("redis://HOST"));
        assert!(!refused("redis:me:secret@h").contains("secret"));
        assert!(refused("localhost:6379").contains("redis://localhost:6379"));
        assert!(refused("me:secret@h:6379").contains("redis://h:6379"));
        assert!(!refused("me:secret@h:6379").contains("secret"));
        assert!(refused("[::1]:6379/0").contains("redis://[::1]:6379/0"));
        assert!(refused("a.db?keep=1h&keep=2h").contains("twice"));
        for file in ["./localhost:6379", "C:/a.db", "a:b.db", "redis.db", "x:99999"] {
            assert!(parse_url(file, StoreOptions::default()).is_ok(), "{file}");
        }
    }

    #[test]
    fn scheme_of_a_missing_feature_is_refused_with_its_name() {
        for scheme in ["sidekiq", "sidekiqs+sentinel", "actionhero", "redis-in-action"] {
            assert!(unsupported_scheme(scheme).to_string().contains("`compat`"), "{scheme}");
        }
        for scheme in ["redis", "rediss+cluster", "valkey"] {
            assert!(unsupported_scheme(scheme).to_string().contains("`redis`"), "{scheme}");
        }
        assert!(!unsupported_scheme("http").to_string().contains("feature"));
        #[cfg(not(feature = "compat"))]
        assert!(parse_error("sidekiq://host").contains("`compat`"));
        #[cfg(not(feature = "redis"))]
        assert!(parse_error("redis://host").contains("`redis`"));
    }

    #[test]
    fn paths_and_schemes_are_parsed() {
        assert_eq!(parse_ok("duly.db"), StoreAddress::File("duly.db".into()));
        assert_eq!(parse_ok("sqlite:duly.db"), StoreAddress::File("duly.db".into()));
        assert_eq!(parse_ok("sqlite:///var/lib/duly.db"), StoreAddress::File("/var/lib/duly.db".into()));
        assert_eq!(parse_ok("file:duly.db"), StoreAddress::File("duly.db".into()));
        assert_eq!(parse_ok("file:///var/lib/duly.db"), StoreAddress::File("/var/lib/duly.db".into()));
        assert_eq!(parse_ok("/tmp/a:b.db"), StoreAddress::File("/tmp/a:b.db".into()));
        assert_eq!(parse_ok(":memory:"), StoreAddress::Memory);
        assert!(parse_error("mysql://host/0").contains("mysql:// is not a store"));
        assert!(parse_error("").contains("names no file"));
    }

    #[test]
    fn url_options_are_parsed_and_checked() {
        let (_, options) =
            parse_url("duly.db?durability=second&lease=5s&keep=0&keep_dead=7d", StoreOptions::default()).expect("good");
        assert_eq!(options.durability, Durability::Second);
        assert_eq!(options.lease, Duration::from_secs(5));
        assert_eq!(options.keep, Duration::ZERO);
        assert_eq!(options.keep_dead, Duration::from_secs(7 * 86_400));
        assert!(parse_error("duly.db?speed=9").contains("has the unknown option"));
        assert!(parse_error("duly.db?lease=1ms").contains("300ms"));
        assert!(parse_error("duly.db?lease=-5s").contains("negative"));
        assert!(parse_error("duly.db?durability=maybe").contains("use fsync or second"));
    }

    #[test]
    #[cfg(feature = "redis")]
    fn missing_companion_option_is_rejected() {
        assert!(parse_error("rediss://h?cert=a").contains("add key=FILE"));
        assert!(parse_error("rediss://h?key=a").contains("add cert=FILE"));
        assert!(parse_error("redis+sentinel://h/m?sentinel_user=me").contains("add sentinel_password="));
        assert!(parse_error("duly.db?cert=a&key=b").contains("is a file"));
        parse_ok("rediss+sentinel://h/m?cert=a&key=b&sentinel_user=me&sentinel_password=secret");
    }

    #[test]
    fn display_url_does_not_depend_on_options() {
        let shown = |url: &str| display_url(url, &parse_url(url, StoreOptions::default()).expect("a good URL").1);
        assert_eq!(shown("/none/a.db?keep=1h"), shown("sqlite:///none/a.db"));
        let here = std::env::current_dir().expect("somewhere").canonicalize().expect("there");
        assert_eq!(shown("Cargo.toml"), here.join("Cargo.toml").display().to_string());
        #[cfg(feature = "redis")]
        {
            assert_eq!(shown("redis://me:secret@a?keep=1h"), "redis://a:6379");
            assert_eq!(shown("redis://a/2?lease=5s&prefix=app"), "redis://a:6379/2?prefix=app");
        }
    }

    proptest! {
        #[test]
        fn any_url_parses_or_is_refused(url in ".*") {
            let _ = parse_url(&url, StoreOptions::default());
        }
    }
}
