//! A Postgres of one's own, for the time a test process lives: new, durable, on loopback and a Unix socket.
//!
//! It is started once per process ([`shared`]) and everybody gets a database of their own. A shell keeps it: when
//! the process ends, however it ends, the shell's input ends too, and it stops the server and removes its files.
//! Whatever happens to the server itself (ending, restarting) happens in a cluster of one's own ([`Cluster::start`]).
//!
//! Needs the programs of the Debian package `postgresql` (15 or later). Postgres refuses to run as root; then it
//! runs as the user `postgres`, or `nobody`.

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

/// The user who owns every database.
const OWNER: &str = "onward";
/// How long the server may take to come up or go down.
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

/// Keeps the server until its own input ends. `$1` is the program, `$2` the data, the rest are settings. A line
/// `stop` or `kill` ends the server, `start` starts it again.
const SUPERVISOR: &str = r#"
program=$1; data=$2; shift 2
start() { "$program" -D "$data" "$@" >>"$data/../log" 2>&1 & pid=$!; }
end() { kill "-$1" "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; }
start "$@"
while read -r word; do
  case $word in
    stop) end INT; echo stopped ;;
    kill) end QUIT; echo stopped ;;
    start) start "$@"; echo started ;;
  esac
done
end QUIT
cd / && rm -rf "$(dirname "$data")"
"#;

pub struct Cluster {
    supervisor: Child,
    commands: Option<ChildStdin>,
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    databases: AtomicU32,
}

/// The cluster of this process.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(&[]))
}

impl Cluster {
    /// A new cluster with these settings besides the usual ones.
    pub fn start(settings: &[(&str, &str)]) -> Cluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let programs = programs();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("onward-pg-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the cluster");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("the folder is ours");
        let user = unprivileged_user();
        if let Some((uid, gid)) = user {
            chown(&folder, Some(uid), Some(gid)).expect("the folder is theirs");
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
            .expect("initdb runs");
        assert!(initialised.status.success(), "initdb: {}", String::from_utf8_lossy(&initialised.stderr));
        let port = free_port();
        let mut arguments: Vec<String> = Vec::new();
        let listen_settings =
            [("listen_addresses", "127.0.0.1"), ("unix_socket_directories", folder.to_str().expect("a plain path"))];
        for (name, value) in SETTINGS.iter().chain(&listen_settings).chain(settings) {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        arguments.extend(["-p".to_owned(), port.to_string()]);
        let mut supervisor = as_user(Path::new("/bin/sh"))
            .args(["-c", SUPERVISOR, "keeper"])
            .arg(programs.join("postgres"))
            .arg(&data)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell runs");
        let commands = supervisor.stdin.take();
        let cluster = Cluster { supervisor, commands, programs, folder, port, databases: AtomicU32::new(0) };
        cluster.wait_until_ready();
        cluster
    }

    /// An empty database, by its address.
    pub fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// A database that begins with what another has. Nobody may be using that one.
    pub fn copy_of(&self, other: &str) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {}", name_in(other)));
        self.url(&name)
    }

    /// Over the Unix socket.
    pub fn url(&self, database: &str) -> String {
        let folder = self.folder.to_str().expect("a plain path").replace('/', "%2F");
        format!("postgres://{OWNER}@{folder}:{}/{database}", self.port)
    }

    /// Over TCP.
    pub fn tcp_url(&self, database: &str) -> String {
        format!("postgres://{OWNER}@127.0.0.1:{}/{database}", self.port)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What a person with a tool would see: rows as lines, columns apart by `|`. Panics when it is refused.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        let output = self.psql(database, statements);
        assert!(output.status.success(), "{statements}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// The same, whatever comes of it.
    pub fn psql(&self, database: &str, statements: &str) -> std::process::Output {
        Command::new(self.programs.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", OWNER, "-d", database, "-h"])
            .arg(&self.folder)
            .args(["-p", &self.port.to_string(), "-c", statements])
            .output()
            .expect("psql runs")
    }

    /// Ends the server without warning, or with one.
    pub fn stop(&mut self, is_kill: bool) {
        self.send(if is_kill { "kill" } else { "stop" });
        self.wait(|cluster| !cluster.is_ready());
        // Until its process is gone it would not be started again.
        self.wait(|cluster| !cluster.folder.join("data/postmaster.pid").exists());
    }

    pub fn start_again(&mut self) {
        self.send("start");
        self.wait_until_ready();
    }

    /// Keeps a copy of everything the server has now. It is stopped for that.
    pub fn back_up(&mut self) {
        self.stop(false);
        self.copy("data", "backup");
        self.start_again();
    }

    /// Puts the server back to where it was when it was backed up, as if the rest had never happened.
    pub fn restore(&mut self) {
        self.stop(true);
        fs::remove_dir_all(self.folder.join("data")).expect("the data can be removed");
        self.copy("backup", "data");
        self.start_again();
    }

    fn copy(&self, from: &str, to: &str) {
        // With owners, modes and times.
        let copied = Command::new("cp").arg("-a").arg(self.folder.join(from)).arg(self.folder.join(to)).status();
        assert!(copied.expect("cp runs").success());
    }

    fn send(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("the keeper listens");
        writeln!(commands, "{command}").and_then(|()| commands.flush()).expect("the keeper listens");
    }

    fn wait_until_ready(&self) {
        self.wait(Cluster::is_ready);
    }

    fn is_ready(&self) -> bool {
        self.psql("postgres", "SELECT 1").status.success()
    }

    fn wait(&self, condition: impl Fn(&Cluster) -> bool) {
        let until = Instant::now() + TIMEOUT;
        while !condition(self) {
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "the cluster does not do as it is told: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.supervisor.wait();
    }
}

/// The name of a database in its address.
pub fn name_in(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

/// Where Postgres's programs are: the newest that are installed.
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

/// Whom Postgres runs as when this is root.
fn unprivileged_user() -> Option<(u32, u32)> {
    let own = fs::metadata("/proc/self").expect("a process has an owner");
    if std::os::unix::fs::MetadataExt::uid(&own) != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("a list of users");
    let find = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("a user who is not root"))
}

fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("its number").port()
}
