//! Tasks over HTTP: a separate server process, and producers and workers in this process that keep their connections.

use super::remote::{BenchClient, BenchServer, post_repeatedly};
use super::{BenchStore, Figures, now_ms};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const PAYLOAD: &str = r#"{"order_id":123,"email":"someone@example.com"}"#;
/// Tasks in one bulk request, and producers that send such requests at once.
const LIST: usize = 1_000;
const PRODUCERS: usize = 4;
const CLIENTS: usize = 64;
/// How many tasks a worker claims at a time.
const CREDITS: usize = 500;
/// Ready tasks when draining begins, for each second of the window.
const BACKLOG_PER_SECOND: u64 = 20_000;
/// How many types the preloaded tasks are spread over.
const TYPES: u64 = 100;
/// How many claims are measured for a latency.
const CLAIMS: usize = 500;

/// Every figure of the workload.
pub async fn figures(storage: &BenchStore, seconds: u64, workers: usize, preload: u64) -> Result<Vec<Figures>, String> {
    let server = BenchServer::start(storage).await?;
    let address = server.address;
    let window = Duration::from_secs(seconds);
    let mut all = FigureLog { server: &server, cpu_s: server.cpu_s(), figures: Vec::new() };
    if preload > 0 {
        all.note("queue_claim_before", "claims/s", claims(address, "bench.claim.%").await?);
        for part in 0..TYPES {
            submit(address, &format!("bench.waits.t{part}.v1"), preload / TYPES).await?;
        }
        all.begin();
        all.note("queue_claim_beside", "claims/s", claims(address, "bench.claim.%").await?);
        all.note("queue_claim_backlog", "claims/s", from_backlog(address, "bench.waits.t1%").await?);
        return Ok(all.figures);
    }
    all.note("queue_enqueue_1", "tasks/s", enqueue(address, 1, window).await?);
    all.note("queue_enqueue_64", "tasks/s", enqueue(address, CLIENTS, window).await?);
    all.note("queue_bulk", "tasks/s", bulk(address, window).await?);
    all.note("queue_claim", "claims/s", claims(address, "bench.claim.%").await?);
    for (name, workers) in [("queue_drain_1", 1), ("queue_drain", workers), ("queue_drain_64", CLIENTS)] {
        let count = BACKLOG_PER_SECOND * seconds;
        let kind = format!("bench.drain{workers}.v1");
        submit(address, &kind, count).await?;
        all.begin();
        all.note(name, "tasks/s", drain(address, &kind, workers, count).await?);
    }
    Ok(all.figures)
}

/// The figures that were measured on a server.
struct FigureLog<'a> {
    server: &'a BenchServer,
    /// The server's processor time when the measurement began.
    cpu_s: Option<f64>,
    figures: Vec<Figures>,
}

impl FigureLog<'_> {
    fn begin(&mut self) {
        self.cpu_s = self.server.cpu_s();
    }

    /// Ends a measurement and begins the next.
    fn note(&mut self, workload: &'static str, unit: &'static str, measured: Measured) {
        let used = self.server.cpu_s().zip(self.cpu_s).map(|(after, before)| after - before);
        let cpu_s_per_1k_steps = used.map(|s| s / measured.count as f64 * 1_000.0);
        self.figures.push(Figures { cpu_s_per_1k_steps, ..figure(self.server, workload, unit, measured) });
        self.begin();
    }
}

struct Measured {
    /// How many tasks or claims.
    count: u64,
    rate: f64,
    samples: Vec<f64>,
    ok: bool,
}

fn figure(server: &BenchServer, workload: &'static str, unit: &'static str, measured: Measured) -> Figures {
    let Measured { rate, samples, ok, .. } = measured;
    let rss_peak_mb = server.rss_peak_mb();
    let figures = Figures { workload, rate_per_s: Some(rate), unit: Some(unit), rss_peak_mb, ok, ..Default::default() };
    figures.latencies(samples)
}

/// Submits one task a request, from `clients` at once.
async fn enqueue(address: SocketAddr, clients: usize, window: Duration) -> Result<Measured, String> {
    let body = format!(r#"{{"type":"bench.enqueue.v1","payload":{PAYLOAD}}}"#);
    if clients == 1 {
        let work = move || post_repeatedly(address, "/api/v1/tasks", &body, 201, window);
        let samples = tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())??;
        let (count, rate) = (samples.len() as u64, samples.len() as f64 / window.as_secs_f64());
        return Ok(Measured { count, rate, ok: count > 0, samples });
    }
    let body: Arc<str> = body.into();
    send(address, body, clients, window, 1).await
}

/// Submits tasks in bulk.
async fn bulk(address: SocketAddr, window: Duration) -> Result<Measured, String> {
    send(address, list("bench.bulk.v1", LIST).into(), PRODUCERS, window, LIST).await
}

fn list(kind: &str, count: usize) -> String {
    let one = format!(r#"{{"type":"{kind}","payload":{PAYLOAD}}}"#);
    format!("[{}]", vec![one; count].join(","))
}

async fn send(
    address: SocketAddr,
    body: Arc<str>,
    clients: usize,
    window: Duration,
    each: usize,
) -> Result<Measured, String> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        let mut client = BenchClient::connect(address).await?;
        expect(client.post("/api/v1/tasks", &body).await?, 201)?;
        connected.push(client);
    }
    let began = Instant::now();
    let mut sending = JoinSet::new();
    for mut client in connected {
        let body = body.clone();
        sending.spawn(async move {
            let mut samples = Vec::new();
            while began.elapsed() < window {
                let sent_at = Instant::now();
                expect(client.post("/api/v1/tasks", &body).await?, 201)?;
                samples.push(now_ms(sent_at));
            }
            Ok::<_, String>(samples)
        });
    }
    let samples = joined(sending).await?;
    let count = (samples.len() * each) as u64;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    Ok(Measured { count, rate, ok: count > 0, samples })
}

/// Submits `count` tasks of a type.
async fn submit(address: SocketAddr, kind: &str, count: u64) -> Result<(), String> {
    let left = Arc::new(AtomicU64::new(count));
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        let (left, kind) = (left.clone(), kind.to_owned());
        producers.spawn(async move {
            let mut client = BenchClient::connect(address).await?;
            loop {
                let take = |n: u64| Some(n - n.min(LIST as u64));
                let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
                if before == 0 {
                    return Ok::<_, String>(Vec::new());
                }
                let size = before.min(LIST as u64) as usize;
                expect(client.post("/api/v1/tasks", &list(&kind, size)).await?, 201)?;
            }
        });
    }
    joined(producers).await.map(drop)
}

async fn joined(mut tasks: JoinSet<Result<Vec<f64>, String>>) -> Result<Vec<f64>, String> {
    let mut all = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        all.extend(joined.map_err(|e| e.to_string())??);
    }
    Ok(all)
}

/// Submits, claims (by a prefix of the type) and completes one task at a time. Measures the claims.
async fn claims(address: SocketAddr, pattern: &str) -> Result<Measured, String> {
    let mut client = BenchClient::connect(address).await?;
    let submit = format!(r#"{{"type":"bench.claim.now.v1","payload":{PAYLOAD}}}"#);
    let mut samples = Vec::new();
    for _ in 0..CLAIMS {
        expect(client.post("/api/v1/tasks", &submit).await?, 201)?;
        samples.push(claim_one(&mut client, pattern).await?);
    }
    let rate = 1_000.0 * samples.len() as f64 / samples.iter().sum::<f64>();
    Ok(Measured { count: samples.len() as u64, rate, samples, ok: true })
}

/// Claims and completes one of the preloaded tasks at a time. Measures the claims.
async fn from_backlog(address: SocketAddr, pattern: &str) -> Result<Measured, String> {
    let mut client = BenchClient::connect(address).await?;
    let mut samples = Vec::new();
    for _ in 0..CLAIMS {
        samples.push(claim_one(&mut client, pattern).await?);
    }
    let rate = 1_000.0 * samples.len() as f64 / samples.iter().sum::<f64>();
    Ok(Measured { count: samples.len() as u64, rate, samples, ok: true })
}

/// Claims a task and completes it. Returns how long the claim took.
async fn claim_one(client: &mut BenchClient, pattern: &str) -> Result<f64, String> {
    let claim = json!({ "worker_id": "bench", "types": [pattern], "wait": "0s" }).to_string();
    let sent_at = Instant::now();
    expect(client.post("/api/v1/tasks/claim", &claim).await?, 200)?;
    let took = now_ms(sent_at);
    let answer: Value = serde_json::from_slice(client.body()).map_err(|e| e.to_string())?;
    let task = &answer["data"][0];
    let id = task["task_id"].as_str().ok_or("the server had no task to claim")?;
    let done = json!({ "claim_token": task["claim_token"], "result": null }).to_string();
    expect(client.post(&format!("/api/v1/tasks/{id}/complete"), &done).await?, 200)?;
    Ok(took)
}

/// Workers complete all tasks, in batches. Measures from the first request to the last answer.
async fn drain(address: SocketAddr, kind: &str, workers: usize, count: u64) -> Result<Measured, String> {
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut working = JoinSet::new();
    for n in 0..workers {
        let worker = BenchWorker { id: format!("bench-{n}"), pattern: kind.to_owned(), credits: CREDITS, wait: "0s" };
        let done = done.clone();
        working.spawn(async move {
            let mut client = BenchClient::connect(address).await?;
            let mut samples = Vec::new();
            let mut held = Vec::new();
            loop {
                let sent_at = Instant::now();
                let (acks, tasks) = worker.work(&mut client, &held).await?;
                samples.push(now_ms(sent_at));
                done.fetch_add(acks, Ordering::Relaxed);
                held = tasks;
                if held.is_empty() {
                    return Ok::<_, String>(samples);
                }
            }
        });
    }
    let samples = joined(working).await?;
    let total = done.load(Ordering::Relaxed);
    let rate = total as f64 / began.elapsed().as_secs_f64();
    if total != count {
        eprintln!("{total} of {count} tasks were done");
    }
    Ok(Measured { count: total, rate, samples, ok: total == count })
}

struct BenchWorker {
    id: String,
    pattern: String,
    credits: usize,
    wait: &'static str,
}

/// A task's id and token.
type Held = (String, String);

impl BenchWorker {
    /// Reports the tasks it holds and claims more. Returns how many reports were recorded, and the new tasks.
    async fn work(&self, client: &mut BenchClient, held: &[Held]) -> Result<(u64, Vec<Held>), String> {
        let (id, pattern, credits, wait) = (&self.id, &self.pattern, self.credits, self.wait);
        let mut body = format!(
            r#"{{"worker_id":"{id}","types":["{pattern}"],"credits":{credits},"lease":"60s","wait":"{wait}","done":["#
        );
        for (i, (task, token)) in held.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            body += &format!(r#"{comma}{{"task_id":"{task}","claim_token":"{token}","result":{{"ok":true}}}}"#);
        }
        body += "]}";
        expect(client.post("/api/v1/work", &body).await?, 200)?;
        let text = std::str::from_utf8(client.body()).map_err(|e| e.to_string())?;
        Ok((text.matches(r#""status":"recorded""#).count() as u64, claimed_tasks(text)))
    }
}

/// Ids and tokens of the tasks in an answer. Parsing all of it would take time from the server on the same machine.
fn claimed_tasks(text: &str) -> Vec<Held> {
    let Some((_, tasks)) = text.split_once(r#""tasks":["#) else { return Vec::new() };
    let value = |text: &str, name: &str| {
        let (_, rest) = text.split_once(name)?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let parts = tasks.split(r#""task_id":""#).skip(1);
    parts.filter_map(|part| Some((part.split_once('"')?.0.to_owned(), value(part, r#""claim_token":""#)?))).collect()
}

/// Runs of ten steps, each a task for workers that connect over HTTP.
pub async fn flow(storage: &BenchStore, seconds: u64, workers: usize, concurrency: usize) -> Result<Figures, String> {
    const STEPS: usize = 10;
    let server = BenchServer::start(storage).await?;
    let address = server.address;
    let step = |i: usize| {
        let needs: Vec<String> = (0..i).rev().take(1).map(|n| format!("s{n}")).collect();
        (
            format!("s{i}"),
            json!({ "task": "bench.flow.v1", "input": { "n": "{{trigger.body.order_id}}" }, "needs": needs }),
        )
    };
    let tasks: serde_json::Map<String, Value> = (0..STEPS).map(step).collect();
    let mut client = BenchClient::connect(address).await?;
    let definition = json!({ "name": "ten", "tasks": tasks }).to_string();
    expect(client.post("/api/v1/workflows", &definition).await?, 201)?;
    let wal = storage.log_bytes(None).await?;
    let (began, window) = (Instant::now(), Duration::from_secs(seconds));
    let finished = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut working = JoinSet::new();
    let credits = concurrency.div_ceil(workers).max(1);
    for n in 0..workers {
        let (id, pattern) = (format!("bench-{n}"), "bench.flow.v1".to_owned());
        let worker = BenchWorker { id, pattern, credits, wait: "1s" };
        let stop = stop.clone();
        working.spawn(async move {
            let mut client = BenchClient::connect(address).await?;
            let mut held = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                (_, held) = worker.work(&mut client, &held).await?;
            }
            Ok::<_, String>(Vec::new())
        });
    }
    // Producers wait for the end of each run, so `concurrency` runs are in flight.
    let mut producing = JoinSet::new();
    for _ in 0..concurrency {
        let finished = finished.clone();
        producing.spawn(async move {
            let mut client = BenchClient::connect(address).await?;
            let mut samples = Vec::new();
            while began.elapsed() < window {
                let sent_at = Instant::now();
                expect(client.post("/api/v1/workflows/ten/trigger?wait=30s", PAYLOAD).await?, 201)?;
                samples.push(now_ms(sent_at));
                finished.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, String>(samples)
        });
    }
    let samples = joined(producing).await?;
    let elapsed = began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    joined(working).await?;
    let count = finished.load(Ordering::Relaxed) * STEPS as u64;
    let steps = count as f64;
    let rate = steps / elapsed;
    let wal = storage.log_bytes(None).await?.zip(wal).map(|(after, before)| after - before);
    let ok = rate > 0.0;
    let figures = figure(&server, "flow10_external", "steps/s", Measured { count, rate, samples, ok });
    Ok(Figures { wal_bytes_per_step: wal.map(|bytes| bytes as f64 / steps), ..figures })
}

fn expect(status: u16, expected: u16) -> Result<(), String> {
    if status == expected { Ok(()) } else { Err(format!("the server answered {status} instead of {expected}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_tokens_are_found_in_an_answer() {
        let text = r#"{"data":{"acks":[{"task_id":"task_x","status":"recorded"}],"leases":[],"tasks":[
            {"task_id":"task_a","type":"t","claim_token":"1-2"},{"task_id":"task_b","type":"t","claim_token":"3-4"}]}}"#;
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(claimed_tasks(text), [pair("task_a", "1-2"), pair("task_b", "3-4")]);
        assert!(claimed_tasks(r#"{"data":{"tasks":[]}}"#).is_empty());
    }
}
