//! `duly open`: opens the dashboard in a browser.

use std::process::{Command, Stdio};

use clap::Args;
use serde::de::IgnoredAny;

use crate::Setup;
use crate::api_client::ApiClient;
use crate::exit;
use crate::serve::{DEFAULT_ADDRESS, LISTEN_ENV};

/// Programs that open an address in the browser of a desktop.
const OPENERS: [&str; 2] = if cfg!(target_os = "macos") { ["open", "xdg-open"] } else { ["xdg-open", "open"] };

/// Open the dashboard in a browser, and print its address
///
/// The server is that of --server, or else the one that `duly serve` or `duly up` starts here.
#[derive(Debug, Args)]
pub(crate) struct OpenArgs {
    /// Only print the address
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(open: &OpenArgs, setup: &Setup) -> anyhow::Result<()> {
    let url = find_url(setup);
    let client = ApiClient::new(&url)?;
    // A browser signs in by itself: that this client has no token is no error.
    let stats = client.get::<IgnoredAny>("/stats").await;
    let needs_login = match stats {
        Err(error) if exit::exit_code(&error) == exit::STORE_FAILED => {
            return Err(error.context("no dashboard; start one with `duly up`, or name another with --server"));
        }
        Err(_) => true,
        Ok(_) => false,
    };
    let shown = client.display_url();
    if setup.out.is_json() {
        setup.out.print_json(&serde_json::json!({ "url": shown }))?;
    } else {
        setup.out.print_line(&shown)?;
    }
    if needs_login {
        setup.out.print_message(
            "sign in with a token (`duly token create NAME` where the store is), or once with the link that `duly serve --sign-in-link` prints at its start",
        );
    }
    if !open.print && has_desktop() && !start_browser(&shown) {
        setup.out.print_message("no program opens a browser here; open the address yourself");
    }
    Ok(())
}

/// Returns the URL of the server: the option, or the address at which a server here listens.
fn find_url(setup: &Setup) -> String {
    if let Some(server) = &setup.server {
        return server.clone();
    }
    let listen = std::env::var(LISTEN_ENV).ok().filter(|listen| !listen.is_empty());
    let listen = listen.or_else(|| setup.config.serve.listen.clone()).unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
    match listen.parse::<u16>() {
        Ok(port) => format!("http://127.0.0.1:{port}"),
        // An address for all interfaces is not one to connect to.
        Err(_) => format!("http://{}", listen.replacen("0.0.0.0", "127.0.0.1", 1).replacen("[::]", "[::1]", 1)),
    }
}

fn has_desktop() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

/// Starts the browser; returns false if no program for that is installed.
fn start_browser(url: &str) -> bool {
    OPENERS.iter().any(|program| {
        let mut command = Command::new(program);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
