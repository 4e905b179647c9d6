//! Detects whether the server has lost writes that it had acknowledged.
//!
//! This happens when a standby that was behind takes over, when a backup is restored, or when a server without
//! `synchronous_commit` crashes. The detector keeps the last acknowledged records of this process, and every new
//! session looks them up. Sessions end when a server goes away, so a new session is always the first to reach its
//! replacement.
//!
//! If a record is missing, the state of any run in memory may be based on writes that no longer exist. A node that
//! continued from it would corrupt the history, because a commit compares records only by their numbers. So the store
//! refuses batches until the node has joined again ([`ClusterStore::join`](crate::ClusterStore::join)) and read
//! everything again.

use super::batch_columns::record_keys;
use super::columns::{Attempted, Blob, EscapedText, Id, get, int, org_of, sql, text};
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

/// How many of the last batches are remembered, by one record each. More than one, because batches of several sessions
/// may be committed in another order than they are answered.
const KEPT: usize = 4;
/// How many batches are searched for the key of a record that may have been deleted.
const SEARCHED_MAX: i64 = 1_000_000;

#[derive(Default)]
pub(super) struct RollbackDetector {
    kept: Mutex<VecDeque<AcknowledgedRecord>>,
    /// How often a record was missing.
    losses: AtomicU64,
    /// A record was missing, and the node has not joined again.
    is_fenced: AtomicBool,
    /// The latest epoch of this process.
    epoch: AtomicU64,
}

/// A record whose commit the server acknowledged.
#[derive(Clone, Debug, PartialEq)]
struct AcknowledgedRecord {
    org: OrgId,
    run: RunId,
    seq: u64,
    body: Bytes,
}

impl RollbackDetector {
    pub(super) fn record_acknowledged(&self, write: &RunWrite) {
        let mut kept = self.kept();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(AcknowledgedRecord {
            org: write.org,
            run: write.run,
            seq: write.after + 1,
            body: write.record.clone(),
        });
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(SeqCst)
    }

    /// Fails if this node must not write.
    pub(super) fn check_not_fenced(&self) -> Result<()> {
        if self.is_fenced.load(SeqCst) { Err(Error::Fenced) } else { Ok(()) }
    }

    /// The next epoch must be larger than this: a server that lost writes may assign an epoch a second time.
    pub(super) fn epoch_after(&self) -> i64 {
        int(self.epoch.load(SeqCst))
    }

    /// The node has joined again and may write.
    pub(super) fn joined(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, SeqCst);
        self.is_fenced.store(false, SeqCst);
    }

    /// Looks the kept records up in a session that was just opened.
    pub(super) async fn check(&self, session: &Session) -> Result<()> {
        let kept: Vec<AcknowledgedRecord> = self.kept().iter().cloned().collect();
        for seen in kept {
            if seen.is_lost(session).await.map_err(Failure::unwritten)? {
                self.report_loss(&seen);
                break;
            }
        }
        Ok(())
    }

    fn report_loss(&self, seen: &AcknowledgedRecord) {
        let mut kept = self.kept();
        // Another session may have reported the loss meanwhile.
        if !kept.contains(seen) {
            return;
        }
        self.is_fenced.store(true, SeqCst);
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

    fn kept(&self) -> MutexGuard<'_, VecDeque<AcknowledgedRecord>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AcknowledgedRecord {
    async fn is_lost(&self, session: &Session) -> Attempted<bool> {
        let key: (i32, Id, i32) = (org_of(self.org), Id(self.run.0), self.seq as i32);
        if let Some(row) = session.first(sql!("postgres/journal_record"), &[&key.0, &key.1, &key.2]).await? {
            // Records never change: a different one was written by a node on a server that had lost this one.
            return Ok(super::columns::blob(&row, 0)? != self.body);
        }
        if !self.may_be_deleted(session).await? {
            return Ok(true);
        }
        // The keys of the records of a deleted run stay.
        let key = Blob(record_keys([(self.org, self.run, self.seq)]));
        let found = session.first(sql!("postgres/record_by_key"), &[&key, &SEARCHED_MAX]).await?;
        Ok(!found.map_or(Ok(false), |row| get(&row, 0))?)
    }

    /// Was a record deleted that is at least as new as this one?
    async fn may_be_deleted(&self, session: &Session) -> Attempted<bool> {
        let until = session.first(sql!("setting"), &[&EscapedText::of(ERASED_UNTIL)]).await?;
        let until = until.map(|row| text(&row, 0)).transpose()?.and_then(|text| text.parse::<i64>().ok());
        match (until, Record::open(&self.body)) {
            (None, _) => Ok(false),
            (Some(until), Ok(record)) => Ok(record.at.0 <= until),
            (Some(_), Err(_)) => Ok(true),
        }
    }
}
