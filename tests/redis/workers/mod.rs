//! Workers on real servers. Tests of the worker alone are in `behaviour`, those of all stores in `contract`.

mod delivery;
mod handover;
mod jobs;
mod partial_pushes;
mod unreadable_records;

use crate::helpers::own_prefix;
use test_support::servers::{self, Reply};

/// The server and prefix of a test.
#[derive(Clone)]
struct Location {
    kind: Kind,
    url: String,
}

#[derive(Clone, Copy)]
enum Kind {
    Redis,
    Valkey,
    Cluster,
}

impl Location {
    /// Creates a location with its own prefix.
    fn new(kind: Kind) -> Location {
        let url = match kind {
            Kind::Redis => servers::redis().url(),
            Kind::Valkey => servers::valkey().url(),
            Kind::Cluster => servers::cluster().url(),
        };
        Location { kind, url: own_prefix(&url) }
    }

    /// Returns the URL with one more option.
    fn with(&self, option: &str) -> String {
        format!("{}&{option}", self.url)
    }

    /// Returns a key of the queue `default`.
    fn key(&self, name: &str) -> String {
        let prefix = self.url.split("prefix=").nth(1).expect("a prefix");
        format!("{prefix}:queue:{{default}}:{name}")
    }

    /// Sends a command directly to the server that has this key.
    fn send(&self, command: &str, key: &str, args: &[&[u8]]) -> Reply {
        let command = [&[command.as_bytes(), key.as_bytes()], args].concat();
        match self.kind {
            Kind::Redis => servers::redis().send_command(&command),
            Kind::Valkey => servers::valkey().send_command(&command),
            Kind::Cluster => {
                let cluster = servers::cluster();
                cluster.nodes()[cluster.master_of(key)].send_command(&command)
            }
        }
    }
}

/// Expands each test once per kind of server; a failure reads `on_cluster::args_survive_byte_for_byte`.
macro_rules! on_each {
    ($($case:ident),* $(,)?) => {
        mod on_redis { $(
            #[tokio::test]
            async fn $case() { super::$case(crate::workers::Location::new(crate::workers::Kind::Redis)).await }
        )* }
        mod on_valkey { $(
            #[tokio::test]
            async fn $case() { super::$case(crate::workers::Location::new(crate::workers::Kind::Valkey)).await }
        )* }
        mod on_cluster { $(
            #[tokio::test]
            async fn $case() { super::$case(crate::workers::Location::new(crate::workers::Kind::Cluster)).await }
        )* }
    };
}
use on_each;
