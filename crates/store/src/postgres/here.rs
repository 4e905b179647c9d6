//! Committing on the thread that asks for it.
//!
//! A batch is decided, committed and settled by one thread that has nothing else to do meanwhile. Handing the batch to the
//! store's runtime would wake a thread to send it and one to hear of it, each of which takes as long as the server
//! needs for a small batch. So that thread drives a session of its own, on a runtime that only moves while it waits.
//!
//! The rule that keeps it right: sessions of this runtime are used nowhere else. Nobody would read their answers.

use super::Inner;
use super::commit::commit;
use super::pool::{Connector, Pool};
use crate::Result;
use crate::rows::{Batch, Verdict};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};

/// After how long without a batch the session is looked at before it is used: it may be over, and nobody was there
/// to notice.
const STALE_AFTER: Duration = Duration::from_millis(20);
/// Turns of the runtime in which a session that is over comes to know it.
const TURNS: usize = 3;

pub(super) struct Here {
    desk: Mutex<Desk>,
    writers: Arc<Pool>,
}

struct Desk {
    /// There until the end.
    runtime: Option<Runtime>,
    used: Instant,
}

impl Here {
    pub(super) fn new(connector: Arc<Connector>) -> std::io::Result<Here> {
        let runtime = Some(Builder::new_current_thread().enable_all().build()?);
        let desk = Mutex::new(Desk { runtime, used: Instant::now() });
        Ok(Here { desk, writers: Pool::new(connector, 1) })
    }

    /// Commits before it returns; `None` on a thread that must not wait, because it drives others.
    pub(super) fn commit(&self, inner: &Inner, batch: &Batch) -> Option<Result<Vec<Verdict>>> {
        if Handle::try_current().is_ok() {
            return None;
        }
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stale = desk.used.elapsed() >= STALE_AFTER;
        let answer = desk.runtime.as_ref()?.block_on(async {
            for _ in 0..if is_stale { TURNS } else { 0 } {
                tokio::task::yield_now().await;
            }
            commit(inner, &self.writers, batch).await
        });
        desk.used = Instant::now();
        Some(answer)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        // The last owner may be a task of another runtime, which must not wait.
        let desk = self.desk.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = desk.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
