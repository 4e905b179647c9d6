//! Simulated clients. They start runs, send callbacks (too early, too late, twice, with other bytes), cancel,
//! watch, pause and resume. A client that gets no answer tries again with the same idempotency key.

use super::checker::KnownVersion;
use super::client_log::{ClientLog, ClientRequest};
use super::operators::OperatorPlan;
use super::random::Random;
use super::trigger::Trigger;
use super::violation::CheckResult;
use super::workflow_generator::StepKind;
use super::world::{NOTIFIER, SimEvent, World, ready};
use bytes::Bytes;
use engine::catalog::Resolved;
use engine::concurrency_groups;
use engine::mailbox::{Command, StartRun};
use engine::services::idempotency;
use kernel::advance::{ApprovalDecision, IncomingSignal};
use kernel::event::Origin;
use kernel::payload::INLINE_MAX;
use kernel::plan::Decision;
use kernel::run::Phase;
use kernel::{Input, OrgId, Payload, RunId, Span, Timestamp};
use store::prelude::*;
use store::{ConcurrencyGroupRow, IdempotencyKey, RunInsert, WorkflowPause};

/// The callback number whose body is too large for a record.
const LARGE_CALLBACK: u64 = 2;

/// Only deadlines closer than this are aimed at.
const AIM_AHEAD_MAX: Span = Span::from_secs(600);

/// A client request in the event heap.
pub struct PlannedRequest {
    request: Planned,
    /// The body of the trigger or of the callback.
    body: Bytes,
}

enum Planned {
    Request(ClientRequest),
    /// Answers one of the steps of the run that wait, which is chosen when the request is sent. Steps inside of groups
    /// and iterations are not known earlier.
    Answer {
        run: RunId,
        choice: u64,
        number: u64,
    },
    /// Something that an operator does to the run.
    Operator {
        run: RunId,
        plan: OperatorPlan,
    },
}

impl PlannedRequest {
    pub fn new(request: ClientRequest) -> PlannedRequest {
        PlannedRequest { request: Planned::Request(request), body: Bytes::new() }
    }

    pub fn by_operator(run: RunId, plan: OperatorPlan) -> PlannedRequest {
        PlannedRequest { request: Planned::Operator { run, plan }, body: Bytes::new() }
    }
}

/// Draws all requests that clients send before `until`.
pub fn draw_requests(world: &mut World, runs_max: u64, until: Timestamp) -> Vec<(Timestamp, PlannedRequest)> {
    let mut random = world.workload_random.clone();
    let mut requests = Vec::new();
    let length = until.since(world.now).0;
    let versions = world.catalog.versions().iter().filter(|known| known.version.name != NOTIFIER);
    let versions: Vec<KnownVersion> = versions.cloned().collect();
    for n in 0..random.between(1, runs_max) {
        let at = world.now.after(Span(random.below(length * 2 / 3)));
        let KnownVersion { workflow, version } = &versions[random.below(versions.len() as u64) as usize];
        // Requests for different workflows often have the same key.
        let key = random.chance(300).then_some(n as u32 / 3);
        let group = world.limits_random.below(2);
        let has_listener = world.faults.has_notifications && world.limits_random.chance(400);
        let run = RunId::new(at, random.bytes());
        let body = world.expect_run(run, Trigger::draw(&mut random, group), &version.name, has_listener);
        requests.push((at, PlannedRequest { body, ..PlannedRequest::new(ClientRequest::Start { run, key }) }));
        requests.extend(draw_pauses_and_repeats(world, run, key, at));
        requests.extend(world.draw_operators(run, at));
        let later = |random: &mut Random| at.after(random.log_millis(1, 120_000));
        let waits = workflow.steps.iter().filter(|step| step.kind.waits_for_client()).count() as u64;
        for _ in 0..random.below(4 * waits + 1) {
            let answer = Planned::Answer { run, choice: random.draw(), number: random.below(3) };
            requests.push((later(&mut random), PlannedRequest { request: answer, body: Bytes::new() }));
        }
        for _ in 0..random.below(4).saturating_sub(1) {
            let request = if random.chance(300) { world.cancel_of(run) } else { ClientRequest::Watch { run } };
            requests.push((later(&mut random), PlannedRequest::new(request)));
        }
        if random.chance(250) {
            let request = world.cancel_of(run);
            requests.push((until.after(random.millis(0, 600_000)), PlannedRequest::new(request)));
        }
    }
    world.workload_random = random;
    requests
}

/// Draws pauses, resumes and retries for a run, and a repeated start with the same key.
fn draw_pauses_and_repeats(
    world: &mut World,
    run: RunId,
    key: Option<u32>,
    at: Timestamp,
) -> Vec<(Timestamp, PlannedRequest)> {
    let mut random = world.limits_random.clone();
    let mut requests = Vec::new();
    let later = |random: &mut Random| at.after(random.log_millis(1, 60_000));
    if let Some(key) = key.filter(|_| random.chance(300)) {
        let again = later(&mut random);
        let (run, body) = world.expect_repeat(&mut random, run, again);
        requests.push((
            again,
            PlannedRequest { body, ..PlannedRequest::new(ClientRequest::Start { run, key: Some(key) }) },
        ));
    }
    if world.faults.has_user_pauses {
        for _ in 0..random.below(4).saturating_sub(1) {
            let choices = [
                ClientRequest::Pause { run },
                ClientRequest::Pause { run },
                ClientRequest::Resume { run },
                ClientRequest::RetryNow { run },
            ];
            let request = choices[random.below(4) as usize].clone();
            requests.push((later(&mut random), PlannedRequest::new(request)));
        }
    }
    world.limits_random = random;
    requests
}

/// Draws times before `until` at which workflows are paused (true) and resumed.
pub fn draw_workflow_pauses(world: &mut World, until: Timestamp) -> Vec<(Timestamp, String, bool)> {
    let mut pauses = Vec::new();
    let length = until.since(world.now).0;
    let versions = world.catalog.versions().iter().filter(|known| !known.workflow.is_single_task);
    let names: Vec<String> = versions.map(|known| known.version.name.clone()).collect();
    for name in names {
        for _ in 0..world.limits_random.below(3) {
            let begin = world.now.after(Span(world.limits_random.below(length)));
            let end = begin.after(world.limits_random.log_millis(10, 120_000));
            pauses.extend([(begin, name.clone(), true), (end, name.clone(), false)]);
        }
    }
    pauses
}

/// What ends a wait. Signals with equal numbers have equal keys, and number 0 has none.
fn answer_request(run: RunId, step: u32, kind: StepKind, number: u64) -> PlannedRequest {
    let request = match kind {
        StepKind::Signal(name, _) => ClientRequest::Signal { run, name, key: (number > 0).then_some(number as u32) },
        StepKind::Approval(_) => ClientRequest::Decide { run, step, is_approval: number != 1 },
        StepKind::Pause(_) => ClientRequest::Continue { run, step },
        _ => return callback_request(run, step, number),
    };
    PlannedRequest::new(request)
}

/// A callback. Equal numbers mean equal bytes.
fn callback_request(run: RunId, step: u32, number: u64) -> PlannedRequest {
    let digest = Bytes::from(format!("{run} s{step} number {number}"));
    let body = [&digest[..], &vec![b'x'; if number == LARGE_CALLBACK { INLINE_MAX } else { 0 }]].concat().into();
    PlannedRequest { body, ..PlannedRequest::new(ClientRequest::Callback { run, step, digest }) }
}

impl World {
    /// Registers a run that may come to exist. Returns the body of its trigger.
    pub fn expect_run(&mut self, run: RunId, mut trigger: Trigger, name: &str, has_listener: bool) -> Bytes {
        let known = self.catalog.newest(name).cloned().expect("only known workflows are started");
        if self.faults.has_tasks {
            self.draw_task_options(&mut trigger, known.workflow.is_single_task);
        }
        let body = trigger.body();
        self.workflow_of.insert(run, name.to_owned());
        self.checker.expect_run(run, known, trigger, has_listener);
        body
    }

    /// A request to cancel a run, sometimes after undoing what it did.
    fn cancel_of(&mut self, run: RunId) -> ClientRequest {
        let compensate = self.faults.has_undo && self.operator_random.coin();
        ClientRequest::Cancel { run, compensate }
    }

    /// A run may go on that had ended. While its workflow is paused, it is queued, like a new one.
    fn expect_reentry(&mut self, process: usize, run: RunId) {
        let Some(known) = self.checker.definition(run) else { return };
        let workflow = known.version.workflow;
        if self.processes[process].paused.contains(&workflow) {
            self.checker.concurrency.run_held(run, workflow);
        }
    }

    /// Registers the run that a repeated start of `run` may create.
    fn expect_repeat(&mut self, random: &mut Random, run: RunId, at: Timestamp) -> (RunId, Bytes) {
        let again = RunId::new(at, random.bytes());
        let (group, has_listener) = self.checker.group_and_listener(run);
        let name = self.workflow_of[&run].clone();
        let body = self.expect_run(again, Trigger::draw(random, group), &name, has_listener);
        (again, body)
    }

    /// Sends a callback, a cancel or both at about the time when `process` finds the run due.
    pub fn aim_at_deadline(&mut self, run: RunId, process: usize) {
        let Some(state) = self.checker.stored(run).filter(|state| !state.is_terminal()) else { return };
        let Some(due) = state.next_due().filter(|due| due.since(self.engine_time(process)) < AIM_AHEAD_MAX) else {
            return;
        };
        let is_retrying = state.state.steps.iter().any(|step| matches!(step.phase, Phase::Retrying { .. }));
        let open_wait = self.checker.open_waits(run).into_iter().next();
        let at = self.true_time_of(process, due);
        let now = self.now;
        let near = |random: &mut Random| Timestamp(at.0 + random.pick(&[-1_000, -1, 0, 0, 1, 1_000])).max(now);
        let (calls, cancels) = self.fault_random.pick(&[(true, false), (true, false), (false, true), (true, true)]);
        let mut requests = Vec::new();
        if let Some((step, kind)) = open_wait.filter(|_| calls) {
            for _ in 0..self.fault_random.between(1, 2) {
                let number = self.fault_random.below(3);
                requests.push((near(&mut self.fault_random), answer_request(run, step, kind, number)));
            }
        }
        if cancels {
            let request = self.cancel_of(run);
            requests.push((near(&mut self.fault_random), PlannedRequest::new(request)));
        }
        if is_retrying && self.faults.has_user_pauses {
            let choices =
                [ClientRequest::RetryNow { run }, ClientRequest::Pause { run }, ClientRequest::Resume { run }];
            let request = choices[self.fault_random.below(3) as usize].clone();
            requests.push((near(&mut self.fault_random), PlannedRequest::new(request)));
            if self.fault_random.coin() {
                let soon = self.now.after(self.fault_random.log_millis(1, 500));
                requests.push((soon, PlannedRequest::new(ClientRequest::RetryNow { run })));
            }
            self.trace.mark("a client acted on a retrying step", true);
        }
        self.trace.mark("a callback was aimed at a deadline", calls && open_wait.is_some());
        self.trace.mark("a cancel was aimed at a deadline", cancels);
        for (at, request) in requests {
            self.push_at(at, SimEvent::ClientRequest(request));
        }
    }

    /// Sends a request to a process. If no process takes requests, it stays unanswered.
    pub fn send(&mut self, planned: PlannedRequest) -> CheckResult {
        let (request, body) = match planned.request {
            Planned::Request(request) => (request, planned.body),
            Planned::Operator { run, plan } => {
                let Some(request) = self.operator_request(run, plan) else { return Ok(()) };
                (request, Bytes::new())
            }
            Planned::Answer { run, choice, number } => {
                let waits = self.checker.waits(run);
                let Some((step, kind)) = waits.get(choice as usize % waits.len().max(1)) else { return Ok(()) };
                self.trace.mark("a client answered a step inside of a group", self.checker.is_inner(run, *step));
                return self.send(answer_request(run, *step, *kind, number));
            }
        };
        let Some(process) = self.reachable() else {
            self.unanswered(request);
            return Ok(());
        };
        if self.processes[process].is_draining && matches!(request, ClientRequest::Start { .. }) {
            self.unanswered(request);
            return Ok(());
        }
        let found = match &request {
            ClientRequest::Start { run, .. } => self.resolve(process, &self.workflow_of[run].clone())?,
            _ => None,
        };
        if let (ClientRequest::Start { run, .. }, Some(found)) = (&request, &found) {
            self.client_log.expect_run(*run, found.row.id);
        }
        let request_id = self.client_log.record(request.clone(), process);
        self.note(format!("request {request_id} to process {process}: {request:?}"));
        let (org, some) = (OrgId::DEFAULT, Some(request_id));
        let command = match request {
            ClientRequest::Start { run, key } => {
                let Some(found) = found else {
                    self.trace.mark("a start was refused because its workflow was deleted", true);
                    self.client_log.refuse(request_id);
                    return Ok(());
                };
                let start = self.start_request(process, run, &found, key, body);
                match self.fault_random.chance(200) {
                    true => Command::StartAll(vec![(start, request_id), self.second_run(run, process, &found)]),
                    false => Command::Start { start: Box::new(start), reply_to: request_id, ended: None },
                }
            }
            ClientRequest::Callback { run, step, digest } => {
                let input = Input::Callback { step, body: Payload::sniff(body), digest };
                Command::Give { org, run, input, reply_to: some }
            }
            ClientRequest::Signal { run, name, key } => {
                let key = key.map_or(Bytes::new(), |key| Bytes::from(format!("key {key}")));
                let (name, actor) = (name.to_owned(), ClientLog::actor(request_id));
                let fingerprint = Bytes::from(name.clone());
                let signal = IncomingSignal { name, body: Payload::json("1"), actor, key, fingerprint };
                Command::Give { org, run, input: Input::Signal(Box::new(signal)), reply_to: some }
            }
            ClientRequest::Decide { run, step, is_approval } => {
                let decision = if is_approval { Decision::Approved } else { Decision::Denied };
                let (actor, comment, shown) = (ClientLog::actor(request_id), String::new(), String::new());
                let input =
                    Input::Decide { step: Some(step), verdict: ApprovalDecision { decision, actor, comment, shown } };
                Command::Give { org, run, input, reply_to: some }
            }
            ClientRequest::Continue { run, step } => {
                let input = Input::Continue { step: Some(step), actor: ClientLog::actor(request_id) };
                Command::Give { org, run, input, reply_to: some }
            }
            ClientRequest::Cancel { run, compensate } => {
                let input = Input::Cancel { actor: ClientLog::actor(request_id), reason: String::new(), compensate };
                Command::Give { org, run, input, reply_to: some }
            }
            ClientRequest::Watch { run } => Command::Watch { org, run, reply_to: request_id },
            ClientRequest::Pause { run } => {
                let input = Input::Pause { actor: ClientLog::actor(request_id), note: String::new() };
                Command::Give { org, run, input, reply_to: some }
            }
            ClientRequest::Resume { run } => {
                let input = Input::Resume { actor: ClientLog::actor(request_id) };
                Command::Give { org, run, input, reply_to: some }
            }
            ClientRequest::RetryNow { run } => {
                let input = Input::RetryNow { step: None, actor: ClientLog::actor(request_id) };
                Command::Give { org, run, input, reply_to: some }
            }
            request @ (ClientRequest::Override { run, .. } | ClientRequest::Retry { run, .. }) => {
                if matches!(request, ClientRequest::Retry { .. }) {
                    self.expect_reentry(process, run);
                }
                let Some(input) = self.operator_input(&request, request_id) else { return Ok(()) };
                Command::Give { org, run, input, reply_to: some }
            }
            ClientRequest::Notify { .. } | ClientRequest::Fire { .. } | ClientRequest::StartChild { .. } => {
                return Err("only a process starts such a run".into());
            }
            _ => return Err("only a worker sends this request".into()),
        };
        self.deliver(process, command);
        Ok(())
    }

    /// A second run of the same definition, to be started in one request with the first.
    fn second_run(&mut self, run: RunId, process: usize, found: &Resolved) -> (StartRun, usize) {
        let mut random = self.workload_random.clone();
        let (second, body) = self.expect_repeat(&mut random, run, self.now);
        self.workload_random = random;
        self.started_together.push((run, second));
        self.trace.mark("two runs were started together", true);
        self.client_log.expect_run(second, found.row.id);
        let request_id = self.client_log.record(ClientRequest::Start { run: second, key: None }, process);
        (self.start_request(process, second, found, None, body), request_id)
    }

    /// A client that got no answer to a start request repeats it, if it has an idempotency key.
    pub fn unanswered(&mut self, request: ClientRequest) {
        if request.is_from_worker() {
            return self.worker_unanswered(&request);
        }
        let ClientRequest::Start { run, key: Some(key) } = request else { return };
        let mut random = self.workload_random.clone();
        let pause = random.log_millis(10, 5_000);
        let (run, body) = self.expect_repeat(&mut random, run, self.now.after(pause));
        self.workload_random = random;
        self.push(
            pause,
            SimEvent::ClientRequest(PlannedRequest {
                body,
                ..PlannedRequest::new(ClientRequest::Start { run, key: Some(key) })
            }),
        );
    }

    /// Builds the start command as the engine does, for the version that the process has found.
    pub fn start_request(
        &mut self,
        process: usize,
        run: RunId,
        found: &Resolved,
        key: Option<u32>,
        body: Bytes,
    ) -> StartRun {
        let version = found.version.clone();
        self.checker.version_found(run, self.known(&version));
        let client_key = key.map(|key| IdempotencyKey {
            scope: version.workflow.to_string(),
            key: key.to_string(),
            fingerprint: [0; 32],
            created_at: self.now,
        });
        let notification = self.checker.notifications.sent_by(run);
        let notification_key = notification.map(|(of, number)| idempotency(of, number)).map(|asked| IdempotencyKey {
            scope: asked.scope.unwrap_or_default(),
            key: asked.key,
            fingerprint: asked.fingerprint,
            created_at: self.now,
        });
        let has_listener = self.checker.group_and_listener(run).1;
        let trigger = self.checker.trigger(run).expect("the run was registered before its request");
        let mut origin = Origin {
            workflow: version.workflow,
            workflow_name: version.name.clone(),
            version: version.number,
            hash: Bytes::copy_from_slice(&version.hash),
            lowering: version.lowering,
            body: Payload::json(body),
            expires_at: self.now.after(version.plan.layout().max_duration),
            caused_by: notification.map(|(of, _)| of),
            priority: trigger.priority,
            key: trigger.key.into(),
            run_at: trigger.run_at,
            callback_url: if has_listener { "http://listener/".into() } else { String::new() },
            ..Default::default()
        };
        origin.concurrency_group =
            kernel::advance::concurrency_group(&version.plan, &origin).expect("every trigger has a concurrency key");
        let concurrency_group = origin.concurrency_group.as_ref().map(|concurrency_group| ConcurrencyGroupRow {
            id: concurrency_groups::id(version.workflow, &concurrency_group.key),
            limit: concurrency_group.limit,
            on_conflict: concurrency_group.on_conflict,
        });
        if self.processes[process].paused.contains(&version.workflow) {
            self.checker.concurrency.run_held(run, version.workflow);
        }
        let run_insert = RunInsert { idempotency: client_key.or(notification_key), notification, ..Default::default() };
        let copied = Vec::new();
        StartRun { org: OrgId::DEFAULT, run, version, origin, copied, concurrency_group, run_insert, source: None }
    }

    /// A client pauses or resumes a workflow: first in the store, then in one process. If the outcome of the
    /// write is unknown, the process crashes.
    pub fn set_workflow_paused(&mut self, name: &str, is_paused: bool) {
        let Some(workflow) = self.catalog.current(name).map(|known| known.version.workflow) else { return };
        let Some(process) = self.reachable().filter(|_| !self.is_store_down()) else { return };
        let is_unknown = !self.is_liveness_phase && self.fault_random.chance(self.faults.unknown_commit);
        self.note(format!("process {process} sets {name} paused: {is_paused}, unknown outcome: {is_unknown}"));
        if !is_unknown || self.fault_random.coin() {
            let org = OrgId::DEFAULT;
            let pause = WorkflowPause { org, workflow, at: self.now, actor: "a client".into(), note: String::new() };
            let written = match is_paused {
                true => ready(self.store.pause_workflow(&pause)),
                false => ready(self.store.resume_workflow(org, workflow)),
            };
            written.expect("the memory store answers");
        }
        if is_unknown {
            return self.crash(self.processes[process].host);
        }
        self.trace.mark("a workflow was paused", is_paused);
        match is_paused {
            true => {
                self.processes[process].paused.insert(workflow);
                self.deliver(process, Command::PauseWorkflow(workflow));
            }
            false => {
                self.processes[process].paused.remove(&workflow);
                self.checker.concurrency.workflow_resumed(workflow);
                self.deliver(process, Command::ResumeWorkflow(workflow));
            }
        }
    }

    /// Resumes everything that is paused, and sends a callback to every open wait.
    pub fn answer_waits_and_resume(&mut self) -> CheckResult {
        let pauses = ready(self.store.workflow_pauses()).expect("the memory store answers");
        for pause in pauses {
            let name = self.catalog.name_of(pause.workflow).expect("only known workflows are paused").to_owned();
            self.set_workflow_paused(&name, false);
        }
        let paused = self.checker.open().filter(|(.., state)| state.state.paused.is_some());
        for run in paused.map(|(run, ..)| run).collect::<Vec<_>>() {
            self.send(PlannedRequest::new(ClientRequest::Resume { run }))?;
        }
        let mut open_waits = Vec::new();
        for (run, ..) in self.checker.open() {
            open_waits.extend(self.checker.open_waits(run).into_iter().map(|(step, kind)| (run, step, kind)));
        }
        for (run, step, kind) in open_waits {
            // A signal without a key: one with a key may have arrived before.
            let number = if kind.signal().is_some() { 0 } else { 99 };
            self.send(answer_request(run, step, kind, number))?;
        }
        Ok(())
    }
}
