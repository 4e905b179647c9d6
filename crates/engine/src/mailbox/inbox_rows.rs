//! Rows of the `inbox` table on their way to and from the mailbox.
//!
//! ```text
//!   conflict after conflict ──▶ DeferredInput ──▶ a row ──▶ the owner of the run: InboxInput
//!   a record of another run ─────────────────────▶ a row ──▶ the owner of the run: InboxInput
//!   the record that applies the input stores the answer in the row, or deletes a row that another run wrote
//! ```
//!
//! Invariant: an input is applied at most once. Every node may read a row, but the store refuses a record that
//! consumes a row which is gone or has an answer. A refused input is dropped from memory: its row brings it back.

use super::turn::Released;
use super::{Mailbox, QueuedInput};
use bytes::Bytes;
use kernel::advance::OutgoingRow;
use kernel::inbox::{InboxKind, StoredAnswer, StoredInput};
use kernel::planted_bugs::{self, Bug};
use kernel::{Answer, InboxId, Input, OrgId, Run, RunId, Timestamp};
use store::{ConsumedRow, IdSet, InboxKey, InboxRow};

/// An input that met too many conflicts, to be written to the inbox. Its caller waits for the answer in the row.
#[derive(Debug)]
pub struct DeferredInput<T> {
    pub org: OrgId,
    pub run: RunId,
    /// A sealed [`StoredInput`](kernel::inbox::StoredInput).
    pub body: Bytes,
    pub reply_to: T,
}

/// Where an input was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxSource {
    /// The row; when a child cannot be started, also the other rows for it.
    pub rows: Vec<InboxKey>,
    /// No caller waits for an answer in the row.
    pub is_from_run: bool,
}

/// An input that was read from the inbox.
#[derive(Debug)]
pub struct InboxInput {
    pub org: OrgId,
    pub run: RunId,
    pub input: Input,
    pub source: InboxSource,
}

impl InboxInput {
    /// `None` if this release cannot read the row.
    pub fn open(row: &InboxRow) -> Result<InboxInput, kernel::wire::Error> {
        let source = InboxSource { rows: vec![row.key], is_from_run: row.sender.is_some() };
        Ok(InboxInput { org: row.key.0, run: row.key.1, input: StoredInput::open(&row.body)?, source })
    }
}

#[derive(Default)]
pub(super) struct InboxRows {
    /// Rows whose input waits for its run, or is part of a record that is being committed.
    pending: IdSet<InboxId>,
    /// Answers to rows that no record has to consume.
    answers: Vec<ConsumedRow>,
    /// Rows with which parents close children that do not exist.
    closings: Vec<InboxKey>,
}

impl InboxRows {
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty() || !self.closings.is_empty()
    }

    pub fn take_answers(&mut self) -> Vec<ConsumedRow> {
        std::mem::take(&mut self.answers)
    }

    pub fn take_closings(&mut self) -> Vec<InboxKey> {
        std::mem::take(&mut self.closings)
    }

    /// The input is in no run's inbox any more: it was consumed, or is to be read again.
    pub fn forget<T>(&mut self, item: &QueuedInput<T>) {
        for (.., id) in item.source.iter().flat_map(|source| &source.rows) {
            self.pending.remove(id);
        }
    }

    /// Answers rows that change nothing, so no record consumes them.
    pub fn answer<T>(&mut self, item: &QueuedInput<T>, answer: &StoredAnswer) {
        self.forget(item);
        let Some(source) = &item.source else { return };
        // An earlier request to start this child was not applied. Its row stays, because nothing else asks for the child.
        if matches!((&item.input, answer), (Input::Start { .. }, StoredAnswer::NotFound {})) {
            return;
        }
        // The child is about to be started, or was deleted: the service that starts children knows which.
        if matches!((&item.input, answer), (Input::ParentClosed { .. }, StoredAnswer::NotFound {})) {
            return self.closings.extend(&source.rows);
        }
        self.answers.extend(consumed_rows(source, answer));
    }
}

fn consumed_rows<'a>(source: &'a InboxSource, answer: &'a StoredAnswer) -> impl Iterator<Item = ConsumedRow> + 'a {
    let answer = (!source.is_from_run).then(|| answer.seal());
    source.rows.iter().map(move |key| ConsumedRow { key: *key, answer: answer.clone() })
}

impl<T> Mailbox<T> {
    /// Gives inputs from the inbox to their runs. Rows are read again and again until they are consumed.
    pub(super) fn give_inbox(&mut self, inputs: Vec<InboxInput>) {
        for InboxInput { org, run, input, source } in inputs {
            let is_new = source.rows.first().is_some_and(|(.., id)| self.inbox_rows.pending.insert(*id));
            if is_new {
                let source = Some(Box::new(source));
                self.push(org, run, QueuedInput { source, ..QueuedInput::internal(input) });
            }
        }
    }

    /// The rows for other runs are durable: those of this node get their inputs at once.
    pub(super) fn send_rows(&mut self, rows: &[InboxRow], released: &mut Released<T>) {
        for row in rows {
            if !self.nodes.is_mine(row.key.1) {
                released.informs_other_nodes = true;
                continue;
            }
            match row.kind {
                InboxKind::StartChild => released.children.push(row.clone()),
                // A record of this release has just been sealed, so it can be read.
                InboxKind::Input => self.give_inbox(InboxInput::open(row).into_iter().collect()),
            }
        }
    }
}

/// The rows that a record with these items consumes.
pub(super) fn consumed<T>(items: &[QueuedInput<T>], answers: &[Answer], run: &Run) -> Vec<ConsumedRow> {
    let mut rows: Vec<ConsumedRow> = Vec::new();
    for (item, answer) in items.iter().zip(answers) {
        let is_buggy = planted_bugs::is(Bug::ChildStartedTwice) && matches!(item.input, Input::Start { .. });
        if let Some(source) = item.source.as_ref().filter(|_| !is_buggy) {
            let answer = StoredAnswer::of(*answer, run.status(), run.state.created_at);
            // A child may have been asked for twice in one turn.
            let new =
                consumed_rows(source, &answer).filter(|new: &ConsumedRow| rows.iter().all(|row| row.key != new.key));
            let new: Vec<ConsumedRow> = new.collect();
            rows.extend(new);
        }
    }
    rows
}

/// A row for the inbox of another run.
pub(super) fn outgoing(org: OrgId, sender: RunId, row: OutgoingRow, now: Timestamp) -> InboxRow {
    let OutgoingRow { to, id, kind, body } = row;
    InboxRow { key: (org, to, id), kind, body, written_at: now, sender: Some(sender) }
}
