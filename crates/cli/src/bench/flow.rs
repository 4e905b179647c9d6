//! Workloads that run workflows in this process, without HTTP.

use super::{BenchStore, Figures, Load, ORG, ceiling, machine, now_ms, open};
use engine::services::Resolved;
use engine::{Engine, StartRequest};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use store::RunFilter;

/// How long to wait for a run; no run of a benchmark takes longer.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// `steps` no-op steps in a row.
pub fn chain(steps: usize) -> serde_json::Value {
    let step = |i: usize| {
        let needs = if i == 0 { json!([]) } else { json!([format!("s{}", i - 1)]) };
        (format!("s{i}"), json!({ "noop": {}, "needs": needs }))
    };
    json!({ "name": format!("chain-{steps}"), "tasks": (0..steps).map(step).collect::<serde_json::Map<_, _>>() })
}

pub fn compile(definition: &serde_json::Value) -> Result<lang::Compiled, String> {
    let tree = lang::read(definition.to_string().as_bytes(), lang::Syntax::Json).map_err(|m| format!("{:?}", m.0))?;
    lang::compile(&tree).map_err(|problems| format!("{problems:?}"))
}

pub async fn create(engine: &Engine, definition: &serde_json::Value) -> Result<Arc<Resolved>, String> {
    let compiled = compile(definition)?;
    engine.workflows.create(ORG, &compiled, None).await.map_err(|e| e.to_string())?;
    let found = engine.workflows.resolve(ORG, &compiled.meta.name).await.map_err(|e| e.to_string())?;
    found.ok_or_else(|| "the workflow is gone".into())
}

/// Starts a run and waits for its end.
async fn run_once(engine: &Engine, workflow: &Arc<Resolved>) -> Result<bool, String> {
    let body = bytes::Bytes::from_static(br#"{"order_id":123,"email":"someone@example.com"}"#);
    run_with(engine, workflow, body).await
}

/// The same with a body of its own.
pub async fn run_with(engine: &Engine, workflow: &Arc<Resolved>, body: bytes::Bytes) -> Result<bool, String> {
    let request = StartRequest::new(ORG, workflow.clone(), body);
    let (_, has_ended) = engine.runs.run(request, WAIT_MAX).await.map_err(|e| e.to_string())?;
    Ok(has_ended)
}

/// Keeps a number of runs in flight for the whole window.
pub async fn throughput(storage: &BenchStore, load: &Load) -> Result<Figures, String> {
    let Load { steps, concurrency, seconds, preload } = *load;
    let location = storage.store("flow").await?;
    if preload > 0 {
        ceiling::fill(&location, preload).await?;
    }
    let engine = open(&location).await?;
    let workflow = create(&engine, &chain(steps)).await?;
    run_once(&engine, &workflow).await?;
    let rss_idle_mb = machine::rss_mb();
    let (wal, cpu, began) = (storage.log_bytes(Some(&engine)).await?, machine::cpu_s(), Instant::now());
    let until = began + Duration::from_secs(seconds);
    let done = Arc::new(AtomicU64::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..concurrency {
        let (engine, workflow, done) = (engine.clone(), workflow.clone(), done.clone());
        clients.spawn(async move {
            let mut samples = Vec::new();
            while Instant::now() < until {
                let started = Instant::now();
                if !run_once(&engine, &workflow).await? {
                    return Err("a run did not end".to_owned());
                }
                samples.push(now_ms(started));
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(samples)
        });
    }
    let mut samples = Vec::new();
    while let Some(joined) = clients.join_next().await {
        samples.extend(joined.map_err(|e| e.to_string())??);
    }
    let elapsed = began.elapsed().as_secs_f64();
    let runs = done.load(Ordering::Relaxed);
    let total_steps = runs as f64 * steps as f64;
    let wal = storage.log_bytes(Some(&engine)).await?.zip(wal).map(|(after, before)| after - before);
    let used = machine::cpu_s().zip(cpu).map(|(after, before)| after - before);
    let ok = all_completed(&engine, runs + 1 + preload).await?;
    let (rate, unit) = if steps == 1 { (runs as f64 / elapsed, "runs/s") } else { (total_steps / elapsed, "steps/s") };
    let figures = Figures {
        rate_per_s: Some(rate),
        unit: Some(unit),
        wal_bytes_per_step: wal.map(|bytes| bytes as f64 / total_steps),
        cpu_s_per_1k_steps: used.map(|s| s / total_steps * 1_000.0),
        rss_idle_mb,
        rss_peak_mb: machine::rss_peak_mb(),
        ok,
        ..Default::default()
    };
    engine.stop().await;
    Ok(figures.latencies(samples))
}

/// One run at a time.
pub async fn latency(storage: &BenchStore, steps: usize, seconds: u64) -> Result<Figures, String> {
    let engine = open(&storage.store("latency").await?).await?;
    let workflow = create(&engine, &chain(steps)).await?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut samples = Vec::new();
    while Instant::now() < until {
        let started = Instant::now();
        if !run_once(&engine, &workflow).await? {
            return Err("a run did not end".into());
        }
        samples.push(now_ms(started));
    }
    let ok = all_completed(&engine, samples.len() as u64).await?;
    engine.stop().await;
    Ok(Figures { ok, ..Default::default() }.latencies(samples))
}

/// 1,000 parallel steps and a join, one run at a time.
pub async fn fanout(storage: &BenchStore, seconds: u64) -> Result<Figures, String> {
    let engine = open(&storage.store("fanout").await?).await?;
    let names: Vec<String> = (0..1_000).map(|i| format!("s{i}")).collect();
    let mut tasks: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!({ "noop": {} }))).collect();
    tasks.insert("join".into(), json!({ "noop": {}, "needs": names }));
    let workflow = create(&engine, &json!({ "name": "fanout", "tasks": tasks })).await?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut samples = Vec::new();
    while Instant::now() < until {
        let started = Instant::now();
        run_once(&engine, &workflow).await?;
        samples.push(now_ms(started));
    }
    let ok = all_completed(&engine, samples.len() as u64).await?;
    engine.stop().await;
    Ok(Figures { ok, ..Default::default() }.latencies(samples))
}

/// Many runs that sleep at once: how much memory they need, and how late they wake.
pub async fn sleepers(storage: &BenchStore, count: usize) -> Result<Figures, String> {
    const NAP: f64 = 30_000.0;
    let engine = open(&storage.store("sleepers").await?).await?;
    let definition = json!({ "name": "nap", "tasks": { "nap": { "sleep": "30s" } } });
    let workflow = create(&engine, &definition).await?;
    let rss_idle_mb = machine::rss_mb();
    let began = Instant::now();
    let mut starting = tokio::task::JoinSet::new();
    let producers = 64.min(count.max(1));
    for producer in 0..producers {
        let (engine, workflow) = (engine.clone(), workflow.clone());
        let share = count / producers + usize::from(producer < count % producers);
        starting.spawn(async move {
            for _ in 0..share {
                let request = StartRequest::new(ORG, workflow.clone(), bytes::Bytes::from_static(b"{}"));
                engine.runs.start(request).await.map_err(|e| e.to_string())?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(joined) = starting.join_next().await {
        joined.map_err(|e| e.to_string())??;
    }
    let start_rate = count as f64 / began.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asleep_mb = machine::rss_mb();
    let deadline = Instant::now() + Duration::from_secs(120);
    while engine.metrics().runs_ended_total.get() < count as u64 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut late = Vec::with_capacity(count);
    each_run(&engine, |row| {
        if let Some(finished) = row.finished_at {
            late.push((finished.0 - row.created_at.0) as f64 / 1_000.0 - NAP);
        }
    })
    .await?;
    let ok = late.len() == count && late.iter().all(|ms| *ms >= 0.0);
    engine.stop().await;
    let figures = Figures {
        rate_per_s: Some(start_rate),
        unit: Some("starts/s"),
        rss_idle_mb,
        rss_peak_mb: asleep_mb,
        ok,
        ..Default::default()
    };
    Ok(figures.latencies(late))
}

/// Whether exactly this many runs exist and each has completed.
pub async fn all_completed(engine: &Engine, expected: u64) -> Result<bool, String> {
    let (mut all, mut completed) = (0, 0);
    each_run(engine, |row| {
        all += 1;
        completed += u64::from(row.status == kernel::RunStatus::Completed);
    })
    .await?;
    Ok(all == expected && completed == expected)
}

async fn each_run(engine: &Engine, mut visit: impl FnMut(&store::RunRow)) -> Result<(), String> {
    let mut filter = RunFilter { limit: 10_000, ..Default::default() };
    loop {
        let rows = engine.store().runs(ORG, &filter).await.map_err(|e| e.to_string())?;
        rows.iter().flatten().for_each(&mut visit);
        match rows.last() {
            Some(last) => filter.before = Some(store::listed_id(last)),
            None => return Ok(()),
        }
    }
}
