//! The server's options, and what all its requests share.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;

use super::api::{Events, Operations};
use super::json::IdempotencyKeys;
use super::limit::Limits;
use super::session::Sessions;
use super::streams::Streams;
use super::tokens::Known;
use crate::client::Duly;
use crate::remote::Remotes;

/// Most connections at a time, unless [`Server::connections`] says otherwise.
pub const CONNECTIONS: usize = 1_024;
/// Most requests a second from one address or with one token, unless [`Server::rate`] says otherwise.
pub const RATE: u32 = 1_000;

/// An HTTP server to be: the API, the dashboard, and who may do what.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// let duly = duly::Duly::open(":memory:").await?;
/// let router: axum::Router = duly::http::Server::new(duly).allow_hosts(["jobs.example.com"]).read_only().router();
/// # Ok(())
/// # }
/// ```
#[must_use = "a server does nothing until `serve` is awaited or its `router` is mounted"]
pub struct Server {
    pub(super) duly: Duly,
    pub(super) options: Options,
}

/// What can be chosen.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Nothing can be changed.
    pub(crate) read_only: bool,
    /// `command` jobs can be pushed: whoever may push can run any program on the workers' machines.
    pub(crate) commands: bool,
    /// Names under which this server is reached, beside those of this machine.
    pub(crate) hosts: Vec<String>,
    /// Where the router is mounted: "" or "/duly".
    pub(crate) prefix: String,
    /// It is reached over TLS: cookies say so.
    pub(crate) secure: bool,
    /// Without a token nobody gets in, from wherever.
    pub(crate) token_required: bool,
    /// Whoever reaches the router may do everything: the service around it has checked that.
    pub(crate) open: bool,
    pub(crate) connections: usize,
    pub(crate) rate: u32,
}

impl Server {
    /// A server on this store that lets in whoever is on this machine, until the store has a token.
    pub fn new(duly: Duly) -> Self {
        let options = Options {
            read_only: false,
            commands: false,
            hosts: Vec::new(),
            prefix: String::new(),
            secure: false,
            token_required: false,
            open: false,
            connections: CONNECTIONS,
            rate: RATE,
        };
        Server { duly, options }
    }

    /// Nothing can be changed through this server.
    pub fn read_only(mut self) -> Self {
        self.options.read_only = true;
        self
    }

    /// `command` jobs can be pushed: **whoever may push can then run any program where `duly work` runs.**
    pub fn allow_commands(mut self) -> Self {
        self.options.commands = true;
        self
    }

    /// Names under which this server is reached, such as `jobs.example.com` or `10.0.0.7:7711`; others are refused.
    ///
    /// Names of this machine (`localhost`, `127.0.0.1`, `[::1]`) need not be listed.
    pub fn allow_hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.options.hosts.extend(hosts.into_iter().map(|host| host.into().to_ascii_lowercase()));
        self
    }

    /// Under which URL people reach it, such as `https://jobs.example.com/duly`: its host is allowed,
    /// its path put before every link, and cookies are for TLS only if it says `https`.
    ///
    /// From then on everybody needs a token: what comes through a proxy on this machine may come from anywhere.
    pub fn public_url(mut self, url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        self.options.secure = scheme == "https";
        self.prefix(path).allow_hosts([host]).require_token()
    }

    /// Where the router is mounted, such as `/duly`: put before every link.
    pub fn prefix(mut self, prefix: &str) -> Self {
        let inner = prefix.trim_matches('/');
        self.options.prefix = if inner.is_empty() { String::new() } else { format!("/{inner}") };
        self
    }

    /// Nobody gets in without a token, also not from this machine.
    pub fn require_token(mut self) -> Self {
        self.options.token_required = true;
        self
    }

    /// Whoever reaches the router may do everything: for a service that has checked that itself.
    ///
    /// To say who somebody is and what they may do, put a [`Who`](super::Who) into the request's extensions instead.
    pub fn open_to_all(mut self) -> Self {
        self.options.open = true;
        self
    }

    /// Most connections at a time (default 1,024): further ones wait.
    pub fn connections(mut self, connections: usize) -> Self {
        self.options.connections = connections.max(1);
        self
    }

    /// Most requests a second from one address or with one token (default 1,000); this machine's own are not counted.
    pub fn rate(mut self, requests: u32) -> Self {
        self.options.rate = requests.max(1);
        self
    }

    /// The API and the dashboard, to be mounted in a service of your own.
    ///
    /// Served with `into_make_service_with_connect_info::<SocketAddr>()`, it knows who is on this machine;
    /// without, everybody needs a token.
    pub fn router(self) -> Router {
        super::routes(self.app())
    }

    pub(super) fn app(self) -> Arc<App> {
        let Server { duly, options } = self;
        Arc::new(App {
            remotes: Remotes::new(duly.clone()),
            tokens: Known::default(),
            sessions: Sessions::default(),
            limits: Limits::new(options.rate),
            keys: IdempotencyKeys::default(),
            events: Arc::default(),
            streams: Streams::default(),
            operations: Operations::default(),
            options,
            duly,
        })
    }
}

/// What all requests share.
pub(crate) struct App {
    pub(crate) duly: Duly,
    pub(crate) options: Options,
    /// Nodes held on behalf of workers that speak HTTP.
    pub(crate) remotes: Remotes,
    /// Tokens of the store, looked up now and then.
    pub(crate) tokens: Known,
    /// Who has signed in.
    pub(crate) sessions: Sessions,
    pub(crate) limits: Limits,
    /// What came with which idempotency key.
    pub(crate) keys: IdempotencyKeys,
    /// What changes, for those who listen.
    pub(crate) events: Arc<Events>,
    /// Who has how many streams open.
    pub(crate) streams: Streams,
    /// Changes to many jobs, under way or done.
    pub(crate) operations: Operations,
}

impl App {
    /// A path of this server as a browser has to ask for it.
    pub(crate) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.options.prefix)
    }
}

/// The longest that anything waits for something to happen.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
