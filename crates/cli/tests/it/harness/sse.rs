//! A stream of server-sent events, read as a browser would. The connection may break at any time.

use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub struct Stream {
    reader: BufReader<Chunked>,
    /// The last event id, as a browser remembers it.
    pub last: Option<String>,
}

/// One message. Comments, and ids without data, are not messages.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: Value,
}

impl Stream {
    pub fn open(mut socket: TcpStream, request: &[u8]) -> io::Result<Stream> {
        socket.write_all(request)?;
        let mut reader = BufReader::with_capacity(1, socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, head));
            }
        }
        let lower = head.to_ascii_lowercase();
        if !head.starts_with("HTTP/1.1 200") || !lower.contains("content-type: text/event-stream") {
            let mut rest = String::new();
            let _ = reader.read_to_string(&mut rest);
            return Err(io::Error::other(head + &rest));
        }
        let chunked = Chunked { inner: reader.into_inner(), left: 0, is_over: false };
        Ok(Stream { reader: BufReader::new(chunked), last: None })
    }

    /// The next message; `None` when the stream has ended, for any reason.
    pub fn next(&mut self) -> Option<Message> {
        let (mut event, mut data) = (None, None);
        loop {
            let mut line = String::new();
            match self.reader.read_line(&mut line) {
                Ok(n) if n > 0 && line.ends_with('\n') => {}
                _ => return None,
            }
            match line.trim_end_matches('\n').split_once(": ") {
                None if line == "\n" => {
                    if let Some(data) = data.take() {
                        return Some(Message { id: self.last.clone(), event, data });
                    }
                    event = None;
                }
                Some(("id", id)) => self.last = Some(id.to_owned()),
                Some(("event", name)) => event = Some(name.to_owned()),
                Some(("data", text)) => data = Some(serde_json::from_str(text).expect("data is JSON")),
                Some(("retry", _)) => {}
                _ => assert!(line.starts_with(':'), "not a line of a stream: {line:?}"),
            }
        }
    }

    /// All messages up to the end.
    pub fn rest(mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// The bytes of a chunked body.
struct Chunked {
    inner: TcpStream,
    left: usize,
    is_over: bool,
}

impl Read for Chunked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 && !self.is_over {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                let mut byte = [0];
                self.inner.read_exact(&mut byte)?;
                line.push(byte[0]);
            }
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            if text.is_empty() {
                continue;
            }
            self.left = usize::from_str_radix(&text, 16).map_err(io::Error::other)?;
            self.is_over = self.left == 0;
        }
        if self.is_over {
            return Ok(0);
        }
        let count = into.len().min(self.left);
        let read = self.inner.read(&mut into[..count])?;
        self.left -= read;
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
    }
}
