//! What every store demands of a write before it looks at anything stored, and how a free slug is
//! counted out. Shared, so that the stores cannot disagree.
//!
//! These are the caller's mistakes, not races: no reload makes such a write succeed. It is answered
//! with `Conflict`, because nothing of its run was written and the other runs of the batch go on.

use crate::rows::{LimitSlot, RunWrite, Verdict};
use std::collections::BTreeSet;

/// Longest slug, in characters.
const SLUG_CHARS_MAX: usize = 80;

/// Does the write make sense by itself?
pub(crate) fn is_sound(write: &RunWrite) -> bool {
    let is_first = write.after == 0;
    let row_is_its_own = write.row.as_ref().is_none_or(|row| row.org == write.org && row.id == write.run);
    let doors_are_its_own =
        write.run_insert.iter().flat_map(|b| &b.waits).all(|w| w.org == write.org && w.run == write.run);
    let line_is_its_own = |d: &crate::DeliveryRow| d.org == write.org && d.run == Some(write.run);
    let line_is_its_own = write.run_insert.iter().filter_map(|b| b.delivery.as_ref()).all(line_is_its_own);
    let tasks_are_its_own = write
        .ready
        .remove
        .iter()
        .chain(&write.ready.insert)
        .all(|r| r.queue.org == write.org && r.position.run == write.run);
    let limit_slots = || write.limit_slots.free.iter().chain(&write.limit_slots.take);
    let seats_are_its_own = limit_slots().all(|row| row.slot.org == write.org && row.run == write.run);
    let taken: BTreeSet<&LimitSlot> = write.limit_slots.take.iter().map(|row| &row.slot).collect();
    let has_ended = write.row.as_ref().is_some_and(|row| row.status.is_terminal());
    row_is_its_own
        && tasks_are_its_own
        && seats_are_its_own
        && taken.len() == write.limit_slots.take.len()
        && (write.ready.insert.is_empty() || !has_ended)
        && line_is_its_own
        && doors_are_its_own
        && (write.row.is_some() || !is_first)
        && (write.run_insert.is_none() || is_first)
}

pub(crate) fn is_same_group(one: &RunWrite, next: &RunWrite) -> bool {
    one.atomic_group.is_some() && one.atomic_group == next.atomic_group
}

/// What the writes of a unit come to, once each has been tried up to the first conflict. True when all
/// of them have to be taken back.
pub(crate) fn undo_group(atomic_group: &[RunWrite], verdicts: &mut Vec<Verdict>) -> bool {
    let commits = verdicts.iter().zip(atomic_group).all(|(verdict, write)| verdict.lets_group_commit(write));
    if commits && verdicts.len() == atomic_group.len() {
        return false;
    }
    verdicts.resize(atomic_group.len(), Verdict::Undone);
    for (verdict, write) in verdicts.iter_mut().zip(atomic_group) {
        if verdict.lets_group_commit(write) {
            *verdict = Verdict::Undone;
        }
    }
    true
}

/// The slugs to try in turn: the wished one, then `-2`, `-3` and so on, cut to fit.
pub(crate) fn slugs(wish: &str) -> impl Iterator<Item = String> + '_ {
    (1u64..).map(move |n| {
        let suffix = if n == 1 { String::new() } else { format!("-{n}") };
        let stem: String = wish.chars().take(SLUG_CHARS_MAX - suffix.len()).collect();
        stem + &suffix
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_counts_up_and_stays_short() {
        assert_eq!(slugs("order").take(3).collect::<Vec<_>>(), ["order", "order-2", "order-3"]);
        let long = "é".repeat(90);
        assert!(slugs(&long).take(12).all(|s| s.chars().count() == SLUG_CHARS_MAX));
        assert!(slugs(&long).nth(10).is_some_and(|s| s.ends_with("é-11")));
    }
}
