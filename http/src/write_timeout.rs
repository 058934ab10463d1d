//! A timeout for writes to a client that does not read.
//!
//! No other timeout applies: while a response waits to be sent, the server reads no request.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail if the client reads nothing for `timeout`. A slow client that keeps reading is fine.
pub(super) struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    /// Runs while a write is blocked.
    blocked: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(stream: S, timeout: Duration) -> Self {
        WriteTimeout { stream, timeout, blocked: None }
    }

    /// Returns the result of a write, or an error once writes are blocked for too long. A successful write resets the timeout.
    fn check_timeout<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let timeout = self.timeout;
        let blocked = self.blocked.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match blocked.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the client does not read the response")))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_timeout(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.check_timeout(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.check_timeout(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check_timeout(ended, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);
    /// The size of the buffer between the two sides.
    const BUFFER_BYTES: usize = 64;

    #[tokio::test(start_paused = true)]
    async fn write_to_a_client_that_never_reads_fails() {
        let (ours, _theirs) = duplex(BUFFER_BYTES);
        let mut ours = WriteTimeout::new(ours, TIMEOUT);
        let sent =
            tokio::time::timeout(10 * TIMEOUT, ours.write_all(&[7; 2 * BUFFER_BYTES])).await.expect("it times out");
        assert_eq!(sent.expect_err("the client does not read").kind(), ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_gets_everything() {
        const PARTS: usize = 10;
        let (ours, mut theirs) = duplex(BUFFER_BYTES);
        let mut ours = WriteTimeout::new(ours, TIMEOUT);
        let reading = tokio::spawn(async move {
            let mut part = [0; BUFFER_BYTES];
            for _ in 0..PARTS {
                tokio::time::sleep(TIMEOUT * 2 / 3).await;
                theirs.read_exact(&mut part).await.expect("comes");
            }
        });
        ours.write_all(&[7; PARTS * BUFFER_BYTES]).await.expect("each part in its time");
        reading.await.expect("no panic");
    }
}
