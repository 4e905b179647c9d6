//! Seats: how limits hold where several nodes hand out tasks.
//!
//! A limit of 3 is three numbered seats. Whoever hands a task out says which one it takes, in the record that does it;
//! the store lets each be had once, and the record that ends the lease frees it. So what counts are leases that exist,
//! on whatever node, and nothing has to be counted. A rate is seats that are free again when their time is over.
//!
//! What this node believes of who has which may be out of date. It only decides what is tried: a seat that turns out
//! to be taken costs a try, and then the seats are read again.

use kernel::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{Seat, SeatOf, SeatRow};

/// The seats of a type that are taken, as far as this node knows.
#[derive(Debug, Default)]
pub struct Seats {
    rows: BTreeMap<(SeatOf, Arc<str>), Bench>,
    /// One that was taken to be free is not: nothing is handed out before they have been read.
    pub is_unsure: bool,
    /// They are being read.
    pub is_reading: bool,
    /// Something was freed that they do not show.
    pub is_overtaken: bool,
}

/// Seats of one limit: numbers and until when each is taken.
#[derive(Debug, Default)]
struct Bench {
    taken: BTreeMap<u32, Timestamp>,
    ends: BTreeSet<(Timestamp, u32)>,
}

/// What a hand-over takes.
pub type Taken = Vec<(SeatOf, Arc<str>, u32, Timestamp)>;

impl Bench {
    fn take(&mut self, number: u32, until: Timestamp) {
        if let Some(before) = self.taken.insert(number, until) {
            self.ends.remove(&(before, number));
        }
        self.ends.insert((until, number));
    }

    fn free(&mut self, number: u32) {
        if let Some(until) = self.taken.remove(&number) {
            self.ends.remove(&(until, number));
        }
    }

    fn pass(&mut self, now: Timestamp) {
        while let Some((until, number)) = self.ends.first().copied().filter(|(until, _)| *until <= now) {
            self.ends.remove(&(until, number));
            self.taken.remove(&number);
        }
    }

    /// How many of the first seats may be used. Those beyond the limit, taken while it was higher, count against it.
    fn usable(&self, limit: u32) -> u32 {
        limit.saturating_sub(self.taken.range(limit..).count() as u32)
    }

    fn is_full(&self, limit: u32) -> bool {
        let usable = self.usable(limit);
        (self.taken.len() - self.taken.range(usable..).count()) as u32 >= usable
    }

    /// A free one, looking from somewhere, so that two nodes seldom choose the same.
    fn find(&self, limit: u32, from: u64) -> Option<u32> {
        let usable = self.usable(limit);
        if self.is_full(limit) {
            return None;
        }
        let from = (from % u64::from(usable)) as u32;
        let gap = |from: u32, to: u32| {
            let mut free = from;
            for number in self.taken.range(from..to).map(|(number, _)| *number) {
                if number != free {
                    break;
                }
                free += 1;
            }
            (free < to).then_some(free)
        };
        gap(from, usable).or_else(|| gap(0, from))
    }
}

impl Seats {
    pub fn are_known(&self) -> bool {
        !self.is_unsure && !self.is_reading && !self.is_overtaken
    }

    /// Is there none left?
    pub fn is_full(&self, of: SeatOf, key: &str, limit: u32) -> bool {
        match self.rows.get(&(of, Arc::from(key))) {
            None => limit == 0,
            Some(bench) => bench.is_full(limit),
        }
    }

    pub fn find(&self, of: SeatOf, key: &str, limit: u32, from: u64) -> Option<u32> {
        match self.rows.get(&(of, Arc::from(key))) {
            None => (limit > 0).then(|| (from % u64::from(limit.max(1))) as u32),
            Some(bench) => bench.find(limit, from),
        }
    }

    /// When the next one that has a time is free.
    pub fn next_end(&mut self, of: SeatOf, key: &str, now: Timestamp) -> Option<Timestamp> {
        let bench = self.rows.get_mut(&(of, Arc::from(key)))?;
        bench.pass(now);
        bench.ends.first().map(|(until, _)| *until)
    }

    pub fn take(&mut self, of: SeatOf, key: &Arc<str>, number: u32, until: Timestamp) {
        self.rows.entry((of, key.clone())).or_default().take(number, until);
    }

    pub fn free(&mut self, of: SeatOf, key: &str, number: u32) {
        let place = (of, Arc::from(key));
        if let Some(bench) = self.rows.get_mut(&place) {
            bench.free(number);
            if bench.taken.is_empty() {
                self.rows.remove(&place);
            }
        }
    }

    /// They have been read: these, and what is on its way.
    pub fn replace(&mut self, rows: &[SeatRow], under_way: impl Iterator<Item = Taken>) {
        self.rows.clear();
        for SeatRow { seat: Seat { of, key, number, .. }, until, .. } in rows {
            self.take(*of, &Arc::from(key.as_str()), *number, *until);
        }
        for (of, key, number, until) in under_way.flatten() {
            self.take(of, &key, number, until);
        }
    }

    /// How many are leased, where there is a limit on that.
    pub fn leased(&self) -> u32 {
        self.rows.get(&(SeatOf::Type, Arc::from(""))).map_or(0, |bench| bench.taken.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Timestamp = SeatRow::FREED;

    fn seats(taken: &[u32]) -> Seats {
        let mut seats = Seats::default();
        taken.iter().for_each(|number| seats.take(SeatOf::Type, &Arc::from(""), *number, FOREVER));
        seats
    }

    #[test]
    fn a_free_seat_is_found_wherever_one_looks_from_and_none_when_there_is_none() {
        for (taken, limit, free) in [
            (&[][..], 3, &[0, 1, 2][..]),
            (&[1], 3, &[0, 2]),
            (&[0, 1, 2], 3, &[]),
            (&[0, 2, 3], 4, &[1]),
            (&[], 0, &[]),
        ] {
            let seats = seats(taken);
            let mut found: BTreeSet<u32> =
                (0..20).filter_map(|from| seats.find(SeatOf::Type, "", limit, from)).collect();
            assert!(found.iter().all(|number| free.contains(number)), "{taken:?} of {limit}: {found:?}");
            assert_eq!(found.pop_first().is_none(), free.is_empty(), "{taken:?} of {limit}");
            assert_eq!(seats.is_full(SeatOf::Type, "", limit), free.is_empty(), "{taken:?} of {limit}");
        }
    }

    #[test]
    fn seats_beyond_a_limit_that_was_lowered_count_against_it() {
        let mut seats = seats(&[0, 5, 7]);
        assert!(seats.is_full(SeatOf::Type, "", 3), "three are leased");
        assert_eq!(seats.find(SeatOf::Type, "", 4, 9), Some(1), "and one of four may be, the same for every node");
        seats.free(SeatOf::Type, "", 5);
        assert_eq!(seats.find(SeatOf::Type, "", 3, 0), Some(1));
        assert!(!seats.is_full(SeatOf::Type, "", 3));
    }

    #[test]
    fn a_rate_is_free_again_when_the_time_of_one_is_over() {
        let (mut seats, key) = (Seats::default(), Arc::from(""));
        seats.take(SeatOf::Rate, &key, 0, Timestamp(10));
        seats.take(SeatOf::Rate, &key, 1, Timestamp(20));
        assert_eq!(seats.next_end(SeatOf::Rate, "", Timestamp(9)), Some(Timestamp(10)));
        assert!(seats.is_full(SeatOf::Rate, "", 2));
        assert_eq!(seats.next_end(SeatOf::Rate, "", Timestamp(10)), Some(Timestamp(20)));
        assert!(!seats.is_full(SeatOf::Rate, "", 2));
        seats.replace(&[], std::iter::once(vec![(SeatOf::Rate, key, 1, Timestamp(30))]));
        assert_eq!(seats.find(SeatOf::Rate, "", 2, 1), Some(0), "what is on its way is kept");
    }
}
