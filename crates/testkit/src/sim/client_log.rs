//! What clients asked and what they were told, and whether it was true.
//!
//! A client trusts three kinds of answer: *done* (it must stay done, I1), *refused* (it must never turn
//! out to have happened, I2) and *unknown* (it may be either, I3). The ledger holds each answer against
//! the stored run when it is given, and all of them again at the end.

use super::checker::Checker;
use super::violation::{Failure, Harm, Judgement, require};
use bytes::Bytes;
use engine::Reply;
use engine::mailbox::Trouble;
use kernel::{Answer, Run, RunId, RunStatus, Span};
use std::collections::BTreeMap;

/// Where a reply goes: a number in the ledger.
pub type Ticket = usize;

#[derive(Clone, Debug)]
pub enum Ask {
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
    Poll {
        worker: usize,
    },
    /// …says how one ended (a number in the crew's book)…
    Report {
        run: RunId,
        fence: u64,
        digest: u64,
        said: usize,
    },
    /// …says that it is alive, at a time of the process it tells…
    Beat {
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
    Tell {
        run: RunId,
        of: RunId,
        number: u32,
    },
}

impl Ask {
    /// Does a worker ask it?
    pub fn is_of_worker(&self) -> bool {
        matches!(self, Ask::Poll { .. } | Ask::Report { .. } | Ask::Beat { .. } | Ask::Progress { .. })
    }

    pub fn run(&self) -> RunId {
        match self {
            Ask::Start { run, .. } | Ask::Callback { run, .. } | Ask::Cancel { run } | Ask::Watch { run } => *run,
            Ask::Pause { run } | Ask::Resume { run } | Ask::RetryNow { run } | Ask::Tell { run, .. } => *run,
            Ask::Report { run, .. } | Ask::Beat { run, .. } | Ask::Progress { run, .. } => *run,
            Ask::Poll { .. } => RunId::default(),
        }
    }
}

pub struct Request {
    pub ask: Ask,
    /// The process that was asked.
    process: usize,
    /// The same process had acknowledged the run's start by then.
    is_known: bool,
    fate: Fate,
}

#[derive(Clone, Debug, PartialEq)]
enum Fate {
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
pub struct Ledger {
    requests: Vec<Request>,
    /// Runs asked for with a key.
    keys: BTreeMap<RunId, u32>,
}

impl Ledger {
    /// Was it asked for with a key? Then another run may be there in its place.
    pub fn has_key(&self, run: RunId) -> bool {
        self.keys.contains_key(&run)
    }

    pub fn ask(&mut self, ask: Ask, process: usize) -> Ticket {
        // A worker speaks of what it was given, which is durable.
        let is_known = ask.is_of_worker() || self.has_acknowledged(process, ask.run());
        if let Ask::Start { run, key: Some(key) } = ask {
            self.keys.insert(run, key);
        }
        self.requests.push(Request { ask, process, is_known, fate: Fate::Open });
        self.requests.len() - 1
    }

    pub fn actor(ticket: Ticket) -> String {
        format!("client {ticket}")
    }

    /// The process is gone: nobody will answer. Returns what was asked of it.
    pub fn lose(&mut self, process: usize) -> Vec<Ask> {
        let open = self.requests.iter_mut().filter(|r| r.process == process && r.fate == Fate::Open);
        open.map(|request| {
            request.fate = Fate::Lost;
            request.ask.clone()
        })
        .collect()
    }

    /// Holds a reply against what is stored.
    pub fn answered(&mut self, ticket: Ticket, reply: Reply, stored: &Checker) -> Result<&Ask, Failure> {
        let request = &self.requests[ticket];
        if request.fate != Fate::Open {
            let what = format!("{:?} was answered twice: {reply:?}", request.ask);
            return Err(Failure { harm: Harm::Doubled, what });
        }
        let fate = match (&request.ask, reply) {
            (_, Reply::Unavailable(_) | Reply::Trouble(Trouble::Store(_))) => Fate::Refused,
            (_, Reply::Unknown(_)) => Fate::Unknown,
            (ask, Reply::Trouble(Trouble::Newer)) if stored.needs_upgrade(ask.run()) => Fate::Refused,
            (Ask::Start { key: Some(key), .. }, Reply::KeyTaken { run, .. }) => {
                let is_true = self.keys.get(&run) == Some(key) && stored.stored(run).is_some();
                require(is_true, || format!("key {key} is said to belong to {run}"))?;
                Fate::Refused
            }
            (Ask::Tell { of, number, .. }, Reply::KeyTaken { run, .. }) => {
                let is_true = stored.news.of(run) == Some((*of, *number)) && stored.stored(run).is_some();
                require(is_true, || format!("notice {number} of {of} is said to be told by {run}"))?;
                Fate::Refused
            }
            (Ask::Poll { .. }, Reply::Handed(_)) | (Ask::Beat { .. }, Reply::Lease(_)) => Fate::Done(Answer::Applied),
            (Ask::Watch { .. }, Reply::Ended(status)) => Fate::Ended(status),
            (Ask::Start { .. } | Ask::Tell { .. }, Reply::NotFound) => {
                return Err(format!("{:?} was answered with nothing there", request.ask).into());
            }
            (_, Reply::NotFound) if !request.is_known => Fate::Refused,
            (ask, Reply::Answer { answer, status, .. })
                if !matches!(ask, Ask::Watch { .. } | Ask::Poll { .. } | Ask::Beat { .. }) =>
            {
                let now = stored.stored(request.ask.run()).map(Run::status);
                let is_true = !status.is_terminal() || now == Some(status);
                require(is_true, || format!("told that the run is {status}, it is {now:?}"))?;
                Fate::Done(answer)
            }
            (ask, reply) => return Err(format!("{ask:?} was answered with {reply:?}").into()),
        };
        self.requests[ticket].fate = fate;
        self.check(ticket, stored)?;
        Ok(&self.requests[ticket].ask)
    }

    /// Everything that was said, once more.
    pub fn check_all(&self, stored: &Checker) -> Judgement {
        (0..self.requests.len()).try_for_each(|ticket| self.check(ticket, stored))?;
        self.keys_made_one_run_each(stored)?;
        self.nothing_happened_unasked(stored)
    }

    /// I24.
    fn keys_made_one_run_each(&self, stored: &Checker) -> Judgement {
        let mut made = BTreeMap::new();
        for (run, key) in self.keys.iter().filter(|(run, _)| stored.stored(**run).is_some()) {
            let other = made.insert(key, run);
            Harm::Doubled.unless(other.is_none(), || format!("key {key} made {run} and {other:?}"))?;
        }
        Ok(())
    }

    /// I2: a run exists because somebody started it, and is cancelled because somebody cancelled it. (What the
    /// engine itself cancels is judged with the places of runs.)
    fn nothing_happened_unasked(&self, stored: &Checker) -> Judgement {
        let stored_runs = self.requests.iter().filter_map(|r| Some((r.ask.run(), stored.stored(r.ask.run())?)));
        let is_cancelled = |run: &Run| run.status() == RunStatus::Cancelled && run.state.cancelled_by != "onward";
        for (id, run) in stored_runs.filter(|(_, run)| is_cancelled(run)) {
            let is_asked = self.requests.iter().enumerate().any(|(ticket, request)| {
                matches!(request.ask, Ask::Cancel { run } if run == id)
                    && request.fate != Fate::Refused
                    && run.state.cancelled_by == Ledger::actor(ticket)
            });
            require(is_asked, || format!("{id} was cancelled by nobody"))?;
        }
        Ok(())
    }

    pub fn asked(&self, ticket: Ticket) -> &Ask {
        &self.requests[ticket].ask
    }

    pub fn is_open(&self, ticket: Ticket) -> bool {
        self.requests[ticket].fate == Fate::Open
    }

    /// Whoever asked does not wait for the answer any more.
    pub fn hang_up(&mut self, ticket: Ticket) {
        if self.requests[ticket].fate == Fate::Open {
            self.requests[ticket].fate = Fate::Lost;
        }
    }

    /// Did a process ask this of itself, to tell of an end?
    pub fn is_telling(&self, ticket: Ticket) -> bool {
        matches!(self.requests[ticket].ask, Ask::Tell { .. })
    }

    /// Requests that still wait for an answer.
    pub fn open(&self) -> impl Iterator<Item = &Ask> {
        self.requests.iter().filter(|r| r.fate == Fate::Open).map(|r| &r.ask)
    }

    fn check(&self, ticket: Ticket, stored: &Checker) -> Judgement {
        let Request { ask, fate, .. } = &self.requests[ticket];
        let run = stored.stored(ask.run());
        let is_true = match (ask, fate) {
            (_, Fate::Open | Fate::Lost | Fate::Unknown) => true,
            (Ask::Start { .. } | Ask::Tell { .. }, Fate::Done(Answer::Applied)) => run.is_some(),
            (Ask::Start { .. } | Ask::Tell { .. }, Fate::Refused) => run.is_none(),
            (Ask::Pause { .. } | Ask::Resume { .. } | Ask::RetryNow { .. }, fate) => {
                let has_acted = stored.has_acted(ask.run(), &Ledger::actor(ticket));
                match fate {
                    Fate::Done(Answer::Applied) => has_acted,
                    Fate::Done(Answer::Repeated) => !has_acted && !matches!(ask, Ask::RetryNow { .. }),
                    Fate::Done(Answer::Unknown) => !has_acted && matches!(ask, Ask::RetryNow { .. }),
                    Fate::Done(Answer::Ended(status)) => !has_acted && run.is_some_and(|r| r.status() == *status),
                    Fate::Refused => !has_acted,
                    _ => false,
                }
            }
            (Ask::Poll { .. } | Ask::Beat { .. } | Ask::Progress { .. }, _) => true,
            (Ask::Report { run: id, fence, digest, .. }, fate) => {
                let is_said = stored.said(*id, *fence) == Some(*digest);
                match fate {
                    Fate::Done(Answer::Applied | Answer::Repeated) => is_said,
                    Fate::Done(Answer::Ended(status)) => run.is_some_and(|r| r.status() == *status),
                    Fate::Done(Answer::Stale) => true,
                    Fate::Refused => !is_said || self.may_have_said(*id, *fence, *digest),
                    _ => false,
                }
            }
            (Ask::Callback { step, digest, .. }, fate) => {
                let kept = run.and_then(|r| r.step(*step).callback.as_ref()).map(|c| &c.digest);
                match fate {
                    Fate::Done(Answer::Applied | Answer::Repeated) => kept == Some(digest),
                    Fate::Done(Answer::Conflict) => kept.is_some_and(|kept| kept != digest),
                    Fate::Done(Answer::Gone) => kept != Some(digest),
                    Fate::Refused => kept != Some(digest) || self.may_have_applied(digest),
                    _ => false,
                }
            }
            (Ask::Cancel { .. }, fate) => {
                let is_cancelled = run.is_some_and(|r| r.status() == RunStatus::Cancelled);
                let is_own = run.is_some_and(|r| r.state.cancelled_by == Ledger::actor(ticket));
                match fate {
                    Fate::Done(Answer::Applied) => is_cancelled && is_own,
                    Fate::Done(Answer::Repeated) => is_cancelled,
                    Fate::Done(Answer::Ended(status)) => run.is_some_and(|r| r.status() == *status),
                    Fate::Refused => !is_own,
                    _ => false,
                }
            }
            (Ask::Watch { .. }, Fate::Ended(status)) => run.is_some_and(|r| r.status() == *status),
            (Ask::Watch { .. }, Fate::Refused) => true,
            _ => false,
        };
        Harm::Lost.unless(is_true, || format!("{ask:?} was answered with {fate:?}, which is not so"))
    }

    /// Did another request with the same bytes perhaps get through?
    fn may_have_applied(&self, bytes: &Bytes) -> bool {
        self.requests.iter().any(|r| match &r.ask {
            Ask::Callback { digest, .. } => digest == bytes && r.fate != Fate::Refused,
            _ => false,
        })
    }

    /// Did the same report perhaps get through another time?
    fn may_have_said(&self, id: RunId, of: u64, content: u64) -> bool {
        self.requests.iter().any(|r| match r.ask {
            Ask::Report { run, fence, digest, .. } => {
                (run, fence, digest) == (id, of, content) && r.fate != Fate::Refused
            }
            _ => false,
        })
    }

    fn has_acknowledged(&self, process: usize, id: RunId) -> bool {
        self.requests.iter().filter(|r| r.process == process).any(|r| match &r.ask {
            Ask::Start { run, .. } => *run == id && matches!(r.fate, Fate::Done(_)),
            _ => false,
        })
    }
}
