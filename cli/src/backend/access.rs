//! Tokens.

use std::time::Duration;

use duly::admin::Role;
use duly_http::views::{CreatedToken, Tokens};
use serde_json::json;

use super::{Backend, to_millis};
use crate::api_client::url_encode;
use crate::audit;

impl Backend {
    /// Returns all tokens, without their secrets.
    pub(crate) async fn tokens(&self) -> anyhow::Result<Tokens> {
        match self {
            Backend::Store(duly) => Ok(Tokens::from(&duly.tokens().list().await?[..])),
            Backend::Server(server) => server.get("/tokens").await,
        }
    }

    /// Creates a token.
    pub(crate) async fn create_token(
        &self,
        name: &str,
        role: Role,
        lifetime: Option<Duration>,
    ) -> anyhow::Result<CreatedToken> {
        match self {
            Backend::Store(duly) => {
                let created = duly.tokens().create(name, role, lifetime).await;
                let secret = audit::record(duly, "tokens.create", name, created).await?;
                Ok(CreatedToken::new(name, role, secret.as_str()))
            }
            Backend::Server(server) => {
                let body = json!({"name": name, "role": role, "lifetime_ms": lifetime.map(to_millis)});
                server.request("POST", "/tokens", Some(body.to_string())).await
            }
        }
    }

    /// Removes a token.
    pub(crate) async fn remove_token(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Backend::Store(duly) => {
                let removed = duly.tokens().remove(name).await;
                Ok(audit::record(duly, "tokens.remove", name, removed).await?)
            }
            Backend::Server(server) => server.send("DELETE", &format!("/tokens/{}", url_encode(name)), None).await,
        }
    }
}
