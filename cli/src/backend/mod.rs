//! The source of a verb's data: a store, or a server of `duly serve`. Both give the JSON of the API.
//!
//! Each method does the same on both. On a store it records changes in the audit log; a server does that itself.

mod access;
mod bulk;
mod cron;
mod jobs;
mod locks;
mod nodes;
mod push;
mod queues;

use duly::Duly;

pub(crate) use self::bulk::{BulkEnd, BulkTarget};
pub(crate) use self::jobs::{WaitEnd, is_final};
pub(crate) use self::nodes::{CallRequest, CallTarget};
use crate::Setup;
use crate::api_client::ApiClient;
use crate::exit::{self, CliError};
use crate::store;

/// A store or a server.
#[derive(Clone)]
pub(crate) enum Backend {
    Store(Duly),
    Server(ApiClient),
}

impl Backend {
    /// Opens an existing store, or the server that `--server` names.
    pub(crate) async fn open_existing(setup: &Setup) -> anyhow::Result<Backend> {
        match Backend::of_server(setup)? {
            Some(server) => Ok(server),
            None => store::open_existing(setup).await.map(Backend::Store),
        }
    }

    /// As [`Backend::open_existing`]; creates the file of a store if needed.
    pub(crate) async fn open_or_create(setup: &Setup) -> anyhow::Result<Backend> {
        match Backend::of_server(setup)? {
            Some(server) => Ok(server),
            None => store::open_or_create(setup).await.map(Backend::Store),
        }
    }

    fn of_server(setup: &Setup) -> anyhow::Result<Option<Backend>> {
        setup.server.as_deref().map(|url| ApiClient::new(url).map(Backend::Server)).transpose()
    }

    /// Names the store or the server, without credentials.
    pub(crate) fn display_url(&self) -> String {
        match self {
            Backend::Store(duly) => duly.display_url(),
            Backend::Server(server) => server.display_url(),
        }
    }

    /// Returns the store; `what` cannot work through a server.
    pub(crate) fn require_store(&self, what: &str) -> anyhow::Result<&Duly> {
        match self {
            Backend::Store(duly) => Ok(duly),
            Backend::Server(_) => Err(needs_store(what)),
        }
    }
}

/// Returns the error for something that does not work through a server.
pub(crate) fn needs_store(what: &str) -> anyhow::Error {
    let reason = format!("{what} does not work through a server; run it where the store is, with --store URL instead");
    CliError::new(exit::USAGE, reason)
}

/// Returns an integer of a duration in milliseconds.
pub(crate) fn to_millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
