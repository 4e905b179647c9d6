//! The store of a test's servers, and how many server processes there are.
//!
//! | environment | |
//! |---|---|
//! | `ONWARD_TEST_STORE=postgres` | each test uses a database of a Postgres server that all tests share, not a file |
//! | `ONWARD_TEST_NODES=2` | this many processes on the same database; needs Postgres |
//!
//! A database belongs to a data folder, as a file would: the folder has a note with its URL. A test may write that note
//! itself.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use store::crash::Point;
use testkit::postgres::{self, PostgresCluster};

fn is_postgres() -> bool {
    match std::env::var("ONWARD_TEST_STORE").as_deref() {
        Ok("postgres") => true,
        Ok("sqlite") | Err(_) => false,
        Ok(other) => panic!("`ONWARD_TEST_STORE` is `{other}`, expected `sqlite` or `postgres`"),
    }
}

/// How many processes serve a test.
pub fn nodes() -> usize {
    let nodes = std::env::var("ONWARD_TEST_NODES").map_or(1, |text| text.parse().expect("a number"));
    assert!(nodes > 0 && (nodes == 1 || is_postgres()), "{nodes} nodes cannot share a file");
    nodes
}

/// Returns true and says why if a test must be skipped because it needs SQLite.
pub fn sqlite_only(why: &str) -> bool {
    is_postgres() && skipped("SQLite", why)
}

/// The same for a test that needs Postgres.
pub fn postgres_only(why: &str) -> bool {
    !is_postgres() && skipped("Postgres", why)
}

/// The same for a test that needs a single process.
pub fn one_node_only(why: &str) -> bool {
    nodes() > 1 && skipped("one node", why)
}

fn skipped(with: &str, why: &str) -> bool {
    println!("skipped, for {with} only: {why}");
    true
}

/// The environment variables that name the store of a data folder.
pub fn environment(data: &Path) -> Vec<(String, String)> {
    let is_there = is_postgres() || note(data).exists();
    is_there.then(|| ("ONWARD_STORE".to_owned(), database(data))).into_iter().collect()
}

/// Gives a data folder the caller's database. The caller also removes it.
pub fn put(data: &Path, url: &str) {
    std::fs::write(note(data), url).expect("the folder is writable");
}

/// Databases that this module made, to be removed with their folders.
static MADE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The URL of a folder's database. Makes one if there is none.
fn database(data: &Path) -> String {
    if let Ok(url) = std::fs::read_to_string(note(data)) {
        return url;
    }
    let url = cluster().database();
    put(data, &url);
    MADE.lock().unwrap().push(url.clone());
    url
}

/// Removes a folder's database, also while sessions use it.
pub fn remove(data: &Path) {
    let url = std::fs::read_to_string(note(data)).ok();
    let mut made = MADE.lock().unwrap_or_else(|e| e.into_inner());
    let index = url.and_then(|url| made.iter().position(|known| *known == url));
    if let Some(url) = index.map(|index| made.swap_remove(index)) {
        drop(made);
        let name = postgres::name_in(&url);
        cluster().sql("postgres", &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
    }
}

/// Whether the rows (or the file) of a stopped server contain these bytes.
pub fn holds(data: &Path, bytes: &[u8]) -> bool {
    if !is_postgres() {
        let file = std::fs::read(data.join("onward.db")).expect("a file");
        return file.windows(bytes.len()).any(|window| window == bytes);
    }
    let url = database(data);
    let sql = |statement: &str| cluster().sql(postgres::name_in(&url), statement);
    let tables = sql("SELECT relname FROM pg_class WHERE relnamespace = 'onward'::regnamespace AND relkind = 'r'");
    let (text, hex) = (String::from_utf8_lossy(bytes), bytes.iter().map(|b| format!("{b:02x}")).collect::<String>());
    tables.lines().any(|table| {
        let rows = sql(&format!("SELECT row::text FROM onward.\"{table}\" AS row"));
        rows.contains(&*text) || rows.contains(&hex)
    })
}

/// Whether the store has this crash point. Postgres gets a transaction in one round trip, so some points do not exist.
pub fn has_point(point: Point) -> bool {
    use Point::*;
    let is_of_sqlite = matches!(
        point,
        HeadsRecovered
            | KeyClaimed
            | RecordWritten
            | BeforeSnapshot
            | AfterSnapshot
            | TimerWritten
            | TimerRemoved
            | ReadyWritten
            | ReadyRemoved
            | WaitWritten
            | WaitRemoved
            | InboxSent
            | InboxConsumed
            | RecoveryRows
            | RecoveryMoved
            | RecordsEmptied
            | BeforeCopy
            | AfterCopy
            | BeforeRestart
            | AfterRestart
    );
    !is_postgres() || !is_of_sqlite
}

fn note(data: &Path) -> PathBuf {
    data.join("postgres.url")
}

/// A node keeps up to ten sessions, and the sessions of a killed node take a while to end.
fn cluster() -> &'static PostgresCluster {
    static CLUSTER: std::sync::OnceLock<PostgresCluster> = std::sync::OnceLock::new();
    CLUSTER.get_or_init(|| PostgresCluster::start(&[("max_connections", "1000"), ("shared_buffers", "256MB")]))
}
