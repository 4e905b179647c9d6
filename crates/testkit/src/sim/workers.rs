//! Simulated workers. They claim tasks, work for a while, send heartbeats and report results. They also die,
//! hang past the end of their lease and then report anyway, disconnect, and repeat reports.
//!
//! ```text
//!   Claim ──Command::Ask──▶ process ──Handed──▶ Heartbeat, Heartbeat, … Report ──Finished──▶ any process
//!     └─ EndWait                                  (or no report, a late one, or two)
//! ```
//!
//! The module does what `engine/src/services/tasks.rs` does with a worker's requests. Every message of a worker
//! contains the fence of its lease, so the checker can tell which worker's message was accepted.

use super::client_log::{ClientRequest, Ticket};
use super::process::ProcessEvent;
use super::random::Random;
use super::trigger::Trigger;
use super::violation::{CheckResult, ViolationKind, require};
use super::workflow_generator::TYPES;
use super::world::{SimEvent, World, completed, ready};
use engine::Reply;
use engine::driver::QueueRead;
use engine::mailbox::{Command, LoadFailure};
use engine::task_queue::{self, ClaimReply, Pattern, Sizes};
use kernel::advance::TaskResult;
use kernel::event::Failure;
use kernel::payload::INLINE_MAX;
use kernel::{Answer, Input, OrgId, Payload, Run, RunId, Span, Timestamp};
use std::collections::BTreeSet;
use store::prelude::*;
use store::{Rate, TypePause, TypeRow};

const PATTERNS: [&str; 6] = ["%", "mail.%", "mail.send", "bill.v1", "bill.%", "ima%"];
/// How long a claim request waits in the liveness phase.
const LIVENESS_CLAIM_WAIT: Span = Span::from_secs(2);

pub enum WorkerAction {
    Claim {
        worker: usize,
    },
    EndWait {
        process: usize,
        place: u64,
    },
    /// The connection of a claim request is cut.
    Disconnect {
        worker: usize,
        reply_to: Ticket,
    },
    Heartbeat {
        task: HeldTask,
        /// The worker is busy until then.
        until: Timestamp,
    },
    Report {
        report: usize,
    },
    /// An operator changes the settings of a type.
    ChangeType {
        name: &'static str,
    },
}

/// A task that a worker holds.
#[derive(Clone, Copy, Debug)]
pub struct HeldTask {
    run: RunId,
    step: u32,
    fence: u64,
    lease: Span,
}

/// The result that a worker reports.
#[derive(Clone, Debug)]
struct WorkerReport {
    task: HeldTask,
    result: TaskResult,
    digest: u64,
    /// The worker repeats its report until it gets an answer or runs out of tries.
    tries_left: u32,
}

pub struct Workers {
    random: Random,
    /// The type patterns and the runtime of each worker.
    workers: Vec<(Vec<&'static str>, Option<&'static str>)>,
    reports: Vec<WorkerReport>,
    /// Claim requests whose worker has disconnected.
    pub disconnected: BTreeSet<Ticket>,
    /// Heartbeats that a process has accepted, and the expected answer, if that is known.
    heartbeats: Vec<(Ticket, Option<Option<Timestamp>>)>,
    pub sizes: Sizes,
}

impl Workers {
    pub fn draw(mut random: Random, has_small_memory: bool) -> Workers {
        let worker = |random: &mut Random| {
            let types = (0..random.between(1, 3)).map(|_| random.pick(&PATTERNS)).collect();
            (types, random.pick(&[None, None, Some("python"), Some("rust")]))
        };
        let workers = (0..random.between(1, 5)).map(|_| worker(&mut random)).collect();
        let mut sizes = Sizes::default();
        if has_small_memory {
            let (resident, page) = (random.below(5) as usize, random.between(1, 3) as usize);
            sizes = Sizes { resident, page, window: page * 2, low: random.between(1, 2) as usize };
        }
        Workers { random, workers, reports: Vec::new(), disconnected: BTreeSet::new(), heartbeats: Vec::new(), sizes }
    }

    fn name(worker: usize) -> String {
        format!("worker-{worker}")
    }
}

impl World {
    /// Schedules the first claim of every worker, and changes to the settings of types.
    pub fn schedule_workers(&mut self, until: Timestamp) {
        for worker in 0..self.workers.workers.len() {
            let at = self.workers.random.log_millis(1, 20_000);
            self.push(at, SimEvent::Worker(WorkerAction::Claim { worker }));
        }
        if self.faults.has_type_settings {
            for name in TYPES {
                let row = self.draw_type_row(name);
                ready(self.store.put_type(&row)).expect("the memory store answers");
                for _ in 0..self.workers.random.below(4) {
                    let at = Span(self.workers.random.below(until.since(self.now).0));
                    self.push(at, SimEvent::Worker(WorkerAction::ChangeType { name }));
                }
            }
        }
    }

    fn draw_type_row(&mut self, name: &str) -> TypeRow {
        let (now, random) = (self.now, &mut self.workers.random);
        let rate = |random: &mut Random| {
            let (limit, per) = (random.between(1, 3) as u32, random.log_millis(500, 10_000));
            Rate { limit, per, per_key: random.coin() }
        };
        TypeRow {
            runtime: random.chance(150).then(|| "python".into()),
            enabled: !random.chance(100),
            paused: random.chance(150).then(|| TypePause { at: now, actor: "ada".into(), note: String::new() }),
            limit: random.chance(600).then(|| random.between(1, 3) as u32),
            limit_per_key: random.chance(400).then(|| random.between(1, 2) as u32),
            rate: random.chance(150).then(|| rate(random)),
            ..default_type(name)
        }
    }

    /// An operator changes the settings of a type: first in the store, then in one process.
    fn change_type(&mut self, row: TypeRow) {
        let Some(process) = self.reachable().filter(|_| !self.is_store_down()) else { return };
        self.note(format!("process {process} gets type {row:?}"));
        ready(self.store.put_type(&row)).expect("the memory store answers");
        self.trace.mark("the settings of a type were changed", true);
        // Nodes compare the revision of the types before they lease a task.
        let is_told = |other: &usize| *other == process || self.faults.is_shared;
        let told: Vec<usize> = (0..self.processes.len()).filter(is_told).collect();
        for process in told.into_iter().filter(|process| self.processes[*process].is_alive()).collect::<Vec<_>>() {
            self.deliver(process, Command::TypeChanged(Box::new(row.clone())));
        }
    }

    pub fn do_worker_action(&mut self, action: WorkerAction) {
        match action {
            WorkerAction::Claim { .. } | WorkerAction::ChangeType { .. } if self.is_liveness_phase => {}
            WorkerAction::Claim { worker } => self.claim(worker),
            WorkerAction::EndWait { process, place } => {
                if self.processes[process].is_alive() {
                    self.deliver(process, Command::WithdrawClaim(place));
                }
            }
            WorkerAction::Disconnect { worker, reply_to: request_id } => {
                if self.client_log.is_open(request_id) {
                    self.note(format!("worker {worker} disconnects request {request_id}"));
                    self.client_log.disconnect(request_id);
                    self.workers.disconnected.insert(request_id);
                    self.claim_soon(worker);
                }
            }
            WorkerAction::Heartbeat { task, until } => self.send_heartbeat(task, until),
            WorkerAction::Report { report } => self.send_report(report),
            WorkerAction::ChangeType { name } => {
                let row = self.draw_type_row(name);
                self.change_type(row);
            }
        }
    }

    /// Draws the priority, key and start time of a run's tasks. Only a single-task run has a start time.
    pub fn draw_task_options(&mut self, trigger: &mut Trigger, is_single_task: bool) {
        let random = &mut self.workers.random;
        trigger.priority = random.chance(500).then(|| random.below(4) as u32);
        trigger.key = random.pick(&["", "", "a", "b"]);
        let run_at = self.now.after(random.log_millis(1, 240_000));
        trigger.run_at = (is_single_task && random.chance(300)).then_some(run_at);
    }

    fn claim_soon(&mut self, worker: usize) {
        let pause = self.workers.random.log_millis(1, 5_000);
        self.push(pause, SimEvent::Worker(WorkerAction::Claim { worker }));
    }

    fn claim(&mut self, worker: usize) {
        let Some(process) = self.reachable() else { return self.claim_soon(worker) };
        let (types, runtime) = self.workers.workers[worker].clone();
        let random = &mut self.workers.random;
        let (credits, lease) = (random.pick(&[0, 1, 1, 2, 5]), random.log_millis(1_000, 60_000));
        let wait = random.chance(700).then(|| random.log_millis(10, 20_000));
        let request_id = self.send_claim(worker, process, (types, runtime), credits, lease, wait);
        if self.workers.random.chance(self.faults.worker_disconnect) {
            let at = self.workers.random.log_millis(1, 10_000);
            self.push(at, SimEvent::Worker(WorkerAction::Disconnect { worker, reply_to: request_id }));
        }
    }

    fn send_claim(
        &mut self,
        worker: usize,
        process: usize,
        (types, runtime): (Vec<&str>, Option<&str>),
        credits: u32,
        lease: Span,
        wait: Option<Span>,
    ) -> Ticket {
        let request_id = self.client_log.record(ClientRequest::Claim { worker }, process);
        let place = request_id as u64;
        self.note(format!(
            "request {request_id} to process {process}: worker {worker} claims up to {credits} of {types:?}"
        ));
        let ask = task_queue::ClaimRequest {
            claim_id: place,
            reply_to: request_id,
            org: OrgId::DEFAULT,
            worker: Workers::name(worker),
            types: types.iter().map(|text| (*text).to_owned()).collect(),
            patterns: types.iter().filter_map(|text| Pattern::parse(text)).collect(),
            runtime: runtime.map(str::to_owned),
            version: None,
            slots: None,
            credits,
            lease,
            is_immediate: wait.is_none(),
            is_strict: false,
        };
        self.deliver(process, Command::Claim(Box::new(ask)));
        if let Some(wait) = wait {
            self.push(wait, SimEvent::Worker(WorkerAction::EndWait { process, place }));
        }
        request_id
    }

    /// In the liveness phase, an extra worker claims every type from every process.
    pub fn claim_from_all(&mut self) {
        for process in 0..self.processes.len() {
            if self.processes[process].is_up() && !self.processes[process].is_draining {
                self.claim_everything_from(process);
            }
        }
    }

    /// Tells every process that no type is paused or disabled any more.
    pub fn enable_all_types(&mut self) {
        for name in TYPES {
            let row = ready(self.store.task_type(OrgId::DEFAULT, name)).expect("the memory store answers");
            let row = TypeRow { enabled: true, paused: None, ..row.unwrap_or_else(|| default_type(name)) };
            ready(self.store.put_type(&row)).expect("the memory store answers");
            for process in 0..self.processes.len() {
                if self.processes[process].is_alive() {
                    self.deliver(process, Command::TypeChanged(Box::new(row.clone())));
                }
            }
        }
    }

    fn claim_everything_from(&mut self, process: usize) {
        let extra_worker = self.workers.workers.len();
        self.send_claim(extra_worker, process, (vec!["%"], None), 8, Span::from_secs(30), Some(LIVENESS_CLAIM_WAIT));
    }

    /// A request of a worker was answered.
    pub fn worker_answered(
        &mut self,
        process: usize,
        request_id: Ticket,
        request: &ClientRequest,
        reply: &Reply,
    ) -> CheckResult {
        match (request, reply) {
            (ClientRequest::Claim { worker }, Reply::Claimed(reply)) => {
                self.receive_tasks(process, request_id, *worker, reply)
            }
            (ClientRequest::Heartbeat { run, step, fence, .. }, Reply::Lease(until)) => {
                let Some(i) = self.workers.heartbeats.iter().position(|(of, ..)| *of == request_id) else {
                    return Ok(());
                };
                let (_, expected) = self.workers.heartbeats.swap_remove(i);
                let is_erased = self.checker.is_erased(*run);
                ViolationKind::Duplicated.unless(
                    is_erased || expected.is_none_or(|expected| expected == *until),
                    || {
                        format!(
                            "heartbeat for s{step} of {run} under {fence}: answered {until:?}, expected {expected:?}"
                        )
                    },
                )?;
                self.trace.mark("a heartbeat extended a lease", until.is_some());
                self.trace.mark("a heartbeat came after its lease was lost", until.is_none());
                Ok(())
            }
            (ClientRequest::Report { run, fence, report, .. }, Reply::Answer { answer, .. }) => {
                let HeldTask { step, .. } = self.workers.reports[*report].task;
                let has_it = self.checker.leases.fence((*run, step)) == Some(*fence);
                let is_only_writer = !self.processes[process].is_outdated;
                self.trace.mark("a report was too late", *answer == Answer::Stale);
                self.trace.mark("a repeated report was recognised", *answer == Answer::Repeated);
                require(*answer != Answer::Stale || !has_it || !is_only_writer, || {
                    format!("the report for s{step} of {run} was called stale, but {fence} is the current fence")
                })
            }
            _ => Ok(()),
        }
    }

    fn receive_tasks(&mut self, process: usize, request_id: Ticket, worker: usize, reply: &ClaimReply) -> CheckResult {
        let has_disconnected = self.workers.disconnected.remove(&request_id);
        let holder = Some(self.processes[process].epoch).filter(|_| !self.processes[process].has_unknown_commit);
        self.trace.mark("a worker was told that its task was cancelled", !reply.cancellations.is_empty());
        for task in &reply.tasks {
            let (run, step, fence, lease) = (task.run, task.step, task.fence, task.lease);
            self.note(format!("worker {worker} gets s{step} of {run} under fence {fence} for {lease}"));
            self.checker.leases.lease_delivered(process, (run, step));
            self.checker.task_delivered(task, &Workers::name(worker), has_disconnected, holder)?;
            // The driver hands back what a worker did not get.
            if !has_disconnected {
                self.start_task(process, HeldTask { run, step, fence, lease });
            }
        }
        match (self.is_liveness_phase, reply.tasks.is_empty()) {
            _ if has_disconnected => {}
            (false, _) => self.claim_soon(worker),
            (true, false) if self.processes[process].is_up() => self.claim_everything_from(process),
            (true, _) => {}
        }
        Ok(())
    }

    fn start_task(&mut self, process: usize, task: HeldTask) {
        if self.is_liveness_phase {
            let result =
                TaskResult::Done { body: Some(Payload::json(report_body(task.fence, false, 0))), took: Span(0) };
            return self.report_after(Span::from_millis(5), task, result);
        }
        let (dies, hangs) = (self.faults.worker_death, self.faults.worker_hang);
        if self.workers.random.chance(dies) {
            return self.trace.mark("a worker died", true);
        }
        let mut length = self.workers.random.log_millis(1, 30_000);
        if self.workers.random.chance(hangs) {
            self.trace.mark("a worker hung until its lease ended", true);
            length = Span(task.lease.0 + self.workers.random.log_millis(1, 60_000).0);
        } else if length.0 > task.lease.0 / 3 {
            let until = self.now.after(length);
            self.push(Span(task.lease.0 / 3), SimEvent::Worker(WorkerAction::Heartbeat { task, until }));
        }
        let now = self.engine_time(process).after(length);
        let result = draw_result(&mut self.workers.random, task.fence, now);
        self.report_after(length, task, result);
        if self.workers.random.chance(self.faults.repeated_report) {
            let later = Span(length.0 + self.workers.random.log_millis(1, 60_000).0);
            match self.workers.random.coin() {
                true => {
                    self.push(later, SimEvent::Worker(WorkerAction::Report { report: self.workers.reports.len() - 1 }))
                }
                false => {
                    let result = draw_result(&mut self.workers.random, task.fence, now);
                    self.report_after(later, task, result);
                }
            }
        }
    }

    fn report_after(&mut self, length: Span, task: HeldTask, result: TaskResult) {
        let digest = self.workers.random.draw() | 2;
        self.workers.reports.push(WorkerReport { task, result, digest, tries_left: 5 });
        self.push(length, SimEvent::Worker(WorkerAction::Report { report: self.workers.reports.len() - 1 }));
    }

    fn send_report(&mut self, report: usize) {
        let WorkerReport { task, result, digest, .. } = self.workers.reports[report].clone();
        let HeldTask { run, step, fence, .. } = task;
        let request = ClientRequest::Report { run, fence, digest, report };
        let Some(process) = self.reachable() else { return self.unanswered(request) };
        let request_id = self.client_log.record(request, process);
        self.note(format!("request {request_id} to process {process}: result of s{step} of {run} under fence {fence}"));
        let input = Input::Finished { step, fence, result, digest };
        self.deliver(process, Command::Give { org: OrgId::DEFAULT, run, input, reply_to: Some(request_id) });
    }

    /// A worker got no answer to its claim or its report.
    pub fn worker_unanswered(&mut self, request: &ClientRequest) {
        let pause = self.workers.random.log_millis(10, 5_000);
        match request {
            ClientRequest::Claim { worker } if *worker < self.workers.workers.len() => self.claim_soon(*worker),
            ClientRequest::Report { report, .. } if self.workers.reports[*report].tries_left > 0 => {
                self.workers.reports[*report].tries_left -= 1;
                self.trace.mark("a report was sent again", true);
                self.push(pause, SimEvent::Worker(WorkerAction::Report { report: *report }));
            }
            _ => {}
        }
    }

    fn send_heartbeat(&mut self, task: HeldTask, until: Timestamp) {
        let HeldTask { run, step, fence, lease } = task;
        let next = Span(lease.0 / 3);
        if self.now.after(next) < until {
            self.push(next, SimEvent::Worker(WorkerAction::Heartbeat { task, until }));
        }
        let Some(process) = self.reachable().filter(|_| !self.workers.random.chance(100)) else { return };
        let (org, random) = (OrgId::DEFAULT, &mut self.workers.random);
        if random.chance(300) {
            let progress = Some(Payload::json(report_body(fence, false, 0)));
            let request_id = self.client_log.record(ClientRequest::Progress { run, fence }, process);
            let input = Input::Heartbeat { step, fence, progress };
            return self.deliver(process, Command::Give { org, run, input, reply_to: Some(request_id) });
        }
        let by = random.chance(200).then(|| random.log_millis(1_000, 60_000));
        let request_id = self.client_log.record(ClientRequest::Heartbeat { run, step, fence, by }, process);
        self.deliver(process, Command::Extend { org, run, step, fence, by, reply_to: request_id });
    }

    /// The process takes a command from its inbox at engine time `now`.
    pub fn command_accepted(&mut self, process: usize, command: &Command<Ticket>, now: Timestamp) {
        match command {
            Command::Extend { run, step, fence, by, reply_to: request_id, .. } => {
                // A heartbeat never extends a lease beyond the heartbeat timeout of the task.
                let kind = self.checker.kind(*run, *step);
                let longest = kind.and_then(|kind| kind.task()?.heartbeat);
                let by = by.map(|by| longest.map_or(by, |longest| by.min(longest)));
                let task = (*run, *step);
                let expected = self.checker.leases.heartbeat_accepted(process, task, *fence, by, now);
                self.workers.heartbeats.push((*request_id, expected));
            }
            Command::Loaded { run, result: Ok(Some(resumed)) } => {
                let nodes = &self.processes[process].nodes;
                let is_own = |epoch: u64| epoch == nodes.own() || nodes.is_gone(epoch);
                self.checker.leases.run_loaded((process, &is_own), *run, &resumed.run, now);
            }
            Command::Loaded { run, result: Err(LoadFailure::Store(_)) } => {
                self.checker.leases.run_unread(process, *run);
            }
            // A run that cannot be read has no live leases in this process.
            Command::Loaded { run, result: Ok(None) | Err(LoadFailure::Newer | LoadFailure::Damaged(_)) } => {
                self.checker.leases.run_loaded((process, &|_| false), *run, &Run::default(), now);
            }
            Command::TypeChanged(row) => self.checker.leases.type_changed(process, row, self.now),
            Command::RestoreTaskQueue { types, .. } => {
                for name in TYPES {
                    let row = types.iter().find(|row| row.name == name).cloned().unwrap_or_else(|| default_type(name));
                    self.checker.leases.type_changed(process, &row, self.now);
                }
            }
            _ => {}
        }
    }

    /// Reads ready tasks and type settings from the store when a process starts.
    pub fn read_task_queue(&mut self) -> Command<Ticket> {
        let queues = ready(self.store.key_queues(None, 1_000)).expect("the memory store answers");
        let types = ready(self.store.configured_types()).expect("the memory store answers");
        self.trace.mark("ready tasks were found at start-up", !queues.is_empty());
        Command::RestoreTaskQueue { queues, types, workers: Vec::new() }
    }

    /// Carries out the reads of one turn for the task queue.
    pub fn read_queues(&mut self, process: usize, reads: Vec<QueueRead>) {
        let (page, is_up) = (self.workers.sizes.page, self.try_read().is_ok());
        for read in reads {
            let is_later_page = matches!(read, QueueRead::Refill(_, Some(_)));
            self.trace.mark("a key queue was read past its first page", is_later_page);
            let command = if is_up { completed(read.carry_out(&self.store, page)) } else { read.failed() };
            let delay = self.timing_random.log_millis(1, 5);
            self.push(delay, SimEvent::Process(process, ProcessEvent::CommandArrived(command)));
        }
    }
}

/// A type without any settings.
fn default_type(name: &str) -> TypeRow {
    TypeRow {
        org: OrgId::DEFAULT,
        name: name.to_owned(),
        runtime: None,
        description: None,
        enabled: true,
        paused: None,
        limit: None,
        limit_per_key: None,
        rate: None,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    }
}

/// The body of everything a worker sends. Like the answer of an upstream, it begins with the fence.
fn report_body(fence: u64, is_final: bool, pad: usize) -> String {
    format!("{{\"fence\":{fence},\"final\":{is_final},\"pad\":\"{}\"}}", "x".repeat(pad))
}

fn draw_result(random: &mut Random, fence: u64, now: Timestamp) -> TaskResult {
    let pad = if random.chance(50) { INLINE_MAX } else { 0 };
    let failed = |is_final| Failure::new("worker", report_body(fence, is_final, 0));
    match random.below(20) {
        0..12 => TaskResult::Done { body: Some(Payload::json(report_body(fence, false, pad))), took: Span(0) },
        12..17 => {
            let retry_after = random.chance(200).then(|| random.log_millis(1, 30_000));
            TaskResult::Failed { failure: failed(false), retryable: true, retry_after, took: Span(0) }
        }
        17 => TaskResult::Failed { failure: failed(true), retryable: false, retry_after: None, took: Span(0) },
        _ => {
            let failure = Failure::new("snoozed", report_body(fence, false, 0));
            TaskResult::Blocked { until: now.after(random.log_millis(1, 30_000)), failure }
        }
    }
}
