//! The stored form of inputs that wait in the `inbox` table, and of the answers they get.
//!
//! An input usually goes from its caller straight into a record. An input whose records keep losing against other
//! nodes is stored instead; the record that consumes it stores the answer, for the caller's node to read.
//!
//! The kind of a row says which message its body is. A new kind of row gets a number in [`InboxKind`] and a message of
//! its own here.

use crate::advance::{Admission, Answer, ApprovalDecision, IncomingSignal, Input, StepOverride, TaskResult};
use crate::event::{Failure, LogLine, Override, Pair, Parent};
use crate::id::RunId;
use crate::payload::Payload;
use crate::plan::Decision;
use crate::status::RunStatus;
use crate::time::{Span, Timestamp};
use crate::wire::{self, Error, Value};
use bytes::Bytes;

/// The format number of bodies and answers.
pub const FORMAT: u8 = 2;

names! {
    /// What a row of the inbox is.
    pub enum InboxKind {
        /// A [`StoredInput`] for a run that exists.
        Input = 1 "input",
        /// A [`StartChild`] for a run that does not exist yet.
        StartChild = 2 "start_child",
    }
}

choice! {
    /// An input that a caller gave to a run. Inputs of the engine itself are never stored: the engine finds them again.
    pub enum StoredInput {
        1 => Pause { 1 => actor: String, 2 => note: String },
        2 => Resume { 1 => actor: String },
        3 => RetryNow { 1 => step: Option<u32>, 2 => actor: String },
        4 => Finished { 1 => step: u32, 2 => fence: u64, 3 => result: Option<StoredResult>, 4 => digest: u64 },
        5 => Heartbeat { 1 => step: u32, 2 => fence: u64, 3 => progress: Option<Payload> },
        6 => Log { 1 => step: u32, 2 => fence: u64, 3 => lines: Vec<LogLine> },
        7 => Callback { 1 => step: u32, 2 => body: Payload, 3 => digest: Bytes },
        8 => Cancel { 1 => actor: String, 2 => reason: String },
        9 since 2 => Signal {
            1 => name: String, 2 => body: Payload, 3 => actor: String, 4 => key: Bytes, 5 => fingerprint: Bytes,
        },
        10 since 2 => Decide {
            1 => step: Option<u32>, 2 => decision: Decision, 3 => actor: String, 4 => comment: String, 5 => shown: String,
        },
        11 since 2 => Continue { 1 => step: Option<u32>, 2 => actor: String },
        /// From a child that was started for this attempt: it exists.
        12 since 2 => ChildBegan { 1 => step: u32, 2 => attempt: u32 },
        /// From a child that was started for this attempt: it has ended.
        13 since 2 => ChildEnded { 1 => step: u32, 2 => attempt: u32, 3 => outcome: Option<ChildOutcome> },
        /// From the parent: it has ended, or no longer needs the result.
        14 since 2 => ParentClosed { 1 => parent: RunId },
        /// Like `Cancel`, and what the run did is undone.
        15 since 2 => CancelAndUndo { 1 => actor: String, 2 => reason: String },
        /// Like `ParentClosed`, and what the run did is undone.
        16 since 2 => ParentUndone { 1 => parent: RunId },
        17 since 2 => Override {
            1 => step: u32, 2 => verb: Override, 3 => body: Option<Payload>, 4 => actor: String, 5 => reason: String,
        },
        18 since 2 => Reopen {
            1 => from: Option<u32>, 2 => allow_irreversible: bool, 3 => actor: String, 4 => reason: String,
        },
    }
}

message! {
    /// Asks for a child.
    pub struct StartChild {
        /// The name, slug or id of its workflow.
        1 => workflow: String,
        2 => input: Payload,
        3 => parent: Option<Parent>,
    }
}

message! {
    /// How a child ended.
    pub struct ChildOutcome {
        1 => status: RunStatus,
        2 => output: Option<Payload>,
        3 => failure: Option<Failure>,
        /// It was never started, and would be refused again: the step fails with this failure, without another attempt.
        4 => is_refused: bool,
        /// It was never started: the step fails with this failure, unless another attempt follows.
        5 => never_began: bool,
        /// How many runs it has started in turn.
        6 => descendants: u32,
    }
}

impl StartChild {
    /// Reads what the parent's record stored.
    pub fn open(bytes: &[u8]) -> Result<StartChild, Error> {
        let start: StartChild = wire::open(FORMAT, bytes)?;
        if Value::is_newer(&start) { Err(Error::Newer("child")) } else { Ok(start) }
    }
}

choice! {
    /// A [`TaskResult`].
    pub enum StoredResult {
        1 => Done { 1 => body: Option<Payload>, 2 => took: Span },
        2 => Response {
            1 => status: u16,
            2 => headers: Vec<Pair>,
            3 => body: Payload,
            4 => retry_after: Option<Span>,
            5 => took: Span,
        },
        3 => Failed { 1 => failure: Failure, 2 => retryable: bool, 3 => retry_after: Option<Span>, 4 => took: Span },
        4 => TimedOut { 1 => message: String, 2 => took: Span },
        5 => Blocked { 1 => until: Timestamp, 2 => failure: Failure },
    }
}

choice! {
    /// The answer that a stored input got.
    pub enum StoredAnswer {
        /// The run answered, and had this status afterwards.
        1 => Run {
            1 => answer: AnswerKind,
            /// With [`AnswerKind::Ended`]: the status of the run before the input arrived.
            2 => ended: RunStatus,
            3 => status: RunStatus,
            4 => created_at: Timestamp,
        },
        /// The run does not exist (any more).
        2 => NotFound {},
    }
}

names! {
    /// An [`Answer`] without its fields.
    pub enum AnswerKind {
        Applied = 1 "applied",
        Repeated = 2 "repeated",
        Conflict = 3 "conflict",
        Gone = 4 "gone",
        Stale = 5 "stale",
        Later = 6 "later",
        Ended = 7 "ended",
        TooLarge = 8 "too_large",
        Unknown = 9 "unknown",
        Full = 10 since 2 "full",
        Forbidden = 11 since 2 "forbidden",
        Ambiguous = 12 since 2 "ambiguous",
        Unsafe = 13 since 2 "unsafe",
        NoRoom = 14 since 2 "no_room",
    }
}

impl StoredInput {
    /// The stored form of an input of a caller. Inputs of the engine itself have none.
    pub fn of(input: Input) -> Option<StoredInput> {
        Some(match input {
            Input::Pause { actor, note } => StoredInput::Pause { actor, note },
            Input::Resume { actor } => StoredInput::Resume { actor },
            Input::RetryNow { step, actor } => StoredInput::RetryNow { step, actor },
            Input::Finished { step, fence, result, digest } => {
                StoredInput::Finished { step, fence, result: Some(result.into()), digest }
            }
            Input::Heartbeat { step, fence, progress } => StoredInput::Heartbeat { step, fence, progress },
            Input::Log { step, fence, lines } => StoredInput::Log { step, fence, lines },
            Input::Callback { step, body, digest } => StoredInput::Callback { step, body, digest },
            Input::Cancel { actor, reason, compensate: false } => StoredInput::Cancel { actor, reason },
            Input::Cancel { actor, reason, compensate: true } => StoredInput::CancelAndUndo { actor, reason },
            Input::Signal(signal) => {
                let IncomingSignal { name, body, actor, key, fingerprint } = *signal;
                StoredInput::Signal { name, body, actor, key, fingerprint }
            }
            Input::Decide { step, verdict } => {
                let ApprovalDecision { decision, actor, comment, shown } = verdict;
                StoredInput::Decide { step, decision, actor, comment, shown }
            }
            Input::Continue { step, actor } => StoredInput::Continue { step, actor },
            Input::Override { step, decision } => {
                let StepOverride { verb, body, actor, reason } = *decision;
                StoredInput::Override { step, verb, body, actor, reason }
            }
            Input::ChildBegan { step, attempt } => StoredInput::ChildBegan { step, attempt },
            Input::ChildEnded { step, attempt, outcome } => {
                StoredInput::ChildEnded { step, attempt, outcome: Some(*outcome) }
            }
            Input::ParentClosed { parent, compensate: false } => StoredInput::ParentClosed { parent },
            Input::ParentClosed { parent, compensate: true } => StoredInput::ParentUndone { parent },
            Input::Reopen { from, allow_irreversible, actor, reason, admission: _ } => {
                StoredInput::Reopen { from, allow_irreversible, actor, reason }
            }
            Input::Start { .. }
            | Input::Admit
            | Input::Claim { .. }
            | Input::StillAlive { .. }
            | Input::Lost { .. }
            | Input::Move(_)
            | Input::Wake => return None,
        })
    }

    pub fn seal(&self) -> Bytes {
        wire::seal(self).into()
    }

    /// Reads what [`seal`](Self::seal) wrote.
    pub fn open(bytes: &[u8]) -> Result<Input, Error> {
        let stored: StoredInput = wire::open(FORMAT, bytes)?;
        if Value::is_newer(&stored) {
            return Err(Error::Newer("input"));
        }
        Ok(match stored {
            StoredInput::Pause { actor, note } => Input::Pause { actor, note },
            StoredInput::Resume { actor } => Input::Resume { actor },
            StoredInput::RetryNow { step, actor } => Input::RetryNow { step, actor },
            StoredInput::Finished { step, fence, result, digest } => {
                let result = result.ok_or(Error::Malformed("input"))?.try_into()?;
                Input::Finished { step, fence, result, digest }
            }
            StoredInput::Heartbeat { step, fence, progress } => Input::Heartbeat { step, fence, progress },
            StoredInput::Log { step, fence, lines } => Input::Log { step, fence, lines },
            StoredInput::Callback { step, body, digest } => Input::Callback { step, body, digest },
            StoredInput::Cancel { actor, reason } => Input::Cancel { actor, reason, compensate: false },
            StoredInput::CancelAndUndo { actor, reason } => Input::Cancel { actor, reason, compensate: true },
            StoredInput::Signal { name, body, actor, key, fingerprint } => {
                Input::Signal(Box::new(IncomingSignal { name, body, actor, key, fingerprint }))
            }
            StoredInput::Decide { step, decision, actor, comment, shown } => {
                Input::Decide { step, verdict: ApprovalDecision { decision, actor, comment, shown } }
            }
            StoredInput::Continue { step, actor } => Input::Continue { step, actor },
            StoredInput::Override { step, verb, body, actor, reason } => {
                Input::Override { step, decision: Box::new(StepOverride { verb, body, actor, reason }) }
            }
            StoredInput::ChildBegan { step, attempt } => Input::ChildBegan { step, attempt },
            StoredInput::ChildEnded { step, attempt, outcome } => {
                let outcome = Box::new(outcome.ok_or(Error::Malformed("input"))?);
                Input::ChildEnded { step, attempt, outcome }
            }
            StoredInput::ParentClosed { parent } => Input::ParentClosed { parent, compensate: false },
            StoredInput::ParentUndone { parent } => Input::ParentClosed { parent, compensate: true },
            StoredInput::Reopen { from, allow_irreversible, actor, reason } => {
                // The node that applies it asks the concurrency group.
                Input::Reopen { from, allow_irreversible, actor, reason, admission: Admission::Open }
            }
            StoredInput::Unknown { .. } => return Err(Error::Newer("input")),
        })
    }
}

impl From<TaskResult> for StoredResult {
    fn from(result: TaskResult) -> StoredResult {
        match result {
            TaskResult::Done { body, took } => StoredResult::Done { body, took },
            TaskResult::Response { status, headers, body, retry_after, took } => {
                StoredResult::Response { status, headers, body, retry_after, took }
            }
            TaskResult::Failed { failure, retryable, retry_after, took } => {
                StoredResult::Failed { failure, retryable, retry_after, took }
            }
            TaskResult::TimedOut { message, took } => StoredResult::TimedOut { message, took },
            TaskResult::Blocked { until, failure } => StoredResult::Blocked { until, failure },
        }
    }
}

impl TryFrom<StoredResult> for TaskResult {
    type Error = Error;

    fn try_from(stored: StoredResult) -> Result<TaskResult, Error> {
        Ok(match stored {
            StoredResult::Done { body, took } => TaskResult::Done { body, took },
            StoredResult::Response { status, headers, body, retry_after, took } => {
                TaskResult::Response { status, headers, body, retry_after, took }
            }
            StoredResult::Failed { failure, retryable, retry_after, took } => {
                TaskResult::Failed { failure, retryable, retry_after, took }
            }
            StoredResult::TimedOut { message, took } => TaskResult::TimedOut { message, took },
            StoredResult::Blocked { until, failure } => TaskResult::Blocked { until, failure },
            StoredResult::Unknown { .. } => return Err(Error::Newer("result")),
        })
    }
}

impl StoredAnswer {
    /// The answer of a run that has `status` now.
    pub fn of(answer: Answer, status: RunStatus, created_at: Timestamp) -> StoredAnswer {
        let (answer, ended) = match answer {
            Answer::Applied => (AnswerKind::Applied, status),
            Answer::Repeated => (AnswerKind::Repeated, status),
            Answer::Conflict => (AnswerKind::Conflict, status),
            Answer::Gone => (AnswerKind::Gone, status),
            Answer::Stale => (AnswerKind::Stale, status),
            Answer::Later => (AnswerKind::Later, status),
            Answer::Ended(ended) => (AnswerKind::Ended, ended),
            Answer::TooLarge => (AnswerKind::TooLarge, status),
            Answer::Unknown => (AnswerKind::Unknown, status),
            Answer::Full => (AnswerKind::Full, status),
            Answer::Forbidden => (AnswerKind::Forbidden, status),
            Answer::Ambiguous => (AnswerKind::Ambiguous, status),
            Answer::Unsafe => (AnswerKind::Unsafe, status),
            Answer::NoRoom => (AnswerKind::NoRoom, status),
        };
        StoredAnswer::Run { answer, ended, status, created_at }
    }

    pub fn seal(&self) -> Bytes {
        wire::seal(self).into()
    }

    /// Reads what [`seal`](Self::seal) wrote.
    pub fn open(bytes: &[u8]) -> Result<StoredAnswer, Error> {
        match wire::open(FORMAT, bytes)? {
            StoredAnswer::Unknown { .. } => Err(Error::Newer("answer")),
            answer => Ok(answer),
        }
    }
}

impl AnswerKind {
    /// The whole answer; `ended` counts only for [`AnswerKind::Ended`].
    pub fn answer(self, ended: RunStatus) -> Answer {
        match self {
            AnswerKind::Applied => Answer::Applied,
            AnswerKind::Repeated => Answer::Repeated,
            AnswerKind::Conflict => Answer::Conflict,
            AnswerKind::Gone => Answer::Gone,
            AnswerKind::Stale => Answer::Stale,
            AnswerKind::Later => Answer::Later,
            AnswerKind::Ended => Answer::Ended(ended),
            AnswerKind::TooLarge => Answer::TooLarge,
            AnswerKind::Unknown => Answer::Unknown,
            AnswerKind::Full => Answer::Full,
            AnswerKind::Forbidden => Answer::Forbidden,
            AnswerKind::Ambiguous => Answer::Ambiguous,
            AnswerKind::Unsafe => Answer::Unsafe,
            AnswerKind::NoRoom => Answer::NoRoom,
        }
    }
}
