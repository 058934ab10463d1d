//! `duly token`: creates, lists and removes tokens for the HTTP API.

use std::time::Duration;

use clap::Subcommand;
use duly::admin::Role;
use duly_http::views::TokenView;

use crate::backend::Backend;
use crate::output::{Column, ColumnArgs, List};
use crate::{Setup, time};

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
    Ls {
        #[command(flatten)]
        columns: ColumnArgs,
    },
    /// Remove a token; servers reject it within two seconds
    Rm { name: String },
}

/// The columns of `ls`.
const COLUMNS: &[Column<TokenView>] = &[
    Column::new("NAME", |token| token.name.clone()),
    Column::new("ROLE", |token| token.role.to_string()),
    Column::new("CREATED", |token| time::format_date_time(time::from_millis(token.created_ms))),
    Column::new("EXPIRES", |token| {
        token.expires_ms.map_or("never".to_owned(), |at| time::format_date_time(time::from_millis(at)))
    }),
];

pub(crate) async fn run(verb: TokenVerb, setup: &Setup) -> anyhow::Result<()> {
    match verb {
        TokenVerb::Create { name, role, expires } => create_token(setup, &name, role, expires).await,
        TokenVerb::Ls { columns } => {
            let list = Backend::open_existing(setup).await?.tokens().await?;
            let empty = "no tokens: `duly token create NAME` makes the first";
            setup.out.print_list(&list, &List { items: &list.tokens, columns: COLUMNS, chosen: &columns, empty })
        }
        TokenVerb::Rm { name } => {
            Backend::open_existing(setup).await?.remove_token(&name).await?;
            setup.out.print_message(&format!("token {name} is removed"));
            Ok(())
        }
    }
}

async fn create_token(setup: &Setup, name: &str, role: Role, expires: Option<Duration>) -> anyhow::Result<()> {
    let created = Backend::open_or_create(setup).await?.create_token(name, role, expires).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&created);
    }
    setup.out.print_line(&created.token)?;
    setup.out.print_hint(&format!(
        "token {name} ({role}): this is the only time that it is shown. Send it as `Authorization: Bearer ...`"
    ));
    Ok(())
}
