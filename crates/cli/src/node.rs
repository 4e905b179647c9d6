//! A server process: what `onward dev` and `onward serve` have in common. The flags are checked and become a
//! configuration before anything is opened. When the server is ready, it prints one line to standard output;
//! everything else is a log line on standard error.

use crate::bash_steps;
use crate::exit;
use engine::secret::{Secret, Signer};
use engine::{ClockMode, Engine, HttpOptions, Options};
use kernel::{Span, Timestamp};
use server::{Access, App};
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::{Location, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub struct Flags {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, env = "ONWARD_LISTEN", default_value = "127.0.0.1:7420")]
    pub listen: SocketAddr,
    /// Folder for everything that must survive a restart
    #[arg(long, env = "ONWARD_DATA", default_value = "./.onward")]
    pub data: PathBuf,
    /// Where runs are stored: `sqlite:PATH` or `postgres://…` (default: a file in the data folder)
    #[arg(long, env = "ONWARD_STORE", hide_env_values = true)]
    store: Option<String>,
    /// What callback URLs begin with (default: the address that the server listens on)
    #[arg(long, env = "ONWARD_PUBLIC_URL")]
    public_url: Option<String>,
    /// How long running steps get to finish after SIGTERM
    #[arg(long, env = "ONWARD_DRAIN_GRACE", default_value = "25s")]
    drain_grace: String,
    /// The key file callback URLs are derived from (default: secret.key in the data folder)
    #[arg(long, env = "ONWARD_SECRET_KEY_FILE")]
    secret_key_file: Option<PathBuf>,
    /// A file with the secret that signs outgoing requests (default: they are not signed)
    #[arg(long, env = "ONWARD_SIGNING_SECRET_FILE")]
    signing_secret_file: Option<PathBuf>,
    /// How many HTTP steps of one organisation may run at once, 1 to 512 (default: no limit per organisation)
    #[arg(long, env = "ONWARD_HTTP_PER_ORGANISATION", value_parser = clap::value_parser!(u16).range(1..=512))]
    http_per_organisation: Option<u16>,
    /// Send requests also to hosts that are down or asked for a pause
    #[arg(long, env = "ONWARD_NO_HOST_BACKOFF")]
    no_host_backoff: bool,
    /// Start at the present time although the store has records of the future, written with a wrong clock
    #[arg(long)]
    accept_clock: bool,
    /// How long runs are kept after they end, for example 30d (default: until they are deleted)
    #[arg(long, env = "ONWARD_RETENTION")]
    retention: Option<String>,
}

/// Flags that were checked.
pub struct Config {
    listen: SocketAddr,
    data: PathBuf,
    store: Location,
    public_url: Option<String>,
    pub clock: ClockArguments,
    accept_clock: bool,
    secret: PathBuf,
    signing_secret: Option<PathBuf>,
    http_per_organisation: Option<usize>,
    ignore_host_backoff: bool,
    grace: Duration,
    retention: Option<Span>,
    /// Set if this process runs the commands of bash steps.
    bash: Option<bash_steps::Settings>,
}

/// Which clock the engine uses, and where it starts.
pub struct ClockArguments {
    pub mode: ClockMode,
    pub start: Option<Timestamp>,
    pub advance: Span,
}

impl ClockArguments {
    pub const REAL: ClockArguments = ClockArguments { mode: ClockMode::Real, start: None, advance: Span(0) };
}

/// Which requests the server answers. It becomes an [`Access`] once the public URL is known.
pub enum AccessMode {
    /// Requests from this machine.
    Local,
    /// Requests that carry the admin key.
    Key(server::KeyHash),
}

/// Clients that wait for the end of a run must still be able to read how it ended.
const RETENTION_MIN: Span = Span::from_secs(3600);
const RETENTION_MAX: Span = Span::from_days(36_500);
/// The longest time to drain, of servers and workers.
pub const DRAIN_MAX: Span = Span::from_days(1);

/// How long open requests get to finish after the steps have drained.
const CLOSING: Duration = Duration::from_secs(2);

/// Runs the server until it ends. Calls `access_mode` once the data folder exists.
pub fn run(config: Result<Config, String>, access_mode: impl FnOnce(&Path) -> Result<AccessMode, Failure>) -> ExitCode {
    let config = match config {
        Ok(config) => config,
        Err(message) => {
            eprintln!("error: {message}");
            return exit::USAGE.into();
        }
    };
    start_logging("info");
    let until_signal = async |local_url: String| {
        println!("onward ready {local_url}");
        stop_signal().await;
    };
    match with_server(config, access_mode, until_signal) {
        Ok(()) => exit::OK.into(),
        Err((code, message)) => {
            eprintln!("error: {message}");
            code.into()
        }
    }
}

/// Does `work` while a server in this process is up. It gets the address of the server.
pub fn with_server<T>(
    config: Config,
    access_mode: impl FnOnce(&Path) -> Result<AccessMode, Failure>,
    work: impl AsyncFnOnce(String) -> T,
) -> Result<T, Failure> {
    // Before secrets are read. Commands run as the same user where each cannot have its own.
    if config.bash.is_some() {
        let protected = bash::protect_this_process();
        let failed = |error| format!("cannot protect this process from the commands it runs: {error}");
        protected.map_err(|error| (exit::INPUT_OUTPUT, failed(error)))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| (exit::INPUT_OUTPUT, error.to_string()))?;
    let outcome = make_folder(&config.data).and_then(|()| access_mode(&config.data));
    let done = outcome.and_then(|mode| runtime.block_on(serve(config, mode, work)));
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

pub fn check(flags: Flags, clock: ClockArguments, bash: Option<bash_steps::Settings>) -> Result<Config, String> {
    let store = location(&flags.data, flags.store.as_deref())?;
    let public_url = flags.public_url.map(|url| match url.strip_suffix('/').unwrap_or(&url) {
        url if (url.starts_with("http://") || url.starts_with("https://")) && !url.contains(['?', '#', '@']) => {
            Ok(url.to_owned())
        }
        url => Err(format!("`--public-url {url}` is not an http or https URL without query, fragment and user")),
    });
    let grace = duration("--drain-grace", &flags.drain_grace, "25s", Span(0)..=DRAIN_MAX)?;
    let retention = flags.retention.map(|text| duration("--retention", &text, "30d", RETENTION_MIN..=RETENTION_MAX));
    let secret = flags.secret_key_file.unwrap_or_else(|| flags.data.join("secret.key"));
    Ok(Config {
        listen: flags.listen,
        data: flags.data,
        store,
        public_url: public_url.transpose()?,
        clock,
        accept_clock: flags.accept_clock,
        secret,
        signing_secret: flags.signing_secret_file,
        http_per_organisation: flags.http_per_organisation.map(usize::from),
        ignore_host_backoff: flags.no_host_backoff,
        grace: Duration::from_micros(grace.0),
        retention: retention.transpose()?,
        bash,
    })
}

/// A server of this process alone, on a free port of loopback.
pub fn private(data: PathBuf, bash: bash_steps::Settings) -> Config {
    Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        store: Location::Sqlite(data.join("onward.db")),
        secret: data.join("secret.key"),
        data,
        public_url: None,
        clock: ClockArguments::REAL,
        accept_clock: false,
        signing_secret: None,
        http_per_organisation: None,
        ignore_host_backoff: false,
        grace: Duration::from_secs(25),
        retention: None,
        bash: Some(bash),
    }
}

/// The value of a flag that is a duration.
pub fn duration(flag: &str, text: &str, example: &str, range: RangeInclusive<Span>) -> Result<Span, String> {
    let span = Span::parse(text).ok_or_else(|| format!("`{flag} {text}` is not a duration such as {example}"))?;
    if !range.contains(&span) {
        let (least, most) = range.into_inner();
        return Err(format!("`{flag} {text}` is out of range: allowed is {least} to {most}"));
    }
    Ok(span)
}

/// Where runs are stored, according to the flags `--data` and `--store`.
pub fn location(data: &Path, store: Option<&str>) -> Result<Location, String> {
    match store {
        None => Ok(Location::Sqlite(data.join("onward.db"))),
        Some(text) => text.parse().map_err(|error: store::Error| format!("`--store` cannot be used: {error}")),
    }
}

/// `level` is what is logged unless `ONWARD_LOG` says otherwise.
pub fn start_logging(level: &str) {
    use std::io::IsTerminal;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("ONWARD_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match std::io::stderr().is_terminal() {
        true => builder.init(),
        false => builder.json().init(),
    }
}

/// An exit code and a message.
pub type Failure = (u8, String);

async fn serve<T>(config: Config, mode: AccessMode, work: impl AsyncFnOnce(String) -> T) -> Result<T, Failure> {
    let store = open_store(&config.store).await?;
    let secret = Secret::open(&config.secret).map_err(|e| (exit::INPUT_OUTPUT, e.to_string()))?;
    if let Location::Postgres(_) = config.store {
        share_secret(&*store, &secret, &config.secret).await?;
    }
    let signer = config.signing_secret.as_deref().map(open_signer).transpose()?;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.map_err(|e| (exit::INPUT_OUTPUT, format!("cannot listen on {}: {e}", config.listen)))?;
    let address = listener.local_addr().map_err(|e| (exit::INPUT_OUTPUT, e.to_string()))?;
    let local_url = format!("http://{address}");
    let public_url = config.public_url.unwrap_or_else(|| local_url.clone());
    let access = match mode {
        AccessMode::Local => Access::Local { hosts: host_of(&public_url).into_iter().collect() },
        AccessMode::Key(key) => Access::Key(key),
    };
    let ClockArguments { mode: clock, start: clock_start, advance: clock_advance } = config.clock;
    let http = HttpOptions {
        signer,
        per_organisation: config.http_per_organisation,
        ignore_host_backoff: config.ignore_host_backoff,
        fake_network: None,
    };
    // Held for as long as the process lives.
    let (node, _lock) = match config.store {
        Location::Postgres(_) => node_name(&config.data)?,
        Location::Sqlite(_) => Default::default(),
    };
    let bash = match config.bash {
        Some(settings) => {
            let mut secrets = vec![config.secret];
            secrets.extend(config.signing_secret);
            if let Location::Sqlite(path) = &config.store {
                secrets.extend(["", "-wal", "-shm"].map(|end| PathBuf::from(format!("{}{end}", path.display()))));
            }
            Some(settings.options(&config.data, secrets)?)
        }
        None => None,
    };
    let options = Options {
        secret,
        public_url: public_url.clone(),
        clock,
        clock_start,
        clock_advance,
        accept_clock: config.accept_clock,
        http,
        seed: None,
        node,
        retention: config.retention,
        bash,
    };
    let engine = Engine::open(store, options).await.map_err(|error| match error {
        engine::Error::Refused(why) => (exit::USAGE, why),
        engine::Error::InUse(why) => (exit::IN_USE, why),
        other => (exit::INPUT_OUTPUT, other.to_string()),
    })?;
    let app = App::new(engine.clone(), access);
    let stop = Arc::new(tokio::sync::Notify::new());
    let serving = {
        let stop = stop.clone();
        let until = async move { stop.notified().await };
        tokio::spawn(server::serve(listener, app.clone(), until))
    };
    if address.ip().is_unspecified() && public_url == local_url {
        tracing::warn!("callback URLs begin with {local_url}, which no client can reach; set `--public-url`");
    }
    tracing::info!(data = %config.data.display(), store = %config.store, clock = clock.as_str(), "ready at {local_url}");
    let outcome = tokio::select! {
        done = work(local_url.clone()) => Ok(done),
        why = engine.failed() => Err((exit::INPUT_OUTPUT, why)),
    };
    app.drain();
    if outcome.is_ok() {
        tracing::info!("draining");
        let drained = async {
            engine.drain(config.grace).await;
            stop.notify_one();
            let _ = tokio::time::timeout(CLOSING, serving).await;
        };
        // A second signal ends the process at once; everything acknowledged is durable anyway.
        tokio::select! {
            () = drained => {}
            () = stop_signal() => {}
        }
        engine.stop().await;
    }
    outcome
}

/// Makes the data folder, which only the server's user may read.
fn make_folder(data: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data);
    made.map_err(|e| (exit::INPUT_OUTPUT, format!("cannot make the data folder {}: {e}", data.display())))
}

/// The name of this node among the nodes of its database, and the lock on it. The name is the same after a restart, so
/// that a node need not wait until its own old lease expires. Two processes with one name would take each other's
/// runs over and over, so the second one is refused.
fn node_name(data: &Path) -> Result<(String, Option<File>), Failure> {
    let path = data.join("node.id");
    let failed = |e: std::io::Error| (exit::INPUT_OUTPUT, format!("cannot use {}: {e}", path.display()));
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let folder = data.display();
            return Err((
                exit::IN_USE,
                format!("another process uses the data folder {folder}; give each its own `--data`"),
            ));
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let mut name = String::new();
    file.read_to_string(&mut name).map_err(failed)?;
    if name.trim().is_empty() {
        name = engine::secret::random_name().map_err(failed)?;
        file.write_all(name.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok((name.trim().to_owned(), Some(file)))
}

async fn open_store(location: &Location) -> Result<Arc<dyn Store>, Failure> {
    location.open().await.map_err(|error| match error {
        store::Error::InUse(_) => (exit::IN_USE, error.to_string()),
        other => (exit::INPUT_OUTPUT, other.to_string()),
    })
}

/// All processes on one database must derive callback URLs from the same secret: the first process's.
async fn share_secret(store: &dyn Store, secret: &Secret, path: &Path) -> Result<(), Failure> {
    const NAME: &str = "secret_fingerprint";
    let failed = |error: store::Error| (exit::INPUT_OUTPUT, error.to_string());
    let own = secret.fingerprint();
    if store.setting(NAME).await.map_err(failed)?.is_none() {
        store.set_setting(NAME, &own).await.map_err(failed)?;
    }
    // Another process may have been first.
    match store.setting(NAME).await.map_err(failed)? {
        Some(known) if known != own => Err((
            exit::USAGE,
            format!(
                "the secret in {} is not the one of this database; give every process the same `--secret-key-file`",
                path.display()
            ),
        )),
        _ => Ok(()),
    }
}

fn open_signer(path: &Path) -> Result<Signer, Failure> {
    Signer::open(path).map_err(|error| match error.kind() {
        // The file could be read, but its content is not a signing secret.
        std::io::ErrorKind::InvalidData => (exit::USAGE, error.to_string()),
        _ => (exit::INPUT_OUTPUT, format!("cannot read the signing secret {}: {error}", path.display())),
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

/// Waits for SIGTERM or Ctrl-C.
async fn stop_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
