//! One large run at a time: a loop over a list, with a no-op or a child run for each item.

use super::flow::{all_completed, create, run_with};
use super::{BenchStore, Figures, machine, now_ms, open};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How many iterations are open at once.
const CONCURRENCY: u32 = 10;

/// Each iteration is a no-op.
pub async fn iterations(storage: &BenchStore, count: u64, seconds: u64) -> Result<Figures, String> {
    let work = json!({ "noop": {} });
    measure(storage, &LoopWorkload { name: "loop", work, runs: 1, unit: "iterations/s" }, count, seconds).await
}

/// Each iteration waits for a run of a workflow with one no-op.
pub async fn children(storage: &BenchStore, count: u64, seconds: u64) -> Result<Figures, String> {
    let work = json!({ "subworkflow": { "workflow": CHILD, "input": "{{item}}" } });
    measure(storage, &LoopWorkload { name: "children", work, runs: 1 + count, unit: "children/s" }, count, seconds)
        .await
}

const CHILD: &str = "bench-child";

struct LoopWorkload {
    name: &'static str,
    /// The step inside the loop.
    work: Value,
    /// How many runs one run of the loop makes, itself included.
    runs: u64,
    unit: &'static str,
}

/// Starts run after run, each when the one before it has ended. A latency is one whole run.
async fn measure(storage: &BenchStore, workload: &LoopWorkload, count: u64, seconds: u64) -> Result<Figures, String> {
    let LoopWorkload { name, work, runs, unit } = workload;
    let engine = open(&storage.store(name).await?).await?;
    create(&engine, &json!({ "name": CHILD, "tasks": { "work": { "noop": {} } } })).await?;
    let each = json!({ "items": "trigger.body.items", "concurrency": CONCURRENCY, "max_iterations": count, "tasks": { "work": work } });
    let workflow = create(&engine, &json!({ "name": name, "tasks": { "each": { "loop": each } } })).await?;
    let body = bytes::Bytes::from(json!({ "items": (0..count).collect::<Vec<_>>() }).to_string());
    let (rss_idle_mb, cpu, began) = (machine::rss_mb(), machine::cpu_s(), Instant::now());
    let until = began + Duration::from_secs(seconds);
    let mut samples = Vec::new();
    while Instant::now() < until {
        let started = Instant::now();
        if !run_with(&engine, &workflow, body.clone()).await? {
            return Err("a run did not end within a minute".into());
        }
        samples.push(now_ms(started));
    }
    let total = (samples.len() as u64 * count) as f64;
    let used = machine::cpu_s().zip(cpu).map(|(after, before)| after - before);
    let figures = Figures {
        rate_per_s: Some(total / began.elapsed().as_secs_f64()),
        unit: Some(unit),
        cpu_s_per_1k_steps: used.map(|s| s / total * 1_000.0),
        rss_idle_mb,
        rss_peak_mb: machine::rss_peak_mb(),
        ok: all_completed(&engine, samples.len() as u64 * runs).await?,
        ..Default::default()
    };
    engine.stop().await;
    Ok(figures.latencies(samples))
}
