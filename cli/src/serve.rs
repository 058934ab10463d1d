//! `duly serve`: the HTTP API and the dashboard; `duly up`: the same with a worker in one process.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use duly::admin::StoreUrl;
use duly::worker::ShutdownSignals;
use duly::{CancellationToken, Duly};
use duly_http::{BoundServer, Server};
use serde_json::Value;

use crate::Setup;
use crate::exit::{self, CliError};
use crate::logs::{self, Level};
use crate::work::{self, WorkArgs};
use crate::{admin_token, open_files, store, systemd};

/// The default listen address.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7711";
/// The variable with the listen address.
pub(crate) const LISTEN_ENV: &str = "DULY_LISTEN";

/// Serve the HTTP API and the dashboard
///
/// On 127.0.0.1, programs and browsers of the same user have full access until the store has a token
/// (`duly token create`). An address that other machines can reach is refused until then.
#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on; a port alone means 127.0.0.1 [env: DULY_LISTEN] [default: 127.0.0.1:7711]
    #[arg(long, value_name = "ADDRESS", env = LISTEN_ENV, hide_env = true)]
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

    /// Allow `command` jobs over HTTP: every client that may push can then run any program where `duly work` runs.
    /// Needs a token
    #[arg(long)]
    allow_commands: bool,

    /// A file with the secret of an admin token, which the server creates at its start: for containers.
    /// Other users must not be able to read the file [env: DULY_ADMIN_TOKEN_FILE]
    #[arg(long, value_name = "FILE", env = "DULY_ADMIN_TOKEN_FILE", hide_env = true)]
    admin_token_file: Option<PathBuf>,

    /// Require a token for every request, even from this machine
    #[arg(long)]
    require_token: bool,

    /// Until there is a token, let in only the browser that opens a printed link.
    /// Without this option, the link is printed if the server cannot determine which user sends a request
    #[arg(long)]
    sign_in_link: bool,

    /// The maximum number of connections, if the limit of open files is at least 128 more [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    connections: Option<usize>,

    /// With this many queues in the store, clients may not create another one [default: 1000]
    #[arg(long, value_name = "N")]
    max_queues: Option<usize>,
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
    /// Run jobs of the kind `command` from a server too: everyone who may push there runs programs as this user
    #[arg(long)]
    commands: bool,
    /// A program that runs every kind except `command`; its arguments follow after `--`
    #[arg(long, value_name = "PROGRAM")]
    exec: Option<String>,
    /// Arguments for the program of --exec
    #[arg(last = true, requires = "exec", value_name = "ARGS")]
    exec_args: Vec<String>,
}

pub(crate) async fn run(verb: ServeArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_long_lived(setup).await?;
    let server = verb.start_listening(setup, duly).await?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let _signals = ShutdownSignals::listen(stop.clone(), at_once.clone())?;
    verb.print_address(setup, &server, RunsHere::Nothing)?;
    systemd::notify_serving(&server.address().to_string());
    tokio::select! {
        served = server.serve_until(stop) => Ok(served?),
        // A second signal.
        () = at_once.cancelled() => Ok(()),
    }
}

pub(crate) async fn run_up(verb: UpArgs, setup: Setup) -> anyhow::Result<()> {
    let UpArgs { serve, queues, concurrency, commands, exec, exec_args } = verb;
    // Without a program, only commands run.
    let runs = if exec.is_some() || setup.config.work.exec.is_some() { RunsHere::AnyKind } else { RunsHere::Commands };
    let duly = store::open_long_lived(&setup).await?;
    let server = serve.start_listening(&setup, duly.clone()).await?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let _signals = ShutdownSignals::listen(stop.clone(), at_once.clone())?;
    serve.print_address(&setup, &server, runs)?;
    let serving = tokio::spawn(server.serve_until(stop.clone()));
    let result = work::run_until(
        WorkArgs::for_queues(queues, concurrency, commands).exec(exec, exec_args),
        setup,
        &duly,
        stop.clone(),
        at_once.clone(),
    )
    .await;
    // If another node stops the worker, the server stops, too: they are one process.
    stop.cancel();
    tokio::select! {
        served = serving => served.context("the HTTP server has panicked; report the message above as a bug, and start it again")??,
        () = at_once.cancelled() => {}
    }
    result
}

/// The jobs that the process of a server runs itself.
#[derive(Clone, Copy)]
enum RunsHere {
    Nothing,
    Commands,
    AnyKind,
}

impl ServeArgs {
    async fn start_listening(&self, setup: &Setup, duly: Duly) -> anyhow::Result<BoundServer> {
        let connections = self.connections.unwrap_or(duly_http::DEFAULT_CONNECTIONS_MAX);
        open_files::raise_limit(connections);
        if let Some(file) = self.admin_token_file.as_deref().filter(|file| !file.as_os_str().is_empty()) {
            admin_token::ensure(&duly, file).await?;
        }
        let mut server = Server::new(duly).allow_hosts(self.allow_hosts.iter().cloned()).connections(connections);
        if self.read_only {
            server = server.read_only();
        }
        if self.allow_commands {
            server = server.allow_commands();
        }
        if self.require_token {
            server = server.require_token();
        }
        if self.sign_in_link {
            server = server.sign_in_link();
        }
        if let Some(queues) = self.max_queues {
            server = server.queues(queues);
        }
        if let Some(url) = &self.public_url {
            server = server.public_url(url);
        }
        let listen = self.listen.as_deref().or(setup.config.serve.listen.as_deref()).unwrap_or(DEFAULT_ADDRESS);
        server.listen(parse_address(listen)?).await.map_err(|error| match &error {
            // The address is valid, but in use: not a usage error.
            duly::Error::Invalid { field: "listen", reason, .. } if reason.starts_with("cannot listen") => {
                CliError::new(
                    exit::FAILURE,
                    format!("{reason}; stop the program that listens there, or choose another address with --listen"),
                )
            }
            _ => error.into(),
        })
    }

    /// Prints the URL and the next steps.
    fn print_address(&self, setup: &Setup, server: &BoundServer, runs: RunsHere) -> anyhow::Result<()> {
        let (url, store) = (format!("http://{}", server.address()), StoreUrl::parse(&store::resolve_url(setup)?)?);
        if setup.out.is_json() || logs::is_json() {
            let mut address = serde_json::json!({ "url": url, "store": store.to_string() });
            if let Some(link) = server.sign_in_url() {
                address["sign_in"] = link.into();
            }
            return match (logs::is_json(), address) {
                (true, Value::Object(fields)) => {
                    setup.out.print_line(&logs::format_line(Level::Info, "duly::serve", "serving", fields))
                }
                (_, address) => setup.out.print_json(&address),
            };
        }
        setup.out.print_line(&url)?;
        if let Some(link) = server.sign_in_url() {
            let minutes = duly_http::SIGN_IN_LINK_TTL.as_secs() / 60;
            setup.out.print_line(&format!("sign in once, in a browser, within {minutes} minutes: {link}"))?;
            setup.out.print_hint(&format!("the store {store}; programs need a token: duly token create NAME"));
            setup.out.print_hint("Ctrl-C ends it.");
            return Ok(());
        }
        setup.out.print_hint(&format!("the store {store}: open {url} in a browser, or push a job from anywhere here:"));
        let curl = format!(
            "  curl -H 'Content-Type: application/json' -d '{{\"kind\":\"hello\",\"args\":{{}}}}' {url}/api/v1/jobs"
        );
        match runs {
            RunsHere::Nothing => setup.out.print_hint(&format!("{curl}   # for a worker that has a handler for hello")),
            RunsHere::Commands => {
                setup.out.print_hint("  duly push -- echo hello   # in another terminal: it runs right here");
                setup.out.print_hint("jobs of other kinds need `--exec PROGRAM` here, or a worker of their own");
            }
            RunsHere::AnyKind => setup.out.print_hint(&format!("{curl}   # it runs right here")),
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
        .map_err(|_| CliError::new(exit::USAGE, format!("listen: {text:?} is not an address; write 127.0.0.1:7711")))
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
