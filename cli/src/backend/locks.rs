//! Held locks.

use duly_http::views::{BreakResponse, LockList, LockView};
use serde_json::json;

use super::Backend;
use crate::api_client::url_encode;
use crate::audit;
use crate::exit::{self, CliError};

impl Backend {
    /// Returns one page of the held locks.
    pub(crate) async fn locks(&self, cursor: Option<&str>) -> anyhow::Result<LockList> {
        match self {
            Backend::Store(duly) => Ok(duly.locks().list(cursor).await?.into()),
            Backend::Server(server) => {
                let query = cursor.map(|cursor| format!("?cursor={}", url_encode(cursor))).unwrap_or_default();
                server.get(&format!("/locks{query}")).await
            }
        }
    }

    /// Returns the holders of a lock.
    pub(crate) async fn lock_holders(&self, name: &str) -> anyhow::Result<LockList> {
        match self {
            Backend::Store(duly) => Ok(LockList::from(&duly.lock(name).holders().await?[..])),
            Backend::Server(server) => server.get(&format!("/locks/{}", url_encode(name))).await,
        }
    }

    /// Ends one hold of a lock, or all of them, and returns how many ended.
    pub(crate) async fn break_lock(&self, name: &str, hold: Option<&LockView>) -> anyhow::Result<BreakResponse> {
        // By its owner: the slot may have a new one by now.
        let owner = hold.map(|hold| hold.owner.clone().ok_or_else(|| unknown_owner(name))).transpose()?;
        let duly = match self {
            Backend::Store(duly) => duly,
            Backend::Server(server) => {
                let body = owner.map_or(json!({}), |owner| json!({ "owner": owner }));
                let path = format!("/locks/{}/break", url_encode(name));
                return server.request("POST", &path, Some(body.to_string())).await;
            }
        };
        let owner = owner.map(|owner| owner.parse()).transpose()?;
        let result = match owner {
            Some(owner) => duly.locks().break_hold(name, owner).await.map(u64::from),
            None => duly.locks().break_lock(name).await,
        };
        Ok(BreakResponse::new(audit::record_break(duly, name, owner, result).await?))
    }
}

/// Returns the error for a hold whose owner the server does not show.
fn unknown_owner(name: &str) -> anyhow::Error {
    CliError::new(exit::FAILURE, format!("breaking lock {name} needs a token with the role operator"))
}
