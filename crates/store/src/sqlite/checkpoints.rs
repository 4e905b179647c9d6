//! Checkpoints: copying the write-ahead log into the database file, off the commit path.
//!
//! A thread with its own connection copies pages (PASSIVE: it blocks no other connection) whenever the log has grown by
//! a few megabytes. Under constant load it never quite catches up, so the log never restarts by itself. When the log is
//! large, the writer copies the short rest and restarts it between two batches. SQLite's automatic checkpoints, which
//! would run inside a commit, are off.
//!
//! A checkpoint cannot lose data: a page stays in the log until it is copied, and the next checkpoint repeats a failed
//! one.

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

/// A page in the log has a header of 24 bytes.
const FRAME_BYTES: u64 = PAGE_BYTES + 24;

enum CheckpointRequest {
    Copy,
    Stop,
}

/// The checkpoint thread. Dropping this value ends the thread, before the writer closes its connection.
pub(super) struct CheckpointThread {
    ask: SyncSender<CheckpointRequest>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointThread {
    pub(super) fn start(path: &Path) -> Result<CheckpointThread> {
        let connection = open::checkpointer(path)?;
        let (ask, asked) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || copy_when_asked(&connection, &asked))
            .map_err(|e| Error::Unavailable(format!("cannot start a thread: {e}")))?;
        Ok(CheckpointThread { ask, thread: Some(thread) })
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        // Fails when the thread has ended already.
        let _ = self.ask.send(CheckpointRequest::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened, and cost no more than a checkpoint.
            let _ = thread.join();
        }
    }
}

fn copy_when_asked(connection: &Connection, asked: &Receiver<CheckpointRequest>) {
    while let Ok(CheckpointRequest::Copy) = asked.recv() {
        crash::point(Point::BeforeCopy);
        copy(connection);
        crash::point(Point::AfterCopy);
    }
}

/// Copies the log into the file now, as far as readers allow, without waiting for the log to grow.
pub(super) fn copy(connection: &Connection) {
    checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)");
}

/// Returns whether everything was copied.
fn checkpoint(connection: &Connection, pragma: &str) -> bool {
    connection.query_row(pragma, [], |row| row.get::<_, i64>(0)).is_ok_and(|busy| busy == 0)
}

/// The length of the log as the writer tracks it, and when the writer starts a checkpoint.
pub(super) struct Log {
    /// Pages in the log after the last commit, updated by the WAL hook.
    pages: Arc<AtomicU64>,
    /// Pages in the log when the checkpoint thread was last asked to copy.
    asked_at: u64,
    /// At how many bytes the writer restarts the log; raised when readers prevented the last restart.
    restart_at: u64,
    ask: SyncSender<CheckpointRequest>,
    passive_bytes: u64,
    restart_bytes: u64,
}

impl Log {
    pub(super) fn watch(
        connection: &mut Connection,
        helper: &CheckpointThread,
        tally: Arc<Tally>,
        options: &Options,
    ) -> rusqlite::Result<Log> {
        let pages = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&pages);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, now: i32| {
            let now = now.unsigned_abs().into();
            let before = seen.swap(now, Relaxed);
            // Fewer than before: the log was restarted.
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

    /// Starts a checkpoint if the log is long enough. Called between two transactions.
    pub(super) fn checkpoint_if_long(&mut self, connection: &Connection) {
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
                // A reader still uses the log. Retrying before every batch would delay every batch.
                self.restart_at = pages * FRAME_BYTES + self.restart_bytes / 4;
            }
        } else if (pages - self.asked_at) * FRAME_BYTES >= self.passive_bytes {
            self.asked_at = pages;
            // A full channel means that the last request is still pending: it, or the next one, copies these pages too.
            let _ = self.ask.try_send(CheckpointRequest::Copy);
        }
    }
}
