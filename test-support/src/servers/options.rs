//! The configuration of a server.

use super::binary::Binary;
use super::certificates::Certificates;
use super::server::Server;

/// When appended data reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    Always,
    EverySecond,
    /// Whenever the operating system writes it.
    No,
}

/// The configuration of a server. By default it persists nothing: no append-only file, no snapshots.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) binary: Binary,
    pub(super) lines: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) users: Option<String>,
    pub(super) certificates: Option<Certificates>,
    pub(super) is_sentinel: bool,
    pub(super) niceness: Option<i32>,
    pub(super) env: Vec<(String, String)>,
}

impl Options {
    pub fn new(binary: Binary) -> Options {
        // The default delays a replica's first copy by 5 s, to wait for more replicas.
        let lines = ["save \"\"", "repl-diskless-sync-delay 0"].map(String::from).into();
        Options { lines, ..Options::bare(binary) }
    }

    /// Options of a Sentinel, which accepts few of a server's settings.
    pub(super) fn sentinel(binary: Binary) -> Options {
        Options { is_sentinel: true, ..Options::bare(binary) }
    }

    fn bare(binary: Binary) -> Options {
        Options {
            binary,
            lines: Vec::new(),
            password: None,
            users: None,
            certificates: None,
            is_sentinel: false,
            niceness: None,
            env: Vec::new(),
        }
    }

    /// A server that syncs an append-only file every second, as is common in production.
    pub fn durable(binary: Binary) -> Options {
        Options::new(binary).aof(Fsync::EverySecond)
    }

    /// Enables the append-only file.
    pub fn aof(self, fsync: Fsync) -> Options {
        let fsync = match fsync {
            Fsync::Always => "always",
            Fsync::EverySecond => "everysec",
            Fsync::No => "no",
        };
        self.set("appendonly", "yes").set("appendfsync", fsync)
    }

    /// Takes snapshots by these rules, for example `3600 1`.
    pub fn save(self, rules: &str) -> Options {
        self.set("save", rules)
    }

    /// Rejects writes beyond this size, for example `20mb`.
    pub fn maxmemory(self, size: &str) -> Options {
        self.set("maxmemory", size).set("maxmemory-policy", "noeviction")
    }

    /// Sets the password of the default user; the nodes of a Cluster or Sentinel use it among themselves.
    pub fn password(mut self, password: &str) -> Options {
        self.password = Some(password.into());
        self
    }

    /// Defines these users, in the format of an ACL file. The default user must keep its admin rights. Give it a
    /// password by [`Options::password`] *and* by a line here.
    pub fn users(mut self, lines: &str) -> Options {
        self.users = Some(format!("{}\n", lines.trim_end()));
        self
    }

    /// Enables TLS on [`Server::tls_port`]. Clients need no certificate unless `tls-auth-clients yes` is set. The
    /// plain port stays open for administration. Redis only: our Valkey is built without TLS.
    pub fn tls(mut self, certificates: &Certificates) -> Options {
        self.certificates = Some(certificates.clone());
        self.set("tls-auth-clients", "no")
    }

    /// Runs at this niceness. A negative value needs root; without root the server runs at the default.
    pub fn niceness(mut self, niceness: i32) -> Options {
        self.niceness = Some(niceness);
        self
    }

    /// Sets an environment variable of the process.
    pub fn env(mut self, name: &str, value: &str) -> Options {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Adds a line of configuration. The last line of a name wins.
    pub fn set(mut self, name: &str, value: &str) -> Options {
        let value = if value.is_empty() { "\"\"" } else { value };
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// Starts the server, and returns when it replies.
    #[track_caller]
    pub fn start(self) -> Server {
        Server::start(self)
    }

    /// Returns the whole configuration. Paths in it are relative to the server's working directory.
    pub(super) fn config(&self, port: u16, tls_port: Option<u16>) -> String {
        let mut lines = vec![format!("port {port}"), "bind 127.0.0.1".into()];
        lines.extend(self.lines.iter().cloned());
        if let Some(password) = &self.password {
            lines.extend([format!("requirepass \"{password}\""), format!("masterauth \"{password}\"")]);
        }
        if self.users.is_some() {
            lines.push("aclfile users.acl".into());
        }
        if let (Some(certificates), Some(tls_port)) = (&self.certificates, tls_port) {
            lines.push(format!("tls-port {tls_port}"));
            for (name, file) in [("ca-cert", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")] {
                lines.push(format!("tls-{name}-file \"{}\"", certificates.file(file).display()));
            }
        }
        lines.join("\n") + "\n"
    }
}
