//! A server process and connections to it, for workloads that go over HTTP. The clients say no more than they
//! must: they share the machine with what is measured.

use super::{Ground, machine};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use store::Location;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// `onward dev` on a port of its own.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
}

impl Server {
    pub async fn start(ground: &Ground) -> Result<Server, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let data = ground.path("server");
        let store = match ground.store("server").await? {
            Location::Sqlite(path) => format!("sqlite:{}", path.display()),
            Location::Postgres(url) => url,
        };
        let mut child = Command::new(program)
            .args(["dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            // Not as a flag, which everybody on the machine can read.
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
            Some(address) => Ok(Server { child, address }),
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `body` again and again over one connection for a while, on this thread: what is measured is then the server,
/// and not how a runtime wakes its tasks. Answers what each request took.
pub fn alone(host: SocketAddr, path: &str, body: &str, status: u16, window: Duration) -> Result<Vec<f64>, String> {
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
        let asked = Instant::now();
        socket.write_all(request.as_bytes()).map_err(text)?;
        let mut read = 0;
        let (answered, _) = loop {
            let more = std::io::Read::read(&mut socket, &mut buffer[read..]).map_err(text)?;
            read += more;
            if more == 0 || read == buffer.len() {
                return Err("the server hung up".into());
            }
            if let Some(answer) = complete(&buffer[..read]) {
                break answer;
            }
        };
        if answered != status {
            return Err(format!("{path} answered {answered}"));
        }
        samples.push(super::now_ms(asked));
    }
    Ok(samples)
}

/// One connection that is kept.
pub struct Client {
    socket: TcpStream,
    host: SocketAddr,
    buffer: Vec<u8>,
    /// Where the body of the last answer is.
    body: std::ops::Range<usize>,
}

impl Client {
    pub async fn connect(host: SocketAddr) -> Result<Client, String> {
        let socket = TcpStream::connect(host).await.map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(Client { socket, host, buffer: vec![0; 16 * 1024], body: 0..0 })
    }

    /// Sends JSON and reads the whole answer; its status.
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
                return Err("the server hung up".into());
            }
            read += more;
            if let Some((status, body)) = complete(&self.buffer[..read]) {
                self.body = body..read;
                return Ok(status);
            }
        }
    }

    /// Of the last answer.
    pub fn body(&self) -> &[u8] {
        &self.buffer[self.body.clone()]
    }
}

/// The status of an answer that is all here, and where its body begins.
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
