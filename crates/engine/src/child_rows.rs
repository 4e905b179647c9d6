//! What the rows that parents write for their children lead to. Only decisions, no I/O: the service that starts
//! children carries them out, and so does the simulator.

use crate::mailbox::{InboxInput, InboxSource};
use crate::services::runs::Source;
use bytes::Bytes;
use kernel::event::{Failure, Parent, TriggerKind};
use kernel::inbox::{ChildOutcome, InboxKind, StartChild};
use kernel::{Input, Payloads, RunStatus, wire};
use store::{ConsumedRow, InboxKey, InboxRow};

/// The code of a step whose child gets a body that does not fit the `input` schema of its workflow.
pub const INVALID_INPUT: &str = "invalid_input";

/// A row that asks for a child.
#[derive(Clone, Debug)]
pub struct ChildRequest {
    pub key: InboxKey,
    /// The name, slug or id of its workflow.
    pub workflow: String,
    /// The body of its trigger.
    pub body: Bytes,
    pub parent: Parent,
}

/// What a row leads to with which a parent closes a child that is not in memory and was not found in the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Closing {
    /// The child is still to be started or refused: decide again later. Started, it gets the row; a refusal removes only
    /// the rows that were there when it was decided.
    Wait,
    /// The child exists by now.
    Give,
    /// The child was deleted or never started: no run needs the row.
    Delete(ConsumedRow),
}

impl ChildRequest {
    /// An error if this release cannot read the row: a node of a later release has to start the child.
    pub fn open(row: &InboxRow) -> Result<ChildRequest, wire::Error> {
        let StartChild { workflow, input, parent, .. } = StartChild::open(&row.body)?;
        let parent = parent.ok_or(wire::Error::Malformed("child"))?;
        let body = input.bytes(&Payloads::new()).cloned().unwrap_or(Bytes::from_static(b"null"));
        Ok(ChildRequest { key: row.key, workflow, body, parent })
    }

    /// What the child comes from. Its first record consumes the row.
    pub fn source(&self) -> Source {
        Source {
            kind: TriggerKind::Subworkflow,
            actor: self.parent.actor.clone(),
            parent: Some(Box::new(self.parent.clone())),
            child: Some(self.key.1),
            inbox: Some(InboxSource { rows: vec![self.key], is_from_run: true }),
            ..Source::default()
        }
    }

    /// The child can never be started: this input fails the step of the parent. Its record, or the engine if there is
    /// none, removes every row for the child.
    pub fn refused(&self, failure: Failure, rows_of_child: &[InboxRow]) -> InboxInput {
        let (org, ..) = self.key;
        let others = rows_of_child.iter().map(|row| row.key).filter(|other| *other != self.key);
        let source = InboxSource { rows: std::iter::once(self.key).chain(others).collect(), is_from_run: true };
        // Every attempt would send the same body. A workflow may exist or be enabled at the next attempt.
        let is_refused = failure.code == INVALID_INPUT;
        let (status, never_began) = (RunStatus::Failed, true);
        let outcome = ChildOutcome { status, failure: Some(failure), is_refused, never_began, ..Default::default() };
        let Parent { run, step, attempt, .. } = self.parent;
        let input = Input::ChildEnded { step, attempt, outcome: Box::new(outcome) };
        InboxInput { org, run, input, source }
    }
}

/// The failure of a step that names a workflow which does not exist.
pub fn unknown_workflow(name: &str) -> Failure {
    Failure::new("unknown_workflow", format!("there is no workflow `{name}`"))
}

/// Decides about a row that closes a child. `rows` are those for the child, read before `exists`: a child that is
/// started meanwhile has its row removed by its first record, so it is then found to exist.
pub fn closing(key: InboxKey, rows: &[InboxRow], exists: bool) -> Closing {
    if rows.iter().any(|row| row.kind == InboxKind::StartChild) {
        Closing::Wait
    } else if exists {
        Closing::Give
    } else {
        Closing::Delete(ConsumedRow { key, answer: None })
    }
}

/// The inputs among the rows for a run. Those that this release cannot read stay.
pub fn inputs(rows: &[InboxRow]) -> Vec<InboxInput> {
    let inputs = rows.iter().filter(|row| row.kind == InboxKind::Input);
    inputs.filter_map(|row| InboxInput::open(row).ok()).collect()
}
