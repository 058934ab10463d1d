//! Clients as light as they can be: what they cost is taken from the server they share the machine with.
//!
//! A fixed request is written to a socket kept open, and of the answer only its status and its length are read.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest answer that is read.
const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Room for an answer to begin with.
const RESPONSE_BUFFER_BYTES: usize = 4 * 1024;

/// What goes over the wire for a request with a JSON body.
pub(crate) fn build_request(address: SocketAddr, method: &str, path: &str, body: &str) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Requests a second that `clients` get answered, each on a connection of its own and one at a time.
///
/// All clients share one thread, away from the server's: they come and go as others' would.
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
            let mut answered = 0_u64;
            while begin.elapsed() < time {
                client.request(&request).await?;
                answered += 1;
            }
            anyhow::Ok(answered)
        })
    });
    let mut answered = 0;
    for task in work.collect::<Vec<_>>() {
        answered += task.await??;
    }
    Ok(answered as f64 / begin.elapsed().as_secs_f64())
}

/// A connection kept open.
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

    /// Sends, reads the whole answer, and gives its body.
    pub(crate) async fn request(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.send(request).await?;
        let (mut read, mut whole) = (0, None);
        loop {
            if read == self.buffer.len() {
                ensure!(read < RESPONSE_BYTES_MAX, "the answer has no end");
                self.buffer.resize(read * 2, 0);
            }
            let more = self.stream.read(&mut self.buffer[read..]).await?;
            ensure!(more > 0, "the server has hung up");
            read += more;
            whole = match whole {
                None => body_range(&self.buffer[..read])?,
                known => known,
            };
            match whole {
                Some((head, end)) if read >= end => return Ok(&self.buffer[head..end]),
                _ => {}
            }
        }
    }

    /// Sends, and leaves the answer for later.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(request).await?)
    }

    /// Waits until something of an answer is there.
    pub(crate) async fn wait_for_response(&self) -> Result<()> {
        self.stream.readable().await?;
        Ok(())
    }
}

/// Where the body of an answer begins and ends, once its head is there.
fn body_range(answer: &[u8]) -> Result<Option<(usize, usize)>> {
    const LENGTH: &[u8] = b"\r\ncontent-length: ";
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = &answer[..end];
    ensure!(head.starts_with(b"HTTP/1.1 20"), "refused: {}", String::from_utf8_lossy(answer));
    let at = head.windows(LENGTH.len()).position(|at| at == LENGTH).context("no length")?;
    let digits = head[at + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let len = digits.fold(0, |len, digit| len * 10 + usize::from(digit - b'0'));
    Ok(Some((end + 4, end + 4 + len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_range_follows_content_length() {
        let answer = b"HTTP/1.1 201 Created\r\nx: y\r\ncontent-length: 12\r\n\r\n{\"id\":\"abc\"}";
        let (head, end) = body_range(answer).expect("good").expect("whole");
        assert_eq!((&answer[head..end], end), (&b"{\"id\":\"abc\"}"[..], answer.len()));
        assert!(body_range(b"HTTP/1.1 201 Created\r\ncontent-le").expect("so far").is_none());
        assert!(body_range(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
