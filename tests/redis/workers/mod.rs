//! The life of workers on real servers: what is theirs alone is in `worker`, what every store promises in `contract`.

mod delivery;
mod handover;
mod jobs;
mod partial_pushes;
mod unreadable_records;

use crate::helpers::apart;
use test_support::servers::{self, Reply};

/// Where a case runs.
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
    /// Under a prefix of its own.
    fn new(kind: Kind) -> Location {
        let url = match kind {
            Kind::Redis => servers::redis().url(),
            Kind::Valkey => servers::valkey().url(),
            Kind::Cluster => servers::cluster().url(),
        };
        Location { kind, url: apart(&url) }
    }

    /// The URL with another option.
    fn with(&self, option: &str) -> String {
        format!("{}&{option}", self.url)
    }

    /// A key of the queue `default`.
    fn key(&self, what: &str) -> String {
        let prefix = self.url.split("prefix=").nth(1).expect("a prefix");
        format!("{prefix}:queue:{{default}}:{what}")
    }

    /// Asks the server that has this key, behind duly's back.
    fn ask(&self, command: &str, key: &str, args: &[&[u8]]) -> Reply {
        let command = [&[command.as_bytes(), key.as_bytes()], args].concat();
        match self.kind {
            Kind::Redis => servers::redis().ask(&command),
            Kind::Valkey => servers::valkey().ask(&command),
            Kind::Cluster => {
                let cluster = servers::cluster();
                cluster.nodes()[cluster.master_of(key)].ask(&command)
            }
        }
    }
}

/// Expands each case once per kind of server, so that a failure reads `on_cluster::args_survive_byte_for_byte`.
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
