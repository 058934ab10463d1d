//! `duly token`: creates, lists and removes tokens for the HTTP API.

use std::time::Duration;

use clap::Subcommand;
use duly::admin::Role;
use serde_json::json;

use crate::output::Format;
use crate::{Setup, audit, store, time};

/// Create, list and remove tokens, which identify people and programs over HTTP
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Create a token and print it once; the store keeps only its SHA-256
    Create {
        /// The name of the token, for people
        name: String,
        /// The role: viewer (read), pusher (push and work), operator (manage jobs), admin (also manage tokens)
        #[arg(long, value_name = "ROLE", default_value_t = Role::Viewer)]
        role: Role,
        /// The lifetime of the token, such as 90d [default: unlimited]
        #[arg(long, value_name = "DURATION", value_parser = duly::admin::parse_duration)]
        expires: Option<Duration>,
    },
    /// List tokens
    Ls,
    /// Remove a token; servers reject it within two seconds
    Rm { name: String },
}

pub(crate) async fn run(verb: TokenVerb, setup: &Setup) -> anyhow::Result<()> {
    match verb {
        TokenVerb::Create { name, role, expires } => create_token(setup, &name, role, expires).await,
        TokenVerb::Ls => list_tokens(setup).await,
        TokenVerb::Rm { name } => {
            let duly = store::open_existing(setup).await?;
            let removed = duly.tokens().remove(&name).await;
            audit::record(&duly, "tokens.remove", &name, removed).await?;
            setup.out.print_message(&format!("token {name} is removed"));
            Ok(())
        }
    }
}

async fn create_token(setup: &Setup, name: &str, role: Role, expires: Option<Duration>) -> anyhow::Result<()> {
    let duly = store::open_or_create(setup).await?;
    let created = duly.tokens().create(name, role, expires).await;
    let secret = audit::record(&duly, "tokens.create", name, created).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&json!({ "name": name, "role": role, "token": secret.as_str() }));
    }
    setup.out.print_line(secret.as_str())?;
    setup.out.print_hint(&format!(
        "token {name} ({role}): this is the only time that it is shown. Send it as `Authorization: Bearer ...`"
    ));
    Ok(())
}

async fn list_tokens(setup: &Setup) -> anyhow::Result<()> {
    let tokens = store::open_existing(setup).await?.tokens().list().await?;
    let out = &setup.out;
    match out.format {
        Format::Json => out.print_json(&tokens),
        Format::Ndjson => tokens.iter().try_for_each(|token| out.print_json(token)),
        Format::Table | Format::Wide => {
            let rows = tokens.into_iter().map(|token| {
                let expires = token.expires.map_or("never".to_owned(), time::format_date_time);
                [token.name, token.role.to_string(), time::format_date_time(token.created), expires]
            });
            out.print_table(["NAME", "ROLE", "CREATED", "EXPIRES"], rows.collect())
        }
    }
}
