//! Checks of a write that need no stored data, the verdicts of an atomic group, and the order in which slugs are tried.
//! All stores share this code, so they cannot disagree.
//!
//! An invalid write is a mistake of the caller, not a race: no reload makes it succeed. Its verdict is still
//! `Conflict`, because nothing of its run was written and the other runs of the batch are not affected.

use crate::rows::{InboxKey, LimitSlot, RunWrite, WriteVerdict};
use std::collections::BTreeSet;

/// Longest slug, in characters.
const SLUG_CHARS_MAX: usize = 80;

/// Is the write consistent in itself?
pub(crate) fn is_valid(write: &RunWrite) -> bool {
    let is_first = write.after == 0;
    let row_is_its_own = write.row.as_ref().is_none_or(|row| row.org == write.org && row.id == write.run);
    let open_waits = || write.waits.remove.iter().chain(&write.waits.insert);
    let waits_are_its_own = write.tokens.iter().all(|token| token.org == write.org && token.run == write.run)
        && open_waits().all(|wait| wait.org == write.org && wait.run == write.run);
    let inbox_is_its_own = write.consumed.iter().all(|row| row.key.0 == write.org)
        && write.outgoing.iter().all(|row| row.key.0 == write.org && row.sender == Some(write.run));
    let delivery_is_its_own = |d: &crate::DeliveryRow| d.org == write.org && d.run == Some(write.run);
    let delivery_is_its_own = write.run_insert.iter().filter_map(|b| b.delivery.as_ref()).all(delivery_is_its_own);
    let tasks_are_its_own = write
        .ready
        .remove
        .iter()
        .chain(&write.ready.insert)
        .all(|r| r.queue.org == write.org && r.position.run == write.run);
    let limit_slots = || write.limit_slots.free.iter().chain(&write.limit_slots.take);
    let slots_are_its_own = limit_slots().all(|row| row.slot.org == write.org && row.run == write.run);
    let taken: BTreeSet<&LimitSlot> = write.limit_slots.take.iter().map(|row| &row.slot).collect();
    let consumed: BTreeSet<InboxKey> = write.consumed.iter().map(|row| row.key).collect();
    let has_ended = write.row.as_ref().is_some_and(|row| row.status.is_terminal());
    row_is_its_own
        && tasks_are_its_own
        && slots_are_its_own
        && taken.len() == write.limit_slots.take.len()
        && consumed.len() == write.consumed.len()
        && (write.ready.insert.is_empty() && write.waits.insert.is_empty() || !has_ended)
        && inbox_is_its_own
        && delivery_is_its_own
        && waits_are_its_own
        && (write.row.is_some() || !is_first && !write.is_moved)
        && (write.run_insert.is_none() || is_first)
}

pub(crate) fn is_same_group(one: &RunWrite, next: &RunWrite) -> bool {
    one.atomic_group.is_some() && one.atomic_group == next.atomic_group
}

/// Completes the verdicts of an atomic group whose writes were attempted up to the first conflict. True when the whole
/// group has to be rolled back.
pub(crate) fn undo_group(atomic_group: &[RunWrite], verdicts: &mut Vec<WriteVerdict>) -> bool {
    let commits = verdicts.iter().zip(atomic_group).all(|(verdict, write)| verdict.lets_group_commit(write));
    if commits && verdicts.len() == atomic_group.len() {
        return false;
    }
    verdicts.resize(atomic_group.len(), WriteVerdict::Undone);
    for (verdict, write) in verdicts.iter_mut().zip(atomic_group) {
        if verdict.lets_group_commit(write) {
            *verdict = WriteVerdict::Undone;
        }
    }
    true
}

/// The slugs to try in turn: `wanted`, then `wanted` with the suffix `-2`, `-3` and so on, truncated to the maximum
/// length.
pub(crate) fn slugs(wanted: &str) -> impl Iterator<Item = String> + '_ {
    (1u64..).map(move |n| {
        let suffix = if n == 1 { String::new() } else { format!("-{n}") };
        let stem: String = wanted.chars().take(SLUG_CHARS_MAX - suffix.len()).collect();
        stem + &suffix
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_gets_a_number_and_stays_short() {
        assert_eq!(slugs("order").take(3).collect::<Vec<_>>(), ["order", "order-2", "order-3"]);
        let long = "é".repeat(90);
        assert!(slugs(&long).take(12).all(|s| s.chars().count() == SLUG_CHARS_MAX));
        assert!(slugs(&long).nth(10).is_some_and(|s| s.ends_with("é-11")));
    }
}
