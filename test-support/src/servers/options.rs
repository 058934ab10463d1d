//! How a server is set up, before it starts.

use super::binary::Binary;
use super::certificates::Certificates;
use super::server::Server;

/// When what was appended to the file reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    Always,
    EverySecond,
    /// When the operating system likes.
    No,
}

/// What a server is told at its start. Without more it keeps nothing: no append-only file, no snapshots.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) binary: Binary,
    pub(super) lines: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) users: Option<String>,
    pub(super) certificates: Option<Certificates>,
    pub(super) is_sentinel: bool,
    pub(super) niceness: Option<i32>,
}

impl Options {
    pub fn new(binary: Binary) -> Options {
        // No delay before a copy for a replica: the default waits 5 s for more replicas to come.
        let lines = ["save \"\"", "repl-diskless-sync-delay 0"].map(String::from).into();
        Options { lines, ..Options::bare(binary) }
    }

    /// A Sentinel, which knows few of a server's settings.
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
        }
    }

    /// Keeps an append-only file.
    pub fn aof(self, fsync: Fsync) -> Options {
        let fsync = match fsync {
            Fsync::Always => "always",
            Fsync::EverySecond => "everysec",
            Fsync::No => "no",
        };
        self.set("appendonly", "yes").set("appendfsync", fsync)
    }

    /// Takes snapshots by these rules, as in `3600 1`.
    pub fn save(self, rules: &str) -> Options {
        self.set("save", rules)
    }

    /// Refuses to grow beyond this, as in `20mb`.
    pub fn maxmemory(self, size: &str) -> Options {
        self.set("maxmemory", size).set("maxmemory-policy", "noeviction")
    }

    /// Wants this password of the default user; the nodes of one Cluster or Sentinel give it to each other.
    pub fn password(mut self, password: &str) -> Options {
        self.password = Some(password.into());
        self
    }

    /// Knows these users, in the lines of an ACL file. The default user must stay able to administer; with users, give
    /// it a password by [`Options::password`] *and* by a line here.
    pub fn users(mut self, lines: &str) -> Options {
        self.users = Some(format!("{}\n", lines.trim_end()));
        self
    }

    /// Speaks TLS on [`Server::tls_port`], without asking the client for a certificate; `tls-auth-clients yes` does.
    /// The plain port stays, for administration. Redis only: our Valkey is built without.
    pub fn tls(mut self, certificates: &Certificates) -> Options {
        self.certificates = Some(certificates.clone());
        self.set("tls-auth-clients", "no")
    }

    /// Runs at this niceness. A negative one needs root; without root the server runs at the usual one.
    pub fn niceness(mut self, niceness: i32) -> Options {
        self.niceness = Some(niceness);
        self
    }

    /// One more line of configuration. The last of a name counts.
    pub fn set(mut self, name: &str, value: &str) -> Options {
        let value = if value.is_empty() { "\"\"" } else { value };
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// Starts it, and returns when it answers.
    #[track_caller]
    pub fn start(self) -> Server {
        Server::start(self)
    }

    /// The whole configuration. All paths in it are relative to the directory the server runs in.
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
