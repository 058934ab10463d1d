//! Minimal HTTP clients, because they share the machine with the server.
//!
//! A client writes a fixed request to an open socket and reads only the status and the length of the response.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest response.
const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The initial size of the response buffer.
const RESPONSE_BUFFER_BYTES: usize = 4 * 1024;

/// Returns the bytes of a request with a JSON body.
pub(crate) fn build_request(address: SocketAddr, method: &str, path: &str, body: &str) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Returns requests per second of `clients`, each with its own connection and one request at a time.
///
/// All clients share one thread, separate from those of the server.
pub(crate) async fn measure_requests(
    address: SocketAddr,
    request: Vec<u8>,
    clients: usize,
    time: Duration,
) -> Result<f64> {
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, run_clients(address, request, clients, time))
    })
    .await?
}

async fn run_clients(address: SocketAddr, request: Vec<u8>, clients: usize, time: Duration) -> Result<f64> {
    let request: std::rc::Rc<[u8]> = request.into();
    let begin = Instant::now();
    let work = (0..clients).map(|_| {
        let request = request.clone();
        tokio::task::spawn_local(async move {
            let mut client = HttpClient::connect(address).await?;
            let mut responses = 0_u64;
            while begin.elapsed() < time {
                client.request(&request).await?;
                responses += 1;
            }
            anyhow::Ok(responses)
        })
    });
    let mut responses = 0;
    for task in work.collect::<Vec<_>>() {
        responses += task.await??;
    }
    Ok(responses as f64 / begin.elapsed().as_secs_f64())
}

/// An open connection.
pub(crate) struct HttpClient {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl HttpClient {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(HttpClient { stream, buffer: vec![0; RESPONSE_BUFFER_BYTES] })
    }

    /// Sends a request, reads the whole response and returns its body.
    pub(crate) async fn request(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.send(request).await?;
        let (mut read, mut range) = (0, None);
        loop {
            if read == self.buffer.len() {
                ensure!(read < RESPONSE_BYTES_MAX, "the response is too large");
                self.buffer.resize(read * 2, 0);
            }
            let bytes = self.stream.read(&mut self.buffer[read..]).await?;
            ensure!(bytes > 0, "the server has hung up");
            read += bytes;
            range = match range {
                None => body_range(&self.buffer[..read])?,
                Some(range) => Some(range),
            };
            match range {
                Some((head, end)) if read >= end => return Ok(&self.buffer[head..end]),
                _ => {}
            }
        }
    }

    /// Sends a request without reading the response.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(request).await?)
    }

    /// Waits for the first bytes of a response.
    pub(crate) async fn wait_for_response(&self) -> Result<()> {
        self.stream.readable().await?;
        Ok(())
    }
}

/// Returns the start and the end of the body of a response, once its head is complete.
fn body_range(response: &[u8]) -> Result<Option<(usize, usize)>> {
    const LENGTH: &[u8] = b"\r\ncontent-length: ";
    let Some(end) = response.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = &response[..end];
    ensure!(head.starts_with(b"HTTP/1.1 20"), "refused: {}", String::from_utf8_lossy(response));
    let index = head.windows(LENGTH.len()).position(|window| window == LENGTH).context("no length")?;
    let digits = head[index + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let len = digits.fold(0, |len, digit| len * 10 + usize::from(digit - b'0'));
    Ok(Some((end + 4, end + 4 + len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_range_follows_content_length() {
        let response = b"HTTP/1.1 201 Created\r\nx: y\r\ncontent-length: 12\r\n\r\n{\"id\":\"abc\"}";
        let (head, end) = body_range(response).expect("good").expect("whole");
        assert_eq!((&response[head..end], end), (&b"{\"id\":\"abc\"}"[..], response.len()));
        assert!(body_range(b"HTTP/1.1 201 Created\r\ncontent-le").expect("so far").is_none());
        assert!(body_range(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
