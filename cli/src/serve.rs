//! `duly serve`: the HTTP API and the dashboard; `duly up`: the same with a worker in one process.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Args;
use duly::admin::StoreUrl;
use duly::worker::ShutdownSignals;
use duly::{CancellationToken, Duly};
use duly_http::{BoundServer, Server};

use crate::Setup;
use crate::exit::{self, CliError};
use crate::work::{self, WorkArgs};
use crate::{store, systemd};

/// The default listen address.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7711";

/// Serve the HTTP API and the dashboard
///
/// On 127.0.0.1, every user of this machine has full access until the store has a token (`duly token create`).
/// An address that other machines can reach is refused until then.
#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on; a port alone means 127.0.0.1 [env: DULY_LISTEN] [default: 127.0.0.1:7711]
    #[arg(long, value_name = "ADDRESS", env = "DULY_LISTEN", hide_env = true)]
    listen: Option<String>,

    /// Reject every change
    #[arg(long)]
    read_only: bool,

    /// A host name of this server, such as jobs.example.com; may be repeated.
    /// Requests for other names are rejected
    #[arg(long = "allow-host", value_name = "NAME")]
    allow_hosts: Vec<String>,

    /// The URL of the server behind a proxy, such as https://jobs.example.com/duly
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// Allow `command` jobs over HTTP: every client that may push can then run any program where `duly work` runs
    #[arg(long)]
    allow_commands: bool,

    /// Require a token for every request, even from this machine
    #[arg(long)]
    require_token: bool,

    /// The maximum number of connections [default: 1024]
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
}

/// Serve and work in one process: all of duly on one machine
///
/// Takes the options of `duly serve`, and also runs a worker for `command` jobs.
#[derive(Debug, Default, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// A queue to work; may be repeated [default: default]
    #[arg(long = "queue", value_name = "NAME[=WEIGHT]")]
    queues: Vec<String>,
    /// The number of concurrent jobs [default: 10]
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
}

pub(crate) async fn run(verb: ServeArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_long_lived(setup).await?;
    let server = verb.start_listening(setup, duly).await?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let _signals = ShutdownSignals::listen(stop.clone(), at_once.clone())?;
    verb.print_address(setup, &server, false)?;
    systemd::notify_serving(&server.address().to_string());
    tokio::select! {
        served = server.serve_until(stop) => Ok(served?),
        // A second signal.
        () = at_once.cancelled() => Ok(()),
    }
}

pub(crate) async fn run_up(verb: UpArgs, setup: Setup) -> anyhow::Result<()> {
    let UpArgs { serve, queues, concurrency } = verb;
    let duly = store::open_long_lived(&setup).await?;
    let server = serve.start_listening(&setup, duly.clone()).await?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let _signals = ShutdownSignals::listen(stop.clone(), at_once.clone())?;
    serve.print_address(&setup, &server, true)?;
    let serving = tokio::spawn(server.serve_until(stop.clone()));
    let result =
        work::run_until(WorkArgs::for_queues(queues, concurrency), setup, &duly, stop.clone(), at_once.clone()).await;
    // If another node stops the worker, the server stops, too: they are one process.
    stop.cancel();
    tokio::select! {
        served = serving => served.context("the server has panicked")??,
        () = at_once.cancelled() => {}
    }
    result
}

impl ServeArgs {
    async fn start_listening(&self, setup: &Setup, duly: Duly) -> anyhow::Result<BoundServer> {
        let mut server = Server::new(duly).allow_hosts(self.allow_hosts.iter().cloned());
        if self.read_only {
            server = server.read_only();
        }
        if self.allow_commands {
            server = server.allow_commands();
        }
        if self.require_token {
            server = server.require_token();
        }
        if let Some(url) = &self.public_url {
            server = server.public_url(url);
        }
        if let Some(connections) = self.connections {
            server = server.connections(connections);
        }
        let listen = self.listen.as_deref().or(setup.config.serve.listen.as_deref()).unwrap_or(DEFAULT_ADDRESS);
        server.listen(parse_address(listen)?).await.map_err(|error| match &error {
            // The address is valid, but in use: not a usage error.
            duly::Error::Invalid { field: "listen", reason, .. } if reason.starts_with("cannot listen") => {
                CliError::new(
                    exit::FAILURE,
                    format!("{reason}; end who listens there, or choose another with --listen"),
                )
            }
            _ => error.into(),
        })
    }

    /// Prints the URL and the next steps.
    fn print_address(&self, setup: &Setup, server: &BoundServer, has_worker: bool) -> anyhow::Result<()> {
        let (url, store) = (format!("http://{}", server.address()), StoreUrl::parse(&store::resolve_url(setup)?)?);
        if setup.out.is_json() {
            return setup.out.print_json(&serde_json::json!({ "url": url, "store": store.to_string() }));
        }
        setup.out.print_line(&url)?;
        setup.out.print_hint(&format!("the store {store}: open {url} in a browser, or push a job from anywhere here:"));
        setup.out.print_hint(&format!(
            "  curl -H 'Content-Type: application/json' -d '{{\"kind\":\"hello\",\"args\":{{}}}}' {url}/api/v1/jobs"
        ));
        if has_worker {
            setup.out.print_hint("  duly push -- echo hello        # in another terminal: it runs right here");
        }
        setup.out.print_hint("Ctrl-C ends it.");
        Ok(())
    }
}

/// Parses an address with a port, or a port on 127.0.0.1.
fn parse_address(text: &str) -> anyhow::Result<SocketAddr> {
    let address = match (text.parse::<u16>(), text.strip_prefix("localhost:")) {
        (Ok(port), _) => format!("127.0.0.1:{port}"),
        (_, Some(port)) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    address
        .parse()
        .map_err(|_| CliError::new(exit::USAGE, format!("listen: {text:?} is no address; write 127.0.0.1:7711")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_parsed() {
        assert_eq!(parse_address("7711").expect("good").to_string(), "127.0.0.1:7711");
        assert_eq!(parse_address("localhost:80").expect("good").to_string(), "127.0.0.1:80");
        assert_eq!(parse_address("[::1]:80").expect("good").to_string(), "[::1]:80");
        assert!(parse_address("example.com:80").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_is_refused(text in ".*") {
            let _ = parse_address(&text);
        }
    }
}
