//! What every store demands of a write before it looks at anything stored, and how a free slug is
//! counted out. Shared, so that the stores cannot disagree.
//!
//! These are the caller's mistakes, not races: no reload makes such a write succeed. It is answered
//! with `Conflict`, because nothing of its run was written and the other runs of the batch go on.

use crate::rows::{RunWrite, Seat, Verdict};
use std::collections::BTreeSet;

/// Longest slug, in characters.
const SLUG_CHARS_MAX: usize = 80;

/// Does the write make sense by itself?
pub(crate) fn is_sound(write: &RunWrite) -> bool {
    let is_first = write.after == 0;
    let row_is_its_own = write.row.as_ref().is_none_or(|row| row.org == write.org && row.id == write.run);
    let doors_are_its_own = write.birth.iter().flat_map(|b| &b.waits).all(|w| w.org == write.org && w.run == write.run);
    let line_is_its_own = |d: &crate::DeliveryRow| d.org == write.org && d.run == Some(write.run);
    let line_is_its_own = write.birth.iter().filter_map(|b| b.delivery.as_ref()).all(line_is_its_own);
    let tasks_are_its_own = write
        .ready
        .remove
        .iter()
        .chain(&write.ready.insert)
        .all(|r| r.lane.org == write.org && r.place.run == write.run);
    let seats = || write.seats.free.iter().chain(&write.seats.take);
    let seats_are_its_own = seats().all(|row| row.seat.org == write.org && row.run == write.run);
    let taken: BTreeSet<&Seat> = write.seats.take.iter().map(|row| &row.seat).collect();
    let has_ended = write.row.as_ref().is_some_and(|row| row.status.is_terminal());
    row_is_its_own
        && tasks_are_its_own
        && seats_are_its_own
        && taken.len() == write.seats.take.len()
        && (write.ready.insert.is_empty() || !has_ended)
        && line_is_its_own
        && doors_are_its_own
        && (write.row.is_some() || !is_first)
        && (write.birth.is_none() || is_first)
}

pub(crate) fn is_same_unit(one: &RunWrite, next: &RunWrite) -> bool {
    one.unit.is_some() && one.unit == next.unit
}

/// What the writes of a unit come to, once each has been tried up to the first conflict. True when all
/// of them have to be taken back.
pub(crate) fn undo(unit: &[RunWrite], verdicts: &mut Vec<Verdict>) -> bool {
    let lands = verdicts.iter().zip(unit).all(|(verdict, write)| verdict.lets_unit_land(write));
    if lands && verdicts.len() == unit.len() {
        return false;
    }
    verdicts.resize(unit.len(), Verdict::Undone);
    for (verdict, write) in verdicts.iter_mut().zip(unit) {
        if verdict.lets_unit_land(write) {
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
