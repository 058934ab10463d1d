//! A stream that does not write for ever to somebody who does not read.
//!
//! Nothing else ends that: while an answer waits to be taken, no request is read, so no limit of a request applies.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream of which a write fails when nothing could be written for so long. What moves at all may be as slow as it likes.
pub(super) struct Impatient<S> {
    stream: S,
    at_most: Duration,
    /// Runs while the other side takes nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) fn new(stream: S, at_most: Duration) -> Self {
        Impatient { stream, at_most, stuck: None }
    }

    /// What has come of a write: the time begins anew with every one that was taken.
    fn judge<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let at_most = self.at_most;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(at_most)));
        match stuck.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "nobody reads what is sent"))),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(ended, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const AT_MOST: Duration = Duration::from_secs(30);
    /// What is on its way between the two sides at most, in bytes.
    const ROOM: usize = 64;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_reads_fails() {
        let (ours, _theirs) = duplex(ROOM);
        let mut ours = Impatient::new(ours, AT_MOST);
        let sent = tokio::time::timeout(10 * AT_MOST, ours.write_all(&[7; 2 * ROOM])).await.expect("is given up");
        assert_eq!(sent.expect_err("nobody reads").kind(), ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_gets_everything() {
        const PARTS: usize = 10;
        let (ours, mut theirs) = duplex(ROOM);
        let mut ours = Impatient::new(ours, AT_MOST);
        let reading = tokio::spawn(async move {
            let mut part = [0; ROOM];
            for _ in 0..PARTS {
                tokio::time::sleep(AT_MOST * 2 / 3).await;
                theirs.read_exact(&mut part).await.expect("comes");
            }
        });
        ours.write_all(&[7; PARTS * ROOM]).await.expect("each part in its time");
        reading.await.expect("no panic");
    }
}
