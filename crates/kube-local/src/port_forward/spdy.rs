//! Frames of SPDY/3.1, as far as kubectl's port-forward uses them: streams with headers,
//! data, pings. Bytes in, frames out; pure.
//!
//! Header blocks share one zlib stream for the whole connection, with the dictionary of
//! the specification (draft-mbelshe-httpbis-spdy-00, section 2.6.10.1). Ours are stored,
//! not compressed.

use std::collections::HashMap;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

static DICTIONARY: &[u8] = include_bytes!("spdy_dictionary.bin");

const FLAG_FIN: u8 = 1;
const HEADER_BYTES: usize = 8;
/// No frame of kubectl is longer; of a stranger's none is buffered beyond it.
const MAX_FRAME_BYTES: usize = 1 << 20;
/// Of the headers of one stream.
const MAX_HEADER_BLOCK_BYTES: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Open { stream: u32, headers: HashMap<String, String> },
    Data { stream: u32, data: Vec<u8>, is_last: bool },
    Reset { stream: u32 },
    Ping { id: [u8; 4] },
    GoAway,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    #[error("a frame ends early")]
    Truncated,
    #[error("headers that cannot be decompressed")]
    Headers,
}

/// The frames of one direction, from bytes that come in any pieces.
pub struct Decoder {
    buffer: Vec<u8>,
    headers: HeaderInflater,
}

impl Decoder {
    pub fn new() -> Self {
        Self { buffer: Vec::new(), headers: HeaderInflater::new() }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// None until a whole frame is there. Frames that need no answer are skipped.
    pub fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        loop {
            let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>().copied() else { return Ok(None) };
            let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
            if length > MAX_FRAME_BYTES {
                return Err(Malformed::TooLong(length));
            }
            if self.buffer.len() < HEADER_BYTES + length {
                return Ok(None);
            }
            let body: Vec<u8> = self.buffer.drain(..HEADER_BYTES + length).skip(HEADER_BYTES).collect();
            let is_control = head[0] & 0x80 != 0;
            let number = |at: usize| {
                let bytes = body.get(at..at + 4).ok_or(Malformed::Truncated)?;
                Ok::<_, Malformed>(u32::from_be_bytes([bytes[0] & 0x7f, bytes[1], bytes[2], bytes[3]]))
            };
            if !is_control {
                let stream = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
                return Ok(Some(Frame::Data { stream, data: body, is_last: head[4] & FLAG_FIN != 0 }));
            }
            match u16::from_be_bytes([head[2], head[3]]) {
                1 => {
                    let stream = number(0)?;
                    let headers = self.headers.read(body.get(10..).ok_or(Malformed::Truncated)?)?;
                    return Ok(Some(Frame::Open { stream, headers }));
                }
                3 => return Ok(Some(Frame::Reset { stream: number(0)? })),
                6 => {
                    let id = body.first_chunk().copied().ok_or(Malformed::Truncated)?;
                    return Ok(Some(Frame::Ping { id }));
                }
                7 => return Ok(Some(Frame::GoAway)),
                // SETTINGS, HEADERS, WINDOW_UPDATE.
                _ => {}
            }
        }
    }
}

/// The zlib stream of the other side's headers.
struct HeaderInflater {
    state: Box<DecompressorOxide>,
    /// The last 32 KiB: the dictionary first.
    window: Vec<u8>,
    at: usize,
    begun: bool,
}

impl HeaderInflater {
    fn new() -> Self {
        let mut window = vec![0; 32 << 10];
        window[..DICTIONARY.len()].copy_from_slice(DICTIONARY);
        Self { state: Box::default(), window, at: DICTIONARY.len(), begun: false }
    }

    fn read(&mut self, mut block: &[u8]) -> Result<HashMap<String, String>, Malformed> {
        if !self.begun {
            self.begun = true;
            // Two bytes, and four of the checksum of the dictionary if it is used.
            let uses_dictionary = block.get(1).is_some_and(|flags| flags & 0x20 != 0);
            block = block.get(if uses_dictionary { 6 } else { 2 }..).ok_or(Malformed::Truncated)?;
        }
        let mut plain = Vec::new();
        loop {
            let flags = inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
            let (status, read, written) =
                decompress(&mut self.state, block, &mut self.window, self.at, flags);
            block = &block[read..];
            plain.extend_from_slice(&self.window[self.at..self.at + written]);
            self.at = (self.at + written) % self.window.len();
            match status {
                _ if plain.len() > MAX_HEADER_BLOCK_BYTES => return Err(Malformed::Headers),
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput | TINFLStatus::Done if block.is_empty() => break,
                _ if read == 0 && written == 0 => return Err(Malformed::Headers),
                TINFLStatus::NeedsMoreInput => {}
                _ => return Err(Malformed::Headers),
            }
        }
        pairs(&plain)
    }
}

/// A number of names and values, each with its length before it.
fn pairs(mut plain: &[u8]) -> Result<HashMap<String, String>, Malformed> {
    let count = number(&mut plain)?;
    let mut headers = HashMap::new();
    for _ in 0..count {
        let name = text(&mut plain)?.to_ascii_lowercase();
        headers.insert(name, text(&mut plain)?);
    }
    Ok(headers)
}

fn number(plain: &mut &[u8]) -> Result<usize, Malformed> {
    let (bytes, rest) = plain.split_first_chunk().ok_or(Malformed::Truncated)?;
    *plain = rest;
    Ok(u32::from_be_bytes(*bytes) as usize)
}

fn text(plain: &mut &[u8]) -> Result<String, Malformed> {
    let length = number(plain)?;
    let (bytes, rest) = plain.split_at_checked(length).ok_or(Malformed::Truncated)?;
    *plain = rest;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Our side.
#[derive(Default)]
pub struct Encoder {
    begun: bool,
}

impl Encoder {
    /// Accepts a stream, without headers.
    pub fn reply(&mut self, stream: u32) -> Vec<u8> {
        let mut body = stream.to_be_bytes().to_vec();
        if !self.begun {
            self.begun = true;
            body.extend([0x78, 0x01]);
        }
        // No pairs, in a stored block; an empty one after it makes the reader deliver them.
        body.extend([0x00, 0x04, 0x00, 0xfb, 0xff, 0, 0, 0, 0, 0x00, 0x00, 0x00, 0xff, 0xff]);
        control(2, &body)
    }

    pub fn data(&self, stream: u32, data: &[u8], is_last: bool) -> Vec<u8> {
        let mut frame = stream.to_be_bytes().to_vec();
        frame.push(if is_last { FLAG_FIN } else { 0 });
        frame.extend(&(data.len() as u32).to_be_bytes()[1..]);
        frame.extend(data);
        frame
    }

    pub fn pong(&self, id: [u8; 4]) -> Vec<u8> {
        control(6, &id)
    }
}

fn control(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80, 3];
    frame.extend(kind.to_be_bytes());
    frame.push(0);
    frame.extend(&(body.len() as u32).to_be_bytes()[1..]);
    frame.extend(body);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SYN_STREAM with stored headers.
    fn open(stream: u32, first: bool, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend((text.len() as u32).to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let mut body = stream.to_be_bytes().to_vec();
        body.extend([0; 6]);
        if first {
            body.extend([0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2]);
        }
        let length = plain.len() as u16;
        body.push(0);
        body.extend(length.to_le_bytes());
        body.extend((!length).to_le_bytes());
        body.extend(plain);
        control(1, &body)
    }

    #[test]
    fn frames_are_found_in_pieces_of_any_length() {
        let mut bytes = open(1, true, &[("Streamtype", "error"), ("Port", "80")]);
        bytes.extend(open(3, false, &[("Streamtype", "data")]));
        bytes.extend(Encoder::default().data(3, b"hello", false));
        bytes.extend(control(9, &[0; 8]));
        bytes.extend(control(6, &[0, 0, 0, 7]));
        bytes.extend(Encoder::default().data(1, b"", true));
        for size in [1, 3, 1000] {
            let (mut decoder, mut frames) = (Decoder::new(), Vec::new());
            for piece in bytes.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    frames.push(frame);
                }
            }
            let headers = |pairs: &[(&str, &str)]| {
                pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
            };
            let expected = [
                Frame::Open { stream: 1, headers: headers(&[("streamtype", "error"), ("port", "80")]) },
                Frame::Open { stream: 3, headers: headers(&[("streamtype", "data")]) },
                Frame::Data { stream: 3, data: b"hello".to_vec(), is_last: false },
                Frame::Ping { id: [0, 0, 0, 7] },
                Frame::Data { stream: 1, data: Vec::new(), is_last: true },
            ];
            assert_eq!(frames, expected, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let mut decoder = Decoder::new();
        decoder.push(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next(), Err(Malformed::TooLong(0xff_ffff)));
        let mut decoder = Decoder::new();
        decoder.push(&control(1, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x78, 0x01, 0xff, 0xff, 0xff]));
        assert_eq!(decoder.next(), Err(Malformed::Headers));
    }
}
