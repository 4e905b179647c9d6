//! Moving the write-ahead log into the database, off the hot path.
//!
//! A helper thread with a connection of its own copies pages (PASSIVE: it blocks nobody) whenever the
//! log has grown by a few megabytes. Under constant load it never quite catches up, so the log never
//! starts over by itself; when it gets large the writer copies the short rest and starts it over between
//! two batches. SQLite's own checkpoints, which would run inside somebody's commit, are off.
//!
//! Nothing here can lose data: until a page is copied it stays in the log, and a failed checkpoint is
//! tried again by the next one.

use super::open::{self, PAGE_BYTES};
use super::{Options, Tally};
use crate::crash::{self, Point};
use crate::{Error, Result};
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// A page in the log has a header of its own.
const FRAME_BYTES: u64 = PAGE_BYTES + 24;

enum Ask {
    Copy,
    Stop,
}

/// The helper thread. Ends with this value, before the writer closes its connection.
pub(super) struct Helper {
    ask: SyncSender<Ask>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    pub(super) fn start(path: &Path) -> Result<Helper> {
        let connection = open::checkpointer(path)?;
        let (ask, asked) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || copy_when_asked(&connection, &asked))
            .map_err(|e| Error::Unavailable(format!("cannot start a thread: {e}")))?;
        Ok(Helper { ask, thread: Some(thread) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Fails when the thread is gone already.
        let _ = self.ask.send(Ask::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic in there was reported when it happened, and cost nothing but a checkpoint.
            let _ = thread.join();
        }
    }
}

fn copy_when_asked(connection: &Connection, asked: &Receiver<Ask>) {
    while let Ok(Ask::Copy) = asked.recv() {
        crash::point(Point::BeforeCopy);
        copy(connection);
        crash::point(Point::AfterCopy);
    }
}

/// Copies what is in the log to the file now, as far as readers allow, instead of when the log is long.
pub(super) fn copy(connection: &Connection) {
    checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)");
}

/// Whether everything was copied.
fn checkpoint(connection: &Connection, pragma: &str) -> bool {
    connection.query_row(pragma, [], |row| row.get::<_, i64>(0)).is_ok_and(|busy| busy == 0)
}

/// The writer's side: how long the log is, and what to do about it.
pub(super) struct Log {
    /// Pages in the log after the last commit, kept by the hook.
    pages: Arc<AtomicU64>,
    /// At how many pages the helper was last asked.
    asked_at: u64,
    /// At how many bytes the writer starts it over; moved back when readers did not let it.
    restart_at: u64,
    ask: SyncSender<Ask>,
    passive_bytes: u64,
    restart_bytes: u64,
}

impl Log {
    pub(super) fn watch(
        connection: &mut Connection,
        helper: &Helper,
        tally: Arc<Tally>,
        options: &Options,
    ) -> rusqlite::Result<Log> {
        let pages = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&pages);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, now: i32| {
            let now = now.unsigned_abs().into();
            let before = seen.swap(now, Relaxed);
            // Fewer than before: the log started over.
            let grown = if now >= before { now - before } else { now };
            tally.wal_bytes.fetch_add(grown * FRAME_BYTES, Relaxed);
            Ok(())
        }))?;
        Ok(Log {
            pages,
            asked_at: 0,
            restart_at: options.restart_bytes,
            ask: helper.ask.clone(),
            passive_bytes: options.passive_bytes,
            restart_bytes: options.restart_bytes,
        })
    }

    /// Called between two transactions.
    pub(super) fn tend(&mut self, connection: &Connection) {
        let pages = self.pages.load(Relaxed);
        if pages < self.asked_at {
            self.asked_at = 0;
        }
        if pages * FRAME_BYTES >= self.restart_at {
            crash::point(Point::BeforeRestart);
            if checkpoint(connection, "PRAGMA wal_checkpoint(RESTART)") {
                crash::point(Point::AfterRestart);
                self.pages.store(0, Relaxed);
                (self.asked_at, self.restart_at) = (0, self.restart_bytes);
            } else {
                // A reader holds on to the log. Trying before every batch would make them all wait.
                self.restart_at = pages * FRAME_BYTES + self.restart_bytes / 4;
            }
        } else if (pages - self.asked_at) * FRAME_BYTES >= self.passive_bytes {
            self.asked_at = pages;
            // When it is still busy with the last request, that one sees these pages too, or the next.
            let _ = self.ask.try_send(Ask::Copy);
        }
    }
}
