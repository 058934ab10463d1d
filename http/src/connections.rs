//! Serves the router on a socket: bounds the number of connections, the size of request heads, and slow clients.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use duly::{CancellationToken, Error, Result};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::server::Server;
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
/// The pause after a failed accept, usually because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that is bound to its address and does not serve yet.
#[derive(Debug)]
pub struct BoundServer {
    listener: TcpListener,
    address: SocketAddr,
    server: Server,
}

impl Server {
    /// Binds an address.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the address cannot be bound, or if other machines can reach it and the store has no token: every
    /// client there would be an admin.
    pub async fn listen(self, address: SocketAddr) -> Result<BoundServer> {
        let open = self.options.open;
        if !address.ip().to_canonical().is_loopback() && !open && self.duly.tokens().await?.is_empty() {
            return Err(Error::invalid(
                "listen",
                format!(
                    "{address} can be reached from other machines, and there is no token yet: \
                     make one first with `duly token create NAME --role admin`, or listen on 127.0.0.1"
                ),
            ));
        }
        let listener = TcpListener::bind(address)
            .await
            .map_err(|e| Error::invalid("listen", format!("cannot listen on {address}: {e}")))?;
        let address = listener.local_addr().map_err(|e| Error::invalid("listen", e.to_string()))?;
        Ok(BoundServer { listener, address, server: self })
    }
}

impl BoundServer {
    /// Returns the bound address, with the actual port if 0 was requested.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the token is cancelled, and then gives requests under way a few seconds to finish.
    pub async fn serve_until(self, stop: CancellationToken) -> Result<()> {
        let BoundServer { listener, address, server } = self;
        // A client that reaches the address may use it as the host name.
        let server = server.allow_hosts([address.to_string()]);
        let slots = Arc::new(Semaphore::new(server.options.connections));
        let app = server.app();
        let (router, tasks) = (super::routes(app.clone()), TaskTracker::new());
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                break;
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let _ = stream.set_nodelay(true);
                    let (router, stop) = (router.clone(), stop.clone());
                    tasks.spawn(async move {
                        serve(WriteTimeout::new(stream, WRITE_TIMEOUT), peer, router, stop).await;
                        drop(slot);
                    });
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
        app.remote_nodes.leave_all().await;
        Ok(())
    }
}

/// Serves one connection until it ends.
async fn serve(stream: WriteTimeout<TcpStream>, peer: SocketAddr, router: Router, stop: CancellationToken) {
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
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
        let served =
            serve(WriteTimeout::new(stream, Duration::from_millis(100)), peer, router, CancellationToken::new());
        tokio::time::timeout(Duration::from_secs(30), served).await.expect("the connection is closed");
        drop(client);
    }
}
