//! Serves the router on a socket: bounds the number of connections, the size of request heads, and slow clients.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use duly::{CancellationToken, Clock, Error, Result};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::local::{self, Connection};
use super::open_files::bound_connections;
use super::server::{App, Server};
use super::sign_in_link::SignInLink;
use super::slots::{Slot, Slots};
use super::write_timeout::WriteTimeout;

/// The timeout for the head of a request, and for the next request on a kept connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a request head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most header fields of a request.
const HEADERS_MAX: usize = 100;
/// Closes a connection whose client reads nothing for this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stopping server waits for requests under way; long polls are cut off.
const GRACE: Duration = Duration::from_secs(3);
/// How long a stopping server waits until bulk changes that it has ended are recorded.
const RECORD_GRACE: Duration = Duration::from_secs(1);
/// The interval at which a server with a sign-in link looks for a token.
const TOKEN_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a failed accept, usually because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that is bound to its address and does not serve yet.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = duly::Duly::open(":memory:").await?;
/// let stop = duly::CancellationToken::new();
/// let bound = duly_http::Server::new(duly).listen(([127, 0, 0, 1], 0).into()).await?;
/// println!("serving on http://{}", bound.address());
/// # stop.cancel();
/// bound.serve_until(stop).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BoundServer {
    listener: TcpListener,
    address: SocketAddr,
    server: Server,
    /// The link and its URL, if one signs in.
    link: Option<(SignInLink, String)>,
}

impl Server {
    /// Binds an address.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: an option is invalid, or the address cannot be bound. Also if the store has no token, and
    ///   other machines can reach the address or clients can push `command` jobs.
    /// - [`Error::Unsupported`]: the store has no jobs or no tokens.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let bound = duly_http::Server::new(duly).listen(([127, 0, 0, 1], 0).into()).await?;
    /// assert_ne!(bound.address().port(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn listen(mut self, address: SocketAddr) -> Result<BoundServer> {
        self.check_options()?;
        self.options.connections = bound_connections(self.options.connections);
        let options = &self.options;
        let has_token = options.open || !self.duly.tokens().list().await?.is_empty();
        if !has_token && !address.ip().to_canonical().is_loopback() {
            return Err(Error::invalid(
                "listen",
                format!(
                    "other machines can reach {address}, and there is no token yet: \
                     create one first with `duly token create NAME --role admin`, or listen on 127.0.0.1"
                ),
            ));
        }
        if !has_token && options.commands {
            return Err(Error::invalid(
                "allow_commands",
                "every client could run any program, because there is no token yet: \
                 create one first with `duly token create NAME --role admin`",
            ));
        }
        // With an expired token only, a link would not sign in.
        let needs_link = !has_token && !options.token_required && self.duly.tokens().list_all().await?.is_empty();
        let needs_link = needs_link && (options.sign_in_link || local::own_uid().is_none());
        let listener = TcpListener::bind(address)
            .await
            .map_err(|e| Error::invalid("listen", format!("cannot listen on {address}: {e}")))?;
        let address = listener.local_addr().map_err(|e| Error::invalid("listen", e.to_string()))?;
        let link = needs_link.then(|| SignInLink::generate(&self.url_of(address), &Clock::system()));
        Ok(BoundServer { listener, address, server: self, link })
    }
}

impl Server {
    fn url_of(&self, address: SocketAddr) -> String {
        format!("http://{address}{}", self.options.prefix)
    }

    fn check_options(&self) -> Result<()> {
        let options = &self.options;
        if options.connections == 0 {
            return Err(Error::invalid("connections", "must be greater than zero"));
        }
        if options.rate == 0 {
            return Err(Error::invalid("rate", "must be greater than zero"));
        }
        if options.has_invalid_url {
            return Err(Error::invalid(
                "public_url",
                "must be a URL without a user and a query, such as https://jobs.example.com/duly",
            ));
        }
        Ok(())
    }
}

impl BoundServer {
    /// Returns the bound address, with the actual port if 0 was requested.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let bound = duly_http::Server::new(duly).listen(([127, 0, 0, 1], 0).into()).await?; // any free port
    /// println!("serving on http://{}", bound.address());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL that signs a browser in once, as an admin, within 15 minutes
    /// ([`SIGN_IN_LINK_TTL`](super::SIGN_IN_LINK_TTL)). There is one only if the store has no token, no
    /// option requires one, and the server cannot determine which clients are local, or [`Server::sign_in_link`] is set.
    /// The first token ends the link and its session for good.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let bound = duly_http::Server::new(duly).listen(([127, 0, 0, 1], 0).into()).await?;
    /// if let Some(url) = bound.sign_in_url() {
    ///     println!("open {url} to sign in");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn sign_in_url(&self) -> Option<&str> {
        self.link.as_ref().map(|(_, url)| url.as_str())
    }

    /// Serves until `stop` is cancelled. Requests that are running then have a few seconds to finish.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = duly::Duly::open(":memory:").await?;
    /// let stop = duly::CancellationToken::new();
    /// let bound = duly_http::Server::new(duly).listen(([127, 0, 0, 1], 0).into()).await?;
    /// let server = tokio::spawn(bound.serve_until(stop.clone()));
    /// stop.cancel(); // at a signal
    /// server.await.expect("does not panic")?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn serve_until(self, stop: CancellationToken) -> Result<()> {
        let BoundServer { listener, address, server, link } = self;
        // A client that reaches the address may use it as the host name.
        let mut server = server.allow_hosts([address.to_string()]);
        server.options.port = Some(address.port());
        let slots = Slots::new(server.options.connections);
        let has_link = link.is_some();
        let app = server.app_with(link.map(|(link, _)| link).unwrap_or_default(), &Clock::system());
        let (router, tasks) = (super::routes(app.clone()), TaskTracker::new());
        if has_link {
            tasks.spawn(watch_for_token(app.clone(), stop.clone()));
        }
        app.samples.start();
        let (sampled, sampling) = (app.clone(), stop.clone());
        tasks.spawn(async move { sampled.samples.collect(&sampled.duly, &sampling).await });
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let _ = stream.set_nodelay(true);
                    let connection = Connection::new(peer, stream.local_addr().unwrap_or(address), &stream);
                    let slot = Arc::new(slots.open(peer.ip()));
                    let (router, stop) = (router.clone(), stop.clone());
                    let stream = WriteTimeout::new(stream, WRITE_TIMEOUT);
                    tasks.spawn(serve(stream, peer, connection, slot, router, stop));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        tasks.close();
        // The rest are long polls that would wait in vain.
        let _ = tokio::time::timeout(GRACE * 2, tasks.wait()).await;
        // Requests whose clients have gone away: their changes must be recorded.
        app.tasks.close();
        if tokio::time::timeout(GRACE, app.tasks.wait()).await.is_err() {
            app.bulk_stop.cancel();
            let _ = tokio::time::timeout(RECORD_GRACE, app.tasks.wait()).await;
        }
        app.remote_nodes.leave_all().await;
        Ok(())
    }
}

/// Waits for the first token, which ends the sign-in link, also if no client sends a request before it is removed.
async fn watch_for_token(app: Arc<App>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(TOKEN_INTERVAL)).await.is_some() {
        match app.tokens.get(&app.duly).await {
            Ok(tokens) if tokens.accepts_link() => {}
            Ok(_) => return,
            Err(error) => tracing::warn!(%error, "cannot tell whether the store has a token"),
        }
    }
}

/// Serves one connection until it ends.
async fn serve(
    stream: WriteTimeout<TcpStream>,
    peer: SocketAddr,
    client: Connection,
    slot: Arc<Slot>,
    router: Router,
    stop: CancellationToken,
) {
    let evicted = slot.evicted.clone();
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(client.clone());
        request.extensions_mut().insert(slot.clone());
        inner.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(%peer, %error, "a connection has ended");
            }
        }
        () = evicted.cancelled() => tracing::debug!(%peer, "a connection made room for another"),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(GRACE, connection).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn client_that_never_reads_is_disconnected() {
        /// More than the kernel buffers for a client that does not read.
        const RESPONSE_BYTES: usize = 64 * 1024 * 1024;
        let router = Router::new().route("/", axum::routing::get(async || vec![7_u8; RESPONSE_BYTES]));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sends");
        let (stream, peer) = listener.accept().await.expect("accepts");
        let connection = Connection::new(peer, stream.local_addr().expect("bound"), &stream);
        let (slot, stop) = (Arc::new(Slots::new(1).open(peer.ip())), CancellationToken::new());
        let stream = WriteTimeout::new(stream, Duration::from_millis(100));
        let served = serve(stream, peer, connection, slot, router, stop);
        tokio::time::timeout(Duration::from_secs(30), served).await.expect("the connection is closed");
        drop(client);
    }
}
