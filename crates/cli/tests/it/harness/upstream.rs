//! A server that records every request before it answers, and misbehaves on demand.

use super::eventually;
use serde_json::Value;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Act {
    Reply {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// 503 to the first attempt, 200 to later ones.
    FailFirst,
    /// 200, after a delay that is long enough to be killed in between.
    Slow(Duration),
    /// Acts like the inner one, but only after [`Upstream::release`].
    Held(Box<Act>),
    /// Never answers; counts clients that give up.
    Hang,
    /// Closes the connection so that the client sees a reset (the request must have a body).
    Reset,
    /// Half an answer, then closes.
    CloseEarly,
    /// One byte a second.
    Drip,
    /// A body that never ends.
    Endless,
    GarbageHeaders,
    ManyHeaders,
    BadChunks,
}

pub fn reply(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Act {
    let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    Act::Reply { status, headers, body: body.into() }
}

pub fn json(status: u16, body: Value) -> Act {
    reply(status, &[("Content-Type", "application/json")], body.to_string())
}

pub fn status(status: u16) -> Act {
    reply(status, &[], "")
}

/// A request that was received.
#[derive(Clone, Debug)]
pub struct Effect {
    pub at: Instant,
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Headers as they were sent, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Effect {
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn attempt(&self) -> u32 {
        self.header("x-onward-attempt").parse().unwrap_or(0)
    }

    /// The run and step that sent the request.
    #[track_caller]
    pub fn origin(&self) -> (&str, &str) {
        self.header("idempotency-key").split_once(':').expect("`run:step`")
    }
}

pub struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    effects: Vec<Effect>,
    acts: HashMap<String, VecDeque<Act>>,
    released: HashSet<String>,
    hangups: u32,
    /// Requests being answered now, and the highest number so far.
    open: usize,
    peak: usize,
    is_over: bool,
}

impl Upstream {
    pub fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                if serving.lock().is_over {
                    return;
                }
                let Ok(socket) = socket else { continue };
                let shared = serving.clone();
                // A client may close the connection at any time.
                std::thread::spawn(move || drop(serve(socket, &shared)));
            }
        });
        Upstream { address, shared }
    }

    /// Sets what to do with the requests to a path (without its query), in order; the last act repeats forever.
    /// Other paths are answered with 200 `{"ok": true}`.
    pub fn on(&self, path: &str, acts: impl IntoIterator<Item = Act>) {
        self.shared.lock().acts.insert(path.to_owned(), acts.into_iter().collect());
    }

    /// Releases the held answers of a path.
    pub fn release(&self, path: &str) {
        self.shared.lock().released.insert(path.to_owned());
        self.shared.changed.notify_all();
    }

    /// Replaces `$UP` in a definition with the URL of this server.
    pub fn fill(&self, definition: &str) -> String {
        definition.replace("$UP", &format!("http://{}", self.address))
    }

    pub fn effects(&self) -> Vec<Effect> {
        self.shared.lock().effects.clone()
    }

    /// Requests to a path, in order.
    pub fn effects_on(&self, path: &str) -> Vec<Effect> {
        self.effects().into_iter().filter(|e| e.path.split('?').next() == Some(path)).collect()
    }

    /// The same, for a thread that outlives this handle.
    pub fn watch(&self, path: &'static str) -> Box<dyn Fn() -> Vec<Effect> + Send + Sync> {
        let shared = self.shared.clone();
        Box::new(move || shared.lock().effects.iter().filter(|e| e.path == path).cloned().collect())
    }

    /// Waits until a path was called `count` times.
    #[track_caller]
    pub fn wait_for(&self, path: &str, count: usize) -> Vec<Effect> {
        eventually(&format!("{path} is called {count} times"), || {
            Some(self.effects_on(path)).filter(|effects| effects.len() >= count)
        })
    }

    /// The highest number of requests that were being answered at once.
    pub fn peak(&self) -> usize {
        self.shared.lock().peak
    }

    /// Waits until a client has given up on a hanging request.
    #[track_caller]
    pub fn wait_for_hangup(&self) {
        eventually("a hanging request is given up", || (self.shared.lock().hangups > 0).then_some(()));
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// One connection, one request.
fn serve(mut socket: TcpStream, shared: &Shared) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(super::WAIT_MAX))?;
    let mut head = Vec::new();
    let mut byte = [0];
    // Read byte by byte, so that no part of the body is taken from the socket.
    while !head.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.trim_end().split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (first.next().unwrap_or_default().to_owned(), first.next().unwrap_or_default().to_owned());
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned())).collect();
    let mut effect = Effect { at: Instant::now(), method, path, headers, body: Vec::new() };
    let key = effect.path.split('?').next().unwrap_or_default().to_owned();
    let mut act = match shared.lock().acts.get_mut(&key) {
        Some(acts) if acts.len() > 1 => acts.pop_front(),
        Some(acts) => acts.front().cloned(),
        None => None,
    }
    .unwrap_or_else(|| json(200, serde_json::json!({ "ok": true })));
    if !matches!(act, Act::Reset) {
        effect.body.resize(effect.header("content-length").parse().unwrap_or(0), 0);
        socket.read_exact(&mut effect.body)?;
    }
    let attempt = effect.attempt();
    {
        let mut state = shared.lock();
        state.effects.push(effect);
        state.open += 1;
        state.peak = state.peak.max(state.open);
    }
    loop {
        act = match act {
            Act::Held(then) => {
                let held = |state: &mut State| !state.is_over && !state.released.contains(&key);
                drop(shared.changed.wait_timeout_while(shared.lock(), super::WAIT_MAX, held));
                *then
            }
            Act::Slow(pause) => {
                std::thread::sleep(pause);
                status(200)
            }
            ready => {
                act = ready;
                break;
            }
        };
    }
    // Counted before the answer is sent: once the client has it, the next request may come.
    shared.lock().open -= 1;
    perform(act, attempt, &mut socket, shared)
}

fn perform(act: Act, attempt: u32, socket: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let is_over = || shared.lock().is_over;
    match act {
        Act::Reply { status, headers, body } => {
            let mut head = format!("HTTP/1.1 {status} Said\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
            for (name, value) in headers {
                head += &format!("{name}: {value}\r\n");
            }
            socket.write_all(&[head.as_bytes(), b"\r\n", &body].concat())
        }
        Act::FailFirst => perform(status(if attempt == 1 { 503 } else { 200 }), attempt, socket, shared),
        Act::Hang => {
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            let until = Instant::now() + super::WAIT_MAX;
            while Instant::now() < until && !is_over() {
                match socket.read(&mut [0]) {
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                    _ => {
                        shared.lock().hangups += 1;
                        break;
                    }
                }
            }
            Ok(())
        }
        Act::Reset | Act::Held(_) | Act::Slow(_) => Ok(()),
        Act::CloseEarly => socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf"),
        Act::Drip => {
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")?;
            let until = Instant::now() + super::WAIT_MAX;
            while Instant::now() < until && !is_over() {
                socket.write_all(b"x")?;
                std::thread::sleep(Duration::from_secs(1));
            }
            Ok(())
        }
        Act::Endless => {
            socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            while !is_over() {
                socket.write_all(&[b'x'; 16 * 1024])?;
            }
            Ok(())
        }
        Act::GarbageHeaders => socket.write_all(b"HTTP/1.1 200 OK\r\n\x01\x02 no: header \xff\r\n:::\r\n\r\n"),
        Act::ManyHeaders => {
            let headers: String = (0..10_000).map(|i| format!("X-Header-{i}: value\r\n")).collect();
            socket.write_all(format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 2\r\n\r\nok").as_bytes())
        }
        Act::BadChunks => {
            socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nnonsense\r\n0\r\n\r\n")
        }
    }
}
