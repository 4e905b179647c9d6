//! The inbox in memory: rows by key, each with its answer once it has one.

use super::{Contents, MemoryStore};
use crate::rows::{InboxKey, InboxRow};
use crate::{Call, InboxStore};
use bytes::Bytes;
use kernel::Timestamp;
use kernel::inbox::InboxKind;
use std::ops::Bound;

impl Contents {
    pub(super) fn answer_inbox(&mut self, key: InboxKey, answer: &Bytes) {
        if let Some((_, unanswered @ None)) = self.inbox.get_mut(&key) {
            *unanswered = Some(answer.clone());
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

    fn answer_inbox<'a>(&'a self, answers: &'a [(InboxKey, Bytes)]) -> Call<'a, ()> {
        self.answer(move |c| answers.iter().for_each(|(key, answer)| c.answer_inbox(*key, answer)))
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
