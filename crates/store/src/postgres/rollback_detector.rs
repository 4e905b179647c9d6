//! Has the server lost something it had acknowledged?
//!
//! It happens: a standby that was behind takes over, a backup is restored, the server runs without
//! `synchronous_commit` and crashes. What this process was told last is kept here, and asked for by every session that
//! is opened: sessions end when a server goes away, so whoever took its place is met by a new one first.
//!
//! When something is missing, what this process remembers of any run may never have happened. Whoever goes on from it
//! would write a history that makes no sense, because a record is only known by its number. So no batch is taken until
//! the node has begun anew ([`Store::join`](crate::Store::join)) and read everything again.

use super::batch_columns::names;
use super::columns::{Attempted, Blob, Id, Words, get, int, org_of, sql, text};
use super::errors::Failure;
use super::journal::ERASED_UNTIL;
use super::session::Session;
use crate::rows::RunWrite;
use crate::{Error, Result};
use bytes::Bytes;
use kernel::{OrgId, Record, RunId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Batches of which one record is kept. More than one, because those of several sessions may land in another order than
/// they are answered.
const KEPT: usize = 4;
/// Batches looked through for a record that may have been erased.
const LOOKED_THROUGH: i64 = 1_000_000;

#[derive(Default)]
pub(super) struct RollbackDetector {
    kept: Mutex<VecDeque<Seen>>,
    /// How often something was missing.
    losses: AtomicU64,
    /// Something was, and the node has not begun anew.
    is_barred: AtomicBool,
    /// The latest epoch this process had.
    epoch: AtomicU64,
}

/// A record the server said it has.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    org: OrgId,
    run: RunId,
    seq: u64,
    body: Bytes,
}

impl RollbackDetector {
    pub(super) fn note(&self, write: &RunWrite) {
        let mut kept = self.kept();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Seen { org: write.org, run: write.run, seq: write.after + 1, body: write.record.clone() });
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(SeqCst)
    }

    /// May this node write?
    pub(super) fn admit(&self) -> Result<()> {
        if self.is_barred.load(SeqCst) { Err(Error::Fenced) } else { Ok(()) }
    }

    /// The least the next epoch may be: a server that lost some may give one a second time.
    pub(super) fn epoch_after(&self) -> i64 {
        int(self.epoch.load(SeqCst))
    }

    /// The node begins anew.
    pub(super) fn joined(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, SeqCst);
        self.is_barred.store(false, SeqCst);
    }

    /// Asks a session that was just opened for what is kept.
    pub(super) async fn question(&self, session: &Session) -> Result<()> {
        let kept: Vec<Seen> = self.kept().iter().cloned().collect();
        for seen in kept {
            if seen.is_lost(session).await.map_err(Failure::unwritten)? {
                self.accuse(&seen);
                break;
            }
        }
        Ok(())
    }

    fn accuse(&self, seen: &Seen) {
        let mut kept = self.kept();
        // Another session may have found out meanwhile.
        if !kept.contains(seen) {
            return;
        }
        self.is_barred.store(true, SeqCst);
        self.losses.fetch_add(1, SeqCst);
        kept.clear();
        tracing::error!(
            code = "store_rollback_detected",
            run = %seen.run,
            record = seen.seq,
            "the database has lost what it had acknowledged: after a failover to a standby that was behind, or a restored \
             backup. This node reads everything again and is not ready until it is restarted"
        );
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Seen>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    async fn is_lost(&self, session: &Session) -> Attempted<bool> {
        let key: (i32, Id, i32) = (org_of(self.org), Id(self.run.0), self.seq as i32);
        if let Some(row) = session.first(sql!("postgres/journal_record"), &[&key.0, &key.1, &key.2]).await? {
            // Records never change: another one was written by somebody who did not know of this one.
            return Ok(super::columns::blob(&row, 0)? != self.body);
        }
        if !self.may_be_erased(session).await? {
            return Ok(true);
        }
        // Of a run that was erased, the names of its records stay.
        let name = Blob(names([(self.org, self.run, self.seq)]));
        let found = session.first(sql!("postgres/record_named"), &[&name, &LOOKED_THROUGH]).await?;
        Ok(!found.map_or(Ok(false), |row| get(&row, 0))?)
    }

    /// Was anything erased that is as new as this?
    async fn may_be_erased(&self, session: &Session) -> Attempted<bool> {
        let until = session.first(sql!("setting"), &[&Words::of(ERASED_UNTIL)]).await?;
        let until = until.map(|row| text(&row, 0)).transpose()?.and_then(|text| text.parse::<i64>().ok());
        match (until, Record::open(&self.body)) {
            (None, _) => Ok(false),
            (Some(until), Ok(record)) => Ok(record.at.0 <= until),
            (Some(_), Err(_)) => Ok(true),
        }
    }
}
