//! Which writes of a batch conflict with stored rows.
//!
//! Only a batch that was refused is checked. All relevant rows are read first; then a pure function gives each write
//! its verdict. Another node may write meanwhile, so the verdict `Committed` is preliminary: the caller tries again
//! with those writes, and the constraints of the tables decide.

use super::batch_columns::fits_seq_column;
use super::columns::{Attempted, EscapedText, Id, get, hash, id, org_of, run_id, seq, sql, time};
use super::inbox;
use super::session::Session;
use crate::rows::{InboxKey, LimitSlot, RunWrite, WriteVerdict};
use crate::write_validation::{is_same_group, is_valid, undo_group};
use kernel::{OrgId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::ToSql;

type KeyName = (OrgId, String, String);

/// The stored rows that a batch could conflict with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ConflictFacts {
    /// Number of the last record of each run that exists.
    heads: BTreeMap<(OrgId, RunId), u64>,
    keys: BTreeMap<KeyName, (RunId, [u8; 32])>,
    waits: BTreeSet<[u8; 32]>,
    payloads: BTreeSet<(OrgId, RunId, u32)>,
    /// Rows of the inbox without an answer.
    inbox: BTreeSet<InboxKey>,
    /// The run and step that hold each slot, and when the slot expires.
    limit_slots: BTreeMap<LimitSlot, (RunId, u32, Timestamp)>,
}

impl ConflictFacts {
    pub(super) async fn find(session: &Session, writes: &[RunWrite]) -> Attempted<ConflictFacts> {
        let mut facts = ConflictFacts::default();
        let runs: Vec<(OrgId, RunId)> =
            writes.iter().map(|w| (w.org, w.run)).collect::<BTreeSet<_>>().into_iter().collect();
        let indexes: Vec<i64> = (0..runs.len() as i64).collect();
        let orgs: Vec<i32> = runs.iter().map(|(org, _)| org_of(*org)).collect();
        let ids: Vec<Id> = runs.iter().map(|(_, run)| Id(run.0)).collect();
        for row in session.query(sql!("postgres/heads"), &[&indexes, &orgs, &ids]).await? {
            if get::<Option<i32>>(&row, 1)?.is_some() {
                let index: i64 = get(&row, 0)?;
                facts.heads.insert(runs[index as usize], seq(&row, 1)?);
            }
        }
        let keys: Vec<KeyName> = writes.iter().filter_map(key_of).collect();
        if !keys.is_empty() {
            let indexes: Vec<i64> = (0..keys.len() as i64).collect();
            let orgs: Vec<i32> = keys.iter().map(|(org, ..)| org_of(*org)).collect();
            let scopes: Vec<EscapedText> = keys.iter().map(|(_, scope, _)| EscapedText::of(scope)).collect();
            let names: Vec<EscapedText> = keys.iter().map(|(.., name)| EscapedText::of(name)).collect();
            for row in session.query(sql!("postgres/keys_held"), &[&indexes, &orgs, &scopes, &names]).await? {
                let index: i64 = get(&row, 0)?;
                facts.keys.insert(keys[index as usize].clone(), (RunId(id(&row, 1)?), hash(&row, 2)?));
            }
        }
        let hashes: Vec<&[u8]> = writes.iter().flat_map(|w| &w.tokens).map(|token| &token.token_hash[..]).collect();
        if !hashes.is_empty() {
            for row in session.query(sql!("postgres/waits_held"), &[&hashes]).await? {
                facts.waits.insert(hash(&row, 0)?);
            }
        }
        let payloads = || writes.iter().flat_map(|w| w.payloads.iter().map(move |(number, _)| (w, *number)));
        if payloads().next().is_some() {
            let orgs: Vec<i32> = payloads().map(|(w, _)| org_of(w.org)).collect();
            let runs: Vec<Id> = payloads().map(|(w, _)| Id(w.run.0)).collect();
            let numbers: Vec<i64> = payloads().map(|(_, number)| i64::from(number)).collect();
            for row in session.query(sql!("postgres/payloads_held"), &[&orgs, &runs, &numbers]).await? {
                let number = super::columns::number(&row, 2)?;
                facts.payloads.insert((super::columns::org(&row, 0)?, run_id(&row, 1)?, number));
            }
        }
        let consumed: Vec<InboxKey> = writes.iter().flat_map(consumed_by).collect();
        if !consumed.is_empty() {
            let (orgs, runs, ids) = inbox::columns(consumed.into_iter());
            for row in session.query(sql!("postgres/inbox_unanswered"), &[&orgs, &runs, &ids]).await? {
                facts.inbox.insert(inbox::key(&row)?);
            }
        }
        let changes = writes.iter().map(|write| &write.limit_slots);
        let limit_slots: Vec<&LimitSlot> =
            changes.flat_map(|c| c.free.iter().chain(&c.take)).map(|row| &row.slot).collect();
        if !limit_slots.is_empty() {
            let indexes: Vec<i64> = (0..limit_slots.len() as i64).collect();
            let orgs: Vec<i32> = limit_slots.iter().map(|slot| org_of(slot.org)).collect();
            let names: Vec<EscapedText> = limit_slots.iter().map(|slot| EscapedText::of(&slot.name)).collect();
            let kinds: Vec<i16> = limit_slots.iter().map(|slot| slot.of as i16).collect();
            let keys: Vec<EscapedText> = limit_slots.iter().map(|slot| EscapedText::of(&slot.key)).collect();
            let numbers: Vec<i64> = limit_slots.iter().map(|slot| i64::from(slot.number)).collect();
            let params: [&(dyn ToSql + Sync); 6] = [&indexes, &orgs, &names, &kinds, &keys, &numbers];
            for row in session.query(sql!("postgres/slots_held"), &params).await? {
                let index: i64 = get(&row, 0)?;
                let holder = (run_id(&row, 1)?, super::columns::number(&row, 2)?, time(&row, 3)?);
                facts.limit_slots.insert(limit_slots[index as usize].clone(), holder);
            }
        }
        Ok(facts)
    }

    /// One verdict per write, as if the writes were made one after the other.
    pub(super) fn judge(mut self, writes: &[RunWrite], at: Timestamp) -> Vec<WriteVerdict> {
        let mut verdicts = Vec::with_capacity(writes.len());
        for atomic_group in writes.chunk_by(is_same_group) {
            match atomic_group {
                [write] => verdicts.push(self.try_one(write, at)),
                atomic_group => verdicts.extend(self.try_group(atomic_group, at)),
            }
        }
        verdicts
    }

    fn try_group(&mut self, atomic_group: &[RunWrite], at: Timestamp) -> Vec<WriteVerdict> {
        let before = self.clone();
        let mut verdicts = Vec::with_capacity(atomic_group.len());
        for write in atomic_group {
            verdicts.push(self.try_one(write, at));
            if verdicts.last() == Some(&WriteVerdict::Conflict) {
                break;
            }
        }
        if undo_group(atomic_group, &mut verdicts) {
            *self = before;
        }
        verdicts
    }

    fn try_one(&mut self, write: &RunWrite, at: Timestamp) -> WriteVerdict {
        if !is_valid(write) {
            return WriteVerdict::Conflict;
        }
        let key = key_of(write);
        if let Some((run, fingerprint)) = key.as_ref().and_then(|key| self.keys.get(key)) {
            return WriteVerdict::KeyTaken { run: *run, fingerprint: *fingerprint };
        }
        let waits: Vec<[u8; 32]> = write.tokens.iter().map(|token| token.token_hash).collect();
        let payloads: Vec<_> = write.payloads.iter().map(|(number, _)| (write.org, write.run, *number)).collect();
        if self.heads.get(&(write.org, write.run)).copied().unwrap_or(0) != write.after || !fits_seq_column(write) {
            return WriteVerdict::Conflict;
        }
        if self.is_full(write, at) {
            return WriteVerdict::Full;
        }
        let is_free = are_new(&self.waits, &waits)
            && are_new(&self.payloads, &payloads)
            && consumed_by(write).all(|key| self.inbox.contains(&key));
        if !is_free {
            return WriteVerdict::Conflict;
        }
        self.heads.insert((write.org, write.run), write.after + 1);
        let wanted = write.run_insert.as_ref().and_then(|run_insert| run_insert.idempotency.as_ref());
        self.keys.extend(key.zip(wanted.map(|wanted| (write.run, wanted.fingerprint))));
        self.waits.extend(waits);
        self.payloads.extend(payloads);
        self.inbox.retain(|key| !consumed_by(write).any(|consumed| consumed == *key));
        self.limit_slots.retain(|slot, holder| !is_freed(write, slot, holder));
        self.limit_slots
            .extend(write.limit_slots.take.iter().map(|row| (row.slot.clone(), (row.run, row.step, row.until))));
        WriteVerdict::Committed
    }

    fn is_full(&self, write: &RunWrite, at: Timestamp) -> bool {
        let is_taken = |slot: &LimitSlot| {
            self.limit_slots.get(slot).is_some_and(|holder| holder.2 > at && !is_freed(write, slot, holder))
        };
        write.limit_slots.take.iter().any(|row| is_taken(&row.slot))
    }
}

fn is_freed(write: &RunWrite, slot: &LimitSlot, (run, step, _): &(RunId, u32, Timestamp)) -> bool {
    write.limit_slots.free.iter().any(|row| row.slot == *slot && (row.run, row.step) == (*run, *step))
}

fn are_new<T: Ord>(known: &BTreeSet<T>, wanted: &[T]) -> bool {
    let distinct: BTreeSet<&T> = wanted.iter().collect();
    distinct.len() == wanted.len() && !wanted.iter().any(|one| known.contains(one))
}

fn consumed_by(write: &RunWrite) -> impl Iterator<Item = InboxKey> + '_ {
    write.consumed.iter().map(|row| row.key)
}

fn key_of(write: &RunWrite) -> Option<KeyName> {
    let key = write.run_insert.as_ref()?.idempotency.as_ref()?;
    Some((write.org, key.scope.clone(), key.key.clone()))
}
