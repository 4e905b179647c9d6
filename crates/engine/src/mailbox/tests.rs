//! The mailbox by hand: what leaves it, and when.

use super::*;
use kernel::{Payload, WorkflowId};
use std::num::NonZeroU32;

fn start(run: RunId) -> Box<Start> {
    let source = br#"{"name": "one", "tasks": {"a": {"noop": {}}}}"#;
    let tree = lang::read(source, lang::Syntax::Json).expect("a document");
    let compiled = lang::compile(&tree).expect("a definition");
    let version = Version {
        org: OrgId::DEFAULT,
        workflow: WorkflowId([1; 16]),
        name: "one".into(),
        number: 1,
        hash: compiled.hash,
        plan: Arc::new(compiled.plan),
    };
    let origin = Origin { body: Payload::json("1"), ..Default::default() };
    Box::new(Start {
        org: OrgId::DEFAULT,
        run,
        version: Arc::new(version),
        origin,
        gate: None,
        birth: Birth::default(),
    })
}

/// Ticket 1 asked for the run, ticket 2 waits for its end.
fn replies_when(result: impl Fn() -> Result<Vec<Verdict>, store::Error>) -> Vec<(u32, Reply)> {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([7; 16])), ticket: 1, ended: Some(2) });
    let turn = mailbox.turn(Timestamp(1));
    assert_eq!(turn.batch.runs.len(), 1);
    let mut replies = mailbox.settle(turn, result()).replies;
    replies.sort_by_key(|(ticket, _)| *ticket);
    replies
}

#[test]
fn a_start_that_is_refused_answers_everyone() {
    let why = || store::Error::Unavailable("full".into());
    let unavailable = Reply::Unavailable(why().to_string());
    assert_eq!(replies_when(|| Err(why())), [(1, unavailable), (2, Reply::NotFound)]);
    let taken = || Verdict::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    let reply = Reply::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    assert_eq!(replies_when(|| Ok(vec![taken()])), [(1, reply), (2, Reply::NotFound)]);
}

#[test]
fn a_unit_is_one_neighbourhood_of_the_batch_and_is_refused_as_one() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([1; 16])), ticket: 1, ended: None });
    for tickets in [[2, 3], [4, 5]] {
        mailbox.accept(Command::StartAll(tickets.map(|t| (*start(RunId([t; 16])), u32::from(t))).into()));
    }
    let turn = mailbox.turn(Timestamp(1));
    let units: Vec<Option<u32>> = turn.batch.runs.iter().map(|write| write.unit.map(NonZeroU32::get)).collect();
    assert_eq!(units, [None, Some(1), Some(1), Some(2), Some(2)]);
    let taken = Verdict::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    let verdicts = [Verdict::Committed, Verdict::Undone, taken, Verdict::Conflict, Verdict::Undone];
    let mut replies = mailbox.settle(turn, Ok(verdicts.into())).replies;
    replies.sort_by_key(|(ticket, _)| *ticket);
    assert!(matches!(&replies[0], (1, Reply::Answer { .. })));
    assert_eq!(replies[1..3], [(2, Reply::Undone), (3, Reply::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] })]);
    assert!(matches!(&replies[3..], [(4, Reply::Unavailable(_)), (5, Reply::Undone)]));
    assert_eq!(mailbox.resident(), 1, "nothing is tried again alone");
}

#[test]
fn nothing_is_answered_or_sent_before_the_commit() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([7; 16])), ticket: 1, ended: None });
    let turn = mailbox.turn(Timestamp(1));
    assert!(turn.ready.is_empty());
    assert_eq!(mailbox.executing(), 0);
    let released = mailbox.settle(turn, Ok(vec![Verdict::Committed]));
    assert_eq!((released.replies.len(), released.dispatch.len(), released.started), (1, 1, 1));
    assert!(!mailbox.is_quiet(0), "a step is under way");
}
