//! A run in memory, and the rows that go with its next record.

use super::atomic_groups::AtomicGroup;
use super::snapshots::StoredBytes;
use crate::version::{InputCheck, Version};
use bytes::Bytes;
use kernel::advance::{FailedSteps, MoveOrder, NotificationNumber, notifications};
use kernel::plan::{Body, Node};
use kernel::run::{Phase, ReadyTask};
use kernel::{Event, OrgId, Payloads, Plan, Run, RunId, RunStatus, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{
    LimitScope, LimitSlot, LimitSlotChange, LimitSlotRow, OpenWait, QueueKey, QueuePosition, ReadyChange, ReadyRow,
    RunInsert, RunRow, RunWrite, TimerChange, WaitChange,
};

/// Is a run that only waits for workers evicted?
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictPolicy {
    No,
    Now,
    /// Yes, and every ready task of any run has a row, so that every node can lease it.
    Always,
}

pub(super) struct LiveRun {
    pub version: Arc<Version>,
    pub run: Run,
    /// Number of the last durable record; 0 for a run that is being created.
    pub seq: u64,
    pub created: Option<Box<RunInsert>>,
    /// The rows of its open waits, by step.
    pub open_waits: BTreeMap<u32, OpenWait>,
    /// The atomic group it is created in.
    pub atomic_group: Option<AtomicGroup>,
    pub row: RunRow,
    pub stored_bytes: StoredBytes,
    /// Its entry in the mailbox's `due_times`.
    pub armed: Option<Timestamp>,
    pub payloads: Payloads,
    /// Payloads being read; decisions that need them wait.
    pub fetching: Vec<u32>,
    /// Its ready tasks that have a row in the store.
    pub stored: BTreeSet<ReadyRow>,
    /// Limit slots of its leases, as of its last durable record.
    pub limit_slots: BTreeSet<LimitSlotRow>,
    /// When it was last read or written.
    pub updated_at: Timestamp,
    /// Another node may also have it in memory.
    pub is_shared_copy: bool,
    /// Its next record moves it to another version.
    pub is_moving: bool,
}

impl LiveRun {
    /// The rows that go with a record. The `runs` row is written when the status changes, and whenever the run is
    /// evicted or ends with the record: memory then no longer knows the run's last record.
    ///
    /// `policy` decides whether a run that only waits for workers is evicted, with rows for its ready tasks. A run that
    /// was evicted before is evicted again. `end` is the event of the record with which the run ends.
    pub fn write(
        &self,
        (org, run): (OrgId, RunId),
        record: Bytes,
        end: Option<u64>,
        payloads: Vec<(u32, Bytes)>,
        policy: EvictPolicy,
        take: Vec<LimitSlotRow>,
    ) -> RunWrite {
        let state = &self.run.state;
        let status = state.status;
        let plan = &self.version.plan;
        let waits_for_workers =
            status.may_have_tasks() && self.run.claimable(plan).next().is_some() && self.run.waits_for_others(plan);
        let waits_in_undo = status == RunStatus::Compensating && self.run.is_idle();
        let evicted = status.is_evicted()
            || waits_in_undo
            || waits_for_workers && (policy != EvictPolicy::No || self.row.evicted);
        let wake = self.run.next_due().filter(|_| evicted);
        let leaves = evicted || status.is_terminal();
        let is_changed = status != self.row.status || evicted != self.row.evicted;
        let row = (self.seq == 0 || leaves || is_changed || self.is_moving).then(|| RunRow {
            status,
            evicted,
            waiting: self.waiting_mask(evicted),
            wake_at: wake,
            created_at: state.created_at,
            expires_at: state.origin.expires_at,
            finished_at: state.finished_at,
            error_code: state.failure.as_ref().map(|f| f.code.clone()),
            failed_steps: status.is_terminal().then(|| FailedSteps::of(plan, &self.run).to_string()),
            ..self.row.clone()
        });
        let has_rows = evicted && waits_for_workers || policy == EvictPolicy::Always;
        let rows = if has_rows { self.tasks(org, run) } else { BTreeSet::new() };
        let ready = ReadyChange {
            remove: self.stored.difference(&rows).cloned().collect(),
            insert: rows.difference(&self.stored).cloned().collect(),
        };
        let notifications_of = |end| {
            let count = notifications(plan, &self.run).len() as u64;
            (0..count).map(move |index| NotificationNumber::stored(end, index))
        };
        let notifications = end.into_iter().flat_map(notifications_of).collect();
        // What comes after a move is read with another plan than what came before.
        let wants_snapshot = self.is_moving || self.stored_bytes.with_record(&record).wants_snapshot(evicted);
        let timer = TimerChange {
            remove: self.row.wake_at.filter(|at| Some(*at) != wake),
            insert: wake.filter(|at| Some(*at) != self.row.wake_at),
        };
        RunWrite {
            org,
            run,
            after: self.seq,
            record,
            row,
            is_moved: self.is_moving,
            snapshot: (wants_snapshot && !status.is_terminal()).then(|| self.run.snapshot()),
            timer,
            payloads,
            ready,
            limit_slots: LimitSlotChange { free: self.slots_released(org, run), take },
            notifications,
            tokens: Vec::new(),
            waits: WaitChange::default(),
            consumed: Vec::new(),
            outgoing: Vec::new(),
            run_insert: self.created.clone().filter(|_| self.seq == 0),
            atomic_group: self.atomic_group.filter(|_| self.seq == 0).map(|atomic_group| atomic_group.number),
        }
    }

    /// The run goes on with another version, from its next record on.
    pub fn move_to(&mut self, order: &MoveOrder) {
        let hash = <[u8; 32]>::try_from(&order.hash[..]).unwrap_or_default();
        let (number, lowering, plan) = (order.version, order.lowering, order.plan.clone());
        let Version { org, workflow, name, .. } = &*self.version;
        let (org, workflow, name) = (*org, *workflow, name.clone());
        let order = Version::order(&plan, None);
        let input = InputCheck::default();
        self.version = Arc::new(Version { org, workflow, name, number, hash, lowering, plan, order, input });
        (self.row.version, self.row.hash, self.row.lowering) = (number, hash, lowering);
        self.is_moving = true;
    }

    /// Applies the limit slots that a commit took and freed. Rate slots are not kept: they become free by time.
    pub fn update_slots(&mut self, change: &LimitSlotChange) {
        for row in &change.free {
            self.limit_slots.remove(row);
        }
        self.limit_slots.extend(change.take.iter().filter(|row| row.until == LimitSlotRow::FREED).cloned());
    }

    /// What the events of a record change about the rows of its open waits.
    pub fn wait_change(&self, org: OrgId, run: RunId, events: &[Event]) -> WaitChange {
        if self.run.is_terminal() {
            return WaitChange { remove: self.open_waits.values().cloned().collect(), insert: Vec::new() };
        }
        let mut change = WaitChange::default();
        let touched: BTreeSet<u32> = match self.is_moving {
            true => self.run.steps().map(|(step, _)| step).collect(),
            false => events.iter().filter_map(Event::step).collect(),
        };
        for step in touched {
            let now = self.run.get(step).and_then(|_| open_wait(&self.version.plan, &self.run, org, run, step));
            let before = self.open_waits.get(&step);
            if before != now.as_ref() {
                change.remove.extend(before.cloned());
                change.insert.extend(now);
            }
        }
        change
    }

    pub fn update_waits(&mut self, change: &WaitChange) {
        for row in &change.remove {
            self.open_waits.remove(&row.step);
        }
        self.open_waits.extend(change.insert.iter().map(|row| (row.step, row.clone())));
    }

    /// The steps that can be called back from these events on: a token is valid as soon as its step exists.
    pub fn new_callbacks<'a>(&'a self, events: &'a [Event]) -> impl Iterator<Item = u32> + 'a {
        let plan = &self.version.plan;
        let is_callback = |node: &Node| matches!(node.body, Some(Body::Webhook { .. }));
        events.iter().flat_map(move |event| {
            let steps = match event {
                Event::Created { .. } => 0..plan.root().len() as u32,
                Event::Opened { step, .. } => *step..*step + 1,
                _ => 0..0,
            };
            // A step may have left the state with its iteration in the same record.
            steps.filter(move |step| self.run.get(*step).is_some_and(|_| is_callback(self.run.node(plan, *step))))
        })
    }

    /// Applies the changes of a commit to the rows of its ready tasks.
    pub fn update_rows(&mut self, change: &ReadyChange) {
        for row in &change.remove {
            self.stored.remove(row);
        }
        self.stored.extend(change.insert.iter().cloned());
    }

    /// The limit slots of its leases.
    pub fn limit_slots(&self, org: OrgId, run: RunId) -> BTreeSet<LimitSlotRow> {
        let mut rows = BTreeSet::new();
        for lease in self.run.leased() {
            let (step, name) = (self.run.step(lease.step), self.run.type_of(&self.version.plan, lease.step));
            for (of, key, slot) in
                [(LimitScope::Type, "", step.slot), (LimitScope::Key, step.key.as_str(), step.key_slot)]
            {
                if let Some(number) = slot.checked_sub(1) {
                    let slot = LimitSlot { org, name: name.to_owned(), of, key: key.to_owned(), number };
                    rows.insert(LimitSlotRow { slot, run, step: lease.step, until: LimitSlotRow::FREED });
                }
            }
        }
        rows
    }

    fn slots_released(&self, org: OrgId, run: RunId) -> Vec<LimitSlotRow> {
        if self.limit_slots.is_empty() {
            return Vec::new();
        }
        self.limit_slots.difference(&self.limit_slots(org, run)).cloned().collect()
    }

    /// Its ready tasks, as rows.
    pub fn tasks(&self, org: OrgId, run: RunId) -> BTreeSet<ReadyRow> {
        self.run.ready_tasks(&self.version.plan).map(|task| ready_row(org, run, task)).collect()
    }

    fn waiting_mask(&self, evicted: bool) -> u32 {
        if !evicted {
            return 0;
        }
        self.run.waiting_for(&self.version.plan).iter().fold(0, |mask, w| mask | 1 << w.kind as u32)
    }
}

/// The row of a ready task: its key queue and its position there.
pub(super) fn ready_row(org: OrgId, run: RunId, ReadyTask { step, name, key, priority }: ReadyTask) -> ReadyRow {
    #[cfg(test)]
    READY_ROWS.set(READY_ROWS.get() + 1);
    ReadyRow { queue: QueueKey { org, name, key }, position: QueuePosition { priority, run, step } }
}

#[cfg(test)]
thread_local! {
    /// How many rows of ready tasks this thread has made.
    pub static READY_ROWS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The rows of a run's open waits.
pub(crate) fn open_waits(plan: &Plan, state: &Run, org: OrgId, run: RunId) -> BTreeMap<u32, OpenWait> {
    let steps = state.steps().map(|(step, _)| step).filter(|_| !state.is_terminal());
    steps.filter_map(|step| Some((step, open_wait(plan, state, org, run, step)?))).collect()
}

/// The row of a step, if it waits for something from outside.
fn open_wait(plan: &Plan, state: &Run, org: OrgId, run: RunId, step: u32) -> Option<OpenWait> {
    let Phase::Waiting { deadline } = state.step(step).phase else { return None };
    let node = state.node(plan, step);
    let name = match &node.body {
        Some(Body::Signal { name, .. }) => name.clone(),
        _ => String::new(),
    };
    Some(OpenWait { org, kind: node.wait_kind()?, name, run, step, deadline })
}
