//! `duly serve`: the HTTP API and the dashboard; `duly up`: the same, and a worker, in one process.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Args;
use duly::store::StoreUrl;
use duly::{CancellationToken, Duly, Signals};
use duly_http::{BoundServer, Server};

use crate::Setup;
use crate::exit::{self, Fail};
use crate::work::{self, Work};
use crate::{store, systemd};

/// Where to listen if nothing else is said.
const LISTEN: &str = "127.0.0.1:7711";

/// Serve the HTTP API and the dashboard
///
/// On 127.0.0.1 whoever is on this machine may do everything, until the store has a token (`duly token create`).
/// An address that other machines can reach is refused as long as there is none.
#[derive(Debug, Default, Args)]
pub(crate) struct Serve {
    /// The address to listen on; a port alone means 127.0.0.1 [env: DULY_LISTEN] [default: 127.0.0.1:7711]
    #[arg(long, value_name = "ADDRESS", env = "DULY_LISTEN", hide_env = true)]
    listen: Option<String>,

    /// Let nobody change anything
    #[arg(long)]
    read_only: bool,

    /// A name under which this server is reached, such as jobs.example.com; may be given several times.
    /// Requests for other names are refused
    #[arg(long = "allow-host", value_name = "NAME")]
    allow_hosts: Vec<String>,

    /// The URL under which people reach it through a proxy, such as https://jobs.example.com/duly
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// Let `command` jobs be pushed over HTTP: whoever may push can then run any program where `duly work` runs
    #[arg(long)]
    allow_commands: bool,

    /// Ask everybody for a token, also on this machine
    #[arg(long)]
    require_token: bool,

    /// Most connections at a time [default: 1024]
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
}

/// Serve and work in one process: the whole of duly for one machine
///
/// The options of `duly serve`, with a worker of `command` jobs beside it.
#[derive(Debug, Default, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    serve: Serve,
    /// A queue to work; may be given several times [default: default]
    #[arg(long = "queue", value_name = "NAME[=WEIGHT]")]
    queues: Vec<String>,
    /// How many jobs to run at once [default: 10]
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
}

pub(crate) async fn run(verb: Serve, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_to_stay(setup).await?;
    let listening = verb.listen(setup, duly).await?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let _signals = Signals::listen(stop.clone(), at_once.clone())?;
    verb.say(setup, &listening, false)?;
    systemd::serving(&listening.address().to_string());
    tokio::select! {
        served = listening.serve_until(stop) => Ok(served?),
        // A second signal.
        () = at_once.cancelled() => Ok(()),
    }
}

pub(crate) async fn up(verb: Up, setup: Setup) -> anyhow::Result<()> {
    let Up { serve, queues, concurrency } = verb;
    let duly = store::open_to_stay(&setup).await?;
    let listening = serve.listen(&setup, duly.clone()).await?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let _signals = Signals::listen(stop.clone(), at_once.clone())?;
    serve.say(&setup, &listening, true)?;
    let serving = tokio::spawn(listening.serve_until(stop.clone()));
    let worked = work::until(Work::of(queues, concurrency), setup, &duly, stop.clone(), at_once.clone()).await;
    // A worker that was told to stop from elsewhere takes the server along: they are one process.
    stop.cancel();
    tokio::select! {
        served = serving => served.context("the server has panicked")??,
        () = at_once.cancelled() => {}
    }
    worked
}

impl Serve {
    async fn listen(&self, setup: &Setup, duly: Duly) -> anyhow::Result<BoundServer> {
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
        let listen = self.listen.as_deref().or(setup.config.serve.listen.as_deref()).unwrap_or(LISTEN);
        server.listen(address(listen)?).await.map_err(|error| match &error {
            // What was asked for is right, and would do another time.
            duly::Error::Invalid { field: "listen", reason } if reason.starts_with("cannot listen") => {
                Fail::new(exit::FAILURE, format!("{reason}; end who listens there, or choose another with --listen"))
            }
            _ => error.into(),
        })
    }

    /// Where it is, and what to do next.
    fn say(&self, setup: &Setup, listening: &BoundServer, works: bool) -> anyhow::Result<()> {
        let (url, store) = (format!("http://{}", listening.address()), StoreUrl::parse(&store::url(setup)?)?);
        if setup.out.is_json() {
            return setup.out.json(&serde_json::json!({ "url": url, "store": store.to_string() }));
        }
        setup.out.line(&url)?;
        setup
            .out
            .say_to_people(&format!("the store {store}: open {url} in a browser, or push a job from anywhere here:"));
        setup.out.say_to_people(&format!(
            "  curl -H 'Content-Type: application/json' -d '{{\"kind\":\"hello\",\"args\":{{}}}}' {url}/api/v1/jobs"
        ));
        if works {
            setup.out.say_to_people("  duly push -- echo hello        # in another terminal: it runs right here");
        }
        setup.out.say_to_people("Ctrl-C ends it.");
        Ok(())
    }
}

/// An address and a port, or a port of this machine.
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let whole = match (text.parse::<u16>(), text.strip_prefix("localhost:")) {
        (Ok(port), _) => format!("127.0.0.1:{port}"),
        (_, Some(port)) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    whole.parse().map_err(|_| Fail::new(exit::USAGE, format!("listen: {text:?} is no address; write 127.0.0.1:7711")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses() {
        assert_eq!(address("7711").expect("good").to_string(), "127.0.0.1:7711");
        assert_eq!(address("localhost:80").expect("good").to_string(), "127.0.0.1:80");
        assert_eq!(address("[::1]:80").expect("good").to_string(), "[::1]:80");
        assert!(address("example.com:80").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_is_refused(text in ".*") {
            let _ = address(&text);
        }
    }
}
