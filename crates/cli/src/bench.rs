//! `onward bench`: measures how fast this machine runs workflows.
//!
//! Every workload runs the real engine on a real store with fsync on. Afterwards the result is checked: every run that
//! was started has completed, and `verify` finds no problem in the store. Throughput is printed beside a ceiling that
//! is measured right after it: the bare store, writing the same rows and bytes with as many runs in flight.

mod ceiling;
mod flow;
mod http;
mod kernel;
mod loops;
mod machine;
mod queue;
mod remote;
mod storage;

use crate::exit;
use ::kernel::OrgId;
use engine::{ClockMode, Engine, Options};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use storage::BenchStore;
use store::Location;

#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    workload: Workload,
    /// How long to measure, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Runs in flight
    #[arg(long, default_value_t = 256)]
    concurrency: usize,
    /// How many iterations or children one run has (workloads `loop` and `children`)
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    iterations: u64,
    /// How many runs sleep (workload `sleepers`)
    #[arg(long, default_value_t = 10_000)]
    sleepers: usize,
    /// Finished runs (flow1, flow10) or ready tasks (queue) to write into the store before measuring
    #[arg(long, default_value_t = 0)]
    preload: u64,
    /// Steps are tasks for workers that connect over HTTP (flow10)
    #[arg(long)]
    external: bool,
    /// How many workers connect (queue, and flow10 --external)
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Folder in which a temporary folder for the database is made
    #[arg(long, default_value = ".")]
    data: PathBuf,
    /// A Postgres server to measure, as the URL of any of its databases; the databases made on it are removed again
    #[arg(long, env = "ONWARD_BENCH_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Workload {
    /// Runs of one no-op step
    Flow1,
    /// Runs of ten sequential no-op steps
    Flow10,
    /// One run of one step at a time: from start to result
    Latency1,
    /// One run of ten steps at a time: from start to result
    Latency10,
    /// One run of 1,000 parallel steps and a join
    Fanout,
    /// One run of a loop over a no-op, ten iterations at once
    Loop,
    /// One run of a loop over a child run of one no-op, ten at once
    Children,
    /// Many runs sleeping 30 seconds
    Sleepers,
    /// Runs over HTTP to a server process: starting them, waiting for results, steps that call a stub
    Http,
    /// Tasks over HTTP to a server process: submitting one by one and in bulk, claiming, draining
    Queue,
    /// The bare store, writing what flow10 writes
    Ceiling,
    /// The kernel alone: deciding and encoding, without a store
    Kernel,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Workload::Flow1 => "flow1",
            Workload::Flow10 => "flow10",
            Workload::Latency1 => "latency1",
            Workload::Latency10 => "latency10",
            Workload::Fanout => "fanout",
            Workload::Loop => "loop",
            Workload::Children => "children",
            Workload::Sleepers => "sleepers",
            Workload::Http => "http",
            Workload::Queue => "queue",
            Workload::Ceiling => "ceiling",
            Workload::Kernel => "kernel",
        }
    }
}

/// What one workload measured; fields that do not apply to it are null.
#[derive(Default, Serialize)]
pub struct Figures {
    workload: &'static str,
    store: &'static str,
    rate_per_s: Option<f64>,
    unit: Option<&'static str>,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    wal_bytes_per_step: Option<f64>,
    cpu_s_per_1k_steps: Option<f64>,
    rss_idle_mb: Option<f64>,
    rss_peak_mb: Option<f64>,
    ceiling_per_s: Option<f64>,
    ns_per_advance: Option<f64>,
    record_bytes: Option<f64>,
    ok: bool,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let server = match storage::server(arguments.store.as_deref()) {
        Ok(server) => server,
        Err(why) => {
            eprintln!("error: {why}");
            return exit::USAGE.into();
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    match runtime.block_on(measure(&arguments, server)) {
        Err(why) => failed(&why),
        Ok(all) => {
            for figures in &all {
                match arguments.json {
                    true => println!("{}", serde_json::to_string(figures).unwrap_or_default()),
                    false => print(figures),
                }
            }
            if all.iter().all(|figures| figures.ok) { ExitCode::SUCCESS } else { exit::NO.into() }
        }
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    exit::NO.into()
}

async fn measure(arguments: &Arguments, server: Option<String>) -> Result<Vec<Figures>, String> {
    let storage = BenchStore::new(&arguments.data, server)?;
    let measured = measure_on(&storage, arguments).await;
    let cleared = storage.clear().await;
    measured.and_then(|all| cleared.map(|()| all))
}

async fn measure_on(storage: &BenchStore, arguments: &Arguments) -> Result<Vec<Figures>, String> {
    let is_external = arguments.workload == Workload::Flow10 && arguments.external;
    if arguments.external && !is_external {
        return Err("`--external` works with the workload flow10 only".into());
    }
    if is_external || matches!(arguments.workload, Workload::Http | Workload::Queue) {
        let workers = arguments.workers.max(1);
        let mut all = match arguments.workload {
            Workload::Http => http::figures(storage, arguments.seconds).await?,
            Workload::Queue => queue::figures(storage, arguments.seconds, workers, arguments.preload).await?,
            _ => vec![queue::flow(storage, arguments.seconds, workers, arguments.concurrency.max(1)).await?],
        };
        let is_clean = storage.is_clean().await?;
        all.iter_mut().for_each(|figures| {
            figures.store = storage.kind();
            figures.ok &= is_clean;
        });
        return Ok(all);
    }
    let (seconds, concurrency, preload) = (arguments.seconds, arguments.concurrency.max(1), arguments.preload);
    let mut figures = match arguments.workload {
        Workload::Flow1 => flow::throughput(storage, &Load { steps: 1, concurrency, seconds, preload }).await?,
        Workload::Flow10 => flow::throughput(storage, &Load { steps: 10, concurrency, seconds, preload }).await?,
        Workload::Latency1 => flow::latency(storage, 1, seconds).await?,
        Workload::Latency10 => flow::latency(storage, 10, seconds).await?,
        Workload::Fanout => flow::fanout(storage, seconds).await?,
        Workload::Loop => loops::iterations(storage, arguments.iterations, seconds).await?,
        Workload::Children => loops::children(storage, arguments.iterations, seconds).await?,
        Workload::Sleepers => flow::sleepers(storage, arguments.sleepers).await?,
        Workload::Kernel => kernel::advances(10, seconds)?,
        Workload::Http | Workload::Queue => return Err("measured above".into()),
        Workload::Ceiling => {
            let rate = ceiling::steps_per_second(storage, 10, concurrency, seconds).await?;
            Figures { rate_per_s: Some(rate), unit: Some("steps/s"), ok: rate > 0.0, ..Default::default() }
        }
    };
    if arguments.workload != Workload::Ceiling && preload == 0 {
        figures.ok &= storage.is_clean().await?;
    }
    figures.workload = arguments.workload.name();
    figures.store = storage.kind();
    let steps = match arguments.workload {
        Workload::Flow1 => Some(1),
        Workload::Flow10 => Some(10),
        _ => None,
    };
    if let Some(steps) = steps {
        let rate = ceiling::steps_per_second(storage, steps, concurrency, seconds).await?;
        figures.ceiling_per_s = Some(rate);
    }
    Ok(vec![figures])
}

/// How a throughput workload is run.
pub struct Load {
    steps: usize,
    concurrency: usize,
    seconds: u64,
    preload: u64,
}

async fn open(location: &Location) -> Result<Engine, String> {
    let store = location.open().await.map_err(|e| e.to_string())?;
    let options = Options {
        secret: engine::secret::Secret::new([7; 32]),
        public_url: "http://127.0.0.1:7420".into(),
        clock: ClockMode::Real,
        clock_start: None,
        clock_advance: Default::default(),
        accept_clock: false,
        http: Default::default(),
        seed: None,
        node: String::new(),
        retention: None,
        bash: None,
    };
    Engine::open(store, options).await.map_err(|e| e.to_string())
}

const ORG: OrgId = OrgId::DEFAULT;

fn print(figures: &Figures) {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(figures) else { return };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        match value.as_f64() {
            Some(number) => println!("{name:>20}  {number:.3}"),
            None => println!("{name:>20}  {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
        }
    }
}

/// Milliseconds since `started`, on a monotonic clock and not the engine's.
fn now_ms(started: std::time::Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1_000.0
}

/// The value below which this share of the sorted list lies.
fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().checked_sub(1)?);
    sorted.get(index).copied()
}

impl Figures {
    fn latencies(mut self, mut samples: Vec<f64>) -> Figures {
        samples.sort_by(f64::total_cmp);
        self.p50_ms = percentile(&samples, 0.50);
        self.p95_ms = percentile(&samples, 0.95);
        self.p99_ms = percentile(&samples, 0.99);
        self.max_ms = samples.last().copied();
        self
    }
}
