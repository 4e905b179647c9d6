//! Inputs that travel through the `inbox` table because the run changes too fast on several nodes.
//!
//! ```text
//!   this node: conflict after conflict ──▶ DeferredInput ──▶ a row ──▶ the owner of the run: InboxInput
//!   the record that applies the input stores the answer in the row ──▶ the caller's node reads it
//! ```
//!
//! Invariant: an input is applied at most once. Every node may read a row, but the store refuses a record that
//! consumes a row which has an answer. A refused input is dropped from memory: its row brings it back, if it has no
//! answer yet.

use super::{Mailbox, QueuedInput};
use bytes::Bytes;
use kernel::inbox::StoredAnswer;
use kernel::{Answer, InboxId, Input, OrgId, Run, RunId};
use store::{IdSet, InboxAnswer, InboxKey};

/// An input that met too many conflicts, to be written to the inbox. Its caller waits for the answer in the row.
#[derive(Debug)]
pub struct DeferredInput<T> {
    pub org: OrgId,
    pub run: RunId,
    /// A sealed [`StoredInput`](kernel::inbox::StoredInput).
    pub body: Bytes,
    pub reply_to: T,
}

/// An input that was read from the inbox.
#[derive(Debug)]
pub struct InboxInput {
    pub key: InboxKey,
    pub input: Input,
}

#[derive(Default)]
pub(super) struct InboxRows {
    /// Rows whose input waits for its run, or is part of a record that is being committed.
    pending: IdSet<InboxId>,
    /// Answers to rows that no record has to consume.
    answers: Vec<(InboxKey, Bytes)>,
}

impl InboxRows {
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub fn take_answers(&mut self) -> Vec<(InboxKey, Bytes)> {
        std::mem::take(&mut self.answers)
    }

    /// The input is in no run's inbox any more: it was consumed, or is to be read again.
    pub fn forget<T>(&mut self, item: &QueuedInput<T>) {
        if let Some(id) = item.inbox_id {
            self.pending.remove(&id);
        }
    }

    /// Answers a row that changes nothing, so no record consumes it.
    pub fn answer<T>(&mut self, org: OrgId, run: RunId, item: &QueuedInput<T>, answer: &StoredAnswer) {
        if let Some(id) = item.inbox_id {
            self.pending.remove(&id);
            self.answers.push(((org, run, id), answer.seal()));
        }
    }
}

impl<T> Mailbox<T> {
    /// Gives inputs from the inbox to their runs. Rows are read again and again until they are consumed.
    pub(super) fn give_inbox(&mut self, inputs: Vec<InboxInput>) {
        for InboxInput { key: (org, run, id), input } in inputs {
            if self.inbox_rows.pending.insert(id) {
                self.push(org, run, QueuedInput { inbox_id: Some(id), ..QueuedInput::internal(input) });
            }
        }
    }
}

/// The rows that a record with these items consumes.
pub(super) fn consumed<T>(items: &[QueuedInput<T>], answers: &[Answer], run: &Run) -> Vec<InboxAnswer> {
    let answered = |(item, answer): (&QueuedInput<T>, &Answer)| {
        let answer = StoredAnswer::of(*answer, run.status(), run.state.created_at);
        Some(InboxAnswer { id: item.inbox_id?, answer: answer.seal() })
    };
    items.iter().zip(answers).filter(|(item, _)| item.inbox_id.is_some()).filter_map(answered).collect()
}
