//! Parses the URL of a store on Redis or Valkey.

use std::fmt;

use crate::error::{Error, Result};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// Maximum hosts in one URL.
const HOSTS_MAX: usize = 64;

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl ServerAddress {
    pub(super) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']')?;
                (host, after.strip_prefix(':'))
            }
            // An IPv6 address without brackets, as servers print it: the last colon starts the port.
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Ok(default_port), str::parse).ok()?;
        (!host.is_empty()).then(|| ServerAddress { host: host.to_owned(), port })
    }
}

/// How the servers work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Standalone,
    /// The hosts are Sentinels; this is their name for the master.
    Sentinel(String),
    Cluster,
}

/// The servers of a store, and the login.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl {
    pub(super) topology: Topology,
    pub(super) hosts: Vec<ServerAddress>,
    pub(super) tls: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) db: i64,
}

impl fmt::Debug for RedisUrl {
    /// Never shows the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_url())
    }
}

impl RedisUrl {
    /// Parses the part before the `?`; returns `None` for an unknown scheme.
    pub(crate) fn parse(url: &str) -> Result<Option<Self>> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(None);
        };
        let (base, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Ok(None),
        };
        // The last @: a password may contain one, a host may not.
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = login.map_or(Ok((None, None)), parse_login)?;
        let (topology, db) = parse_path(scheme, topology, path)?;
        let default_port = if matches!(topology, Topology::Sentinel(_)) { SENTINEL_PORT } else { REDIS_PORT };
        let hosts = parse_hosts(hosts, default_port)?;
        if topology == Topology::Standalone && hosts.len() > 1 {
            return Err(invalid_url("has several hosts; write redis+sentinel:// or redis+cluster://"));
        }
        Ok(Some(RedisUrl { topology, hosts, tls, user, password, db }))
    }

    /// Returns the URL without the password, for messages.
    pub(super) fn display_url(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let hosts: Vec<String> = self.hosts.iter().map(ServerAddress::to_string).collect();
        let (plus, name) = match &self.topology {
            Topology::Standalone => ("", String::new()),
            Topology::Sentinel(name) => ("+sentinel", format!("/{name}")),
            Topology::Cluster => ("+cluster", String::new()),
        };
        let db = if self.db == 0 { String::new() } else { format!("/{}", self.db) };
        format!("{scheme}{plus}://{}{name}{db}", hosts.join(","))
    }
}

fn invalid_url(reason: impl Into<String>) -> Error {
    Error::invalid("store", reason)
}

fn parse_login(login: &str) -> Result<(Option<String>, Option<String>)> {
    let decode = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        decoded.map(|text| (!text.is_empty()).then(|| text.into_owned()))
    };
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    match (decode(user), decode(password)) {
        // Without a password there is no login: everything would run as the default user.
        (Ok(Some(_)), Ok(None)) => Err(invalid_url("has a user but no password; write redis://USER:PASSWORD@HOST")),
        (Ok(user), Ok(password)) => Ok((user, password)),
        _ => Err(invalid_url("has a user or password whose % codes are not UTF-8; write a % itself as %25")),
    }
}

fn parse_path(scheme: &str, topology: &str, path: &str) -> Result<(Topology, i64)> {
    let db = |text: &str| match text {
        "" => Ok(0),
        // Without a host, any part may be a password, so none is repeated.
        text => text.parse::<u16>().map(i64::from).map_err(|_| {
            let example = format!("write {scheme}://HOST:PORT/0, or {scheme}://USER:PASSWORD@HOST with a password");
            invalid_url(format!("must end with the number of a database after the /; {example}"))
        }),
    };
    match topology {
        "" => Ok((Topology::Standalone, db(path)?)),
        "sentinel" => match path.split_once('/').unwrap_or((path, "")) {
            ("", _) => Err(invalid_url(format!("lacks the name of the master; write {scheme}://host1,host2/MASTER"))),
            (master, number) => Ok((Topology::Sentinel(master.to_owned()), db(number)?)),
        },
        "cluster" if matches!(path, "" | "0") => Ok((Topology::Cluster, 0)),
        "cluster" => {
            Err(invalid_url("has the number of a database, but a Cluster has only one database; remove the number"))
        }
        other => Err(invalid_url(format!("has +{other} in its scheme; use +sentinel or +cluster"))),
    }
}

fn parse_hosts(text: &str, default_port: u16) -> Result<Vec<ServerAddress>> {
    let parse_host = |host: &str| {
        let reason = "has an invalid host; write host or host:port, after USER:PASSWORD@ if there is a password";
        ServerAddress::parse(host, default_port).ok_or_else(|| invalid_url(reason))
    };
    let hosts: Vec<ServerAddress> = text.split(',').map(parse_host).collect::<Result<_>>()?;
    match hosts.len() {
        0..=HOSTS_MAX => Ok(hosts),
        many => Err(invalid_url(format!("has {many} hosts; at most {HOSTS_MAX} are allowed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_valid(url: &str) -> RedisUrl {
        RedisUrl::parse(url).expect("a good URL").expect("one of ours")
    }

    fn parse_error(url: &str) -> String {
        RedisUrl::parse(url).expect_err("a bad URL").to_string()
    }

    #[test]
    fn every_topology_is_parsed() {
        let standalone = parse_valid("redis://localhost");
        assert_eq!(
            (standalone.topology.clone(), standalone.db, standalone.hosts[0].port),
            (Topology::Standalone, 0, 6379)
        );
        assert_eq!(parse_valid("rediss://:p%40ss@h:1/3").password.as_deref(), Some("p@ss"));
        assert_eq!(parse_valid("redis://me:a@b@h").password.as_deref(), Some("a@b"));
        assert!(parse_valid("valkeys://h").tls);
        let sentinel = parse_valid("redis+sentinel://a,b:5/mymaster/2");
        assert_eq!((sentinel.topology, sentinel.db), (Topology::Sentinel("mymaster".into()), 2));
        assert_eq!(sentinel.hosts.iter().map(|h| h.port).collect::<Vec<_>>(), [26379, 5]);
        assert_eq!(parse_valid("redis+cluster://a,b,[::1]:7").hosts[2], ServerAddress { host: "::1".into(), port: 7 });
        assert_eq!(RedisUrl::parse("duly.db").expect("not wrong"), None);
    }

    #[test]
    fn invalid_url_error_names_the_problem() {
        assert!(parse_error("redis://").contains("has an invalid host"));
        assert!(parse_error("redis://a,b").contains("several hosts"));
        assert!(parse_error("redis://a/x").contains("number of a database"));
        assert!(parse_error("redis+sentinel://a").contains("lacks the name of the master"));
        assert!(parse_error("redis+cluster://a/1").contains("only one"));
        assert!(parse_error("redis+ring://a").contains("use +sentinel or +cluster"));
        assert!(parse_error("redis://a:port").contains("host or host:port"));
        assert!(parse_error("redis://me@a").contains("no password"));
    }

    #[test]
    fn error_of_a_url_without_host_hides_the_password() {
        for url in [
            "redis://:hunter2",
            "redis://me:hunter2",
            "redis://me:hunter2/0",
            "redis://:a/hunter2",
            "redis+sentinel://me:hunter2/m",
            "redis+sentinel://a/m/hunter2",
        ] {
            assert!(!parse_error(url).contains("hunter2"), "{url}");
        }
    }

    #[test]
    fn display_url_hides_the_password() {
        assert_eq!(format!("{:?}", parse_valid("redis://me:secret@h:1/2")), "redis://h:1/2");
    }

    proptest! {
        #[test]
        fn parsing_any_url_does_not_panic(url in "(redis|rediss|valkey)(\\+sentinel|\\+cluster|\\+x)?://\\PC*") {
            let _ = RedisUrl::parse(&url);
        }
    }
}
