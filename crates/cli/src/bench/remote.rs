//! A server process and connections to it, for workloads that go over HTTP. The clients do as little work as possible,
//! because they share the machine with the server that is measured.

use super::{BenchStore, machine};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use store::Location;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// `onward dev` on a port of its own.
pub struct BenchServer {
    child: Child,
    pub address: SocketAddr,
}

impl BenchServer {
    pub async fn start(storage: &BenchStore) -> Result<BenchServer, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let data = storage.path("server");
        let store = match storage.store("server").await? {
            Location::Sqlite(path) => format!("sqlite:{}", path.display()),
            Location::Postgres(url) => url,
        };
        let mut child = Command::new(program)
            .args(["dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            // Not as a flag: every user of the machine can read the flags of a process.
            .env("ONWARD_STORE", store)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map_err(|e| e.to_string())?;
        let address = line.trim().strip_prefix("onward ready http://").and_then(|text| text.parse().ok());
        match address {
            Some(address) => Ok(BenchServer { child, address }),
            None => {
                let _ = child.kill();
                Err(format!("the server did not start: {line}"))
            }
        }
    }

    pub fn rss_peak_mb(&self) -> Option<f64> {
        machine::rss_peak_mb_of(self.child.id())
    }

    pub fn cpu_s(&self) -> Option<f64> {
        machine::cpu_s_of(self.child.id())
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `body` again and again over one connection until the window ends. It blocks this thread, so that the time a
/// runtime needs to wake its tasks is not measured. Returns the time of each request.
pub fn post_repeatedly(
    host: SocketAddr,
    path: &str,
    body: &str,
    status: u16,
    window: Duration,
) -> Result<Vec<f64>, String> {
    let text = |e: std::io::Error| e.to_string();
    let mut socket = std::net::TcpStream::connect(host).map_err(text)?;
    socket.set_nodelay(true).map_err(text)?;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let mut buffer = vec![0; 64 * 1024];
    let (began, mut samples) = (Instant::now(), Vec::new());
    while began.elapsed() < window {
        let sent_at = Instant::now();
        socket.write_all(request.as_bytes()).map_err(text)?;
        let mut read = 0;
        let (answered, _) = loop {
            let more = std::io::Read::read(&mut socket, &mut buffer[read..]).map_err(text)?;
            read += more;
            if more == 0 || read == buffer.len() {
                return Err("the server closed the connection".into());
            }
            if let Some(answer) = complete(&buffer[..read]) {
                break answer;
            }
        };
        if answered != status {
            return Err(format!("{path} answered {answered}"));
        }
        samples.push(super::now_ms(sent_at));
    }
    Ok(samples)
}

/// One connection, kept open.
pub struct BenchClient {
    socket: TcpStream,
    host: SocketAddr,
    buffer: Vec<u8>,
    /// The body of the last answer, as a range of `buffer`.
    body: std::ops::Range<usize>,
}

impl BenchClient {
    pub async fn connect(host: SocketAddr) -> Result<BenchClient, String> {
        let socket = TcpStream::connect(host).await.map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(BenchClient { socket, host, buffer: vec![0; 16 * 1024], body: 0..0 })
    }

    /// Sends JSON, reads the whole answer and returns its status.
    pub async fn post(&mut self, path: &str, body: &str) -> Result<u16, String> {
        let (host, length) = (self.host, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.socket.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
        let mut read = 0;
        loop {
            if read == self.buffer.len() {
                self.buffer.resize(read * 2, 0);
            }
            let more = self.socket.read(&mut self.buffer[read..]).await.map_err(|e| e.to_string())?;
            if more == 0 {
                return Err("the server closed the connection".into());
            }
            read += more;
            if let Some((status, body)) = complete(&self.buffer[..read]) {
                self.body = body..read;
                return Ok(status);
            }
        }
    }

    /// The body of the last answer.
    pub fn body(&self) -> &[u8] {
        &self.buffer[self.body.clone()]
    }
}

/// The status of an answer and where its body begins; none while bytes are missing.
fn complete(bytes: &[u8]) -> Option<(u16, usize)> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    })?;
    let status = head.get(9..12)?.parse().ok()?;
    (bytes.len() >= end + length).then_some((status, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_when_its_body_is() {
        let answer = b"HTTP/1.1 201 Created\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(complete(answer), Some((201, answer.len() - 3)));
        assert_eq!(complete(&answer[..answer.len() - 1]), None);
        assert_eq!(complete(&answer[..20]), None);
    }
}
