//! Serving on a socket of our own: bounded connections, bounded heads, nobody who is slow for ever.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::impatient::Impatient;
use super::server::Server;
use crate::error::{Error, Result};

/// The head of a request that has not come by then does not come; nor does the next one on a connection kept open.
const HEAD_WAIT: Duration = Duration::from_secs(10);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Most fields in a head.
const HEADERS_MAX: usize = 100;
/// An answer of which nothing could be sent for so long is not sent: nobody reads it, and its place is another's.
const WRITE_WAIT: Duration = Duration::from_secs(30);
/// How long a server that stops waits for requests under way; those that only wait are cut off.
const GRACE: Duration = Duration::from_secs(3);
/// How long not to accept after that has failed: mostly there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that has its address and does not serve yet.
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    server: Server,
}

impl Server {
    /// Takes an address to serve on. One that others can reach is refused as long as the store has no token:
    /// anybody there could do everything.
    pub async fn listen(self, address: SocketAddr) -> Result<Listening> {
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
        Ok(Listening { listener, address, server: self })
    }
}

impl Listening {
    /// Where it listens; its port is a real one, also if 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the token is cancelled; then requests under way have a moment to end.
    pub async fn serve_until(self, stop: CancellationToken) -> Result<()> {
        let Listening { listener, address, server } = self;
        // Whoever reaches the address knows it by that name.
        let server = server.allow_hosts([address.to_string()]);
        let room = Arc::new(Semaphore::new(server.options.connections));
        let app = server.app();
        let (router, tasks) = (super::routes(app.clone()), TaskTracker::new());
        loop {
            let Ok(place) = room.clone().acquire_owned().await else {
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
                        serve(Impatient::new(stream, WRITE_WAIT), peer, router, stop).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        tasks.close();
        // What is still there then waits for something that does not come any more.
        let _ = tokio::time::timeout(GRACE * 2, tasks.wait()).await;
        app.remotes.leave_all().await;
        // What attempts over HTTP have come to of late.
        let _ = tokio::time::timeout(GRACE, app.duly.kinds.send(&*app.duly.store)).await;
        Ok(())
    }
}

/// Serves one connection until it ends.
async fn serve(stream: Impatient<TcpStream>, peer: SocketAddr, router: Router, stop: CancellationToken) {
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        inner.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT).max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
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
    async fn who_never_reads_does_not_keep_its_place() {
        /// More than the kernel holds for somebody who does not read.
        const ANSWER_BYTES: usize = 64 * 1024 * 1024;
        let router = Router::new().route("/", axum::routing::get(async || vec![7_u8; ANSWER_BYTES]));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sends");
        let (stream, peer) = listener.accept().await.expect("accepts");
        let served = serve(Impatient::new(stream, Duration::from_millis(100)), peer, router, CancellationToken::new());
        tokio::time::timeout(Duration::from_secs(30), served).await.expect("it is given up");
        drop(client);
    }
}
