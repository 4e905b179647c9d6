//! Runs that are in no index but the primary key.
//!
//! A run is made, works and has ended a moment later, and nobody has asked for it by its workflow or its status meanwhile.
//! So a new run's row is not listed: the indexes leave it out until the row changes next. What stays as it was born, like a task
//! that waits, is listed by a later batch, many together, which touches each page of an index once instead of once for each. (Where
//! many are made together to wait, listing them at once is as good.)
//!
//! ```text
//!   made ──▶ not listed ──┬─▶ its row changes                ──▶ listed
//!            (this line)  ├─▶ `Options::unlisted_max` others came ──▶ listed
//!                         └─▶ the recovery position moves    ──▶ listed, at a start too
//! ```
//!
//! The rule that keeps it right: a run that is not listed was made after the recovery position, and its id is not smaller than
//! [`Line::from`]. So a start finds them all in the tail it reads anyway, and a list finds them all in a short stretch of the
//! primary key.

use super::run_heads::Key;
use kernel::RunId;
use std::collections::VecDeque;

/// Runs whose smallest id is kept together.
const PART: usize = 512;
/// At least so many are listed together: each page of an index is written once for some of them.
const TOGETHER: usize = 64;

/// A run that was not listed when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Born {
    pub key: Key,
    /// It was parked from the beginning, so nothing in memory says whether it still is not listed.
    pub is_evicted: bool,
}

/// The runs that were not listed when they were made, oldest first. Some are since.
#[derive(Debug, Default)]
pub(super) struct Line {
    parts: VecDeque<Part>,
    len: usize,
}

#[derive(Debug)]
struct Part {
    smallest: RunId,
    runs: VecDeque<Born>,
}

impl Line {
    pub(super) fn push(&mut self, born: Born) {
        let id = born.key.1;
        self.len += 1;
        match self.parts.back_mut().filter(|part| part.runs.len() < PART) {
            Some(part) => {
                part.smallest = part.smallest.min(id);
                part.runs.push_back(born);
            }
            None => self.parts.push_back(Part { smallest: id, runs: [born].into() }),
        }
    }

    /// Those to be listed when `more` join a line of at most `max`.
    pub(super) fn due(&self, more: usize, max: usize) -> impl Iterator<Item = Born> + '_ {
        let surplus = (self.len + more).saturating_sub(max);
        let count = if surplus == 0 { 0 } else { surplus.max(TOGETHER).min(self.len) };
        self.all().take(count)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Born> + '_ {
        self.parts.iter().flat_map(|part| &part.runs).copied()
    }

    /// Those were listed.
    pub(super) fn pop(&mut self, count: usize) {
        self.len -= count;
        for _ in 0..count {
            let Some(first) = self.parts.front_mut() else { return };
            first.runs.pop_front();
            if first.runs.is_empty() {
                self.parts.pop_front();
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Line::default();
    }

    /// No run in it has a smaller id.
    pub(super) fn from(&self) -> Option<RunId> {
        self.parts.iter().map(|part| part.smallest).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::OrgId;

    fn run(n: usize) -> Born {
        Born { key: (OrgId(1), RunId((n as u128).to_be_bytes())), is_evicted: false }
    }

    #[test]
    fn the_oldest_go_first_and_many_together() {
        let mut line = Line::default();
        (1_000..1_600).rev().for_each(|n| line.push(run(n)));
        assert_eq!(line.due(0, 600).count(), 0);
        assert_eq!(line.due(1, 600).collect::<Vec<_>>(), (1_536..1_600).rev().map(run).collect::<Vec<_>>());
        assert_eq!(line.due(300, 600).count(), 300);
        assert_eq!(line.due(5_000, 600).count(), 600, "no more than there are");
        assert_eq!(line.from(), Some(run(1_000).key.1), "the last that came has the smallest id");
        line.pop(599);
        assert_eq!(line.due(10, 0).collect::<Vec<_>>(), [run(1_000)]);
        line.pop(1);
        assert_eq!((line.from(), line.due(10, 0).count()), (None, 0));
    }
}
