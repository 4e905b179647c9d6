//! A temporary Postgres server for tests: newly initialised, durable, on loopback and a Unix socket.
//!
//! One server is started per test process ([`shared`]), and each test gets its own database. A shell
//! supervises the server. When the test process ends for any reason, the shell's input ends too; the shell
//! then stops the server and removes its files. A test that stops or restarts the server starts its own
//! cluster ([`Cluster::start`]).
//!
//! It needs the programs of the Debian package `postgresql` (15 or later). Postgres refuses to run as root. A
//! root process runs it as an unprivileged user.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The owner of every database.
const OWNER: &str = "onward";
/// How long the server may take to start or stop.
const TIMEOUT: Duration = Duration::from_secs(60);

const SETTINGS: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("shared_buffers", "128MB"),
    ("max_connections", "300"),
    ("autovacuum_naptime", "10s"),
    ("log_min_messages", "fatal"),
];

/// Runs the server until the script's input ends. `$1` is the program, `$2` the data directory, the rest are
/// settings. The input line `stop` or `kill` ends the server, `start` starts it again.
const SUPERVISOR: &str = r#"
program=$1; data=$2; shift 2
start() { "$program" -D "$data" "$@" >>"$data/../log" 2>&1 & pid=$!; }
end() { kill "-$1" "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; }
start "$@"
while read -r command; do
  case $command in
    stop) end INT; echo stopped ;;
    kill) end QUIT; echo stopped ;;
    start) start "$@"; echo started ;;
  esac
done
end QUIT
cd / && rm -rf "$(dirname "$data")"
"#;

pub struct PostgresCluster {
    supervisor: Child,
    commands: Option<ChildStdin>,
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    databases: AtomicU32,
}

/// The shared cluster of this process.
pub fn shared() -> &'static PostgresCluster {
    static SHARED: OnceLock<PostgresCluster> = OnceLock::new();
    SHARED.get_or_init(|| PostgresCluster::start(&[]))
}

impl PostgresCluster {
    /// Starts a new cluster with these settings in addition to the usual ones.
    pub fn start(settings: &[(&str, &str)]) -> PostgresCluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let programs = programs();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("onward-pg-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("create the cluster's folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("set the folder's permissions");
        let user = unprivileged_user();
        if let Some((uid, gid)) = user {
            chown(&folder, Some(uid), Some(gid)).expect("change the folder's owner");
        }
        let as_user = |program: &Path| {
            let mut command = Command::new(program);
            command.current_dir(&folder).env("PGTZ", "UTC").env_remove("PGHOST").env_remove("PGPORT");
            if let Some((uid, gid)) = user {
                command.gid(gid).uid(uid);
            }
            command
        };
        let data = folder.join("data");
        let initialised = as_user(&programs.join("initdb"))
            .args(["-U", OWNER, "-A", "trust", "-E", "UTF8", "--no-locale", "-N", "-D"])
            .arg(&data)
            .output()
            .expect("run initdb");
        assert!(initialised.status.success(), "initdb: {}", String::from_utf8_lossy(&initialised.stderr));
        let port = free_port();
        let mut arguments: Vec<String> = Vec::new();
        let listen_settings = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", folder.to_str().expect("the path is UTF-8")),
        ];
        for (name, value) in SETTINGS.iter().chain(&listen_settings).chain(settings) {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        arguments.extend(["-p".to_owned(), port.to_string()]);
        let mut supervisor = as_user(Path::new("/bin/sh"))
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(programs.join("postgres"))
            .arg(&data)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run a shell");
        let commands = supervisor.stdin.take();
        let cluster = PostgresCluster { supervisor, commands, programs, folder, port, databases: AtomicU32::new(0) };
        cluster.wait_until_ready();
        cluster
    }

    /// Creates an empty database and returns its URL.
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Creates a copy of another database and returns its URL. The other database must have no connections.
    pub fn copy_of(&self, other: &str) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {}", name_in(other)));
        self.url(&name)
    }

    /// The URL over the Unix socket.
    pub fn url(&self, database: &str) -> String {
        let folder = self.folder.to_str().expect("the path is UTF-8").replace('/', "%2F");
        format!("postgres://{OWNER}@{folder}:{}/{database}", self.port)
    }

    /// The URL over TCP.
    pub fn tcp_url(&self, database: &str) -> String {
        format!("postgres://{OWNER}@127.0.0.1:{}/{database}", self.port)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs SQL with `psql` and returns its output: one line per row, columns separated by `|`. Panics on an
    /// error.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        let output = self.psql(database, statements);
        assert!(output.status.success(), "{statements}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Runs SQL with `psql` and returns its output and exit status.
    pub fn psql(&self, database: &str, statements: &str) -> std::process::Output {
        Command::new(self.programs.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", OWNER, "-d", database, "-h"])
            .arg(&self.folder)
            .args(["-p", &self.port.to_string(), "-c", statements])
            .output()
            .expect("run psql")
    }

    /// Stops the server: immediately, as after a crash (`is_kill`), or cleanly.
    pub fn stop(&mut self, is_kill: bool) {
        self.send(if is_kill { "kill" } else { "stop" });
        self.wait(|cluster| !cluster.is_ready());
        // A new server does not start while the old process still runs.
        self.wait(|cluster| !cluster.folder.join("data/postmaster.pid").exists());
    }

    pub fn start_again(&mut self) {
        self.send("start");
        self.wait_until_ready();
    }

    /// Keeps a copy of all data. The server is stopped while it is copied.
    pub fn back_up(&mut self) {
        self.stop(false);
        self.copy("data", "backup");
        self.start_again();
    }

    /// Restores the data of the last backup, as if nothing had been written since.
    pub fn restore(&mut self) {
        self.stop(true);
        fs::remove_dir_all(self.folder.join("data")).expect("remove the data");
        self.copy("backup", "data");
        self.start_again();
    }

    fn copy(&self, from: &str, to: &str) {
        // `-a` keeps owners, modes and times.
        let copied = Command::new("cp").arg("-a").arg(self.folder.join(from)).arg(self.folder.join(to)).status();
        assert!(copied.expect("run cp").success());
    }

    fn send(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("the supervisor has an input");
        writeln!(commands, "{command}").and_then(|()| commands.flush()).expect("write to the supervisor");
    }

    fn wait_until_ready(&self) {
        self.wait(PostgresCluster::is_ready);
    }

    fn is_ready(&self) -> bool {
        self.psql("postgres", "SELECT 1").status.success()
    }

    fn wait(&self, condition: impl Fn(&PostgresCluster) -> bool) {
        let until = Instant::now() + TIMEOUT;
        while !condition(self) {
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "the cluster did not change its state in time: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for PostgresCluster {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.supervisor.wait();
    }
}

/// The name of the database in a URL.
pub fn name_in(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

/// The folder of the newest installed Postgres programs.
fn programs() -> PathBuf {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = installed.filter_map(|entry| {
        let version: f64 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    let newest = newest.filter(|(_, path)| path.join("initdb").exists()).max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, path)) = newest {
        return path;
    }
    let configured = Command::new("pg_config").arg("--bindir").output().ok();
    let configured = configured.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    configured
        .filter(|path| path.join("initdb").exists())
        .expect("Postgres is not installed: install the package `postgresql`")
}

/// The user and group to run Postgres as, if this process is root.
fn unprivileged_user() -> Option<(u32, u32)> {
    let own = fs::metadata("/proc/self").expect("read the owner of this process");
    if std::os::unix::fs::MetadataExt::uid(&own) != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("read the list of users");
    let find = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("find a user other than root"))
}

fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").expect("bind to a free port");
    socket.local_addr().expect("read the port number").port()
}
