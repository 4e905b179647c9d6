//! The mailbox by hand: what leaves it, and when.

use super::*;
use crate::task_queue::ClaimRequest;
use crate::version::Version;
use bytes::Bytes;
use kernel::event::OnConflict;
use kernel::event::Origin;
use kernel::{Payload, WorkflowId};
use std::num::NonZeroU32;
use store::{ConcurrencyGroupRow, RunInsert, TypeRow};

fn start(run: RunId) -> Box<Start> {
    start_of(run, r#"{"name": "one", "tasks": {"a": {"noop": {}}}}"#)
}

fn start_of(run: RunId, source: &str) -> Box<Start> {
    let tree = lang::read(source.as_bytes(), lang::Syntax::Json).expect("a document");
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
        concurrency_group: None,
        run_insert: RunInsert::default(),
    })
}

fn turn<T>(mailbox: &mut Mailbox<T>, now: Timestamp) -> Turn<T> {
    let mut turn = Turn::default();
    mailbox.turn(now, &mut turn);
    turn
}

/// Ticket 1 asked for the run, reply_to 2 waits for its end.
fn replies_when(result: impl Fn() -> Result<Vec<Verdict>, store::Error>) -> Vec<(u32, Reply)> {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([7; 16])), reply_to: 1, ended: Some(2) });
    let turn = turn(&mut mailbox, Timestamp(1));
    assert_eq!(turn.batch.runs.len(), 1);
    let mut replies = mailbox.settle(turn, result()).replies;
    replies.sort_by_key(|(reply_to, _)| *reply_to);
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
    mailbox.accept(Command::Start { start: start(RunId([1; 16])), reply_to: 1, ended: None });
    for reply_channels in [[2, 3], [4, 5]] {
        mailbox.accept(Command::StartAll(reply_channels.map(|t| (*start(RunId([t; 16])), u32::from(t))).into()));
    }
    let turn = turn(&mut mailbox, Timestamp(1));
    let atomic_groups: Vec<Option<u32>> =
        turn.batch.runs.iter().map(|write| write.atomic_group.map(NonZeroU32::get)).collect();
    assert_eq!(atomic_groups, [None, Some(1), Some(1), Some(2), Some(2)]);
    let taken = Verdict::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    let verdicts = [Verdict::Committed, Verdict::Undone, taken, Verdict::Conflict, Verdict::Undone];
    let mut replies = mailbox.settle(turn, Ok(verdicts.into())).replies;
    replies.sort_by_key(|(reply_to, _)| *reply_to);
    assert!(matches!(&replies[0], (1, Reply::Answer { .. })));
    assert_eq!(replies[1..3], [(2, Reply::Undone), (3, Reply::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] })]);
    assert!(matches!(&replies[3..], [(4, Reply::Unavailable(_)), (5, Reply::Undone)]));
    assert_eq!(mailbox.resident(), 1, "nothing is tried again alone");
}

#[test]
fn nothing_is_answered_or_sent_before_the_commit() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: start(RunId([7; 16])), reply_to: 1, ended: None });
    let turn = turn(&mut mailbox, Timestamp(1));
    assert!(turn.ready.is_empty());
    assert_eq!(mailbox.executing(), 0);
    let released = mailbox.settle(turn, Ok(vec![Verdict::Committed]));
    assert_eq!((released.replies.len(), released.dispatch.len(), released.started), (1, 1, 1));
    assert!(!mailbox.is_quiet(0), "a step is under way");
}

const ONE: [u8; 16] = [5; 16];

/// One that shares a limit of one.
fn grouped_runs(run: RunId, on_conflict: OnConflict) -> Box<Start> {
    let concurrency_group = Some(ConcurrencyGroupRow { id: ONE, limit: 1, on_conflict });
    Box::new(Start { concurrency_group, ..*start(run) })
}

/// A mailbox with what it has written, and a store that does not always say so.
struct Unlucky {
    mailbox: Mailbox<u32>,
    records: BTreeMap<RunId, (Vec<Bytes>, RunRow)>,
}

impl Unlucky {
    fn new() -> Self {
        let mailbox = Mailbox::new(1, Arc::new(|_, _| String::new()));
        Unlucky { mailbox, records: BTreeMap::new() }
    }

    /// Turns until nothing is left to do; answers the runs that were written. The first commit with a
    /// record of `unknown` lands, and nobody learns.
    fn go(&mut self, mut unknown: Option<RunId>) -> Vec<(RunId, RunStatus)> {
        let mut written = Vec::new();
        for _ in 0..20 {
            let turn = turn(&mut self.mailbox, Timestamp(1));
            let loads = turn.loads.clone();
            for write in &turn.batch.runs {
                let row = write.row.clone().or_else(|| Some(self.records.get(&write.run)?.1.clone()));
                let row = row.expect("the first record has a row");
                written.push((write.run, row.status));
                let entry = self.records.entry(write.run).or_insert_with(|| (Vec::new(), row.clone()));
                entry.0.push(write.record.clone());
                entry.1 = row;
            }
            let is_unknown = turn.batch.runs.iter().any(|write| Some(write.run) == unknown);
            unknown = unknown.filter(|_| !is_unknown);
            let verdicts = vec![Verdict::Committed; turn.batch.runs.len()];
            let result = if is_unknown { Err(store::Error::Unknown("lost".into())) } else { Ok(verdicts) };
            self.mailbox.settle(turn, result);
            for (_, run) in loads {
                let (records, row) = &self.records[&run];
                let version = start(run).version;
                let folded = Run::load(&version.plan, None, records).expect("it folds");
                let (seq, row, count) = (records.len() as u64, row.clone(), records.len() as u32);
                let resumed = Resumed { version, run: folded, seq, row, records: count };
                self.mailbox.accept(Command::Loaded { run, result: Ok(Some(Box::new(resumed))) });
            }
            if !self.mailbox.has_work() {
                return written;
            }
        }
        panic!("it never ends: {written:?}");
    }

    fn start(&mut self, run: RunId, on_conflict: OnConflict) {
        self.mailbox.accept(Command::Start { start: grouped_runs(run, on_conflict), reply_to: 1, ended: None });
    }
}

#[test]
fn a_place_is_free_when_its_run_has_ended_and_nobody_learned() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut unlucky = Unlucky::new();
    unlucky.start(first, OnConflict::Queue);
    assert_eq!(unlucky.go(None), [(first, RunStatus::Running)]);
    unlucky.start(second, OnConflict::Queue);
    assert_eq!(unlucky.go(None), [(second, RunStatus::Pending)]);
    let input = Input::Cancel { actor: "ada".into(), reason: String::new() };
    unlucky.mailbox.accept(Command::Give { org: OrgId::DEFAULT, run: first, input, reply_to: None });
    assert_eq!(unlucky.go(Some(first)), [(first, RunStatus::Cancelled), (second, RunStatus::Running)]);
}

#[test]
fn older_runs_make_room_for_one_that_nobody_learned_of() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut unlucky = Unlucky::new();
    unlucky.start(first, OnConflict::CancelRunning);
    unlucky.go(None);
    unlucky.start(second, OnConflict::CancelRunning);
    let (gone, let_in) = ((first, RunStatus::Cancelled), (second, RunStatus::Running));
    assert_eq!(unlucky.go(Some(second)), [(second, RunStatus::Pending), gone, let_in]);
}

#[test]
fn a_start_whose_key_is_taken_answers_everyone_what_they_asked() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let (run, org) = (RunId([7; 16]), OrgId::DEFAULT);
    mailbox.accept(Command::Start { start: start(run), reply_to: 1, ended: None });
    mailbox.accept(Command::Give { org, run, input: Input::Wake, reply_to: Some(2) });
    let turn = turn(&mut mailbox, Timestamp(1));
    mailbox.accept(Command::Give { org, run, input: Input::Wake, reply_to: Some(3) });
    let taken = Verdict::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    let replies = mailbox.settle(turn, Ok(vec![taken])).replies;
    let reply = Reply::KeyTaken { run: RunId([9; 16]), fingerprint: [3; 32] };
    assert_eq!(replies, [(1, reply), (2, Reply::NotFound), (3, Reply::NotFound)]);
}

/// A run with one task; its trigger does not fit into a record.
fn task(run: RunId) -> Box<Start> {
    let source = r#"{"name": "one", "tasks": {"a": {"task": "mail.send", "input": "{{trigger.body}}"}}}"#;
    let mut start = start_of(run, source);
    start.origin.body = Payload::json(format!("\"{}\"", "x".repeat(kernel::payload::INLINE_MAX)));
    start
}

fn ask(claim_id: u64, credits: u32, is_immediate: bool) -> Command<u32> {
    Command::Claim(Box::new(ClaimRequest {
        claim_id,
        reply_to: claim_id as u32,
        org: OrgId::DEFAULT,
        worker: "ada".into(),
        types: vec!["%".into()],
        patterns: vec![crate::task_queue::Pattern::Prefix("".into())],
        runtime: None,
        version: None,
        slots: None,
        credits,
        lease: Span::from_secs(30),
        is_immediate,
        is_strict: false,
    }))
}

/// Turns once, and everything lands.
fn land(mailbox: &mut Mailbox<u32>, now: Timestamp) -> (Turn<u32>, Released<u32>) {
    let mut turn = turn(mailbox, now);
    let (loads, fetches) = (std::mem::take(&mut turn.loads), std::mem::take(&mut turn.fetches));
    let (batch, refills) = (turn.batch.clone(), std::mem::take(&mut turn.refills));
    let verdicts = vec![Verdict::Committed; turn.batch.runs.len()];
    let released = mailbox.settle(turn, Ok(verdicts));
    (
        Turn {
            batch,
            loads,
            fetches,
            refills,
            key_reads: Vec::new(),
            slot_reads: Vec::new(),
            pending: Vec::new(),
            ready: Vec::new(),
        },
        released,
    )
}

fn handed(released: &Released<u32>) -> Vec<(u32, usize)> {
    let count = |(reply_to, reply): &(u32, Reply)| match reply {
        Reply::Claimed(handed) => Some((*reply_to, handed.tasks.len())),
        _ => None,
    };
    released.replies.iter().filter_map(count).collect()
}

#[test]
fn a_claim_that_waits_for_a_payload_still_reaches_its_worker() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let run = RunId([7; 16]);
    mailbox.accept(Command::Start { start: task(run), reply_to: 1, ended: None });
    let (turn, _) = land(&mut mailbox, Timestamp(1));
    let payloads = turn.batch.runs[0].payloads.clone();
    mailbox.accept(ask(2, 1, false));
    mailbox.accept(ask(3, 1, true));
    let (turn, released) = land(&mut mailbox, Timestamp(2));
    assert_eq!((turn.fetches.len(), turn.batch.runs.len()), (1, 0));
    assert_eq!(handed(&released), [(3, 0)], "the one task is on its way to whoever asked first");
    mailbox.accept(Command::Fetched { run, result: Ok(payloads) });
    let (turn, released) = land(&mut mailbox, Timestamp(3));
    assert_eq!(turn.batch.runs.len(), 1);
    assert_eq!(handed(&released), [(2, 1)]);
    assert_eq!(mailbox.tasks().1, 1);
}

fn limited(limit: u32) -> TypeRow {
    TypeRow {
        org: OrgId::DEFAULT,
        name: "mail.send".into(),
        runtime: None,
        description: None,
        enabled: true,
        paused: None,
        limit: Some(limit),
        limit_per_key: None,
        rate: None,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    }
}

#[test]
fn what_workers_hold_counts_before_it_has_been_read_again() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut before: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    before.accept(ask(1, 1, false));
    before.accept(Command::Start { start: task(first), reply_to: 2, ended: None });
    let (turn, released) = land(&mut before, Timestamp(1));
    assert_eq!(handed(&released), [(1, 1)]);
    let write = &turn.batch.runs[0];
    let (records, row) = (vec![write.record.clone()], write.row.clone().expect("the first record has a row"));

    let mut after: Mailbox<u32> = Mailbox::new(2, Arc::new(|_, _| String::new()));
    after.accept(Command::RestoreTaskQueue { queues: Vec::new(), types: vec![limited(1)], workers: Vec::new() });
    after.accept(Command::Recover { org: OrgId::DEFAULT, run: first });
    after.accept(ask(3, 1, false));
    after.accept(Command::Start { start: task(second), reply_to: 4, ended: None });
    let (turn, released) = land(&mut after, Timestamp(2));
    assert_eq!(turn.loads.len(), 1);
    assert!(handed(&released).is_empty(), "nobody knows yet how many are out");
    let payloads = turn.batch.runs[0].payloads.clone();

    let version = task(first).version;
    let run = Run::load(&version.plan, None, &records).expect("it folds");
    let resumed = Resumed { version, run, seq: 1, row, records: 1 };
    after.accept(Command::Loaded { run: first, result: Ok(Some(Box::new(resumed))) });
    let (_, released) = land(&mut after, Timestamp(3));
    assert!(handed(&released).is_empty(), "one is out, and no more may be");

    let result = kernel::advance::TaskResult::Done { body: None, took: Span(0) };
    let input = Input::Finished { step: 0, fence: 2, result, digest: 5 };
    after.accept(Command::Give { org: OrgId::DEFAULT, run: first, input, reply_to: None });
    land(&mut after, Timestamp(4));
    land(&mut after, Timestamp(5));
    after.accept(Command::Fetched { run: second, result: Ok(payloads) });
    let (_, released) = land(&mut after, Timestamp(6));
    assert_eq!(handed(&released), [(3, 1)]);
}

#[test]
fn a_run_that_cannot_be_read_keeps_no_room() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::TypeChanged(Box::new(limited(1))));
    mailbox.accept(ask(1, 2, false));
    mailbox.accept(Command::Start { start: task(first), reply_to: 2, ended: None });
    assert_eq!(handed(&land(&mut mailbox, Timestamp(1)).1), [(1, 1)]);
    let input = Input::Heartbeat { step: 0, fence: 2, progress: Some(Payload::json("1")) };
    mailbox.accept(Command::Give { org: OrgId::DEFAULT, run: first, input, reply_to: None });
    let turn = turn(&mut mailbox, Timestamp(2));
    mailbox.settle(turn, Ok(vec![Verdict::Conflict]));
    assert_eq!(land(&mut mailbox, Timestamp(3)).0.loads.len(), 1);
    assert_eq!(mailbox.tasks().1, 1);
    mailbox.accept(Command::Loaded { run: first, result: Err(LoadFailure::Newer) });
    assert_eq!(mailbox.tasks().1, 0, "a later release has it, and its worker reports there");
    mailbox.accept(ask(3, 1, false));
    mailbox.accept(Command::Start { start: task(second), reply_to: 4, ended: None });
    assert_eq!(handed(&land(&mut mailbox, Timestamp(4)).1), [(3, 1)]);
}

#[test]
fn what_ends_in_the_turn_in_which_its_worker_is_answered_is_not_handed_out() {
    let (first, second) = (RunId([1; 16]), RunId([2; 16]));
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    mailbox.accept(Command::Start { start: task(first), reply_to: 1, ended: None });
    mailbox.accept(Command::Start { start: task(second), reply_to: 2, ended: None });
    let (turn, _) = land(&mut mailbox, Timestamp(1));
    let payloads = turn.batch.runs[0].payloads.clone();
    mailbox.accept(ask(3, 2, false));
    land(&mut mailbox, Timestamp(2));
    mailbox.accept(Command::Fetched { run: first, result: Ok(payloads) });
    assert!(handed(&land(&mut mailbox, Timestamp(3)).1).is_empty(), "the other one is on its way");
    let cancel = |run| {
        let input = Input::Cancel { actor: "ada".into(), reason: String::new() };
        Command::Give { org: OrgId::DEFAULT, run, input, reply_to: None }
    };
    mailbox.accept(cancel(second));
    assert!(handed(&land(&mut mailbox, Timestamp(4)).1).is_empty());
    // Now it is known that the other one does not come.
    mailbox.accept(cancel(first));
    assert_eq!(handed(&land(&mut mailbox, Timestamp(5)).1), [(3, 0)]);
}

#[test]
fn a_run_that_is_needed_is_asked_for_until_it_is_read_whoever_else_wants_it() {
    let mut mailbox: Mailbox<u32> = Mailbox::new(1, Arc::new(|_, _| String::new()));
    let (org, run) = (OrgId::DEFAULT, RunId([7; 16]));
    mailbox.accept(Command::Start { start: task(run), reply_to: 1, ended: None });
    land(&mut mailbox, Timestamp(1));
    let pause = |mailbox: &mut Mailbox<u32>| {
        let input = Input::Pause { actor: "ada".into(), note: String::new() };
        mailbox.accept(Command::Give { org, run, input, reply_to: Some(2) });
    };
    pause(&mut mailbox);
    let turn = turn(&mut mailbox, Timestamp(2));
    mailbox.settle(turn, Err(store::Error::Unavailable("away".into())));
    let away = || Command::Loaded { run, result: Err(LoadFailure::Store("away".into())) };
    assert_eq!(land(&mut mailbox, Timestamp(3)).0.loads.len(), 1);
    mailbox.accept(away());
    land(&mut mailbox, Timestamp(4));
    // Somebody asks meanwhile, and is told that it cannot be read.
    pause(&mut mailbox);
    assert_eq!(land(&mut mailbox, Timestamp(5)).0.loads.len(), 1);
    mailbox.accept(away());
    let (_, released) = land(&mut mailbox, Timestamp(6));
    assert!(matches!(&released.replies[..], [(2, Reply::LoadFailure(_))]));
    assert_eq!(land(&mut mailbox, Timestamp(7).after(READ_PAUSE)).0.loads.len(), 1, "its task waits for a worker");
}
