//! Reading and writing length-prefixed frames on any byte stream, each wait under a deadline.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use crate::limits::WRITE_CHUNK;
use crate::reason::CloseReason;

/// Bytes of a frame's length.
const PREFIX: usize = 8;

/// Least room offered to one read: small frames that came together are taken together.
const READ_CHUNK: usize = 16 * 1024;

/// Most room reserved ahead of what has arrived. A peer that announces a large frame and sends little of it makes us
/// hold little.
const READ_AHEAD: usize = 256 * 1024;

/// A boxed half of a stream.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// A boxed half of a stream.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Takes frames off a stream. Cancelling a read loses nothing.
pub(crate) struct FrameReader<R> {
    stream: R,
    buffer: Vec<u8>,
    /// Where the unread part of the buffer begins.
    start: usize,
    /// When the frame now arriving began.
    begun: Option<Instant>,
    max: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Frames of at most `max` bytes.
    pub(crate) fn new(stream: R, max: usize) -> Self {
        Self { stream, buffer: Vec::new(), start: 0, begun: None, max }
    }

    /// Changes the largest size, between frames.
    pub(crate) fn allow(&mut self, max: usize) {
        self.max = max;
    }

    fn announced(&self) -> Result<Option<usize>, CloseReason> {
        let Some(prefix) = self.buffer.get(self.start..).and_then(|b| b.first_chunk::<PREFIX>()) else {
            return Ok(None);
        };
        let length = u64::from_be_bytes(*prefix);
        match usize::try_from(length) {
            Ok(fits) if fits <= self.max => Ok(Some(fits)),
            _ => Err(CloseReason::FrameTooLarge(length)),
        }
    }

    /// Whether the next frame is already here in full.
    pub(crate) fn has_frame(&self) -> bool {
        matches!(self.announced(), Ok(Some(length)) if self.buffer.len() - self.start >= PREFIX + length)
    }

    /// Waits until a whole frame is buffered. Between frames it waits for ever; a frame that has begun must be whole
    /// within `deadline`.
    pub(crate) async fn fill(&mut self, deadline: Duration) -> Result<(), CloseReason> {
        loop {
            let have = self.buffer.len() - self.start;
            let missing = match self.announced()? {
                Some(length) if have >= PREFIX + length => {
                    self.begun = None;
                    return Ok(());
                }
                Some(length) => PREFIX + length - have,
                None => PREFIX - have,
            };
            if self.start > 0 {
                self.buffer.drain(..self.start);
                self.start = 0;
            }
            // A small frame takes whatever comes along; a large one takes exactly its own bytes, so that the buffer
            // grows with what has arrived and never beyond the frame.
            self.buffer.reserve_exact(missing.clamp(READ_CHUNK, READ_AHEAD.max(have)));
            let read = self.stream.read_buf(&mut self.buffer);
            let got = if have == 0 {
                read.await?
            } else {
                let begun = *self.begun.get_or_insert_with(Instant::now);
                timeout_at(begun + deadline, read).await.map_err(|_| CloseReason::FrameDeadline)??
            };
            if got == 0 {
                return Err(CloseReason::PeerClosed);
            }
        }
    }

    /// The frame that [`FrameReader::fill`] waited for; empty when there is none.
    pub(crate) fn frame(&self) -> &[u8] {
        match self.announced() {
            Ok(Some(length)) => {
                self.buffer.get(self.start + PREFIX..self.start + PREFIX + length).unwrap_or(&[])
            }
            _ => &[],
        }
    }

    /// Goes past that frame.
    pub(crate) fn consume(&mut self) {
        if let Ok(Some(length)) = self.announced() {
            self.start = (self.start + PREFIX + length).min(self.buffer.len());
        }
        if self.start == self.buffer.len() {
            self.start = 0;
            // The room of a large frame is given back, that of small ones is kept.
            if self.buffer.capacity() > 4 * READ_CHUNK {
                self.buffer = Vec::new();
            } else {
                self.buffer.clear();
            }
        }
    }

    /// One frame as its own bytes, all of it within `deadline`.
    pub(crate) async fn take(&mut self, deadline: Duration) -> Result<Vec<u8>, CloseReason> {
        self.fill(deadline).await?;
        let frame = self.frame().to_vec();
        self.consume();
        Ok(frame)
    }
}

/// Writes all of `bytes`; each chunk must be taken within `deadline`.
pub(crate) async fn write<W: AsyncWrite + Unpin>(
    stream: &mut W,
    bytes: &[u8],
    deadline: Duration,
    late: CloseReason,
) -> Result<(), CloseReason> {
    for chunk in bytes.chunks(WRITE_CHUNK) {
        timeout(deadline, stream.write_all(chunk)).await.map_err(|_| late)??;
    }
    Ok(())
}

/// Writes one frame with its length and flushes it.
pub(crate) async fn send<W: AsyncWrite + Unpin>(
    stream: &mut W,
    frame: &[u8],
    deadline: Duration,
) -> Result<(), CloseReason> {
    let mut bytes = (frame.len() as u64).to_be_bytes().to_vec();
    bytes.extend_from_slice(frame);
    write(stream, &bytes, deadline, CloseReason::WriteDeadline).await?;
    timeout(deadline, stream.flush()).await.map_err(|_| CloseReason::WriteDeadline)??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: Duration = Duration::from_secs(5);

    fn framed(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend_from_slice(&(frame.len() as u64).to_be_bytes());
            bytes.extend_from_slice(frame);
        }
        bytes
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_the_stream_is_cut(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in prop::collection::vec(1usize..40, 1..50),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let got = runtime.block_on(async {
                let (mut near, far) = tokio::io::duplex(64);
                let bytes = framed(&frames);
                let writer = tokio::spawn(async move {
                    let (mut rest, mut cut) = (&bytes[..], cuts.iter().cycle());
                    while !rest.is_empty() {
                        let (now, later) = rest.split_at(rest.len().min(*cut.next().unwrap()));
                        near.write_all(now).await.unwrap();
                        tokio::task::yield_now().await;
                        rest = later;
                    }
                });
                let mut reader = FrameReader::new(far, 300);
                let mut got = Vec::new();
                while let Ok(frame) = reader.take(LONG).await {
                    got.push(frame);
                }
                writer.await.unwrap();
                got
            });
            prop_assert_eq!(got, frames);
        }
    }

    #[tokio::test]
    async fn a_frame_larger_than_allowed_is_refused_at_its_length() {
        let prefix = u64::MAX.to_be_bytes();
        let mut reader = FrameReader::new(&prefix[..], 100);
        assert_eq!(reader.take(LONG).await, Err(CloseReason::FrameTooLarge(u64::MAX)));
    }

    #[tokio::test]
    async fn an_announced_frame_takes_no_room_before_it_arrives() {
        let (mut near, far) = tokio::io::duplex(64);
        near.write_all(&(8u64 << 20).to_be_bytes()).await.unwrap();
        near.write_all(&[0; 10]).await.unwrap();
        let mut reader = FrameReader::new(far, 16 << 20);
        let waited = timeout(Duration::from_millis(50), reader.fill(LONG)).await;
        assert!(waited.is_err());
        assert!(reader.buffer.capacity() <= READ_AHEAD + READ_CHUNK + 64, "{}", reader.buffer.capacity());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_between_frames_is_allowed_and_inside_one_is_not() {
        let (mut near, far) = tokio::io::duplex(64);
        let mut reader = FrameReader::new(far, 100);
        assert!(timeout(LONG * 100, reader.fill(LONG)).await.is_err(), "it still waits");
        near.write_all(&5u64.to_be_bytes()).await.unwrap();
        assert_eq!(timeout(LONG * 100, reader.fill(LONG)).await, Ok(Err(CloseReason::FrameDeadline)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_that_nobody_reads_gives_up() {
        let (mut near, _far) = tokio::io::duplex(64);
        let end = write(&mut near, &[0; 100], LONG, CloseReason::WriteDeadline).await;
        assert_eq!(end, Err(CloseReason::WriteDeadline));
    }
}
