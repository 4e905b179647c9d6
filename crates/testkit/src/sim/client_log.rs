//! What clients requested, what they were answered, and whether the answers are true.
//!
//! A client relies on three kinds of answers: *done* (the effect must last, I1), *refused* (the effect must
//! never appear, I2) and *unknown* (either is possible, I3). The log compares each answer with the stored run
//! when it is given, and all answers again at the end.

use super::checker::Checker;
use super::violation::{CheckResult, Violation, ViolationKind, require};
use bytes::Bytes;
use engine::Reply;
use engine::mailbox::LoadFailure;
use kernel::event::Override;
use kernel::{Answer, Run, RunId, RunStatus, Span, Timestamp, TriggerId, WorkflowId};
use std::collections::BTreeMap;

/// Identifies a request: its index in the log.
pub type Ticket = usize;

#[derive(Clone, Debug)]
pub enum ClientRequest {
    Start {
        run: RunId,
        key: Option<u32>,
    },
    Callback {
        run: RunId,
        step: u32,
        digest: Bytes,
    },
    /// With the key of the sender, if it chose one.
    Signal {
        run: RunId,
        name: &'static str,
        key: Option<u32>,
    },
    Decide {
        run: RunId,
        step: u32,
        is_approval: bool,
    },
    /// Resumes a step.
    Continue {
        run: RunId,
        step: u32,
    },
    Cancel {
        run: RunId,
        compensate: bool,
    },
    Watch {
        run: RunId,
    },
    Pause {
        run: RunId,
    },
    Resume {
        run: RunId,
    },
    RetryNow {
        run: RunId,
    },
    /// An operator decides about a step.
    Override {
        run: RunId,
        step: u32,
        verb: Override,
    },
    /// A client retries a run, which may have ended.
    Retry {
        run: RunId,
        from: Option<u32>,
        allow_irreversible: bool,
    },
    /// A worker requests tasks.
    Claim {
        worker: usize,
    },
    /// A worker reports a result (an index into the reports of [`workers`](super::workers)).
    Report {
        run: RunId,
        fence: u64,
        digest: u64,
        report: usize,
    },
    /// A worker sends a heartbeat, optionally with an extension of its own choice.
    Heartbeat {
        run: RunId,
        step: u32,
        fence: u64,
        by: Option<Span>,
    },
    /// A worker sends a progress report.
    Progress {
        run: RunId,
        fence: u64,
    },
    /// A process starts the run that sends a notification about another run.
    Notify {
        run: RunId,
        of: RunId,
        number: u64,
    },
    /// A process starts the run of a fire time.
    Fire {
        run: RunId,
        trigger: TriggerId,
        nominal: Timestamp,
    },
    /// A process starts the run that a step of another run asks for.
    StartChild {
        run: RunId,
        parent: RunId,
    },
}

impl ClientRequest {
    /// Does a worker send this request?
    pub fn is_from_worker(&self) -> bool {
        matches!(
            self,
            ClientRequest::Claim { .. }
                | ClientRequest::Report { .. }
                | ClientRequest::Heartbeat { .. }
                | ClientRequest::Progress { .. }
        )
    }

    pub fn run(&self) -> RunId {
        match self {
            ClientRequest::Start { run, .. }
            | ClientRequest::Callback { run, .. }
            | ClientRequest::Signal { run, .. }
            | ClientRequest::Decide { run, .. }
            | ClientRequest::Continue { run, .. }
            | ClientRequest::Cancel { run, .. }
            | ClientRequest::Override { run, .. }
            | ClientRequest::Retry { run, .. }
            | ClientRequest::Watch { run } => *run,
            ClientRequest::Pause { run }
            | ClientRequest::Resume { run }
            | ClientRequest::RetryNow { run }
            | ClientRequest::Notify { run, .. }
            | ClientRequest::Fire { run, .. }
            | ClientRequest::StartChild { run, .. } => *run,
            ClientRequest::Report { run, .. }
            | ClientRequest::Heartbeat { run, .. }
            | ClientRequest::Progress { run, .. } => *run,
            ClientRequest::Claim { .. } => RunId::default(),
        }
    }
}

pub struct LoggedRequest {
    pub request: ClientRequest,
    /// The process that got the request.
    process: usize,
    /// The same process had already acknowledged the start of the run.
    is_known: bool,
    state: RequestState,
}

#[derive(Clone, Debug, PartialEq)]
enum RequestState {
    Open,
    /// The process died or the client disconnected.
    Lost,
    Done(Answer),
    Refused,
    /// The answer says nothing.
    Ignored,
    /// The run ended, and the watcher was told.
    Ended(RunStatus),
    Unknown,
}

#[derive(Default)]
pub struct ClientLog {
    entries: Vec<LoggedRequest>,
    /// Runs that were started with an idempotency key: their workflow and the key.
    keys: BTreeMap<RunId, (WorkflowId, u32)>,
    workflows: BTreeMap<RunId, WorkflowId>,
}

/// The client that has cancelled the run, or is about to.
fn cancelled_by(run: &Run) -> Option<&str> {
    let own = Some(run.state.cancelled_by.as_str()).filter(|actor| !actor.is_empty());
    let undoing = run.state.compensating.as_ref().filter(|end| end.status == RunStatus::Cancelled);
    own.or(undoing.map(|end| end.actor.as_str()))
}

impl ClientLog {
    /// Was the run started with an idempotency key? Then another run may exist in its place.
    pub fn has_key(&self, run: RunId) -> bool {
        self.keys.contains_key(&run)
    }

    /// Registers a run before it is requested.
    pub fn expect_run(&mut self, run: RunId, workflow: WorkflowId) {
        self.workflows.insert(run, workflow);
    }

    pub fn record(&mut self, request: ClientRequest, process: usize) -> Ticket {
        // A worker refers to a task that it got, so the run is durable.
        let is_known = request.is_from_worker() || self.has_acknowledged(process, request.run());
        if let ClientRequest::Start { run, key: Some(key) } = request {
            self.keys.insert(run, (self.workflows.get(&run).copied().unwrap_or_default(), key));
        }
        self.entries.push(LoggedRequest { request, process, is_known, state: RequestState::Open });
        self.entries.len() - 1
    }

    /// The request was answered with an error before it reached the engine: it must have no effect.
    pub fn refuse(&mut self, request_id: Ticket) {
        self.entries[request_id].state = RequestState::Refused;
    }

    pub fn actor(request_id: Ticket) -> String {
        format!("client {request_id}")
    }

    /// The process died, so nothing answers its open requests. Returns these requests.
    pub fn process_died(&mut self, process: usize) -> Vec<ClientRequest> {
        let open = self.entries.iter_mut().filter(|r| r.process == process && r.state == RequestState::Open);
        open.map(|entry| {
            entry.state = RequestState::Lost;
            entry.request.clone()
        })
        .collect()
    }

    /// Checks a reply against what is stored.
    pub fn answered(
        &mut self,
        request_id: Ticket,
        reply: Reply,
        stored: &Checker,
    ) -> Result<&ClientRequest, Violation> {
        let entry = &self.entries[request_id];
        if entry.state != RequestState::Open {
            let message = format!("{:?} was answered twice: {reply:?}", entry.request);
            return Err(Violation { kind: ViolationKind::Duplicated, message });
        }
        let state = match (&entry.request, reply) {
            (_, Reply::Unavailable(_) | Reply::LoadFailure(LoadFailure::Store(_))) => RequestState::Refused,
            (_, Reply::Unknown(_)) => RequestState::Unknown,
            (request, Reply::LoadFailure(LoadFailure::Newer)) if stored.needs_upgrade(request.run()) => {
                RequestState::Refused
            }
            (ClientRequest::Start { run: asked, key: Some(key) }, Reply::KeyTaken { run, .. }) => {
                let is_correct = self.keys.get(&run) == self.keys.get(asked) && stored.stored(run).is_some();
                require(is_correct, || format!("the reply says that key {key} belongs to {run}"))?;
                RequestState::Refused
            }
            (ClientRequest::Notify { of, number, .. }, Reply::KeyTaken { run, .. }) => {
                let is_correct =
                    stored.notifications.sent_by(run) == Some((*of, *number)) && stored.stored(run).is_some();
                require(is_correct, || format!("the reply says that {run} sends notification {number} of {of}"))?;
                RequestState::Refused
            }
            (ClientRequest::Fire { trigger, nominal, .. }, Reply::KeyTaken { run, .. }) => {
                let is_correct = stored.schedules.fire_time_of(run) == Some((*trigger, *nominal));
                require(is_correct && stored.stored(run).is_some(), || {
                    format!("the reply says that {run} is the run of {trigger} at {nominal:?}")
                })?;
                RequestState::Refused
            }
            // It was deleted while this process read it.
            (request, Reply::LoadFailure(LoadFailure::Damaged(_))) if stored.is_erased(request.run()) => {
                RequestState::Refused
            }
            (ClientRequest::Claim { .. }, Reply::Claimed(_)) | (ClientRequest::Heartbeat { .. }, Reply::Lease(_)) => {
                RequestState::Done(Answer::Applied)
            }
            (ClientRequest::Watch { .. }, Reply::Ended(status)) => RequestState::Ended(status),
            // The row is there, and is tried again: another request has started the child, and it was deleted since; or an
            // earlier one in the same batch was not applied.
            (ClientRequest::StartChild { .. }, Reply::NotFound) => RequestState::Ignored,
            (
                ClientRequest::Start { .. } | ClientRequest::Notify { .. } | ClientRequest::Fire { .. },
                Reply::NotFound,
            ) => {
                return Err(format!("{:?} was answered with `NotFound`", entry.request).into());
            }
            (request, Reply::NotFound) if !entry.is_known || stored.is_erased(request.run()) => RequestState::Refused,
            (request, Reply::Answer { answer, status, .. })
                if !matches!(
                    request,
                    ClientRequest::Watch { .. } | ClientRequest::Claim { .. } | ClientRequest::Heartbeat { .. }
                ) =>
            {
                let now = stored.stored(entry.request.run()).map(Run::status);
                let is_correct = !status.is_terminal() || stored.has_become(entry.request.run(), status);
                require(is_correct, || format!("the reply says that the run is {status}, but it is {now:?}"))?;
                RequestState::Done(answer)
            }
            (request, reply) => return Err(format!("{request:?} was answered with {reply:?}").into()),
        };
        self.entries[request_id].state = state;
        self.check(request_id, stored)?;
        Ok(&self.entries[request_id].request)
    }

    /// Checks all answers once more, at the end of the simulation.
    pub fn check_all(&self, stored: &Checker) -> CheckResult {
        (0..self.entries.len()).try_for_each(|request_id| self.check(request_id, stored))?;
        self.check_one_run_per_key(stored)?;
        self.check_cancels_were_requested(stored)
    }

    /// I24: one idempotency key creates one run.
    fn check_one_run_per_key(&self, stored: &Checker) -> CheckResult {
        let mut created = BTreeMap::new();
        for (run, key) in self.keys.iter().filter(|(run, _)| stored.stored(**run).is_some()) {
            let other = created.insert(key, run);
            ViolationKind::Duplicated.unless(other.is_none(), || format!("key {key:?} created {run} and {other:?}"))?;
        }
        Ok(())
    }

    /// I2: a run is cancelled only if a client requested it. The concurrency model checks cancellations by
    /// the engine.
    fn check_cancels_were_requested(&self, stored: &Checker) -> CheckResult {
        let stored_runs = self.entries.iter().filter_map(|r| Some((r.request.run(), stored.stored(r.request.run())?)));
        let is_cancelled = |run: &Run| run.status() == RunStatus::Cancelled && run.state.cancelled_by != "onward";
        for (id, run) in stored_runs.filter(|(_, run)| is_cancelled(run)) {
            let parent = stored.families.closed_by(id).map(|parent| parent.to_string());
            let is_requested = parent == Some(run.state.cancelled_by.clone())
                || self.entries.iter().enumerate().any(|(request_id, entry)| {
                    matches!(entry.request, ClientRequest::Cancel { run, .. } if run == id)
                        && entry.state != RequestState::Refused
                        && run.state.cancelled_by == ClientLog::actor(request_id)
                });
            require(is_requested, || format!("{id} was cancelled, but no client requested it"))?;
        }
        Ok(())
    }

    pub fn request(&self, request_id: Ticket) -> &ClientRequest {
        &self.entries[request_id].request
    }

    pub fn is_open(&self, request_id: Ticket) -> bool {
        self.entries[request_id].state == RequestState::Open
    }

    /// The client does not wait for the answer any more.
    pub fn disconnect(&mut self, request_id: Ticket) {
        if self.entries[request_id].state == RequestState::Open {
            self.entries[request_id].state = RequestState::Lost;
        }
    }

    /// Did a process send this request to start a notification run?
    pub fn is_notification(&self, request_id: Ticket) -> bool {
        matches!(self.entries[request_id].request, ClientRequest::Notify { .. })
    }

    /// Requests that still wait for an answer.
    pub fn open(&self) -> impl Iterator<Item = &ClientRequest> {
        self.entries.iter().filter(|r| r.state == RequestState::Open).map(|r| &r.request)
    }

    fn check(&self, request_id: Ticket, stored: &Checker) -> CheckResult {
        let LoggedRequest { request, state, .. } = &self.entries[request_id];
        let run = stored.stored(request.run());
        let is_correct = match (request, state) {
            (_, RequestState::Open | RequestState::Lost | RequestState::Unknown | RequestState::Ignored) => true,
            (ClientRequest::StartChild { .. }, RequestState::Done(Answer::Applied | Answer::Repeated)) => run.is_some(),
            (ClientRequest::StartChild { .. }, RequestState::Refused) => true,
            (
                ClientRequest::Start { .. } | ClientRequest::Notify { .. } | ClientRequest::Fire { .. },
                RequestState::Done(Answer::Applied),
            ) => run.is_some(),
            (
                ClientRequest::Start { .. } | ClientRequest::Notify { .. } | ClientRequest::Fire { .. },
                RequestState::Refused,
            ) => run.is_none(),
            (ClientRequest::Pause { .. } | ClientRequest::Resume { .. } | ClientRequest::RetryNow { .. }, state) => {
                let has_acted = stored.has_acted(request.run(), &ClientLog::actor(request_id));
                match state {
                    RequestState::Done(Answer::Applied) => has_acted,
                    RequestState::Done(Answer::Repeated) => {
                        !has_acted && !matches!(request, ClientRequest::RetryNow { .. })
                    }
                    RequestState::Done(Answer::Unknown) => {
                        !has_acted && matches!(request, ClientRequest::RetryNow { .. })
                    }
                    RequestState::Done(Answer::Ended(status)) => {
                        !has_acted && stored.has_become(request.run(), *status)
                    }
                    RequestState::Refused => !has_acted,
                    _ => false,
                }
            }
            (ClientRequest::Claim { .. } | ClientRequest::Heartbeat { .. } | ClientRequest::Progress { .. }, _) => true,
            (ClientRequest::Report { run: id, fence, digest, .. }, state) => {
                let is_recorded = stored.accepted_report(*id, *fence) == Some(*digest);
                match state {
                    RequestState::Done(Answer::Applied | Answer::Repeated) => is_recorded,
                    RequestState::Done(Answer::Ended(status)) => stored.has_become(request.run(), *status),
                    RequestState::Done(Answer::Stale) => true,
                    RequestState::Done(Answer::Unknown) => !stored.is_shared(),
                    RequestState::Refused => !is_recorded || self.may_have_reported(*id, *fence, *digest),
                    _ => false,
                }
            }
            (ClientRequest::Override { .. } | ClientRequest::Retry { .. }, state) => {
                let has_acted = stored.has_acted(request.run(), &ClientLog::actor(request_id));
                let is_retry = matches!(request, ClientRequest::Retry { .. });
                match state {
                    RequestState::Done(Answer::Applied) => has_acted,
                    RequestState::Done(Answer::Ended(status)) => {
                        !has_acted && stored.has_become(request.run(), *status)
                    }
                    RequestState::Done(Answer::Repeated | Answer::Unsafe | Answer::NoRoom) => is_retry && !has_acted,
                    RequestState::Done(Answer::Gone | Answer::Conflict) => !is_retry && !has_acted,
                    RequestState::Done(Answer::Unknown) | RequestState::Refused => !has_acted,
                    _ => false,
                }
            }
            // A retry of the run may let the wait begin again.
            (ClientRequest::Callback { step, digest, .. }, state) if stored.times_retried(request.run()) > 0 => {
                let is_accepted = stored.has_accepted_callback(request.run(), *step, digest);
                match state {
                    RequestState::Done(Answer::Applied | Answer::Repeated) => is_accepted,
                    RequestState::Done(Answer::Conflict | Answer::Gone | Answer::Unknown) => true,
                    RequestState::Refused => true,
                    _ => false,
                }
            }
            (ClientRequest::Callback { step, digest, .. }, state) => {
                let kept = run.and_then(|r| r.get(*step)?.callback.as_ref()).map(|c| &c.digest);
                match state {
                    // A settled iteration has left the state with its steps.
                    _ if run.is_some_and(|run| run.get(*step).is_none()) => true,
                    // On a store that is not shared, a replaced process may not know that the step was opened.
                    RequestState::Done(Answer::Unknown) => !stored.is_shared(),
                    RequestState::Done(Answer::Applied | Answer::Repeated) => kept == Some(digest),
                    RequestState::Done(Answer::Conflict) => kept.is_some_and(|kept| kept != digest),
                    RequestState::Done(Answer::Gone) => kept != Some(digest),
                    RequestState::Refused => kept != Some(digest) || self.may_have_applied(digest),
                    _ => false,
                }
            }
            (ClientRequest::Signal { .. } | ClientRequest::Decide { .. } | ClientRequest::Continue { .. }, state) => {
                let has_acted = stored.has_acted(request.run(), &ClientLog::actor(request_id));
                match state {
                    RequestState::Done(Answer::Applied) => has_acted,
                    RequestState::Done(Answer::Ended(status)) => {
                        !has_acted && stored.has_become(request.run(), *status)
                    }
                    RequestState::Done(Answer::Repeated | Answer::Conflict) => {
                        !has_acted && !matches!(request, ClientRequest::Signal { key: None, .. })
                    }
                    RequestState::Done(Answer::Gone | Answer::Unknown) => {
                        !has_acted && !matches!(request, ClientRequest::Signal { .. })
                    }
                    RequestState::Refused => !has_acted,
                    _ => false,
                }
            }
            (ClientRequest::Cancel { .. }, state) => {
                // It ends when its children have, or at its deadline.
                let ends = [RunStatus::Cancelled, RunStatus::Cancelling, RunStatus::Compensating, RunStatus::Timeout];
                let is_cancelled = run.is_some_and(|r| ends.contains(&r.status()) && cancelled_by(r).is_some());
                let is_own = run.and_then(cancelled_by) == Some(&ClientLog::actor(request_id));
                match state {
                    RequestState::Done(Answer::Applied) => is_cancelled && is_own,
                    RequestState::Done(Answer::Repeated) => is_cancelled,
                    RequestState::Done(Answer::Ended(status)) => stored.has_become(request.run(), *status),
                    RequestState::Refused => !is_own,
                    _ => false,
                }
            }
            (ClientRequest::Watch { .. }, RequestState::Ended(status)) => stored.has_become(request.run(), *status),
            (ClientRequest::Watch { .. }, RequestState::Refused) => true,
            _ => false,
        };
        ViolationKind::Lost.unless(is_correct, || format!("{request:?} was answered with {state:?}, which is wrong"))
    }

    /// May another request with the same bytes have been applied?
    fn may_have_applied(&self, bytes: &Bytes) -> bool {
        self.entries.iter().any(|r| match &r.request {
            ClientRequest::Callback { digest, .. } => digest == bytes && r.state != RequestState::Refused,
            _ => false,
        })
    }

    /// May the same report have been applied by another request?
    fn may_have_reported(&self, id: RunId, of: u64, content: u64) -> bool {
        self.entries.iter().any(|r| match r.request {
            ClientRequest::Report { run, fence, digest, .. } => {
                (run, fence, digest) == (id, of, content) && r.state != RequestState::Refused
            }
            _ => false,
        })
    }

    fn has_acknowledged(&self, process: usize, id: RunId) -> bool {
        self.entries.iter().filter(|r| r.process == process).any(|r| match &r.request {
            ClientRequest::Start { run, .. } => *run == id && matches!(r.state, RequestState::Done(_)),
            _ => false,
        })
    }
}
