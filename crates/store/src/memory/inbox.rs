//! The inbox in memory: rows by key, each with its answer once it has one.

use super::{Contents, MemoryStore};
use crate::rows::{ConsumedRow, InboxKey, InboxRow};
use crate::{Call, InboxStore};
use bytes::Bytes;
use kernel::inbox::InboxKind;
use kernel::{InboxId, OrgId, RunId, Timestamp};
use std::ops::Bound;

impl Contents {
    /// Answers or deletes a row that has no answer.
    pub(super) fn consume(&mut self, row: &ConsumedRow) {
        match (&row.answer, self.inbox.get_mut(&row.key)) {
            (Some(answer), Some((_, unanswered @ None))) => *unanswered = Some(answer.clone()),
            (None, Some((_, None))) => drop(self.inbox.remove(&row.key)),
            _ => {}
        }
    }
}

impl InboxStore for MemoryStore {
    fn put_inbox<'a>(&'a self, rows: &'a [InboxRow]) -> Call<'a, ()> {
        self.answer(move |c| {
            for row in rows {
                c.inbox.entry(row.key).or_insert_with(|| (row.clone(), None));
            }
        })
    }

    fn inbox(&self, kind: InboxKind, after: Option<InboxKey>, limit: usize) -> Call<'_, Vec<InboxRow>> {
        self.answer(move |c| {
            let rest = c.inbox.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
            let unanswered = rest.filter(|(_, (row, answer))| row.kind == kind && answer.is_none());
            unanswered.take(limit).map(|(_, (row, _))| row.clone()).collect()
        })
    }

    fn inbox_of(&self, org: OrgId, run: RunId, limit: usize) -> Call<'_, Vec<InboxRow>> {
        self.answer(move |c| {
            let rows = c.inbox.range((org, run, InboxId([0; 16]))..=(org, run, InboxId([255; 16])));
            let unanswered = rows.filter(|(_, (_, answer))| answer.is_none());
            unanswered.take(limit).map(|(_, (row, _))| row.clone()).collect()
        })
    }

    fn answer_inbox<'a>(&'a self, answers: &'a [ConsumedRow]) -> Call<'a, ()> {
        self.answer(move |c| answers.iter().for_each(|row| c.consume(row)))
    }

    fn take_inbox_answers<'a>(&'a self, keys: &'a [InboxKey]) -> Call<'a, Vec<(InboxKey, Bytes)>> {
        self.answer(move |c| {
            let take = |key: &InboxKey| {
                let answer = c.inbox.get(key)?.1.clone()?;
                c.inbox.remove(key);
                Some((*key, answer))
            };
            keys.iter().filter_map(take).collect()
        })
    }

    fn delete_inbox_answers(&self, before: Timestamp) -> Call<'_, ()> {
        self.answer(move |c| c.inbox.retain(|_, (row, answer)| answer.is_none() || row.written_at >= before))
    }
}
