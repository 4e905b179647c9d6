//! Where a benchmark stores its data: a temporary folder and, on Postgres, temporary databases. All of it is removed at
//! the end, unless the process is killed.

use engine::Engine;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use store::Location;
use store::postgres::BenchDatabase;

pub struct BenchStore {
    folder: BenchFolder,
    /// The URL of a database on the Postgres server that is measured.
    server: Option<String>,
    made: Mutex<Vec<Made>>,
}

/// The Postgres server that `--store` names.
pub fn server(store: Option<&str>) -> Result<Option<String>, String> {
    let Some(text) = store else { return Ok(None) };
    match text.parse() {
        Ok(Location::Postgres(url)) => Ok(Some(url)),
        Ok(Location::Sqlite(_)) => Err("`--store` takes a Postgres URL only; for SQLite use `--data`".into()),
        Err(error) => Err(format!("`--store` cannot be used: {error}")),
    }
}

struct Made {
    name: &'static str,
    location: Location,
    bench_database: Option<Arc<BenchDatabase>>,
}

impl BenchStore {
    /// In a folder or, if there is a server, on that server.
    pub fn new(parent: &Path, server: Option<String>) -> Result<BenchStore, String> {
        Ok(BenchStore { folder: BenchFolder::new(parent)?, server, made: Mutex::default() })
    }

    pub fn kind(&self) -> &'static str {
        if self.server.is_some() { "postgres" } else { "sqlite" }
    }

    /// A path of this name in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// A new, empty store.
    pub async fn store(&self, name: &'static str) -> Result<Location, String> {
        let bench_database = match &self.server {
            None => None,
            Some(server) => Some(Arc::new(BenchDatabase::create(server).await.map_err(|e| e.to_string())?)),
        };
        let location = match &bench_database {
            None => Location::Sqlite(self.path(&format!("{name}.db"))),
            Some(bench_database) => Location::Postgres(bench_database.url().to_owned()),
        };
        self.made().push(Made { name, location: location.clone(), bench_database });
        Ok(location)
    }

    /// Bytes written to the write-ahead log. Postgres counts them for all databases of a server together.
    pub async fn log_bytes(&self, engine: Option<&Engine>) -> Result<Option<u64>, String> {
        let bench_database = self.made().iter().find_map(|made| made.bench_database.clone());
        match bench_database {
            None => Ok(engine.map(|engine| engine.store().counters().wal_bytes)),
            Some(bench_database) => bench_database.log_bytes().await.map(Some).map_err(|e| e.to_string()),
        }
    }

    /// Runs `verify` on every store except the ceiling's, whose runs have no workflow.
    pub async fn is_clean(&self) -> Result<bool, String> {
        let locations: Vec<Location> =
            self.made().iter().filter(|made| made.name != "ceiling").map(|made| made.location.clone()).collect();
        let verified = tokio::task::spawn_blocking(move || {
            for location in locations {
                let inspection = location.inspect().map_err(|e| e.to_string())?;
                let report = engine::verify::verify(&*inspection, 1, &mut |_| {}).map_err(|e| e.to_string())?;
                if let Some(problem) = report.problems.first() {
                    eprintln!("verify: {} {}", problem.code.as_str(), problem.message);
                    return Ok(false);
                }
            }
            Ok(true)
        });
        verified.await.map_err(|e| e.to_string())?
    }

    /// Removes the databases; dropping the folder removes it.
    pub async fn clear(self) -> Result<(), String> {
        let made: Vec<Made> = self.made().drain(..).collect();
        for bench_database in made.into_iter().filter_map(|made| made.bench_database) {
            bench_database.remove().await.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Vec<Made>> {
        self.made.lock().unwrap_or_else(|e| e.into_inner())
    }
}

struct BenchFolder(PathBuf);

impl BenchFolder {
    fn new(parent: &Path) -> Result<BenchFolder, String> {
        let path = parent.join(format!(".onward-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        Ok(BenchFolder(path))
    }
}

impl Drop for BenchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
