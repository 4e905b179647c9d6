//! HTTP/1.1 as bytes on a socket, so that a test can also send requests that no client library would.

use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A request without an answer after this time has failed.
const LIMIT: Duration = Duration::from_secs(90);

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("no JSON ({e}): {} {}", self.status, self.text()))
    }

    /// The answer's `data`. Panics if the status is not the expected one.
    #[track_caller]
    pub fn data(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()["data"].take()
    }

    /// The error's code. Panics if the answer does not have the shape of all refusals.
    #[track_caller]
    pub fn refusal(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.text());
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{error}");
        assert_eq!(error["problems"].is_array(), status == 422, "only a 422 has `problems`: {error}");
        error["code"].as_str().expect("an error has a code").to_owned()
    }
}

/// A request as bytes. `Host` and `Content-Length` are added unless they are among the headers.
pub fn request(host: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    let given = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    if !given("host") {
        head += &format!("Host: {host}\r\n");
    }
    if !given("content-length") && !given("transfer-encoding") && (!body.is_empty() || method != "GET") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// Connects. If this fails, nothing was sent.
pub fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&to, LIMIT)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.set_write_timeout(Some(LIMIT))?;
    Ok(socket)
}

/// Sends bytes and reads the answer until the server closes the connection.
pub fn exchange(mut socket: TcpStream, bytes: &[u8]) -> io::Result<Answer> {
    // A server may answer before it has read everything, so a failed write is no error yet.
    let sent = socket.write_all(bytes);
    let mut answer = Vec::new();
    let read = socket.read_to_end(&mut answer);
    parse(&answer).ok_or_else(|| {
        let cause = sent.err().or(read.err());
        cause.unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} bytes of an answer", answer.len()))
        })
    })
}

/// The answer, if it is complete.
fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers =
        lines.filter_map(|line| line.split_once(':')).map(|(n, v)| (n.trim().to_owned(), v.trim().to_owned()));
    let mut answer = Answer { status, headers: headers.collect(), body: Vec::new() };
    let rest = &bytes[end + 4..];
    answer.body = match answer.header("transfer-encoding") {
        Some("chunked") => unchunk(rest)?,
        _ => match answer.header("content-length") {
            Some(length) => rest.get(..length.parse().ok()?)?.to_vec(),
            None => rest.to_vec(),
        },
    };
    Some(answer)
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|w| w == b"\r\n")?;
        let length = std::str::from_utf8(&rest[..line]).ok()?.split(';').next()?;
        let length = usize::from_str_radix(length.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(line + 2..line + 2 + length)?);
        rest = rest.get(line + 2 + length + 2..)?;
    }
}
