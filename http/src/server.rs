//! The options of a server, and the state that its requests share.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Uri;
use duly::admin::JobIdKey;
use duly::worker::remote::RemoteNodes;
use duly::{CancellationToken, Clock, Duly};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::api::{COMMAND, Events, Holds, JobEvents, Operations};
use super::body_budget::BodyBudget;
use super::json::IdempotencyKeys;
use super::local;
use super::metrics::MetricsText;
use super::queue_count_limit::QueueCountLimit;
use super::rate_limit::RateLimits;
use super::samples::Samples;
use super::sessions::{SessionCookie, Sessions};
use super::sign_in_link::SignInLink;
use super::token_cache::TokenCache;
use super::waits::Waits;

/// The default of [`Server::connections`].
pub const DEFAULT_CONNECTIONS_MAX: usize = 1_024;
/// The default of [`Server::rate`].
pub const DEFAULT_REQUESTS_PER_SECOND_MAX: u32 = 1_000;
/// The default of [`Server::queues`].
pub const DEFAULT_QUEUES_MAX: usize = 1_000;

/// Builds an HTTP server: the API, the dashboard, and the access to them.
///
/// # Examples
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
    /// The public URL was not a URL.
    pub(crate) has_invalid_url: bool,
    /// The port of the server, if it listens itself.
    pub(crate) port: Option<u16>,
    /// Clients use TLS: cookies get the flag `Secure`.
    pub(crate) secure: bool,
    /// Every client needs a token, on this machine too.
    pub(crate) token_required: bool,
    /// Every client is an admin: the service around the router authenticates.
    pub(crate) open: bool,
    pub(crate) connections: usize,
    pub(crate) rate: u32,
    /// No client is local; without a token, a printed link signs in.
    pub(crate) sign_in_link: bool,
    /// The most queues of the store into which a client may push what would be a new one.
    pub(crate) queues: usize,
}

impl Server {
    /// Returns a server for this store. While the store has no token, clients on this machine need none if they run as the
    /// same user as the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let router = duly_http::Server::new(duly.clone()).prefix("/duly").router();
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(duly: Duly) -> Self {
        let options = ServerOptions {
            read_only: false,
            commands: false,
            hosts: Vec::new(),
            prefix: String::new(),
            has_invalid_url: false,
            port: None,
            secure: false,
            token_required: false,
            open: false,
            connections: DEFAULT_CONNECTIONS_MAX,
            rate: DEFAULT_REQUESTS_PER_SECOND_MAX,
            sign_in_link: false,
            queues: DEFAULT_QUEUES_MAX,
        };
        Server { duly, options }
    }

    /// Refuses all changes.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// // A dashboard for everyone in the office:
    /// let router = duly_http::Server::new(duly).read_only().router();
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_only(mut self) -> Self {
        self.options.read_only = true;
        self
    }

    /// Allows clients to push `command` jobs: **every pusher can then run any program on machines that run `duly work`.**
    ///
    /// Every client needs a token then, and [`Server::listen`] refuses a store without one.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let server = duly_http::Server::new(duly).allow_commands();
    /// assert!(server.listen(([127, 0, 0, 1], 0).into()).await.is_err(), "the store has no token");
    /// # Ok(())
    /// # }
    /// ```
    pub fn allow_commands(mut self) -> Self {
        self.options.commands = true;
        self
    }

    /// Allows these values of the `Host` header, such as `jobs.example.com` or `10.0.0.7:7711`; others get a 421.
    ///
    /// The names of this machine (`localhost`, `127.0.0.1`, `[::1]`) are always allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let server = duly_http::Server::new(duly).allow_hosts(["jobs.example.com", "10.0.0.7:7711"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn allow_hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.options.hosts.extend(hosts.into_iter().map(|host| host.into().to_ascii_lowercase()));
        self
    }

    /// Sets the public URL, such as `https://jobs.example.com/duly`. The server then allows its host and starts every link
    /// with its path. If the scheme is `https`, browsers send the cookies only over TLS.
    ///
    /// Every client needs a token then: a request from a proxy on this machine may come from anywhere.
    ///
    /// [`Server::listen`] refuses a text that is not such a URL.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// // Behind a proxy that ends TLS and passes on `/duly`:
    /// let server = duly_http::Server::new(duly).public_url("https://www.example.com/duly");
    /// # Ok(())
    /// # }
    /// ```
    pub fn public_url(mut self, url: &str) -> Self {
        self.options.has_invalid_url = false;
        match parse_public_url(url) {
            Some((secure, host, path)) => {
                self.options.secure = secure;
                self.prefix(&path).allow_hosts([host]).require_token()
            }
            None => {
                self.options.has_invalid_url = true;
                self.require_token()
            }
        }
    }

    /// Sets the path under which the router is mounted, such as `/duly`. Every link starts with it.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let jobs = duly_http::Server::new(duly).prefix("/duly").router();
    /// let service: axum::Router = axum::Router::new().nest("/duly", jobs);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(mut self, prefix: &str) -> Self {
        let inner = prefix.trim_matches('/');
        self.options.prefix = if inner.is_empty() { String::new() } else { format!("/{inner}") };
        self
    }

    /// Requires a token from every client, on this machine too.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// duly.tokens().create("ada", duly::admin::Role::Admin, None).await?;
    /// let bound = duly_http::Server::new(duly).require_token().listen(([127, 0, 0, 1], 0).into()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn require_token(mut self) -> Self {
        self.options.token_required = true;
        self
    }

    /// Treats no client as local. Without a token, only [`BoundServer::sign_in_url`](super::BoundServer) signs in, once
    /// and within 15 minutes.
    ///
    /// This is the default if the server cannot determine which user sends a request.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let bound = duly_http::Server::new(duly).sign_in_link().listen(([127, 0, 0, 1], 0).into()).await?;
    /// println!("open {}", bound.sign_in_url().expect("the store has no token"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn sign_in_link(mut self) -> Self {
        self.options.sign_in_link = true;
        self
    }

    /// Makes every client an admin. Use it only if your service authenticates each request before the router gets it.
    ///
    /// To set the name and the role of a client, put an [`Identity`](super::Identity) into the request's extensions instead.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let jobs = duly_http::Server::new(duly).open_to_all().router();
    /// let service: axum::Router = axum::Router::new().nest("/duly", jobs).layer(axum::middleware::from_fn(authenticate));
    /// # async fn authenticate(request: axum::extract::Request, next: axum::middleware::Next) -> axum::response::Response {
    /// #     next.run(request).await
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_to_all(mut self) -> Self {
        self.options.open = true;
        self
    }

    /// Limits the open connections (default 1,024). At the limit, the server closes connections of clients that it has
    /// not identified.
    ///
    /// [`Server::listen`] refuses 0. It lowers the limit if the process may not open that many files plus 128.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let server = duly_http::Server::new(duly).connections(10_000); // many workers in other languages
    /// # Ok(())
    /// # }
    /// ```
    pub fn connections(mut self, connections: usize) -> Self {
        self.options.connections = connections;
        self
    }

    /// Limits the requests per second from one address or with one token (default 1,000). Local clients have no limit.
    ///
    /// [`Server::listen`] refuses 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let server = duly_http::Server::new(duly).rate(50);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rate(mut self, requests: u32) -> Self {
        self.options.rate = requests;
        self
    }

    /// Limits the queues that clients may create (default 1,000). If the store has that many queues, the server rejects a
    /// push or a worker that would add another one. Programs that open the store themselves have no such limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let server = duly_http::Server::new(duly).queues(20_000); // a queue for each customer
    /// # Ok(())
    /// # }
    /// ```
    pub fn queues(mut self, queues: usize) -> Self {
        self.options.queues = queues;
        self
    }

    /// Returns the API and the dashboard, to mount in a service.
    ///
    /// Every client needs a token. Serve the router with `into_make_service_with_connect_info::<SocketAddr>()`. Without
    /// the addresses, the rate limit applies to all clients together, and the audit log has no addresses.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// use std::net::SocketAddr;
    ///
    /// let router = duly_http::Server::new(duly).router();
    /// let service = router.into_make_service_with_connect_info::<SocketAddr>();
    /// # Ok(())
    /// # }
    /// ```
    pub fn router(self) -> Router {
        super::routes(self.app())
    }

    fn app(self) -> Arc<App> {
        self.app_with(SignInLink::default(), &Clock::system())
    }

    /// Returns the shared state. The clock decides when sessions end, and is the one of the rate limits.
    pub(super) fn app_with(self, link: SignInLink, clock: &Clock) -> Arc<App> {
        let Server { duly, options } = self;
        let remote_nodes = RemoteNodes::new(duly.clone());
        let remote_nodes = if options.commands { remote_nodes } else { remote_nodes.exclude_kind(COMMAND) };
        Arc::new(App {
            own_uid: local::own_uid().filter(|_| !options.sign_in_link),
            link,
            body_budget: Arc::default(),
            queue_count_limit: QueueCountLimit::new(options.queues),
            holds: Holds::default(),
            tasks: TaskTracker::new(),
            bulk_stop: CancellationToken::new(),
            remote_nodes,
            tokens: TokenCache::default(),
            sessions: Sessions::new(clock, SessionCookie::new(options.secure, options.port)),
            rate_limits: RateLimits::new(options.rate.max(1), clock),
            idempotency_keys: IdempotencyKeys::default(),
            job_id_key: OnceCell::new(),
            events: Arc::default(),
            job_events: Arc::default(),
            waits: Waits::default(),
            metrics: MetricsText::default(),
            samples: Samples::default(),
            operations: Operations::default(),
            options,
            duly,
        })
    }
}

/// Returns whether the URL uses TLS, its host with the port, and its path; `None` if it is not the URL of a server.
fn parse_public_url(url: &str) -> Option<(bool, String, String)> {
    let parsed: Uri = url.parse().ok()?;
    let secure = match parsed.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let host = parsed.authority()?.as_str().to_owned();
    let is_plain = !host.contains('@') && !url.contains(['?', '#']);
    is_plain.then(|| (secure, host, parsed.path().to_owned()))
}

/// The extractor of the state that all requests share.
pub(crate) type AppState = axum::extract::State<Arc<App>>;

/// The state that all requests share.
pub(crate) struct App {
    pub(crate) duly: Duly,
    pub(crate) options: ServerOptions,
    /// The user of this process, if it can be compared with that of a connection.
    pub(crate) own_uid: Option<u32>,
    pub(crate) link: SignInLink,
    /// The bytes of request bodies in memory.
    pub(crate) body_budget: Arc<BodyBudget>,
    pub(crate) queue_count_limit: QueueCountLimit,
    /// The locks that clients hold.
    pub(crate) holds: Holds,
    /// Requests that continue although their client has gone away.
    pub(crate) tasks: TaskTracker,
    /// Ends bulk changes that would outlast the server.
    pub(crate) bulk_stop: CancellationToken,
    /// The nodes of workers that use the API.
    pub(crate) remote_nodes: RemoteNodes,
    /// The tokens of the store.
    pub(crate) tokens: TokenCache,
    /// The browser sessions.
    pub(crate) sessions: Sessions,
    pub(crate) rate_limits: RateLimits,
    /// The recent idempotency keys.
    pub(crate) idempotency_keys: IdempotencyKeys,
    /// Derives the ids of jobs from idempotency keys.
    pub(crate) job_id_key: OnceCell<JobIdKey>,
    /// Changes, for the event streams.
    pub(crate) events: Arc<Events>,
    pub(crate) job_events: Arc<JobEvents>,
    /// The streams and long polls in progress.
    pub(crate) waits: Waits,
    /// The most recent text of `/metrics`.
    pub(crate) metrics: MetricsText,
    /// The points of the finest charts.
    pub(crate) samples: Samples,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_url_has_a_scheme_and_a_host() {
        let parsed = |url| parse_public_url(url).map(|(secure, host, path)| format!("{secure} {host} {path}"));
        assert_eq!(parsed("https://jobs.example.com/duly").as_deref(), Some("true jobs.example.com /duly"));
        assert_eq!(parsed("http://10.0.0.7:7711").as_deref(), Some("false 10.0.0.7:7711 /"));
        for wrong in [
            "",
            "foo",
            "foo:7711",
            "jobs.example.com/duly",
            "https://",
            "https:///duly",
            "ftp://a",
            "https://a b",
            "/duly",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        for wrong in ["https://ada:secret@a", "https://a/?x", "https://a/#x"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
