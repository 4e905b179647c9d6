//! The board: tasks that wait to be claimed, workers that wait for tasks, and who has what until when.
//!
//! ```text
//!   post(card) ─▶ lines ─ lanes ─ cards ─┐
//!                                        ├─pair()─▶ claims ─▶ (kernel, commit) ─▶ grants ─▶ answers to polls
//!   open(poll) ─▶ polls ─────────────────┘
//! ```
//!
//! A *line* is a type, a *lane* the tasks of a type that share a key, a *card* one task that waits. It is a state
//! machine like the mailbox that owns it: no clock, no I/O. Nothing on it is the truth: cards follow from runs
//! that have a ready step, grants from runs with a leased one, so all of it is found again after a crash, and
//! limits are counted from grants that exist.
//!
//! Tasks whose runs have left memory are rows of the store. Of each lane the board knows them up to a *horizon*;
//! nothing beyond it is handed out before the rows in between have been read. Where nodes share a store, all tasks are
//! such rows, and what is known of them is read again when it may have changed (`nodes` is given).

mod grants;
mod lanes;
mod polls;
mod seats;
#[cfg(test)]
mod tests;

pub use grants::{Grant, Held, Hold, Stance};
pub use lanes::{Line, PAGE, Rules};
pub use polls::{Ask, CalledOff, Handed, Pattern, Task};

use crate::nodes::Nodes;
use kernel::advance::{Offer, Wanted};
use kernel::{OrgId, RunId, Timestamp};
use lanes::Horizon;
use polls::{Poll, Waiting, Worker};
use seats::{Seats, Taken};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use store::{IdMap, Lane, Place, Seat, SeatOf, SeatRow, TypeRow, WorkerRow};

/// How much of what waits is kept in memory.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Unclaimed tasks whose runs stay in memory; with more, new ones leave it at once.
    pub resident: usize,
    /// Rows asked for at once.
    pub page: usize,
    /// Rows of a lane that are kept at most…
    pub window: usize,
    /// …and how few are left when more are read.
    pub low: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { resident: 16_384, page: PAGE, window: 3 * PAGE, low: PAGE }
    }
}

/// Pause before rows that could not be read are asked for again.
const READ_PAUSE: kernel::Span = kernel::Span::from_millis(200);
/// For how long a node that lost a task to another one keeps to its own first.
const RIVALRY: kernel::Span = kernel::Span::from_secs(10);
/// A worker that was not heard of for so long does not count as one that is there.
pub const ABSENT: kernel::Span = kernel::Span::from_secs(90);

/// A type of an organisation.
type Key = (OrgId, Arc<str>);
/// A worker of an organisation.
type WorkerKey = (OrgId, String);

pub struct Board<T> {
    sizes: Sizes,
    /// Those that share the store, if it can be shared.
    nodes: Option<Nodes>,
    /// Until then others are taken to reach for the same tasks, because one was lost to them.
    rivals_until: Timestamp,
    lines: BTreeMap<Key, Line>,
    polls: BTreeMap<u64, Poll<T>>,
    /// Open polls that want more.
    waiting: Waiting,
    /// Polls that are to be answered as soon as nothing is on its way to them.
    hasty: Vec<u64>,
    /// Hand-overs that are not durable yet.
    promises: IdMap<u64, Promise>,
    grants: BTreeMap<(RunId, u32), Grant>,
    /// Tasks that are durable and whose polls have not been answered yet, because more is on its way to them.
    pockets: IdMap<(RunId, u32), u64>,
    expiries: BTreeSet<(Timestamp, RunId, u32)>,
    /// Lanes held up by a rate, and until when.
    releases: BTreeSet<(Timestamp, Lane)>,
    workers: BTreeMap<WorkerKey, Worker>,
    /// What workers hold and nobody wants any more, until they were told.
    called_off: HashMap<WorkerKey, Vec<Notice>>,
    /// Lines that may have something for somebody since the last pairing.
    stirred: BTreeSet<Key>,
    /// Lanes of which more is to be read, and after what.
    refills: Vec<(Lane, Option<Place>)>,
    /// Types whose lanes are to be read, and after what key.
    asks: Vec<(OrgId, String, Option<String>)>,
    /// Types whose seats are to be read.
    seat_asks: Vec<(OrgId, String)>,
    /// Cards whose runs are in memory.
    resident: usize,
    /// Counts every hand-over, so that lanes can be served in turn.
    served: u64,
    /// What waits and what workers hold is not known in full. Until it is, nothing is handed out: it might not be
    /// what goes first, or more than a limit allows.
    is_partial: bool,
}

/// A worker need not go on with something. An answer can be lost on its way, and nobody hears of that: it is told twice.
#[derive(Clone, Copy)]
struct Notice {
    run: RunId,
    step: u32,
    fence: u64,
    is_plain: bool,
    /// When it would have lost it anyway.
    until: Timestamp,
    is_told: bool,
}

/// A task on its way to a worker.
struct Promise {
    poll: u64,
    line: Key,
    lane: Arc<str>,
    /// The card it was, unless it never was one; true if its run is in memory.
    card: Option<(Place, bool)>,
    seats: Taken,
}

/// A card and the worker it goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub org: OrgId,
    pub run: RunId,
    pub step: u32,
    pub offer: Offer,
}

impl<T> Default for Board<T> {
    fn default() -> Self {
        Board {
            sizes: Sizes::default(),
            nodes: None,
            rivals_until: Timestamp::default(),
            lines: BTreeMap::new(),
            polls: BTreeMap::new(),
            waiting: Waiting::default(),
            hasty: Vec::new(),
            promises: IdMap::default(),
            grants: BTreeMap::new(),
            pockets: IdMap::default(),
            expiries: BTreeSet::new(),
            releases: BTreeSet::new(),
            workers: BTreeMap::new(),
            called_off: HashMap::new(),
            stirred: BTreeSet::new(),
            refills: Vec::new(),
            asks: Vec::new(),
            seat_asks: Vec::new(),
            resident: 0,
            served: 0,
            is_partial: false,
        }
    }
}

impl<T> Board<T> {
    pub fn new(sizes: Sizes) -> Self {
        Board { sizes, ..Default::default() }
    }

    /// The store is shared by these.
    pub fn share(&mut self, nodes: Nodes) {
        self.nodes = Some(nodes);
    }

    pub fn is_shared(&self) -> bool {
        self.nodes.is_some()
    }

    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Those who wait for something, when there will be nothing.
    pub fn into_tickets(self) -> impl Iterator<Item = T> {
        self.polls.into_values().map(|poll| poll.ticket)
    }

    /// When it next has something to do on its own.
    pub fn next_due(&self) -> Option<Timestamp> {
        let lease = self.expiries.first().map(|(at, ..)| *at);
        let release = self.releases.first().map(|(at, _)| *at);
        lease.into_iter().chain(release).min()
    }

    /// Is there something to pair or to read right now?
    pub fn has_work(&self) -> bool {
        !self.stirred.is_empty()
            || !self.refills.is_empty()
            || !self.asks.is_empty()
            || !self.seat_asks.is_empty()
            || self.has_answers()
    }

    /// So many tasks wait in memory that the next one should leave it; or whoever comes next may come to another node.
    pub fn is_crowded(&self) -> bool {
        // A test that is after what lies behind it need not make thousands.
        self.is_shared() || self.resident >= if store::crash::is_armed() { 1 } else { self.sizes.resident }
    }

    /// Unclaimed tasks whose runs are in memory.
    pub fn resident(&self) -> usize {
        self.resident
    }

    /// Tasks that workers have.
    pub fn leased(&self) -> usize {
        self.grants.len()
    }

    /// Tasks that wait, in memory or not.
    pub fn ready(&self) -> u64 {
        self.lines.values().map(|line| line.ready).sum()
    }

    /// Types with tasks that wait and no worker that would take them.
    pub fn unserved(&self, now: Timestamp) -> u64 {
        let is_unserved = |(key, line): &(&Key, &Line)| line.ready > 0 && self.audience(key.0, &key.1, now).0 == 0;
        self.lines.iter().filter(is_unserved).count() as u64
    }

    /// Takes over what is known about a type, since when if that was before this process.
    pub fn rule(&mut self, row: &TypeRow, began: Option<Timestamp>, now: Timestamp) {
        let key: Key = (row.org, Arc::from(row.name.as_str()));
        let line = self.line(key.clone());
        line.rule(row, began);
        self.refresh_line(&key, now);
    }

    /// What the last process left in the store.
    pub fn restore(&mut self, lanes: Vec<(Lane, u64)>, now: Timestamp) {
        for (lane, count) in lanes {
            let key: Key = (lane.org, lane.name.as_str().into());
            let line = self.line(key.clone());
            line.ready += count;
            line.lane(&lane.key).horizon = Horizon::Nothing;
            self.refresh(&key, &lane.key, now);
        }
    }

    /// What the last process had in memory is being found again, or all of it has been.
    pub fn recovers(&mut self, is_partial: bool) {
        if self.is_partial && !is_partial {
            self.stirred.extend(self.lines.keys().cloned());
        }
        self.is_partial = is_partial;
    }

    /// A task may be claimed from now on.
    pub fn post(&mut self, lane: &Lane, place: Place, now: Timestamp) {
        let key = (lane.org, Arc::from(lane.name.as_str()));
        self.line(key.clone()).ready += 1;
        self.show(lane, place, now);
    }

    /// A task may be claimed, and its run is in memory. (It may have been there before.)
    pub fn show(&mut self, lane: &Lane, place: Place, now: Timestamp) {
        let key = (lane.org, Arc::from(lane.name.as_str()));
        self.resident += usize::from(self.line(key.clone()).lane(&lane.key).show(place));
        self.refresh(&key, &lane.key, now);
    }

    /// The same for a run that was read: a task the store has no row for may be new to the board.
    pub fn recall(&mut self, lane: &Lane, place: Place, is_stored: bool, now: Timestamp) {
        let key: Key = (lane.org, Arc::from(lane.name.as_str()));
        let is_known = self.line(key).lane(&lane.key).cards.contains_key(&place);
        match is_known || is_stored {
            true => self.show(lane, place, now),
            false => self.post(lane, place, now),
        }
    }

    /// Its run has left memory; the store has a row for it.
    pub fn park(&mut self, lane: &Lane, place: Place, now: Timestamp) {
        let key: Key = (lane.org, Arc::from(lane.name.as_str()));
        let window = self.sizes.window;
        let state = self.line(key.clone()).lane(&lane.key);
        if state.cards.get(&place) == Some(&true) {
            state.park(place, window, now);
            self.resident -= 1;
        }
        self.refresh(&key, &lane.key, now);
    }

    /// A task may not be claimed any more: somebody has it, or nobody needs to.
    pub fn unpost(&mut self, lane: &Lane, place: Place, now: Timestamp) {
        let key: Key = (lane.org, Arc::from(lane.name.as_str()));
        let line = self.line(key.clone());
        line.ready = line.ready.saturating_sub(1);
        self.resident -= usize::from(line.lane(&lane.key).take(place));
        self.refresh(&key, &lane.key, now);
    }

    /// Rows of a lane that were read, at most a page; or they could not be read.
    pub fn refilled(&mut self, lane: &Lane, rows: Option<Vec<Place>>, now: Timestamp) {
        let limit = self.sizes.page;
        let key: Key = (lane.org, Arc::from(lane.name.as_str()));
        if rows.is_none() {
            self.releases.insert((now.after(READ_PAUSE), lane.clone()));
        }
        self.line(key.clone()).lane(&lane.key).refilled(rows, limit, now);
        self.refresh(&key, &lane.key, now);
        self.stirred.insert(key);
    }

    /// How many tasks wait, of every type, as the store says.
    pub fn count(&mut self, ready: Vec<(OrgId, String, u64)>) {
        self.lines.values_mut().for_each(|line| line.ready = 0);
        for (org, name, count) in ready {
            self.line((org, name.into())).ready = count;
        }
    }

    /// Another node has a task for this lane that nobody there takes, or room for one.
    pub fn posted(&mut self, lane: &Lane, now: Timestamp) {
        let key: Key = (lane.org, Arc::from(lane.name.as_str()));
        let (is_wanted, low) = (self.next_poll(&key).is_some(), self.sizes.low);
        let line = self.line(key.clone());
        if let Some(seats) = &mut line.seats {
            seats.is_overtaken = true;
        }
        if !is_wanted {
            line.is_behind = true;
            return;
        }
        line.lane(&lane.key).doubt(low);
        if line.hold(&lane.key, now).is_some() {
            self.ask_for_seats(&key);
        }
        self.refresh(&key, &lane.key, now);
        self.stirred.insert(key);
    }

    /// There are tasks of these types that wait: their lanes are read when somebody asks for one.
    pub fn behind(&mut self, types: Vec<(OrgId, String)>) {
        for (org, name) in types {
            let key: Key = (org, name.into());
            let line = self.line(key.clone());
            line.is_behind = true;
            if let Some(seats) = &mut line.seats {
                seats.is_overtaken = true;
            }
            if self.next_poll(&key).is_some() {
                self.ask_for_seats(&key);
                self.stirred.insert(key);
            }
        }
    }

    /// Who has the seats of a type is to be read, unless it has no limits.
    fn ask_for_seats(&mut self, key: &Key) {
        let line = self.line(key.clone());
        let is_limited = line.is_limited();
        let Some(seats) = line.seats.as_mut().filter(|seats| is_limited && !seats.is_reading) else { return };
        (seats.is_reading, seats.is_overtaken) = (true, false);
        self.seat_asks.push((key.0, key.1.to_string()));
    }

    /// Types whose seats are to be read.
    pub fn seat_asks(&mut self) -> Vec<(OrgId, String)> {
        std::mem::take(&mut self.seat_asks)
    }

    /// Who has which seats of a type; or they could not be read, and are read again in a while.
    pub fn seated(&mut self, org: OrgId, name: &str, rows: Option<&[SeatRow]>, now: Timestamp) {
        let key: Key = (org, Arc::from(name));
        let under_way: Vec<Taken> =
            self.promises.values().filter(|promise| promise.line == key).map(|promise| promise.seats.clone()).collect();
        let Some(seats) = &mut self.line(key.clone()).seats else { return };
        seats.is_reading = false;
        let Some(rows) = rows else { return };
        seats.replace(rows, under_way.into_iter());
        seats.is_unsure = false;
        self.refresh_line(&key, now);
        self.stirred.insert(key);
    }

    /// A seat that was to be taken is another's.
    pub fn contested(&mut self, seat: &Seat) {
        let key: Key = (seat.org, Arc::from(seat.name.as_str()));
        if let Some(seats) = &mut self.line(key.clone()).seats {
            (seats.is_unsure, seats.is_overtaken) = (true, true);
        }
        self.ask_for_seats(&key);
    }

    /// A seat is nobody's any more.
    pub fn freed(&mut self, seat: &Seat, now: Timestamp) {
        let key: Key = (seat.org, Arc::from(seat.name.as_str()));
        if let Some(seats) = &mut self.line(key.clone()).seats {
            seats.free(seat.of, &seat.key, seat.number);
        }
        self.refresh(&key, &seat.key, now);
        self.stirred.insert(key);
    }

    /// What a hand-over to this promise takes up, now that it is recorded.
    pub fn seats_of(&mut self, promise: u64, org: OrgId, run: RunId, step: u32, now: Timestamp) -> Vec<SeatRow> {
        let Some(Promise { line, seats, .. }) = self.promises.get_mut(&promise) else { return Vec::new() };
        if let Some(line) = self.lines.get_mut(line) {
            line.sit_from(seats, now);
        }
        let row = |(of, key, number, until): &(SeatOf, Arc<str>, u32, Timestamp)| SeatRow {
            seat: Seat { org, name: line.1.to_string(), of: *of, key: key.to_string(), number: *number },
            run,
            step,
            until: *until,
        };
        seats.iter().map(row).collect()
    }

    /// Types whose lanes are to be read.
    pub fn asks(&mut self) -> Vec<(OrgId, String, Option<String>)> {
        std::mem::take(&mut self.asks)
    }

    /// The keys of a type that have tasks, at most a page after the one asked for; or they could not be read.
    pub fn heard_of(&mut self, org: OrgId, name: &str, keys: Option<Vec<String>>, now: Timestamp) {
        let key: Key = (org, Arc::from(name));
        let (low, page) = (self.sizes.low, self.sizes.page);
        let line = self.line(key.clone());
        line.is_asking = false;
        // Whatever went wrong, it is looked at again in a while.
        let Some(keys) = keys else { return };
        let is_first = line.asked_after.is_none();
        line.asked_after = (keys.len() >= page).then(|| keys.last().cloned()).flatten();
        line.is_behind = line.asked_after.is_some();
        line.heard_of(&keys, is_first && line.asked_after.is_none(), low);
        for lane in keys {
            self.refresh(&key, &lane, now);
        }
        self.stirred.insert(key);
    }

    /// The run of these cards is not what it was: it says again what can be claimed when it has been read.
    pub fn withhold(&mut self, lane: &Lane, place: Place, now: Timestamp) {
        let key: Key = (lane.org, Arc::from(lane.name.as_str()));
        let Some(track) = self.lines.get_mut(&key).and_then(|line| line.lanes.get_mut(&*lane.key)) else { return };
        self.resident -= usize::from(track.take(place));
        self.refresh(&key, &lane.key, now);
    }

    /// Would somebody who waits here take a task of this lane?
    pub fn is_wanted(&mut self, lane: &Lane, now: Timestamp) -> bool {
        let key: Key = (lane.org, Arc::from(lane.name.as_str()));
        self.next_poll(&key).is_some() && self.line(key).hold(&lane.key, now).is_none()
    }

    /// Lanes to be read on.
    pub fn refills(&mut self) -> Vec<(Lane, Option<Place>)> {
        std::mem::take(&mut self.refills)
    }

    /// Time has passed: answers whose lease has ended, and lets lanes go on that a rate held up.
    pub fn pass(&mut self, now: Timestamp) -> Vec<(OrgId, RunId, u32, u64)> {
        while let Some((at, lane)) = self.releases.first().cloned().filter(|(at, _)| *at <= now) {
            self.releases.remove(&(at, lane.clone()));
            let key: Key = (lane.org, lane.name.as_str().into());
            self.line(key.clone()).lane(&lane.key).unstick();
            self.refresh(&key, &lane.key, now);
        }
        self.expire(now)
    }

    /// Brings workers and cards together. What comes out is on its way to the kernel, which may refuse.
    pub fn pair(&mut self, now: Timestamp) -> Vec<Claim> {
        let mut claims = Vec::new();
        for place in self.waiting.take_new() {
            self.fill(place, now, &mut claims);
        }
        for key in std::mem::take(&mut self.stirred) {
            while let Some(place) = self.next_poll(&key) {
                let before = claims.len();
                self.fill(place, now, &mut claims);
                if claims.len() == before {
                    break;
                }
            }
        }
        claims
    }

    /// A poll that would take a task which has just become ready: of the worker that just did something for the
    /// same run, if it asks for more, else of whoever waits longest. Nobody, when it would pass another task by.
    pub fn offer(
        &mut self,
        org: OrgId,
        wanted: &Wanted<'_>,
        worker: Option<&str>,
        is_new: bool,
        now: Timestamp,
    ) -> Option<Offer> {
        let key: Key = (org, Arc::from(wanted.name));
        let is_partial = self.is_partial;
        let line = self.line(key.clone());
        let lane = line.lane(wanted.key);
        let has_others = is_new && (!lane.cards.is_empty() || lane.horizon != Horizon::All);
        // A seat that turns out to be taken must not keep a run from being created.
        let is_at_risk = is_new && line.is_limited();
        if has_others || is_at_risk || is_partial || line.hold(wanted.key, now).is_some() {
            return None;
        }
        let place = self.poll_for(&key, worker)?;
        let may_pass =
            |board: &Self| board.best(place, now).is_none_or(|(_, best, _)| best.priority >= wanted.priority);
        if !may_pass(self) {
            return None;
        }
        self.promise(place, &key, wanted.key, None, now)
    }

    /// A hand-over did not come about, for no fault of the task: it waits again.
    pub fn revoke(&mut self, promise: u64, now: Timestamp) {
        let Some(Promise { line, lane, card, .. }) = self.break_promise(promise, now) else { return };
        match card {
            Some(card) => self.restore_card(&line, &lane, card, now),
            None => self.refresh(&line, &lane, now),
        }
    }

    fn restore_card(&mut self, line: &Key, lane: &str, (place, is_resident): (Place, bool), now: Timestamp) {
        let track = self.line(line.clone()).lane(lane);
        match is_resident {
            true => self.resident += usize::from(track.show(place)),
            false => track.put_back(place),
        }
        self.refresh(line, lane, now);
    }

    /// The run says that the task is not to be had.
    pub fn refuse(&mut self, promise: u64, now: Timestamp) {
        if let Some(Promise { line, lane, .. }) = self.break_promise(promise, now) {
            self.refresh(&line, &lane, now);
        }
    }

    /// The run cannot be read just now: what is known of its lane's rows is read again, in a while.
    pub fn mistrust(&mut self, promise: u64, now: Timestamp) {
        let Some(Promise { line, lane, .. }) = self.break_promise(promise, now) else { return };
        let track = self.line(line.clone()).lane(&lane);
        track.forget_rows();
        track.stick();
        let (org, name) = (line.0, line.1.to_string());
        self.releases.insert((now.after(READ_PAUSE), Lane { org, name, key: lane.to_string() }));
        self.refresh(&line, &lane, now);
    }

    /// Gives the room back and the poll its credit.
    fn break_promise(&mut self, promise: u64, now: Timestamp) -> Option<Promise> {
        let broken = self.promises.remove(&promise)?;
        self.rivals_until = now.after(RIVALRY);
        let line = self.line(broken.line.clone());
        line.stand_up(&broken.seats);
        line.held = line.held.saturating_sub(1);
        let lane = line.lane(&broken.lane);
        lane.held = lane.held.saturating_sub(1);
        if let Some(poll) = self.polls.get_mut(&broken.poll) {
            poll.on_its_way -= 1;
            poll.credits += 1;
            self.waiting.again(broken.poll);
        }
        self.stirred.insert(broken.line.clone());
        Some(broken)
    }

    fn line(&mut self, key: Key) -> &mut Line {
        let is_shared = self.nodes.is_some();
        self.lines.entry(key).or_insert_with(|| Line::new(is_shared))
    }

    /// Puts a lane where it belongs among those of its line that can be served.
    fn refresh(&mut self, key: &Key, lane: &str, now: Timestamp) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let release = line.refresh(lane, self.sizes.low, now);
        // Whoever asks later looks for itself.
        if !self.polls.is_empty() && line.can_serve() {
            self.stirred.insert(key.clone());
        }
        if let Some(at) = release {
            self.releases.insert((at, Lane { org: key.0, name: key.1.to_string(), key: lane.to_owned() }));
        }
    }

    fn refresh_line(&mut self, key: &Key, now: Timestamp) {
        let Some(line) = self.lines.get(key) else { return };
        let lanes: Vec<Arc<str>> = line.lanes.keys().cloned().collect();
        for lane in lanes {
            self.refresh(key, &lane, now);
        }
    }

    /// The task a poll should get next: its line, its place and its lane.
    fn best(&self, place: u64, now: Timestamp) -> Option<(Key, Place, Arc<str>)> {
        let poll = self.polls.get(&place).filter(|_| !self.is_partial)?;
        let rivals = self.nodes.as_ref().filter(|_| now < self.rivals_until && !poll.is_exact);
        let mut best: Option<(Key, Place, Arc<str>)> = None;
        for pattern in &poll.patterns {
            for (key, line) in pattern.range(&self.lines, poll.org) {
                if !line.rules.suits(poll.runtime.as_deref()) || poll.is_exact && line.is_unread() {
                    continue;
                }
                let Some((lane, first)) = line.first(rivals) else { continue };
                if best.as_ref().is_none_or(|(_, than, _)| first < *than) {
                    best = Some((key.clone(), first, lane));
                }
            }
        }
        best
    }

    /// Gives a poll as much as it wants and there is; asks for rows where there may be more.
    fn fill(&mut self, place: u64, now: Timestamp, claims: &mut Vec<Claim>) {
        while self.polls.get(&place).is_some_and(Poll::takes_more) {
            let Some((key, card, lane)) = self.best(place, now) else { break };
            let is_shared = self.nodes.as_ref().is_some_and(|nodes| !nodes.is_alone());
            let Some(line) = self.lines.get_mut(&key) else { break };
            if is_shared && line.lane(&lane).is_dated(now) {
                line.lane(&lane).forget_rows();
                self.refresh(&key, &lane, now);
                continue;
            }
            let is_resident = line.lane(&lane).take(card);
            self.resident -= usize::from(is_resident);
            let Some(offer) = self.promise(place, &key, &lane, Some((card, is_resident)), now) else {
                self.restore_card(&key, &lane, (card, is_resident), now);
                break;
            };
            claims.push(Claim { org: key.0, run: card.run, step: card.step, offer });
        }
        self.read_on(place);
        let Some(poll) = self.polls.get(&place) else { return };
        if poll.is_hasty {
            self.hasty.push(place);
        }
        if poll.credits > 0 && (!poll.is_hasty || self.may_get_more(poll)) {
            self.waiting.put(place, poll);
        }
    }

    /// A hand-over begins: the poll has one credit less and the lane one room less.
    fn promise(
        &mut self,
        place: u64,
        key: &Key,
        lane: &str,
        card: Option<(Place, bool)>,
        now: Timestamp,
    ) -> Option<Offer> {
        let served = self.served + 1;
        let from =
            served ^ self.nodes.as_ref().map_or(0, |nodes| nodes.own().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        let seats = self.line(key.clone()).sit(lane, from, now)?;
        let poll = self.polls.get_mut(&place)?;
        poll.credits -= 1;
        poll.on_its_way += 1;
        self.served = served;
        let number = |of: SeatOf| seats.iter().find(|seat| seat.0 == of).map_or(0, |seat| seat.2 + 1);
        let (seat, key_seat) = (number(SeatOf::Type), number(SeatOf::Key));
        let offer = Offer { worker: poll.worker.clone(), lease: poll.lease, place: served, seat, key_seat };
        self.promises.insert(served, Promise { poll: place, line: key.clone(), lane: lane.into(), card, seats });
        self.line(key.clone()).serve(lane, served, now);
        self.refresh(key, lane, now);
        Some(offer)
    }

    /// Asks for the rows of lanes a poll may get something from and that are known only in part.
    fn read_on(&mut self, place: u64) {
        let Some(poll) = self.polls.get(&place) else { return };
        let mut wanted: Vec<(Key, Arc<str>)> = Vec::new();
        let (mut behind, mut overtaken): (Vec<Key>, Vec<Key>) = Default::default();
        for pattern in &poll.patterns {
            for (key, line) in pattern.range(&self.lines, poll.org) {
                wanted.extend(line.short().map(|lane| (key.clone(), lane)));
                behind.extend((line.is_behind && !line.is_asking).then(|| key.clone()));
                overtaken.extend(line.seats.as_ref().filter(|seats| seats.is_overtaken).map(|_| key.clone()));
            }
        }
        overtaken.iter().for_each(|key| self.ask_for_seats(key));
        for key in behind {
            let line = self.line(key.clone());
            (line.is_behind, line.is_asking) = (false, true);
            let after = line.asked_after.clone();
            self.asks.push((key.0, key.1.to_string(), after));
        }
        let low = self.sizes.low;
        for (key, lane) in wanted {
            if let Some(after) = self.line(key.clone()).lane(&lane).ask(low) {
                self.refills.push((Lane { org: key.0, name: key.1.to_string(), key: lane.to_string() }, after));
            }
        }
    }

    /// How many workers that claim a type and may have it are there, and when one was last heard of.
    fn audience(&self, org: OrgId, name: &str, now: Timestamp) -> (u32, Option<Timestamp>) {
        let rules = self.lines.get(&(org, Arc::from(name))).map(|line| &line.rules);
        let claims = |worker: &&Worker| {
            let suits = rules.is_none_or(|rules| rules.suits(worker.row.runtime.as_deref()));
            suits && worker.patterns.iter().any(|pattern| pattern.matches(name))
        };
        let of_org = self.workers.range((org, String::new())..).take_while(|((o, _), _)| *o == org).map(|(_, w)| w);
        let mut count = 0;
        let mut last = None;
        for worker in of_org.filter(claims) {
            count += u32::from(now.since(worker.row.last_seen) < ABSENT);
            last = last.max(Some(worker.row.last_seen));
        }
        (count, last)
    }

    /// Every worker with the number of tasks it has.
    pub fn workers(&self, org: OrgId) -> Vec<(WorkerRow, u32)> {
        let of_org = self.workers.range((org, String::new())..).take_while(|((o, _), _)| *o == org).map(|(_, w)| w);
        of_org.map(|worker| (worker.row.clone(), worker.leased)).collect()
    }

    /// What is going on in a type: waiting, leased, workers that are there.
    pub fn tally(&self, org: OrgId, name: &str, now: Timestamp) -> (u64, u32, u32) {
        let line = self.lines.get(&(org, Arc::from(name)));
        let leased = |line: &Line| line.seats.as_ref().map_or(0, Seats::leased).max(line.held);
        let (ready, leased) = line.map_or((0, 0), |line| (line.ready, leased(line)));
        (ready, leased, self.audience(org, name, now).0)
    }

    /// Why a task that waits has nobody.
    pub fn stance(&mut self, lane: &Lane, now: Timestamp) -> Stance {
        let key: Key = (lane.org, lane.name.as_str().into());
        let (workers, last_seen) = self.audience(lane.org, &lane.name, now);
        let hold = self.line(key).hold(&lane.key, now);
        Stance { workers, last_seen, hold }
    }
}
