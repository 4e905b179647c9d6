//! `onward bench`: how fast this machine runs workflows, measured honestly.
//!
//! Every workload runs the real engine on a real store with fsync on, is checked afterwards (every run
//! that was started has completed, and `verify` finds nothing wrong with the store), and is printed beside the ceiling of the same
//! moment: the bare store writing the same rows and bytes with the same number in flight.

mod ceiling;
mod flow;
mod ground;
mod http;
mod kernel;
mod machine;
mod queue;
mod remote;

use ::kernel::OrgId;
use engine::{ClockMode, Engine, Options};
use ground::Ground;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use store::Location;

#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    workload: Workload,
    /// Length of the measured window
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Runs in flight
    #[arg(long, default_value_t = 256)]
    concurrency: usize,
    /// How many runs sleep (workload `sleepers`)
    #[arg(long, default_value_t = 10_000)]
    sleepers: usize,
    /// Finished runs (flow1, flow10) or tasks that wait (queue) in the store before the measurement begins
    #[arg(long, default_value_t = 0)]
    preload: u64,
    /// Steps are done by workers outside, over HTTP (flow10)
    #[arg(long)]
    external: bool,
    /// Workers that are connected (queue, and flow10 --external)
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Folder for the database; a new one below it is made and removed
    #[arg(long, default_value = ".")]
    data: PathBuf,
    /// A Postgres to measure, by the address of any of its databases; new ones are made on it and removed
    #[arg(long, env = "ONWARD_BENCH_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Print one JSON object instead of words
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Workload {
    /// Runs of one no-op step
    Flow1,
    /// Runs of ten sequential no-op steps
    Flow10,
    /// One run at a time, one step: start to result
    Latency1,
    /// One run at a time, ten steps: start to result
    Latency10,
    /// One run of 1,000 parallel steps and a join
    Fanout,
    /// Many runs sleeping 30 seconds
    Sleepers,
    /// Over HTTP to a server process: accepting runs, waiting for results, steps that call a stub
    Http,
    /// Tasks over HTTP to a server process: recording them one by one and in bulk, claiming, draining
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
            Workload::Sleepers => "sleepers",
            Workload::Http => "http",
            Workload::Queue => "queue",
            Workload::Ceiling => "ceiling",
            Workload::Kernel => "kernel",
        }
    }
}

/// What one workload measured; fields that mean nothing for it are null.
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
    let server = match ground::server(arguments.store.as_deref()) {
        Ok(server) => server,
        Err(why) => {
            eprintln!("error: {why}");
            return crate::EXIT_USAGE.into();
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
            if all.iter().all(|figures| figures.ok) { ExitCode::SUCCESS } else { 1.into() }
        }
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    1.into()
}

async fn measure(arguments: &Arguments, server: Option<String>) -> Result<Vec<Figures>, String> {
    let ground = Ground::new(&arguments.data, server)?;
    let measured = measure_on(&ground, arguments).await;
    let cleared = ground.clear().await;
    measured.and_then(|all| cleared.map(|()| all))
}

async fn measure_on(ground: &Ground, arguments: &Arguments) -> Result<Vec<Figures>, String> {
    let is_external = arguments.workload == Workload::Flow10 && arguments.external;
    if arguments.external && !is_external {
        return Err("`--external` is for flow10".into());
    }
    if is_external || matches!(arguments.workload, Workload::Http | Workload::Queue) {
        let workers = arguments.workers.max(1);
        let mut all = match arguments.workload {
            Workload::Http => http::figures(ground, arguments.seconds).await?,
            Workload::Queue => queue::figures(ground, arguments.seconds, workers, arguments.preload).await?,
            _ => vec![queue::flow(ground, arguments.seconds, workers, arguments.concurrency.max(1)).await?],
        };
        let is_clean = ground.is_clean().await?;
        all.iter_mut().for_each(|figures| {
            figures.store = ground.kind();
            figures.ok &= is_clean;
        });
        return Ok(all);
    }
    let (seconds, concurrency, preload) = (arguments.seconds, arguments.concurrency.max(1), arguments.preload);
    let mut figures = match arguments.workload {
        Workload::Flow1 => flow::throughput(ground, &Load { steps: 1, concurrency, seconds, preload }).await?,
        Workload::Flow10 => flow::throughput(ground, &Load { steps: 10, concurrency, seconds, preload }).await?,
        Workload::Latency1 => flow::latency(ground, 1, seconds).await?,
        Workload::Latency10 => flow::latency(ground, 10, seconds).await?,
        Workload::Fanout => flow::fanout(ground, seconds).await?,
        Workload::Sleepers => flow::sleepers(ground, arguments.sleepers).await?,
        Workload::Kernel => kernel::advances(10, seconds)?,
        Workload::Http | Workload::Queue => return Err("measured above".into()),
        Workload::Ceiling => {
            let rate = ceiling::steps_per_second(ground, 10, concurrency, seconds).await?;
            Figures { rate_per_s: Some(rate), unit: Some("steps/s"), ok: rate > 0.0, ..Default::default() }
        }
    };
    if arguments.workload != Workload::Ceiling && preload == 0 {
        figures.ok &= ground.is_clean().await?;
    }
    figures.workload = arguments.workload.name();
    figures.store = ground.kind();
    let steps = match arguments.workload {
        Workload::Flow1 => Some(1),
        Workload::Flow10 => Some(10),
        _ => None,
    };
    if let Some(steps) = steps {
        let rate = ceiling::steps_per_second(ground, steps, concurrency, seconds).await?;
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
        http: Default::default(),
        seed: None,
        node: String::new(),
        retention: None,
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

/// A clock for latencies: monotonic, apart from the engine's.
fn now_ms(started: std::time::Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1_000.0
}

/// The value below which this share of a sorted list lies.
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
