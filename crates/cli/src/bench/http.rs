//! Runs over HTTP, as clients see them: a separate server process, and clients in this process that keep their
//! connections and do as little work as possible. Clients, server and stub share the machine.

use super::remote::{BenchClient, BenchServer, post_repeatedly};
use super::{BenchStore, Figures, now_ms};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The body of every trigger request.
const BODY: &str = r#"{"order_id":123,"email":"someone@example.com"}"#;
const CLIENTS: usize = 64;

/// Every figure of the workload: starting a run, waiting for its result, and runs whose step is a request to a stub on
/// this machine.
pub async fn figures(storage: &BenchStore, seconds: u64) -> Result<Vec<Figures>, String> {
    let stub = stub().await?;
    let server = BenchServer::start(storage).await?;
    let address = server.address;
    let one = json!({ "noop": {} });
    let ten: serde_json::Map<String, Value> = (0..10)
        .map(|i| {
            let needs: Vec<String> = (0..i).rev().take(1).map(|n| format!("s{n}")).collect();
            (format!("s{i}"), json!({ "noop": {}, "needs": needs }))
        })
        .collect();
    let call = json!({ "url": format!("http://{stub}/"), "body": { "id": "{{trigger.body.order_id}}" } });
    let nap = json!({ "sleep": "1d" });
    for (name, tasks) in [
        ("nap", json!({ "s": nap })),
        ("one", json!({ "s": one })),
        ("ten", Value::Object(ten)),
        ("call", json!({ "s": call })),
    ] {
        let definition = json!({ "name": name, "tasks": tasks }).to_string();
        let created = BenchClient::connect(address).await?.post("/api/v1/workflows", &definition).await?;
        if created != 201 {
            return Err(format!("`{name}` was refused with {created}"));
        }
    }
    let window = Duration::from_secs(seconds);
    // A run that sleeps costs one commit to start, and then there is nothing to do for it.
    let (enqueue, wait) = ("/api/v1/workflows/nap/trigger", "/api/v1/workflows/one/trigger?wait=30s");
    let workloads = [
        ("http_enqueue_1", enqueue, 1, "runs/s"),
        ("http_enqueue_64", enqueue, CLIENTS, "runs/s"),
        ("http_latency1", wait, 1, "runs/s"),
        ("http_latency10", "/api/v1/workflows/ten/trigger?wait=30s", 1, "runs/s"),
        ("http_call_64", "/api/v1/workflows/call/trigger?wait=30s", CLIENTS, "runs/s"),
    ];
    let mut all = Vec::new();
    for (workload, path, clients, unit) in workloads {
        let cpu = server.cpu_s();
        let (rate, samples) = load(address, path, clients, window).await?;
        let used = server.cpu_s().zip(cpu).map(|(after, before)| after - before);
        let count = samples.len() as f64;
        let figures = Figures {
            workload,
            rate_per_s: Some(rate),
            unit: Some(unit),
            cpu_s_per_1k_steps: used.map(|s| s / count * 1_000.0),
            rss_peak_mb: server.rss_peak_mb(),
            ok: count > 0.0,
            ..Default::default()
        };
        all.push(figures.latencies(samples));
    }
    Ok(all)
}

/// Lets each of `clients` send one request after the other. Returns requests per second and the time of each.
async fn load(
    address: SocketAddr,
    path: &'static str,
    clients: usize,
    window: Duration,
) -> Result<(f64, Vec<f64>), String> {
    if clients == 1 {
        let work = move || post_repeatedly(address, path, BODY, 201, window);
        let samples = tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())??;
        return Ok((samples.len() as f64 / window.as_secs_f64(), samples));
    }
    let mut connected = Vec::new();
    for _ in 0..clients {
        let mut client = BenchClient::connect(address).await?;
        client.post(path, BODY).await?;
        connected.push(client);
    }
    let began = Instant::now();
    let until = began + window;
    let mut sending = tokio::task::JoinSet::new();
    for mut client in connected {
        sending.spawn(async move {
            let mut samples = Vec::new();
            while Instant::now() < until {
                let sent_at = Instant::now();
                let status = client.post(path, BODY).await?;
                if status != 201 {
                    return Err(format!("{path} answered {status}"));
                }
                samples.push(now_ms(sent_at));
            }
            Ok(samples)
        });
    }
    let mut samples = Vec::new();
    while let Some(joined) = sending.join_next().await {
        samples.extend(joined.map_err(|e| e.to_string())??);
    }
    Ok((samples.len() as f64 / began.elapsed().as_secs_f64(), samples))
}

/// A server that answers every request with 200.
async fn stub() -> Result<SocketAddr, String> {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| e.to_string())?;
    let address = listener.local_addr().map_err(|e| e.to_string())?;
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.set_nodelay(true);
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                let mut read = 0;
                while let Ok(more) = socket.read(&mut buffer[read..]).await {
                    read += more;
                    if more == 0 || read == buffer.len() {
                        return;
                    }
                    if is_request(&buffer[..read]) {
                        read = 0;
                        if socket.write_all(ANSWER).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    Ok(address)
}

/// Whether the bytes hold a whole request.
fn is_request(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|i| i + 4) else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    bytes.len() >= end + length.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_complete_when_its_body_is() {
        assert!(is_request(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"));
        assert!(!is_request(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{"));
    }
}
