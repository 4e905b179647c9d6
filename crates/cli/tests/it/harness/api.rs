//! The HTTP API for tests: a method for each common request.

use super::eventually;
use super::http::{Answer, connect, exchange, request};
use super::sse::Stream;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug)]
pub struct Api {
    /// The address of the first process, for tests that need only one.
    pub address: SocketAddr,
    /// The addresses of all processes. Requests go to them in turn.
    nodes: &'static [SocketAddr],
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

impl Api {
    /// All processes but this one.
    pub fn without(&self, number: usize) -> Api {
        let others = self.nodes.iter().enumerate().filter(|(n, _)| *n != number);
        Api::new(&others.map(|(_, address)| *address).collect::<Vec<_>>())
    }

    pub fn new(nodes: &[SocketAddr]) -> Api {
        // Leaked, because an `Api` is copied into threads. A test makes only a few.
        Api { address: nodes[0], nodes: nodes.to_vec().leak() }
    }

    pub fn nodes(&self) -> &[SocketAddr] {
        self.nodes
    }

    /// The process that gets the next request.
    fn next(&self) -> SocketAddr {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        self.nodes[TURN.fetch_add(1, Ordering::Relaxed) % self.nodes.len()]
    }

    /// Sends any request. An answer that was cut off is an error.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_send(method, path, headers, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    pub fn try_send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Answer> {
        if method == "POST" && path == "/api/v1/dev/clock" {
            return self.move_clocks(headers, body);
        }
        if path == "/metrics" && self.nodes.len() > 1 {
            return self.add_metrics(headers);
        }
        let node = self.next();
        exchange(connect(node)?, &request(&node.to_string(), method, path, headers, body))
    }

    /// The sum of the metrics of all processes.
    fn add_metrics(&self, headers: &[(&str, &str)]) -> io::Result<Answer> {
        let ask =
            |node: &SocketAddr| exchange(connect(*node)?, &request(&node.to_string(), "GET", "/metrics", headers, b""));
        let mut answers = self.nodes.iter().map(ask).collect::<io::Result<Vec<_>>>()?;
        let texts: Vec<String> = answers.iter().map(Answer::text).collect();
        let number = |line: &str| line.split(' ').nth(1).and_then(|number| number.parse::<u64>().ok());
        let sum = |(index, line): (usize, &str)| match (line.starts_with('#'), line.split_once(' ')) {
            (false, Some((name, _))) => {
                let all = texts.iter().filter_map(|text| number(text.lines().nth(index)?)).sum::<u64>();
                format!("{name} {all}\n")
            }
            _ => format!("{line}\n"),
        };
        let text: String = texts[0].lines().enumerate().map(sum).collect();
        let mut answer = answers.remove(0);
        answer.body = text.into_bytes();
        Ok(answer)
    }

    /// Moves the clock of every process. Returns the last answer, with the timers that fired on all of them.
    fn move_clocks(&self, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Answer> {
        let mut fired = 0;
        let mut last = None;
        for node in self.nodes {
            let request_bytes = request(&node.to_string(), "POST", "/api/v1/dev/clock", headers, body);
            let mut answer = exchange(connect(*node)?, &request_bytes)?;
            if answer.status == 200 {
                let mut view = answer.json();
                fired += view["data"]["fired"].as_u64().unwrap_or_default();
                view["data"]["fired"] = fired.into();
                answer.body = view.to_string().into_bytes();
            }
            last = Some(answer);
        }
        last.ok_or_else(|| io::Error::other("no process is running"))
    }

    /// Sends bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> io::Result<Answer> {
        exchange(connect(self.address)?, bytes)
    }

    /// Sends a POST request. `Err(false)` means that nothing was sent, `Err(true)` that the outcome is unknown.
    pub fn write(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, bool> {
        let node = self.next();
        let socket = connect(node).map_err(|_| false)?;
        let headers: Vec<(&str, &str)> = headers.iter().copied().chain([JSON]).collect();
        exchange(socket, &request(&node.to_string(), "POST", path, &headers, body)).map_err(|_| true)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[JSON], body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let headers: Vec<(&str, &str)> = headers.iter().copied().chain([JSON]).collect();
        self.send("POST", path, &headers, body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, &[JSON], body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"")
    }

    /// Opens a stream of events; with `last`, where another one ended.
    #[track_caller]
    pub fn stream(&self, path: &str, last: Option<&str>) -> Stream {
        let headers: Vec<(&str, &str)> = last.map(|id| ("Last-Event-ID", id)).into_iter().collect();
        let node = self.next();
        let request_bytes = request(&node.to_string(), "GET", path, &headers, b"");
        Stream::open(connect(node).expect("a connection"), &request_bytes).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Creates a workflow from a definition in YAML and returns its view.
    #[track_caller]
    pub fn define(&self, yaml: &str) -> Value {
        self.send("POST", "/api/v1/workflows", &[("Content-Type", "application/yaml")], yaml.as_bytes()).data(201)
    }

    /// Creates a workflow of these steps under a new name and returns its id.
    #[track_caller]
    pub fn workflow(&self, steps: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let steps: String = steps.lines().map(|line| format!("  {line}\n")).collect();
        let yaml = format!("name: w{}\ntasks:\n{steps}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.define(&yaml)["id"].as_str().expect("an id").to_owned()
    }

    /// Starts a run and returns its id.
    #[track_caller]
    pub fn trigger(&self, workflow: &str, body: &Value) -> String {
        let started = self.post(&format!("/api/v1/workflows/{workflow}/trigger"), body).data(201);
        started["run_id"].as_str().expect("a run id").to_owned()
    }

    /// Creates a workflow, starts a run and waits for its end.
    #[track_caller]
    pub fn play(&self, steps: &str, body: &Value) -> Value {
        let workflow = self.workflow(steps);
        self.finished(&self.trigger(&workflow, body))
    }

    #[track_caller]
    pub fn run(&self, run: &str) -> Value {
        self.get(&format!("/api/v1/runs/{run}")).data(200)
    }

    /// The run, once it has ended.
    #[track_caller]
    pub fn finished(&self, run: &str) -> Value {
        eventually(&format!("{run} ends"), || Some(self.run(run)).filter(is_terminal))
    }

    /// The run, once a step has this status.
    #[track_caller]
    pub fn when(&self, run: &str, step: &str, status: &str) -> Value {
        let what = format!("`{step}` of {run} is {status}");
        eventually(&what, || Some(self.run(run)).filter(|view| view["tasks"][step]["status"] == status))
    }

    #[track_caller]
    pub fn cancel(&self, run: &str) -> Answer {
        self.send("POST", &format!("/api/v1/runs/{run}/cancel"), &[], b"")
    }

    /// Every event of a run, read page by page. They must be numbered 1..n.
    #[track_caller]
    pub fn events(&self, run: &str) -> Vec<Value> {
        let mut events = Vec::new();
        let mut after = "0".to_owned();
        loop {
            let mut page = self.get(&format!("/api/v1/runs/{run}/events?limit=500&cursor={after}")).json();
            events.append(page["data"].as_array_mut().expect("a list"));
            match page["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => break,
            }
        }
        for (i, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], i as u64 + 1, "I4: no gaps: {event}");
        }
        events
    }

    /// Every item of a list, read page by page.
    #[track_caller]
    pub fn list(&self, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        let glue = if path.contains('?') { '&' } else { '?' };
        loop {
            let answer = self.get(&format!("{path}{glue}limit=500{cursor}"));
            assert_eq!(answer.status, 200, "{}", answer.text());
            let mut page = answer.json();
            items.append(page["data"].as_array_mut().expect("a list"));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }

    /// Sends bytes to a callback URL (or its path).
    #[track_caller]
    pub fn call_back(&self, url: &str, body: &[u8]) -> Answer {
        let path = &url[url.find("/wh/").expect("a callback URL")..];
        self.send("POST", path, &[], body)
    }

    /// Moves a virtual clock and returns how many timers fired.
    #[track_caller]
    pub fn advance(&self, by: &str) -> u64 {
        let moved = self.post("/api/v1/dev/clock", &serde_json::json!({ "advance": by })).data(200);
        moved["fired"].as_u64().expect("a number")
    }
}

pub fn is_terminal(view: &Value) -> bool {
    matches!(view["status"].as_str(), Some("completed" | "failed" | "cancelled" | "timeout"))
}

/// A time as microseconds since 1970.
#[track_caller]
pub fn micros(time: &Value) -> i64 {
    let text = time.as_str().unwrap_or_else(|| panic!("no time: {time}"));
    api::parse_rfc3339(text).unwrap_or_else(|| panic!("not RFC 3339: {text}")).0
}
