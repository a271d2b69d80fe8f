//! A stream that gives up on a peer which leaves what it is owed lying. It lies under TLS, HTTP and WebSocket, so it
//! holds for all of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::limits::SLOWEST_READER;

/// See the module. A write that blocks starts a clock; bytes taken buy time at [`SLOWEST_READER`] bytes a second; a
/// flush that has nothing left stops it.
pub(crate) struct Paced<S> {
    inner: S,
    within: Duration,
    clock: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(crate) const fn new(inner: S, within: Duration) -> Self {
        Self { inner, within, clock: None }
    }

    /// The peer took this many bytes.
    fn took(&mut self, bytes: usize) {
        if let Some(clock) = &mut self.clock {
            let nanos = (bytes as u64).saturating_mul(1_000_000_000) / SLOWEST_READER;
            let most = Instant::now() + self.within;
            let later = clock.deadline() + Duration::from_nanos(nanos);
            clock.as_mut().reset(later.min(most));
        }
    }

    /// The peer takes nothing now.
    fn blocked<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let within = self.within;
        let clock = self.clock.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        match clock.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                crate::trace::cut_off();
                let message = "the peer does not take what it is sent";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> Paced<S> {
    fn wrote(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.took(bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.blocked(cx),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.wrote(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.wrote(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                self.clock = None;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.blocked(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_shutdown(cx) {
            Poll::Pending => self.blocked(cx),
            done @ Poll::Ready(_) => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const WITHIN: Duration = Duration::from_secs(20);

    /// Counts the readers cut off, as whoever exports metrics does.
    struct Counting(std::sync::Arc<std::sync::atomic::AtomicU64>);

    impl tracing::Subscriber for Counting {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == "choir::metric"
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            if event.fields().any(|field| field.name() == "monotonic_counter.choir.chap.slow_readers") {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_given_up_and_counted() {
        let cut = std::sync::Arc::default();
        let _counting = tracing::subscriber::set_default(Counting(std::sync::Arc::clone(&cut)));
        let (ours, _theirs) = tokio::io::duplex(1024);
        let mut paced = Paced::new(ours, WITHIN);
        let started = Instant::now();
        let error = paced.write_all(&[0; 4096]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), WITHIN.as_secs());
        assert_eq!(cut.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_does_not_buy_the_time_it_takes() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let mut paced = Paced::new(ours, WITHIN);
        let started = Instant::now();
        let error = paced.write_all(&[0; 1024 * 1024]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < WITHIN + Duration::from_secs(2), "{:?}", started.elapsed());
        drop(paced);
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_but_steady_reader_gets_everything() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let most = 2 * 1024 * 1024;
        let reader = tokio::spawn(async move {
            let mut chunk = vec![0; 32 * 1024];
            let mut all = 0;
            while let Ok(read @ 1..) = theirs.read(&mut chunk).await {
                all += read;
                // 20 KiB a second.
                tokio::time::sleep(Duration::from_secs_f64(read as f64 / 20_480.0)).await;
            }
            all
        });
        let mut paced = Paced::new(ours, WITHIN);
        paced.write_all(&vec![0; most]).await.unwrap();
        paced.flush().await.unwrap();
        drop(paced);
        assert_eq!(reader.await.unwrap(), most);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_between_answers_is_no_fault() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut paced = Paced::new(ours, WITHIN);
        for _ in 0..3 {
            let reader = async {
                tokio::time::sleep(Duration::from_secs(15)).await;
                theirs.read_exact(&mut [0; 128]).await.unwrap();
            };
            let ((), sent) = tokio::join!(reader, async {
                paced.write_all(&[0; 128]).await?;
                paced.flush().await
            });
            sent.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }
}
