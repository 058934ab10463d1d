//! The options of a server, and the state that its requests share.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use duly::Duly;
use duly::worker::remote::RemoteNodes;

use super::api::{Events, Operations};
use super::json::IdempotencyKeys;
use super::rate_limit::RateLimits;
use super::sessions::Sessions;
use super::streams::Streams;
use super::token_cache::TokenCache;

/// The default of [`Server::connections`].
pub const CONNECTIONS: usize = 1_024;
/// The default of [`Server::rate`].
pub const RATE: u32 = 1_000;

/// Builds an HTTP server: the API, the dashboard, and the access to them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// let duly = duly::Duly::open(":memory:").await?;
/// let router: axum::Router = duly_http::Server::new(duly).allow_hosts(["jobs.example.com"]).read_only().router();
/// # Ok(())
/// # }
/// ```
#[must_use = "a server does nothing until `serve` is awaited or its `router` is mounted"]
#[derive(Debug)]
pub struct Server {
    pub(super) duly: Duly,
    pub(super) options: ServerOptions,
}

/// The options of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions {
    /// The server refuses all changes.
    pub(crate) read_only: bool,
    /// Clients can push `command` jobs, and so run any program on the workers' machines.
    pub(crate) commands: bool,
    /// The allowed values of `Host`, in addition to those of this machine.
    pub(crate) hosts: Vec<String>,
    /// The path under which the router is mounted: "" or "/duly".
    pub(crate) prefix: String,
    /// Clients use TLS: cookies get the flag `Secure`.
    pub(crate) secure: bool,
    /// Every client needs a token, on this machine too.
    pub(crate) token_required: bool,
    /// Every client is an admin: the service around the router authenticates.
    pub(crate) open: bool,
    pub(crate) connections: usize,
    pub(crate) rate: u32,
}

impl Server {
    /// Returns a server for this store. Clients on this machine need no token until the store has one.
    pub fn new(duly: Duly) -> Self {
        let options = ServerOptions {
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

    /// Refuses all changes.
    pub fn read_only(mut self) -> Self {
        self.options.read_only = true;
        self
    }

    /// Allows clients to push `command` jobs: **every pusher can then run any program on machines that run `duly work`.**
    pub fn allow_commands(mut self) -> Self {
        self.options.commands = true;
        self
    }

    /// Allows these values of the `Host` header, such as `jobs.example.com` or `10.0.0.7:7711`; others get a 421.
    ///
    /// The names of this machine (`localhost`, `127.0.0.1`, `[::1]`) are always allowed.
    pub fn allow_hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.options.hosts.extend(hosts.into_iter().map(|host| host.into().to_ascii_lowercase()));
        self
    }

    /// Sets the public URL, such as `https://jobs.example.com/duly`: allows its host, puts its path in front of every link,
    /// and restricts cookies to TLS if the scheme is `https`.
    ///
    /// Every client needs a token then: a request from a proxy on this machine may come from anywhere.
    pub fn public_url(mut self, url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        self.options.secure = scheme == "https";
        self.prefix(path).allow_hosts([host]).require_token()
    }

    /// Sets the path under which the router is mounted, such as `/duly`. Every link starts with it.
    pub fn prefix(mut self, prefix: &str) -> Self {
        let inner = prefix.trim_matches('/');
        self.options.prefix = if inner.is_empty() { String::new() } else { format!("/{inner}") };
        self
    }

    /// Requires a token from every client, on this machine too.
    pub fn require_token(mut self) -> Self {
        self.options.token_required = true;
        self
    }

    /// Makes every client an admin: for a service that authenticates requests before they reach the router.
    ///
    /// To set the name and the role of a client, put an [`Identity`](super::Identity) into the request's extensions instead.
    pub fn open_to_all(mut self) -> Self {
        self.options.open = true;
        self
    }

    /// Sets the most connections at a time (default 1,024); further ones wait.
    pub fn connections(mut self, connections: usize) -> Self {
        self.options.connections = connections.max(1);
        self
    }

    /// Sets the most requests per second from one address or with one token (default 1,000), except from this machine.
    pub fn rate(mut self, requests: u32) -> Self {
        self.options.rate = requests.max(1);
        self
    }

    /// Returns the API and the dashboard, to mount in a service.
    ///
    /// Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, or the router cannot recognise clients on this
    /// machine, and every client needs a token.
    pub fn router(self) -> Router {
        super::routes(self.app())
    }

    pub(super) fn app(self) -> Arc<App> {
        let Server { duly, options } = self;
        Arc::new(App {
            remote_nodes: RemoteNodes::new(duly.clone()),
            tokens: TokenCache::default(),
            sessions: Sessions::default(),
            rate_limits: RateLimits::new(options.rate),
            idempotency_keys: IdempotencyKeys::default(),
            events: Arc::default(),
            streams: Streams::default(),
            operations: Operations::default(),
            options,
            duly,
        })
    }
}

/// The extractor of the state that all requests share.
pub(crate) type AppState = axum::extract::State<Arc<App>>;

/// The state that all requests share.
pub(crate) struct App {
    pub(crate) duly: Duly,
    pub(crate) options: ServerOptions,
    /// The nodes of workers that use the API.
    pub(crate) remote_nodes: RemoteNodes,
    /// The tokens of the store.
    pub(crate) tokens: TokenCache,
    /// The browser sessions.
    pub(crate) sessions: Sessions,
    pub(crate) rate_limits: RateLimits,
    /// The recent idempotency keys.
    pub(crate) idempotency_keys: IdempotencyKeys,
    /// Changes, for the event streams.
    pub(crate) events: Arc<Events>,
    /// The number of open streams per client.
    pub(crate) streams: Streams,
    /// Bulk actions, running and finished.
    pub(crate) operations: Operations,
}

impl App {
    /// Returns a path of this server with its prefix.
    pub(crate) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.options.prefix)
    }
}

/// The longest wait of a long poll.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
