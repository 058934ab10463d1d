//! Limits the requests that may wait for long: event streams and long polls.
//!
//! Each uses a connection for minutes, so they may use only a part of the server's connections. The rest stays for probes
//! and for requests that end soon.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use duly::CancellationToken;

use super::credential::Credential;
use super::identity::Identity;
use super::problem::{Problem, Result};
use super::server::App;

use crate::sync::LockExt;

/// One client may use one part in eight of the server's connections to watch, one in four to work, but always four.
const WATCH_SHARE: usize = 8;
const WORK_SHARE: usize = 4;
const CLIENT_MIN: usize = 4;
/// All clients together leave one connection in four to other requests.
const RESERVED_SHARE: usize = 4;

/// The purpose of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WaitKind {
    /// A stream of events, or a wait for the end of a job.
    Watch,
    /// A claim, a call, or the acquisition of a lock.
    Work,
}

impl WaitKind {
    /// Returns the most waits of one client.
    fn client_max(self, connections: usize) -> usize {
        let share = match self {
            WaitKind::Watch => WATCH_SHARE,
            WaitKind::Work => WORK_SHARE,
        };
        (connections / share).max(CLIENT_MIN)
    }
}

/// Is cancelled when the client of a request has gone away: a request that changes something runs on without it.
#[derive(Clone, Default)]
pub(crate) struct ClientGone(pub(crate) CancellationToken);

/// The waits in progress.
#[derive(Default)]
pub(crate) struct Waits(Mutex<WaitCounts>);

#[derive(Default)]
struct WaitCounts {
    total: usize,
    /// Without the clients that have none.
    by_client: HashMap<(WaitKind, String), usize>,
}

/// A wait that counts as one until it is dropped.
pub(crate) struct WaitSlot {
    app: Arc<App>,
    client: (WaitKind, String),
}

impl WaitSlot {
    /// Counts one more wait of this client; a 429 if it has too many, a 503 if there are too many in all.
    pub(crate) fn acquire(
        app: &Arc<App>,
        identity: &Identity,
        credential: &Credential,
        kind: WaitKind,
    ) -> Result<WaitSlot> {
        let connections = app.options.connections;
        // Without authentication all clients have the same name, as have all workers on this machine.
        let is_local_work = kind == WaitKind::Work && matches!(credential, Credential::Local);
        let has_share = !(app.options.open || is_local_work);
        let client = (kind, identity.name.clone());
        let mut counts = app.waits.0.lock_unpoisoned();
        let (own, client_max) = (counts.by_client.get(&client).copied().unwrap_or(0), kind.client_max(connections));
        if has_share && own >= client_max {
            let detail = format!(
                "{} has {client_max} event streams and long polls open; close one, or use a separate token for this client",
                identity.name
            );
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", detail).retry_after(1));
        }
        if counts.total >= connections.saturating_sub(connections / RESERVED_SHARE).max(1) {
            let detail = "too many event streams and long polls are open; try again, or start the server with more \
                          --connections";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1));
        }
        counts.total += 1;
        *counts.by_client.entry(client.clone()).or_default() += 1;
        drop(counts);
        Ok(WaitSlot { app: app.clone(), client })
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        let mut counts = self.app.waits.0.lock_unpoisoned();
        counts.total -= 1;
        match counts.by_client.get_mut(&self.client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(counts.by_client.remove(&self.client)),
        }
    }
}
