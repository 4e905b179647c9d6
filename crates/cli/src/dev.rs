//! `onward dev`: the server for development. Flags become a checked configuration first; nothing acts
//! while parsing. When the server is ready, standard output gets one line; everything else is a log.

use engine::secret::Signer;
use engine::{ClockMode, Engine, HttpOptions, Options};
use kernel::{Span, Timestamp};
use server::App;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::{SqliteStore, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub struct Arguments {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, env = "ONWARD_LISTEN", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// Folder for everything that must survive
    #[arg(long, env = "ONWARD_DATA", default_value = "./.onward")]
    data: PathBuf,
    /// Where runs are stored: `sqlite:PATH` (default: a file in the data folder)
    #[arg(long, env = "ONWARD_STORE")]
    store: Option<String>,
    /// What callback URLs begin with (default: the address listened on)
    #[arg(long, env = "ONWARD_PUBLIC_URL")]
    public_url: Option<String>,
    /// `virtual` lets tests move time with POST /api/v1/dev/clock
    #[arg(long, env = "ONWARD_CLOCK", value_parser = ["real", "virtual"], default_value = "real")]
    clock: String,
    /// Where a new virtual clock begins, for example 2027-03-27T00:00:00Z
    #[arg(long, env = "ONWARD_CLOCK_START")]
    clock_start: Option<String>,
    /// How far a virtual clock jumps at the start, as if nobody had been there for so long
    #[arg(long, env = "ONWARD_CLOCK_ADVANCE")]
    clock_advance: Option<String>,
    /// How long steps under way get to finish after SIGTERM
    #[arg(long, env = "ONWARD_DRAIN_GRACE", default_value = "25s")]
    drain_grace: String,
    /// The key file callback URLs are derived from (default: secret.key in the data folder)
    #[arg(long, env = "ONWARD_SECRET_KEY_FILE")]
    secret_key_file: Option<PathBuf>,
    /// A file with the secret that signs outgoing requests (default: they are not signed)
    #[arg(long, env = "ONWARD_SIGNING_SECRET_FILE")]
    signing_secret_file: Option<PathBuf>,
    /// HTTP steps of one organisation under way at once, 1 to 512 (default: no limit of its own)
    #[arg(long, env = "ONWARD_HTTP_PER_ORGANISATION", value_parser = clap::value_parser!(u16).range(1..=512))]
    http_per_organisation: Option<u16>,
}

/// Flags that were understood.
struct Config {
    listen: SocketAddr,
    data: PathBuf,
    database: PathBuf,
    public_url: Option<String>,
    clock: ClockMode,
    clock_start: Option<Timestamp>,
    clock_advance: Span,
    secret: PathBuf,
    signing_secret: Option<PathBuf>,
    http_per_organisation: Option<usize>,
    grace: Duration,
}

/// Why the process ends, as an exit code.
const DRAINED: u8 = 0;
const FLAGS: u8 = 2;
pub const INPUT_OUTPUT: u8 = 74;
const IN_USE: u8 = 75;

/// After the steps, open requests get this long to finish.
const CLOSING: Duration = Duration::from_secs(2);

pub fn run(arguments: Arguments) -> ExitCode {
    let config = match check(arguments) {
        Ok(config) => config,
        Err(message) => {
            eprintln!("error: {message}");
            return FLAGS.into();
        }
    };
    start_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return INPUT_OUTPUT.into();
        }
    };
    let code = match runtime.block_on(serve(config)) {
        Ok(()) => DRAINED,
        Err((code, message)) => {
            eprintln!("error: {message}");
            code
        }
    };
    runtime.shutdown_timeout(Duration::from_secs(1));
    code.into()
}

fn check(arguments: Arguments) -> Result<Config, String> {
    if !arguments.listen.ip().is_loopback() {
        return Err(format!("`dev` asks for no key and listens on loopback only, not on {}", arguments.listen.ip()));
    }
    let database = database(&arguments.data, arguments.store.as_deref())?;
    let public_url = arguments.public_url.map(|url| match url.strip_suffix('/').unwrap_or(&url) {
        url if (url.starts_with("http://") || url.starts_with("https://")) && !url.contains(['?', '#', '@']) => {
            Ok(url.to_owned())
        }
        url => Err(format!("`{url}` is not an http or https address callback URLs could begin with")),
    });
    let clock = if arguments.clock == "virtual" { ClockMode::Virtual } else { ClockMode::Real };
    let clock_start = match arguments.clock_start {
        Some(_) if clock == ClockMode::Real => return Err("`--clock-start` needs `--clock virtual`".into()),
        Some(text) => {
            Some(api::parse_rfc3339(&text).ok_or(format!("`{text}` is not a time such as 2027-03-27T00:00:00Z"))?)
        }
        None => None,
    };
    let clock_advance = match arguments.clock_advance {
        Some(_) if clock == ClockMode::Real => return Err("`--clock-advance` needs `--clock virtual`".into()),
        Some(text) => Span::parse(&text).ok_or(format!("`{text}` is not a duration such as 3h"))?,
        None => Span(0),
    };
    let grace = Span::parse(&arguments.drain_grace)
        .ok_or(format!("`{}` is not a duration such as 25s", arguments.drain_grace))?;
    let grace = Duration::from_micros(grace.0);
    let secret = arguments.secret_key_file.unwrap_or_else(|| arguments.data.join("secret.key"));
    Ok(Config {
        listen: arguments.listen,
        data: arguments.data,
        database,
        public_url: public_url.transpose()?,
        clock,
        clock_start,
        clock_advance,
        secret,
        signing_secret: arguments.signing_secret_file,
        http_per_organisation: arguments.http_per_organisation.map(usize::from),
        grace,
    })
}

/// The file runs are stored in, by the flags `--data` and `--store`.
pub fn database(data: &Path, store: Option<&str>) -> Result<PathBuf, String> {
    match store {
        None => Ok(data.join("onward.db")),
        Some(text) => match text.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
            _ => Err(format!("`{text}` is not a store this release can use; expected `sqlite:PATH`")),
        },
    }
}

fn start_logging() {
    use std::io::IsTerminal;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("ONWARD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match std::io::stderr().is_terminal() {
        true => builder.init(),
        false => builder.json().init(),
    }
}

type Failure = (u8, String);

async fn serve(config: Config) -> Result<(), Failure> {
    let store = open_store(&config)?;
    let secret = engine::secret::Secret::open(&config.secret).map_err(|e| (INPUT_OUTPUT, e.to_string()))?;
    let signer = config.signing_secret.as_deref().map(open_signer).transpose()?;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.map_err(|e| (INPUT_OUTPUT, format!("cannot listen on {}: {e}", config.listen)))?;
    let address = listener.local_addr().map_err(|e| (INPUT_OUTPUT, e.to_string()))?;
    let local_url = format!("http://{address}");
    let public_url = config.public_url.unwrap_or_else(|| local_url.clone());
    let hosts = host_of(&public_url).into_iter().collect();
    let (clock, clock_start, clock_advance) = (config.clock, config.clock_start, config.clock_advance);
    let http = HttpOptions { signer, per_organisation: config.http_per_organisation, desk: None };
    let options = Options {
        secret,
        public_url,
        clock,
        clock_start,
        clock_advance,
        http,
        seed: None,
        node: String::new(),
        retention: None,
    };
    let engine = Engine::open(store, options).await.map_err(|error| match error {
        engine::Error::Refused(why) => (FLAGS, why),
        engine::Error::InUse(why) => (IN_USE, why),
        other => (INPUT_OUTPUT, other.to_string()),
    })?;
    let app = App::new(engine.clone(), hosts);
    let stop = Arc::new(tokio::sync::Notify::new());
    let serving = {
        let stop = stop.clone();
        tokio::spawn(server::serve(listener, app.clone(), async move { stop.notified().await }))
    };
    println!("onward ready {local_url}");
    tracing::info!(data = %config.data.display(), clock = config.clock.as_str(), "ready at {local_url}");
    let outcome = tokio::select! {
        () = asked_to_stop() => Ok(()),
        why = engine.failed() => Err((INPUT_OUTPUT, why)),
    };
    app.drain();
    if outcome.is_ok() {
        tracing::info!("draining");
        let drained = async {
            engine.drain(config.grace).await;
            stop.notify_one();
            let _ = tokio::time::timeout(CLOSING, serving).await;
        };
        // A second signal means now; everything acknowledged is durable anyway.
        tokio::select! {
            () = drained => {}
            () = asked_to_stop() => {}
        }
        engine.stop().await;
    }
    outcome
}

fn open_store(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.data);
    made.map_err(|e| (INPUT_OUTPUT, format!("cannot make the data folder {}: {e}", config.data.display())))?;
    let store = SqliteStore::open(&config.database).map_err(|error| match error {
        store::Error::InUse(_) => (IN_USE, error.to_string()),
        other => (INPUT_OUTPUT, other.to_string()),
    })?;
    Ok(Arc::new(store))
}

fn open_signer(path: &Path) -> Result<Signer, Failure> {
    Signer::open(path).map_err(|error| match error.kind() {
        // It was read, and cannot be meant.
        std::io::ErrorKind::InvalidData => (FLAGS, error.to_string()),
        _ => (INPUT_OUTPUT, format!("cannot read the signing secret {}: {error}", path.display())),
    })
}

fn host_of(url: &str) -> Option<String> {
    let rest = url.split_once("://")?.1;
    let authority = rest.split('/').next()?;
    let host = match authority.strip_prefix('[') {
        Some(v6) => format!("[{}]", v6.split(']').next()?),
        None => authority.split(':').next()?.to_owned(),
    };
    Some(host)
}

/// SIGTERM or Ctrl-C.
async fn asked_to_stop() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
