//! Frames on a stream: length, channel, payload.
//!
//! The reader takes exactly one frame at a time and never reads ahead, so the stream can be used raw
//! afterwards. A payload longer than the bound is refused before memory is set aside for it.

use std::io::{Read, Write};

use ramet_proto::agent::{FRAME_MAX, HEAD, Head, Reply};
use serde::Serialize;

use super::{Channel, Error};

/// What the agent sends.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// On the message channel.
    Reply(Reply),
    /// On another channel.
    Bytes(Channel, Vec<u8>),
}

/// Reads frames.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
}

impl<R: Read> FrameReader<R> {
    /// Reads from this stream.
    pub fn new(stream: R) -> Self {
        Self { stream }
    }

    /// The stream, exactly behind the last frame.
    pub fn into_inner(self) -> R {
        self.stream
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &R {
        &self.stream
    }

    /// Waits for the next frame.
    #[expect(clippy::should_implement_trait, reason = "an end of the stream is an error here")]
    pub fn next(&mut self) -> Result<Frame, Error> {
        let (channel, payload) = self.next_raw()?;
        match channel {
            Channel::Message => serde_json::from_slice(&payload)
                .map(Frame::Reply)
                .map_err(|error| Error::Protocol(error.to_string())),
            _ => Ok(Frame::Bytes(channel, payload)),
        }
    }

    /// Waits for the next frame, whatever it holds.
    pub fn next_raw(&mut self) -> Result<(Channel, Vec<u8>), Error> {
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head)?;
        let head = Head::decode(head).map_err(|error| Error::Protocol(error.to_string()))?;
        let Head { channel, length } = head;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        Ok((channel, payload))
    }
}

/// Writes frames.
#[derive(Debug)]
pub struct FrameWriter<W> {
    stream: W,
}

impl<W: Write> FrameWriter<W> {
    /// Writes to this stream.
    pub fn new(stream: W) -> Self {
        Self { stream }
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &W {
        &self.stream
    }

    /// Sends a message.
    pub fn message(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let payload =
            serde_json::to_vec(message).map_err(|error| Error::Protocol(error.to_string()))?;
        if payload.len() > FRAME_MAX {
            let message = format!("a message of {} bytes, {FRAME_MAX} is the most", payload.len());
            return Err(Error::Failure { code: "bad_request".to_owned(), message });
        }
        self.frame(Channel::Message, &payload)
    }

    /// Sends bytes, in as many frames as they need.
    pub fn bytes(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), Error> {
        bytes.chunks(FRAME_MAX).try_for_each(|part| self.frame(channel, part))
    }

    /// One write for head and payload: two would be two packets on a TCP stream.
    fn frame(&mut self, channel: Channel, payload: &[u8]) -> Result<(), Error> {
        let head = Head { channel, length: payload.len() }.encode();
        let mut frame = Vec::with_capacity(HEAD + payload.len());
        frame.extend_from_slice(&head);
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn channel() -> impl Strategy<Value = Channel> {
        (1..=3u8).prop_map(|number| Channel::from_u8(number).unwrap())
    }

    proptest! {
        #[test]
        fn round_trip(frames in prop::collection::vec((channel(), prop::collection::vec(any::<u8>(), 1..2000)), 0..20)) {
            let mut writer = FrameWriter::new(Vec::new());
            for (channel, payload) in &frames {
                writer.bytes(*channel, payload).unwrap();
            }
            let mut reader = FrameReader::new(writer.stream.as_slice());
            for (channel, payload) in frames {
                prop_assert_eq!(reader.next().unwrap(), Frame::Bytes(channel, payload));
            }
            prop_assert!(matches!(reader.next(), Err(Error::Closed)));
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: Vec<u8>) {
            let mut reader = FrameReader::new(bytes.as_slice());
            while reader.next().is_ok() {}
        }
    }

    #[test]
    fn long_bytes_are_split() {
        let bytes = vec![7; 2 * FRAME_MAX + 1];
        let mut writer = FrameWriter::new(Vec::new());
        writer.bytes(Channel::Stdin, &bytes).unwrap();
        let mut reader = FrameReader::new(writer.stream.as_slice());
        let lengths: Vec<usize> = (0..3).map(|_| reader.next_raw().unwrap().1.len()).collect();
        assert_eq!(lengths, [FRAME_MAX, FRAME_MAX, 1]);
    }

    #[test]
    fn refuses() {
        let unknown = [0, 0, 0, 0, 4];
        assert!(matches!(FrameReader::new(&unknown[..]).next(), Err(Error::Protocol(_))));
        let oversize = [1, 0, 4, 0, 1];
        assert!(matches!(FrameReader::new(&oversize[..]).next(), Err(Error::Protocol(_))));
        let no_json = [1, 0, 0, 0, 0, b'x'];
        assert!(matches!(FrameReader::new(&no_json[..]).next(), Err(Error::Protocol(_))));
        let short = [2, 0, 0, 0, 1, 0];
        assert!(matches!(FrameReader::new(&short[..]).next(), Err(Error::Closed)));
        let long = "x".repeat(FRAME_MAX);
        let refused = FrameWriter::new(Vec::new()).message(&long).unwrap_err();
        assert_eq!(refused.code(), Some("bad_request"));
    }
}
