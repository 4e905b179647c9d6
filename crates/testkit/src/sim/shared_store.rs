//! Several nodes on one shared store, as on Postgres: leases of nodes, fencing, takeovers, and events between nodes that
//! may be lost.
//!
//! ```text
//!   Renew (every second) ─▶ NodeTable ─▶ Nodes changed? ─▶ CatchUp ─▶ groups, open runs, inbox ─▶ the mailbox
//!                              └▶ fenced ─▶ Driver::abandon, a new epoch, CatchUp with everything
//!   Shell::broadcast ─▶ Heard, on every other node, late or never
//! ```
//!
//! It does what the services `cluster` and `cluster_events` of the engine do, with the engine's own [`Nodes`] and
//! [`Catchup`]. The table of nodes is on true time, which is the time of the database.

use super::client_log::Ticket;
use super::process::ProcessEvent;
use super::violation::CheckResult;
use super::world::{SimEvent, World, ready};
use engine::clock::SKEW_MAX;
use engine::mailbox::Command;
use engine::nodes::{Catchup, CatchupRead, LEASE, Nodes, RENEWED_EVERY, SWEPT_EVERY};
use kernel::inbox::InboxKind;
use kernel::{Span, Timestamp};
use std::collections::BTreeMap;
use store::ClusterEvent;
use store::prelude::*;

/// The first lease of a node, in which it must renew it.
const FIRST_LEASE: Span = Span::from_secs(10);
/// As in the engine: how often the types with ready tasks are read, and how many of these reads pass before expired
/// limit slots are deleted.
const READY_TYPES_EVERY: Span = Span::from_secs(1);
/// In the end, clocks that are further off than this are corrected; they drift until they are looked at again.
const SKEW_FIXED: Span = Span::from_secs(29);
/// How many of a thousand events between nodes are lost, where any are.
const LOST_EVENTS: u32 = 300;

/// The nodes of a shared store.
#[derive(Default)]
pub struct NodeTable(BTreeMap<u64, NodeRow>);

struct NodeRow {
    host: usize,
    since: Timestamp,
    until: Timestamp,
    is_fenced: bool,
}

impl NodeTable {
    /// A node of this host joins; its earlier epochs are fenced.
    pub fn join(&mut self, host: usize, epoch: u64, now: Timestamp) -> Nodes {
        self.0.values_mut().filter(|row| row.host == host).for_each(|row| row.is_fenced = true);
        let until = now.after(FIRST_LEASE);
        self.0.insert(epoch, NodeRow { host, since: now, until, is_fenced: false });
        Nodes::of(epoch, &self.renew(epoch, now).unwrap_or_default())
    }

    /// The live nodes with their ages; `None` if this one was fenced.
    pub fn renew(&mut self, epoch: u64, now: Timestamp) -> Option<Vec<(u64, Span)>> {
        let row = self.0.get_mut(&epoch).filter(|row| !row.is_fenced)?;
        let was_live = row.until >= now;
        row.until = now.after(LEASE);
        // After an outage all leases have expired: a node whose own has expired gives the others time to renew.
        if was_live {
            let absent = self.0.iter_mut().filter(|(other, row)| **other != epoch && row.until < now);
            absent.for_each(|(_, row)| row.is_fenced = true);
        }
        let live = self.0.iter().filter(|(_, row)| !row.is_fenced);
        Some(live.map(|(epoch, row)| (*epoch, now.since(row.since))).collect())
    }

    pub fn leave(&mut self, epoch: u64) {
        if let Some(row) = self.0.get_mut(&epoch) {
            row.is_fenced = true;
        }
    }

    /// Is the store not shared?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn is_fenced(&self, epoch: u64) -> bool {
        self.0.get(&epoch).is_some_and(|row| row.is_fenced)
    }
}

/// What a process knows about the nodes around it.
#[derive(Default)]
pub struct Membership {
    catchup: Option<Catchup>,
    swept_at: Timestamp,
    /// Its clock is too wrong: it fires no timers and leases no tasks.
    is_suspended: bool,
}

impl Membership {
    pub fn is_suspended(&self) -> bool {
        self.is_suspended
    }
}

impl World {
    /// A process has started: it reads everything before it takes requests.
    pub fn begin_membership(&mut self, process: usize) {
        let nodes = self.processes[process].nodes.clone();
        self.deliver(process, Command::Nodes(nodes));
        for command in self.read_for_catchup(process, Catchup::Everything) {
            self.deliver(process, command);
        }
        if self.faults.is_shared {
            self.tell_others(process, &ClusterEvent::NodesChanged);
            let soon = self.timing_random.millis(1, 1_000);
            self.push(soon, SimEvent::Process(process, ProcessEvent::Renew { is_regular: true }));
            if self.faults.has_tasks {
                self.push(READY_TYPES_EVERY, SimEvent::Process(process, ProcessEvent::ReadReadyTypes));
            }
        }
    }

    /// The node renews its lease, and finds out which nodes there are.
    pub fn renew(&mut self, process: usize, is_regular: bool) -> CheckResult {
        if is_regular {
            let pause = Span(RENEWED_EVERY.as_micros() as u64);
            self.push(pause, SimEvent::Process(process, ProcessEvent::Renew { is_regular: true }));
        }
        if self.is_store_down() || self.suspends(process) {
            return Ok(());
        }
        let epoch = self.processes[process].epoch;
        let Some(live) = self.checker.nodes.renew(epoch, self.now) else { return self.rejoin(process) };
        let this = &mut self.processes[process];
        let nodes = Nodes::of(epoch, &live).following(&this.nodes);
        let mut needed = this.membership.catchup.unwrap_or(Catchup::Nothing);
        if nodes != this.nodes {
            let before = std::mem::replace(&mut this.nodes, nodes.clone());
            needed = needed.max(Catchup::after(&before, &nodes));
            let is_takeover = nodes.lost_since(&before);
            self.note(format!("process {process} sees {nodes:?}"));
            self.trace.mark("a node took over from another", is_takeover);
            self.deliver(process, Command::Nodes(nodes));
        }
        let is_time = self.now.since(self.processes[process].membership.swept_at).0 >= SWEPT_EVERY.as_micros() as u64;
        needed = needed.max(if is_time { Catchup::Missed } else { Catchup::Nothing });
        self.catch_up(process, needed);
        Ok(())
    }

    /// Without a lease, other nodes take over the runs of a node whose clock is too wrong.
    fn suspends(&mut self, process: usize) -> bool {
        let skew = self.hosts[self.processes[process].host].wall.read(self.now).0 - self.now.0;
        let is_suspended = Span(skew.unsigned_abs()) > SKEW_MAX;
        let was_suspended = std::mem::replace(&mut self.processes[process].membership.is_suspended, is_suspended);
        if is_suspended != was_suspended {
            self.trace.mark("a node was suspended because of its clock", is_suspended);
            self.deliver(process, Command::Suspend(is_suspended));
        }
        is_suspended
    }

    /// An operator corrects the clocks with which a node takes no part, or soon would not.
    pub fn correct_clocks(&mut self) {
        for host in &mut self.hosts {
            if Span((host.wall.read(self.now).0 - self.now.0).unsigned_abs()) > SKEW_FIXED {
                host.wall.set(self.now, self.now);
            }
        }
    }

    /// Other nodes have taken over: the process drops its memory between two batches, and continues under a new epoch.
    pub fn rejoin(&mut self, process: usize) -> CheckResult {
        if self.processes[process].has_batch() {
            self.push_soon(process, ProcessEvent::Renew { is_regular: false });
            return Ok(());
        }
        let epoch = ready(self.store.next_epoch()).expect("the memory store answers");
        self.note(format!("process {process} was fenced and continues under epoch {epoch}"));
        self.trace.mark("a fenced node joined again", true);
        let host = self.processes[process].host;
        let nodes = self.checker.nodes.join(host, epoch, self.now);
        self.checker.leases.process_died(process);
        let this = &mut self.processes[process];
        (this.epoch, this.nodes, this.has_unknown_commit) = (epoch, nodes.clone(), false);
        let Some(driver) = this.driver.as_mut() else { return Ok(()) };
        let (replies, attempts) = driver.abandon(nodes);
        this.aborted.extend(attempts);
        for (request_id, reply) in replies {
            self.reply(process, request_id, reply)?;
        }
        self.tell_others(process, &ClusterEvent::NodesChanged);
        self.catch_up(process, Catchup::Everything);
        Ok(())
    }

    fn catch_up(&mut self, process: usize, catchup: Catchup) {
        if catchup == Catchup::Nothing {
            return;
        }
        self.processes[process].membership.catchup = Some(catchup);
        self.push_soon(process, ProcessEvent::CatchUp);
    }

    /// Carries out the reads that are due. They stay due if the store does not answer.
    pub fn carry_out_catchup(&mut self, process: usize) {
        let Some(catchup) = self.processes[process].membership.catchup else { return };
        if self.try_read().is_ok() {
            let commands = self.read_for_catchup(process, catchup);
            self.arrive_in_order(process, commands);
        }
    }

    fn read_for_catchup(&mut self, process: usize, catchup: Catchup) -> Vec<Command<Ticket>> {
        let mut commands = Vec::new();
        let membership = &mut self.processes[process].membership;
        (membership.catchup, membership.swept_at) = (None, self.now);
        for read in catchup.reads() {
            match read {
                CatchupRead::ConcurrencyGroups => commands.push(self.read_groups(process)),
                CatchupRead::TaskQueue => commands.push(self.read_task_queue()),
                CatchupRead::OpenRuns { is_recovery } => {
                    let open = ready(self.store.active_runs()).expect("the memory store answers");
                    self.trace.mark("a run was recovered", *is_recovery && !open.is_empty());
                    let (since, is_recovery) = (self.engine_time(process), *is_recovery);
                    commands.push(Command::Sweep { open, since, is_recovery });
                }
                CatchupRead::Inbox => commands.extend(self.read_own_inbox(process)),
                // No simulation lasts as long as answers are kept.
                CatchupRead::OldAnswers => {}
            }
        }
        commands
    }

    /// Delivers what was read a moment later, in its order.
    fn arrive_in_order(&mut self, process: usize, commands: Vec<Command<Ticket>>) {
        let first = self.timing_random.log_millis(1, 100);
        for (n, command) in commands.into_iter().enumerate() {
            let at = Span(first.0 + n as u64);
            self.push(at, SimEvent::Process(process, ProcessEvent::CommandArrived(command)));
        }
    }

    fn read_groups(&mut self, process: usize) -> Command<Ticket> {
        let pauses = ready(self.store.workflow_pauses()).expect("the memory store answers");
        let paused: Vec<_> = pauses.into_iter().map(|pause| pause.workflow).collect();
        let runs = ready(self.store.grouped_runs()).expect("the memory store answers");
        self.processes[process].paused = paused.iter().copied().collect();
        Command::ConcurrencyGroups { paused, runs }
    }

    /// The inputs in the inboxes of the runs that this process owns.
    pub fn read_own_inbox(&mut self, process: usize) -> Option<Command<Ticket>> {
        let rows = ready(self.store.inbox(InboxKind::Input, None, 1_000)).unwrap_or_default();
        self.trace.mark("an input was found in the inbox", !rows.is_empty());
        let nodes = &self.processes[process].nodes;
        let mine: Vec<_> = rows.into_iter().filter(|row| nodes.is_mine(row.key.1)).collect();
        let inputs = engine::child_rows::inputs(&mine);
        (!inputs.is_empty()).then_some(Command::GiveInbox(inputs))
    }

    /// Types with ready tasks, so that open claims find tasks of which no event told.
    pub fn read_ready_types(&mut self, process: usize) {
        self.push(READY_TYPES_EVERY, SimEvent::Process(process, ProcessEvent::ReadReadyTypes));
        if self.try_read().is_ok() {
            ready(self.store.delete_expired_limit_slots(self.engine_time(process))).expect("the memory store answers");
            let types = ready(self.store.ready_types()).expect("the memory store answers");
            if !types.is_empty() {
                self.deliver(process, Command::TypesWithTasks(types));
            }
        }
    }

    /// Sends an event to every other process, late or never.
    pub fn tell_others(&mut self, process: usize, event: &ClusterEvent) {
        for other in 0..self.processes.len() {
            let is_lost = self.faults.loses_events && !self.is_liveness_phase && self.timing_random.chance(LOST_EVENTS);
            if other != process && self.processes[other].is_alive() && !is_lost {
                let delay = self.timing_random.log_millis(1, 2_000);
                self.push(delay, SimEvent::Process(other, ProcessEvent::Heard(event.clone())));
            }
        }
    }

    /// An event of another node.
    pub fn hear(&mut self, process: usize, event: ClusterEvent) -> CheckResult {
        match event {
            ClusterEvent::RunAdvanced(_, run) => self.deliver(process, Command::Reread(run)),
            ClusterEvent::TaskReady(queue) => self.deliver(process, Command::TaskReadyElsewhere(queue)),
            ClusterEvent::GroupsChanged if self.try_read().is_ok() => {
                let command = self.read_groups(process);
                self.arrive_in_order(process, vec![command]);
            }
            ClusterEvent::InboxWritten => self.read_inbox_rows(process),
            ClusterEvent::NodesChanged => return self.renew(process, false),
            // Operators tell every simulated node at once.
            ClusterEvent::TypeChanged(..) | ClusterEvent::PausesChanged => {}
            ClusterEvent::GroupsChanged | ClusterEvent::Missed => {}
        }
        Ok(())
    }
}
