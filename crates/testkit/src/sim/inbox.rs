//! The rows of the inbox, as one process carries them out: children to start and to close, inputs for runs, inputs
//! that met too many conflicts, and the deletion of runs that ended long ago.
//!
//! ```text
//!   Released.children ─────┐
//!   Scan (every 5 s) ──────┴▶ StartChild ──▶ Command::Start ──answered──▶ GiveEarly ──▶ Command::GiveInbox
//!   Released.reads_inbox ────▶ Read ─────────────────────────────────────────────────▶ Command::GiveInbox
//! ```
//!
//! It does what the services `children`, `deferred_inputs` and `retention` of the engine do, and asks the same
//! functions for every decision. Each event is one of their calls to the store, so it can fail, or be the last thing
//! that the process did.

use super::client_log::{ClientRequest, Ticket};
use super::process::ProcessEvent;
use super::violation::CheckResult;
use super::world::{SimEvent, World, ready};
use engine::Reply;
use engine::child_rows::{self, ChildRequest, Closing};
use engine::mailbox::{Command, DeferredInput, InboxInput};
use kernel::event::TriggerKind;
use kernel::inbox::InboxKind;
use kernel::{InboxId, OrgId, RunId, Span, Timestamp};
use store::prelude::*;
use store::{ClusterEvent, ConsumedRow, Erased, Erasure, Error, InboxKey, InboxRow};

/// As in the engine: how often the stored rows are tried again, and rows read at a time.
const RETRY_EVERY: Span = Span::from_secs(5);
const PAGE: usize = 1_000;
/// How often the answer to a stored input is looked up, and for how long.
const POLL_EVERY: Span = Span::from_millis(50);
const ANSWER_MAX: Span = Span::from_secs(30);

pub enum InboxEvent {
    /// Reads the inputs of runs that this process owns.
    Read,
    /// Reads the rows that ask for children.
    Scan,
    StartChild(InboxRow),
    /// The child exists: gives it the rows that were written for it before.
    GiveEarly(RunId),
    /// A parent closes a child that does not exist.
    CloseChild(InboxKey),
    /// Answers rows that no record consumes.
    Answer(Vec<ConsumedRow>),
    /// Writes inputs that met too many conflicts.
    Write(Vec<DeferredInput<Ticket>>),
    /// Looks up the answer to a stored input.
    PollAnswer {
        key: InboxKey,
        request_id: Ticket,
        until: Timestamp,
    },
    /// Deletes runs that ended long ago.
    DeleteEnded,
}

impl World {
    fn push_inbox(&mut self, process: usize, after: Span, event: InboxEvent) {
        self.push(after, SimEvent::Process(process, ProcessEvent::Inbox(event)));
    }

    pub fn push_inbox_soon(&mut self, process: usize, event: InboxEvent) {
        self.push_soon(process, ProcessEvent::Inbox(event));
    }

    /// A process has started: it reads what is stored.
    pub fn begin_inbox(&mut self, process: usize) {
        self.push_inbox_soon(process, InboxEvent::Scan);
        if let Some(every) = self.faults.retention {
            self.push_inbox(process, every, InboxEvent::DeleteEnded);
        }
    }

    pub fn handle_inbox_event(&mut self, process: usize, event: InboxEvent) -> CheckResult {
        match event {
            InboxEvent::Read => self.read_inbox_rows(process),
            InboxEvent::Scan => self.scan_children(process),
            InboxEvent::StartChild(row) => self.start_child(process, &row)?,
            InboxEvent::GiveEarly(child) => match self.inbox_of(child) {
                Some(rows) => self.give_inbox(process, child_rows::inputs(&rows)),
                None => self.push_inbox(process, RETRY_EVERY, InboxEvent::GiveEarly(child)),
            },
            InboxEvent::CloseChild(key) => self.close_child(process, key)?,
            InboxEvent::Answer(answers) => {
                if self.is_store_down() {
                    self.push_inbox(process, RETRY_EVERY, InboxEvent::Read);
                } else {
                    ready(self.store.answer_inbox(&answers)).expect("the memory store answers");
                    self.checker.check_families(&self.store)?;
                }
            }
            InboxEvent::Write(inputs) => self.write_inputs(process, inputs)?,
            InboxEvent::PollAnswer { key, request_id, until } => {
                self.poll_answer(process, key, request_id, until)?;
            }
            InboxEvent::DeleteEnded => self.delete_ended(process)?,
        }
        Ok(())
    }

    /// Registers the runs that steps have asked for.
    pub fn expect_children(&mut self) {
        for (child, call, trigger) in self.checker.take_new_children() {
            let name = format!("workflow {}", call.workflow);
            let Some(known) = self.catalog.newest(&name).cloned() else { continue };
            self.trace.mark("a step started a run", true);
            self.trace.mark("a step started a run and did not wait", call.is_detached);
            self.workflow_of.insert(child, name);
            self.checker.expect_run(child, known, trigger, false);
        }
    }

    /// Has every row led to what it asks for?
    pub fn is_inbox_empty(&self) -> bool {
        let waits = |run: RunId| self.checker.needs_upgrade(run);
        let left = self.checker.families.left(&self.store);
        left.into_iter().all(|(to, _, from)| waits(to) || from.is_some_and(waits))
    }

    fn inbox_of(&mut self, run: RunId) -> Option<Vec<InboxRow>> {
        self.try_read().ok()?;
        ready(self.store.inbox_of(OrgId::DEFAULT, run, PAGE)).ok()
    }

    fn give_inbox(&mut self, process: usize, inputs: Vec<InboxInput>) {
        if !inputs.is_empty() {
            self.deliver(process, Command::GiveInbox(inputs));
        }
    }

    pub fn read_inbox_rows(&mut self, process: usize) {
        if self.try_read().is_err() {
            return self.push_inbox(process, RETRY_EVERY, InboxEvent::Read);
        }
        if let Some(command) = self.read_own_inbox(process) {
            self.deliver(process, command);
        }
    }

    fn scan_children(&mut self, process: usize) {
        if self.try_read().is_ok() {
            let mut rows = ready(self.store.inbox(InboxKind::StartChild, None, PAGE)).unwrap_or_default();
            rows.retain(|row| self.processes[process].nodes.is_mine(row.key.1));
            for row in rows {
                self.push_inbox_soon(process, InboxEvent::StartChild(row));
            }
        }
        self.push_inbox(process, RETRY_EVERY, InboxEvent::Scan);
    }

    fn start_child(&mut self, process: usize, row: &InboxRow) -> CheckResult {
        if self.processes[process].is_draining {
            return Ok(());
        }
        let request = ChildRequest::open(row).map_err(|error| format!("the row of a child cannot be read: {error}"))?;
        let (_, child, _) = row.key;
        let Some(found) = self.resolve(process, &request.workflow)? else {
            let Some(rows) = self.inbox_of(child) else { return Ok(()) };
            self.note(format!("process {process} cannot start {child}: there is no {}", request.workflow));
            self.trace.mark("a child could not be started", true);
            self.checker.families.refused(child);
            let failure = child_rows::unknown_workflow(&request.workflow);
            self.give_inbox(process, vec![request.refused(failure, &rows)]);
            return Ok(());
        };
        if self.workflow_of.get(&child) != Some(&request.workflow) {
            return Err(format!("{child} of {} is started, but no step asks for it", request.workflow).into());
        }
        let parent = self.checker.stored(request.parent.run);
        let is_newer = parent.is_some_and(|parent| found.row.updated_at > parent.state.created_at);
        self.trace.mark("a child got a version that was written after its parent began", is_newer);
        let logged = ClientRequest::StartChild { run: child, parent: request.parent.run };
        let request_id = self.client_log.record(logged, process);
        self.note(format!("request {request_id} by process {process} itself: starts {child}"));
        let mut start = self.start_request(process, child, &found, None, request.body.clone());
        let source = request.source();
        (start.origin.trigger, start.origin.actor) = (TriggerKind::Subworkflow, source.actor);
        (start.origin.parent, start.source) = (source.parent, source.inbox.map(Box::new));
        self.deliver(process, Command::Start { start: Box::new(start), reply_to: request_id, ended: None });
        Ok(())
    }

    /// A request to start a child was answered.
    pub fn child_answered(&mut self, process: usize, child: RunId, reply: &Reply) {
        if matches!(reply, Reply::Answer { .. }) {
            self.push_inbox_soon(process, InboxEvent::GiveEarly(child));
        }
    }

    fn close_child(&mut self, process: usize, key: InboxKey) -> CheckResult {
        let (org, child, _) = key;
        let Some(rows) = self.inbox_of(child) else {
            self.push_inbox(process, RETRY_EVERY, InboxEvent::CloseChild(key));
            return Ok(());
        };
        let exists = ready(self.store.run(org, child)).is_ok_and(|row| row.is_some());
        match child_rows::closing(key, &rows, exists) {
            Closing::Wait => {
                self.trace.mark("a child was closed before it existed", true);
                self.push_inbox(process, RETRY_EVERY, InboxEvent::CloseChild(key));
            }
            Closing::Give => self.give_inbox(process, child_rows::inputs(&rows)),
            Closing::Delete(row) => {
                self.trace.mark("a child was closed after it was deleted", true);
                ready(self.store.answer_inbox(&[row])).expect("the memory store answers");
                self.checker.check_families(&self.store)?;
            }
        }
        Ok(())
    }

    fn write_inputs(&mut self, process: usize, inputs: Vec<DeferredInput<Ticket>>) -> CheckResult {
        let (now, is_down) = (self.engine_time(process), self.is_store_down());
        let is_unknown = !self.is_liveness_phase && self.fault_random.chance(self.faults.unknown_commit);
        let is_applied = !is_down && (!is_unknown || self.fault_random.coin());
        for DeferredInput { org, run, body, reply_to } in inputs {
            let key = (org, run, InboxId::new(now, self.fault_random.bytes()));
            if is_applied {
                let row = InboxRow { key, kind: InboxKind::Input, body, written_at: now, sender: None };
                ready(self.store.put_inbox(&[row])).expect("the memory store answers");
            }
            match (is_down, is_unknown) {
                (true, _) => self.reply(process, reply_to, Reply::Unavailable("unavailable".into()))?,
                (false, true) => self.reply(process, reply_to, Reply::Unknown("no answer".into()))?,
                (false, false) => {
                    let until = self.now.after(ANSWER_MAX);
                    let poll = InboxEvent::PollAnswer { key, request_id: reply_to, until };
                    self.push_inbox(process, POLL_EVERY, poll);
                }
            }
        }
        if self.faults.is_shared {
            self.tell_others(process, &ClusterEvent::InboxWritten);
        }
        self.push_inbox_soon(process, InboxEvent::Read);
        Ok(())
    }

    fn poll_answer(&mut self, process: usize, key: InboxKey, request_id: Ticket, until: Timestamp) -> CheckResult {
        if self.try_read().is_ok()
            && let Some((_, answer)) = ready(self.store.take_inbox_answers(&[key])).unwrap_or_default().pop()
        {
            return self.reply(process, request_id, Reply::stored(&answer));
        }
        if self.now >= until {
            return self.reply(process, request_id, Reply::Unknown("stored".into()));
        }
        self.push_inbox(process, POLL_EVERY, InboxEvent::PollAnswer { key, request_id, until });
        Ok(())
    }

    fn delete_ended(&mut self, process: usize) -> CheckResult {
        let Some(every) = self.faults.retention else { return Ok(()) };
        self.push_inbox(process, every, InboxEvent::DeleteEnded);
        let cutoff = Timestamp(self.engine_time(process).0.saturating_sub_unsigned(every.0));
        if self.try_read().is_err() {
            return Ok(());
        }
        let has_expired = |run: &RunId, store: &store::MemoryStore| {
            let row = ready(store.run(OrgId::DEFAULT, *run)).ok().flatten();
            row.is_some_and(|row| row.status.is_terminal() && row.finished_at.is_some_and(|at| at < cutoff))
        };
        let nodes = &self.processes[process].nodes;
        let is_due = |run: &RunId| nodes.is_mine(*run) && has_expired(run, &self.store);
        for run in self.checker.ended().filter(is_due).collect::<Vec<_>>() {
            let seq = self.store.stored_run(OrgId::DEFAULT, run).map_or(0, |stored| stored.records.len() as u64);
            let erased = ready(self.store.erase(&Erasure { org: OrgId::DEFAULT, run, seq, labels: Vec::new() }));
            self.note(format!("process {process} deletes {run}: {erased:?}"));
            match erased {
                Ok(Erased::Done) => {
                    self.trace.mark("a run was deleted", true);
                    self.checker.run_erased(run, &self.store).map_err(|violation| violation.about(run))?;
                }
                Ok(Erased::InboxPending) => self.trace.mark("a run was kept because of its inbox", true),
                Ok(Erased::NotificationsPending) => {
                    self.trace.mark("a run was kept because of its notifications", true);
                }
                Ok(Erased::NotFound | Erased::NotEnded | Erased::Changed) | Err(Error::Unavailable(_)) => {}
                Err(error) => return Err(format!("{run} cannot be deleted: {error}").into()),
            }
        }
        Ok(())
    }
}
