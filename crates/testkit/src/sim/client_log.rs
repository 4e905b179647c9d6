//! What clients asked and what they were told, and whether it was true.
//!
//! A client trusts three kinds of answer: *done* (it must stay done, I1), *refused* (it must never turn
//! out to have happened, I2) and *unknown* (it may be either, I3). The ledger holds each answer against
//! the stored run when it is given, and all of them again at the end.

use super::checker::Checker;
use super::violation::{CheckResult, Violation, ViolationKind, require};
use bytes::Bytes;
use engine::Reply;
use engine::mailbox::Trouble;
use kernel::{Answer, Run, RunId, RunStatus, Span};
use std::collections::BTreeMap;

/// Where a reply goes: a number in the ledger.
pub type Ticket = usize;

#[derive(Clone, Debug)]
pub enum Request {
    Start {
        run: RunId,
        key: Option<u32>,
    },
    Callback {
        run: RunId,
        step: u32,
        digest: Bytes,
    },
    Cancel {
        run: RunId,
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
    /// A worker asks for tasks…
    Claim {
        worker: usize,
    },
    /// …says how one ended (a number in the crew's book)…
    Report {
        run: RunId,
        fence: u64,
        digest: u64,
        report: usize,
    },
    /// …says that it is alive, at a time of the process it tells…
    Heartbeat {
        run: RunId,
        step: u32,
        fence: u64,
        by: Option<Span>,
    },
    /// …or how far it is.
    Progress {
        run: RunId,
        fence: u64,
    },
    /// A process asks itself for the run that tells of another's end.
    Notify {
        run: RunId,
        of: RunId,
        number: u32,
    },
}

impl Request {
    /// Does a worker ask it?
    pub fn is_from_worker(&self) -> bool {
        matches!(
            self,
            Request::Claim { .. } | Request::Report { .. } | Request::Heartbeat { .. } | Request::Progress { .. }
        )
    }

    pub fn run(&self) -> RunId {
        match self {
            Request::Start { run, .. }
            | Request::Callback { run, .. }
            | Request::Cancel { run }
            | Request::Watch { run } => *run,
            Request::Pause { run }
            | Request::Resume { run }
            | Request::RetryNow { run }
            | Request::Notify { run, .. } => *run,
            Request::Report { run, .. } | Request::Heartbeat { run, .. } | Request::Progress { run, .. } => *run,
            Request::Claim { .. } => RunId::default(),
        }
    }
}

pub struct LoggedRequest {
    pub request: Request,
    /// The process that was asked.
    process: usize,
    /// The same process had acknowledged the run's start by then.
    is_known: bool,
    state: RequestState,
}

#[derive(Clone, Debug, PartialEq)]
enum RequestState {
    Open,
    /// Whoever had it died.
    Lost,
    Done(Answer),
    Refused,
    /// The run ended, and the watcher was told.
    Ended(RunStatus),
    Unknown,
}

#[derive(Default)]
pub struct ClientLog {
    entries: Vec<LoggedRequest>,
    /// Runs asked for with a key.
    keys: BTreeMap<RunId, u32>,
}

impl ClientLog {
    /// Was it asked for with a key? Then another run may be there in its place.
    pub fn has_key(&self, run: RunId) -> bool {
        self.keys.contains_key(&run)
    }

    pub fn record(&mut self, request: Request, process: usize) -> Ticket {
        // A worker speaks of what it was given, which is durable.
        let is_known = request.is_from_worker() || self.has_acknowledged(process, request.run());
        if let Request::Start { run, key: Some(key) } = request {
            self.keys.insert(run, key);
        }
        self.entries.push(LoggedRequest { request, process, is_known, state: RequestState::Open });
        self.entries.len() - 1
    }

    pub fn actor(ticket: Ticket) -> String {
        format!("client {ticket}")
    }

    /// The process is gone: nobody will answer. Returns what was asked of it.
    pub fn process_died(&mut self, process: usize) -> Vec<Request> {
        let open = self.entries.iter_mut().filter(|r| r.process == process && r.state == RequestState::Open);
        open.map(|entry| {
            entry.state = RequestState::Lost;
            entry.request.clone()
        })
        .collect()
    }

    /// Holds a reply against what is stored.
    pub fn answered(&mut self, ticket: Ticket, reply: Reply, stored: &Checker) -> Result<&Request, Violation> {
        let entry = &self.entries[ticket];
        if entry.state != RequestState::Open {
            let message = format!("{:?} was answered twice: {reply:?}", entry.request);
            return Err(Violation { kind: ViolationKind::Duplicated, message });
        }
        let state = match (&entry.request, reply) {
            (_, Reply::Unavailable(_) | Reply::Trouble(Trouble::Store(_))) => RequestState::Refused,
            (_, Reply::Unknown(_)) => RequestState::Unknown,
            (request, Reply::Trouble(Trouble::Newer)) if stored.needs_upgrade(request.run()) => RequestState::Refused,
            (Request::Start { key: Some(key), .. }, Reply::KeyTaken { run, .. }) => {
                let is_correct = self.keys.get(&run) == Some(key) && stored.stored(run).is_some();
                require(is_correct, || format!("key {key} is said to belong to {run}"))?;
                RequestState::Refused
            }
            (Request::Notify { of, number, .. }, Reply::KeyTaken { run, .. }) => {
                let is_correct =
                    stored.notifications.sent_by(run) == Some((*of, *number)) && stored.stored(run).is_some();
                require(is_correct, || format!("notice {number} of {of} is said to be told by {run}"))?;
                RequestState::Refused
            }
            (Request::Claim { .. }, Reply::Handed(_)) | (Request::Heartbeat { .. }, Reply::Lease(_)) => {
                RequestState::Done(Answer::Applied)
            }
            (Request::Watch { .. }, Reply::Ended(status)) => RequestState::Ended(status),
            (Request::Start { .. } | Request::Notify { .. }, Reply::NotFound) => {
                return Err(format!("{:?} was answered with nothing there", entry.request).into());
            }
            (_, Reply::NotFound) if !entry.is_known => RequestState::Refused,
            (request, Reply::Answer { answer, status, .. })
                if !matches!(request, Request::Watch { .. } | Request::Claim { .. } | Request::Heartbeat { .. }) =>
            {
                let now = stored.stored(entry.request.run()).map(Run::status);
                let is_correct = !status.is_terminal() || now == Some(status);
                require(is_correct, || format!("told that the run is {status}, it is {now:?}"))?;
                RequestState::Done(answer)
            }
            (request, reply) => return Err(format!("{request:?} was answered with {reply:?}").into()),
        };
        self.entries[ticket].state = state;
        self.check(ticket, stored)?;
        Ok(&self.entries[ticket].request)
    }

    /// Everything that was said, once more.
    pub fn check_all(&self, stored: &Checker) -> CheckResult {
        (0..self.entries.len()).try_for_each(|ticket| self.check(ticket, stored))?;
        self.check_one_run_per_key(stored)?;
        self.check_cancels_were_requested(stored)
    }

    /// I24.
    fn check_one_run_per_key(&self, stored: &Checker) -> CheckResult {
        let mut created = BTreeMap::new();
        for (run, key) in self.keys.iter().filter(|(run, _)| stored.stored(**run).is_some()) {
            let other = created.insert(key, run);
            ViolationKind::Duplicated.unless(other.is_none(), || format!("key {key} made {run} and {other:?}"))?;
        }
        Ok(())
    }

    /// I2: a run exists because somebody started it, and is cancelled because somebody cancelled it. (What the
    /// engine itself cancels is judged with the places of runs.)
    fn check_cancels_were_requested(&self, stored: &Checker) -> CheckResult {
        let stored_runs = self.entries.iter().filter_map(|r| Some((r.request.run(), stored.stored(r.request.run())?)));
        let is_cancelled = |run: &Run| run.status() == RunStatus::Cancelled && run.state.cancelled_by != "onward";
        for (id, run) in stored_runs.filter(|(_, run)| is_cancelled(run)) {
            let is_requested = self.entries.iter().enumerate().any(|(ticket, entry)| {
                matches!(entry.request, Request::Cancel { run } if run == id)
                    && entry.state != RequestState::Refused
                    && run.state.cancelled_by == ClientLog::actor(ticket)
            });
            require(is_requested, || format!("{id} was cancelled by nobody"))?;
        }
        Ok(())
    }

    pub fn request(&self, ticket: Ticket) -> &Request {
        &self.entries[ticket].request
    }

    pub fn is_open(&self, ticket: Ticket) -> bool {
        self.entries[ticket].state == RequestState::Open
    }

    /// Whoever asked does not wait for the answer any more.
    pub fn disconnect(&mut self, ticket: Ticket) {
        if self.entries[ticket].state == RequestState::Open {
            self.entries[ticket].state = RequestState::Lost;
        }
    }

    /// Did a process ask this of itself, to tell of an end?
    pub fn is_notification(&self, ticket: Ticket) -> bool {
        matches!(self.entries[ticket].request, Request::Notify { .. })
    }

    /// Requests that still wait for an answer.
    pub fn open(&self) -> impl Iterator<Item = &Request> {
        self.entries.iter().filter(|r| r.state == RequestState::Open).map(|r| &r.request)
    }

    fn check(&self, ticket: Ticket, stored: &Checker) -> CheckResult {
        let LoggedRequest { request, state, .. } = &self.entries[ticket];
        let run = stored.stored(request.run());
        let is_correct = match (request, state) {
            (_, RequestState::Open | RequestState::Lost | RequestState::Unknown) => true,
            (Request::Start { .. } | Request::Notify { .. }, RequestState::Done(Answer::Applied)) => run.is_some(),
            (Request::Start { .. } | Request::Notify { .. }, RequestState::Refused) => run.is_none(),
            (Request::Pause { .. } | Request::Resume { .. } | Request::RetryNow { .. }, state) => {
                let has_acted = stored.has_acted(request.run(), &ClientLog::actor(ticket));
                match state {
                    RequestState::Done(Answer::Applied) => has_acted,
                    RequestState::Done(Answer::Repeated) => !has_acted && !matches!(request, Request::RetryNow { .. }),
                    RequestState::Done(Answer::Unknown) => !has_acted && matches!(request, Request::RetryNow { .. }),
                    RequestState::Done(Answer::Ended(status)) => {
                        !has_acted && run.is_some_and(|r| r.status() == *status)
                    }
                    RequestState::Refused => !has_acted,
                    _ => false,
                }
            }
            (Request::Claim { .. } | Request::Heartbeat { .. } | Request::Progress { .. }, _) => true,
            (Request::Report { run: id, fence, digest, .. }, state) => {
                let is_recorded = stored.accepted_report(*id, *fence) == Some(*digest);
                match state {
                    RequestState::Done(Answer::Applied | Answer::Repeated) => is_recorded,
                    RequestState::Done(Answer::Ended(status)) => run.is_some_and(|r| r.status() == *status),
                    RequestState::Done(Answer::Stale) => true,
                    RequestState::Refused => !is_recorded || self.may_have_reported(*id, *fence, *digest),
                    _ => false,
                }
            }
            (Request::Callback { step, digest, .. }, state) => {
                let kept = run.and_then(|r| r.step(*step).callback.as_ref()).map(|c| &c.digest);
                match state {
                    RequestState::Done(Answer::Applied | Answer::Repeated) => kept == Some(digest),
                    RequestState::Done(Answer::Conflict) => kept.is_some_and(|kept| kept != digest),
                    RequestState::Done(Answer::Gone) => kept != Some(digest),
                    RequestState::Refused => kept != Some(digest) || self.may_have_applied(digest),
                    _ => false,
                }
            }
            (Request::Cancel { .. }, state) => {
                let is_cancelled = run.is_some_and(|r| r.status() == RunStatus::Cancelled);
                let is_own = run.is_some_and(|r| r.state.cancelled_by == ClientLog::actor(ticket));
                match state {
                    RequestState::Done(Answer::Applied) => is_cancelled && is_own,
                    RequestState::Done(Answer::Repeated) => is_cancelled,
                    RequestState::Done(Answer::Ended(status)) => run.is_some_and(|r| r.status() == *status),
                    RequestState::Refused => !is_own,
                    _ => false,
                }
            }
            (Request::Watch { .. }, RequestState::Ended(status)) => run.is_some_and(|r| r.status() == *status),
            (Request::Watch { .. }, RequestState::Refused) => true,
            _ => false,
        };
        ViolationKind::Lost.unless(is_correct, || format!("{request:?} was answered with {state:?}, which is not so"))
    }

    /// Did another request with the same bytes perhaps get through?
    fn may_have_applied(&self, bytes: &Bytes) -> bool {
        self.entries.iter().any(|r| match &r.request {
            Request::Callback { digest, .. } => digest == bytes && r.state != RequestState::Refused,
            _ => false,
        })
    }

    /// Did the same report perhaps get through another time?
    fn may_have_reported(&self, id: RunId, of: u64, content: u64) -> bool {
        self.entries.iter().any(|r| match r.request {
            Request::Report { run, fence, digest, .. } => {
                (run, fence, digest) == (id, of, content) && r.state != RequestState::Refused
            }
            _ => false,
        })
    }

    fn has_acknowledged(&self, process: usize, id: RunId) -> bool {
        self.entries.iter().filter(|r| r.process == process).any(|r| match &r.request {
            Request::Start { run, .. } => *run == id && matches!(r.state, RequestState::Done(_)),
            _ => false,
        })
    }
}
