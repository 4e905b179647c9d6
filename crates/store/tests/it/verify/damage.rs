//! Ways to damage a good store, each with the code that `verify` must report.

use super::sample::Sample;
use crate::support::Place;
use engine::verify::Code;
use kernel::event::{Because, Callback, ConcurrencyGroup, Failure, Parent};
use kernel::plan::Decision;
use kernel::run::State;
use kernel::{Event, Payload, Record, RunId, Timestamp, wire};
use rusqlite::{Connection, Params};

pub struct Patient<'a> {
    db: Connection,
    path: std::path::PathBuf,
    s: &'a Sample,
}

pub type Damage = fn(&Patient<'_>);

/// A damage that is one statement; `$1` is the id of a run of the sample.
macro_rules! sql {
    ($statement:literal) => {
        |p| p.run($statement, [])
    };
    ($run:ident, $statement:literal) => {
        |p| p.run($statement, [p.s.$run.0])
    };
}

const WORKFLOW: &str = "(SELECT min(id) FROM workflows)";

pub const ALL: &[(Code, &str, Damage)] = &[
    (Code::DatabaseDamaged, "a page overwritten", |p| p.overwrite()),
    (Code::ForeignKey, "a reference to a missing row", |p| {
        let table = "CREATE TABLE t (org INTEGER, id BLOB, FOREIGN KEY (org, id) REFERENCES workflows (org, id))";
        p.db.execute_batch(&format!("PRAGMA foreign_keys = OFF; {table}; INSERT INTO t VALUES (9, x'00')")).unwrap();
    }),
    (Code::SchemaUnknown, "another build", sql!("UPDATE schema_migrations SET sha256 = 'other'")),
    (Code::SchemaUnknown, "later", sql!("INSERT INTO schema_migrations VALUES (99, 'later', 'hash', 0)")),
    (Code::RowUnreadable, "a form", sql!("UPDATE runs SET form = 'riddle'")),
    (Code::RowUnreadable, "a token", sql!("UPDATE waits SET hash = x'00' WHERE run = (SELECT min(run) FROM waits)")),
    (Code::SettingDamaged, "position", sql!("INSERT OR REPLACE INTO settings VALUES ('recovery_pos', '99999999')")),
    (Code::SettingDamaged, "not a number", sql!("UPDATE settings SET value = 'x' WHERE name = 'epoch'")),
    (Code::SettingDamaged, "epoch before its use", sql!("UPDATE settings SET value = '0' WHERE name = 'epoch'")),
    (Code::Dangling, "a run deleted", sql!(waiting, "DELETE FROM runs WHERE id = $1")),
    (Code::Dangling, "a workflow deleted", sql!("DELETE FROM workflows")),
    (Code::Dangling, "its key", sql!("UPDATE idempotency SET made = zeroblob(16) WHERE scope = 'workflows'")),
    (Code::Dangling, "a timer", sql!("INSERT INTO timers VALUES (1, 1, zeroblob(16))")),
    (Code::Dangling, "a snapshot", sql!("UPDATE snapshots SET run = x'ff'")),
    (
        Code::Dangling,
        "a delivery",
        sql!("INSERT INTO deliveries VALUES (1, x'01', 1, 'd', 0, 'started', '', NULL, NULL)"),
    ),
    (Code::Dangling, "a trigger", |p| p.trigger("zeroblob(16)", "'manual'", "{}", "NULL")),
    (Code::TriggerWrong, "settings", |p| p.trigger(WORKFLOW, "'schedule'", "{}", "1")),
    (Code::TriggerWrong, "no next time", |p| p.trigger(WORKFLOW, "'schedule'", r#"{"cron":"* * * * *"}"#, "NULL")),
    (Code::TriggerWrong, "a manual trigger with a next time", |p| p.trigger(WORKFLOW, "'manual'", "{}", "1")),
    (Code::OtherOrganisation, "labels", sql!("UPDATE labels SET org = 2 WHERE org = 1")),
    (Code::OtherOrganisation, "payloads", sql!("UPDATE payloads SET org = 2")),
    (Code::OtherOrganisation, "a callback", sql!(waiting, "UPDATE waits SET org = 2 WHERE run = $1")),
    (Code::ChainBroken, "cut", sql!(sleeping, "UPDATE journal SET prev = 0 WHERE run = $1 AND seq = 5")),
    (Code::ChainBroken, "another run", sql!(sleeping, "UPDATE journal SET org = 2 WHERE run = $1 AND seq = 5")),
    (Code::ChainBroken, "number", sql!(sleeping, "UPDATE journal SET seq = 9 WHERE run = $1 AND seq = 5")),
    (Code::ChainBroken, "deleted", sql!(sleeping, "DELETE FROM journal WHERE run = $1 AND seq = 1")),
    (Code::ChainBroken, "circle", sql!(sleeping, "UPDATE journal SET prev = pos + 1 WHERE run = $1 AND seq = 5")),
    (Code::ChainBroken, "head", sql!(completed, "UPDATE runs SET head = head + 1 WHERE id = $1")),
    (Code::ChainBroken, "head of an open run", sql!(running, "UPDATE runs SET head = 0, seq = 0 WHERE id = $1")),
    (
        Code::RecordDamaged,
        "a bit",
        sql!(completed, "UPDATE journal SET body = CAST(body || x'00' AS BLOB) WHERE run = $1"),
    ),
    (Code::RecordDamaged, "emptied", sql!(woken, "UPDATE journal SET body = x'' WHERE run = $1 AND seq = 1")),
    (Code::RecordNewer, "a format", |p| {
        p.run(
            "UPDATE journal SET body = CAST(x'09' || substr(body, 2) AS BLOB) WHERE run = $1 AND seq = 2",
            [p.s.completed.0],
        );
    }),
    (Code::RecordNewer, "an event", |p| {
        p.edit(p.s.completed, 2, |r| r.events.push(Event::Unknown { number: 99, bytes: Default::default() }));
    }),
    (Code::EventNumbers, "a gap", |p| p.edit(p.s.completed, 2, |r| r.first += 1)),
    (Code::EventNumbers, "an event lost", |p| p.edit(p.s.completed, 1, |r| drop(r.events.pop()))),
    (Code::EventNumbers, "nothing happened", |p| p.append(p.s.completed, vec![])),
    (Code::JournalOrphan, "a second end", |p| {
        p.run(
            "INSERT INTO journal SELECT (SELECT max(pos) + 1 FROM journal), org, run, seq, prev, body FROM journal \
               WHERE run = $1 AND seq = 2",
            [p.s.completed.0],
        );
    }),
    (Code::JournalOrphan, "half deleted", |p| {
        p.run("DELETE FROM runs WHERE id = $1", [p.s.woken.0]);
        p.run("UPDATE journal SET body = x'' WHERE run = $1 AND seq > 1", [p.s.woken.0]);
    }),
    (Code::Dangling, "the key of a run without records", sql!(erased, "UPDATE journal SET run = x'00' WHERE run = $1")),
    (Code::JournalGap, "an emptied record deleted", |p| {
        p.run("DELETE FROM journal WHERE run = $1 AND seq = 1", [p.s.erased.0]);
    }),
    (Code::JournalGap, "moved", |p| {
        p.db.execute_batch(
            "UPDATE runs SET head = head + 5 WHERE head = (SELECT max(pos) FROM journal);
                            UPDATE journal SET pos = pos + 5 WHERE pos = (SELECT max(pos) FROM journal)",
        )
        .unwrap();
    }),
    (Code::TimeBackwards, "a record of 1970", |p| p.edit(p.s.running, 1, |r| r.at = Timestamp(5))),
    (Code::SnapshotDiffers, "position", sql!("UPDATE snapshots SET pos = pos - 1")),
    (Code::SnapshotDiffers, "number", sql!("UPDATE snapshots SET seq = 999")),
    (Code::SnapshotDiffers, "a bit", sql!("UPDATE snapshots SET body = CAST(body || x'00' AS BLOB)")),
    (Code::SnapshotDiffers, "state", |p| {
        let body: Vec<u8> = p.db.query_row("SELECT body FROM snapshots", [], |row| row.get(0)).unwrap();
        let mut state: State = wire::open(1, &body).unwrap();
        state.steps[3].charged += 1;
        p.run("UPDATE snapshots SET body = $1", [wire::seal(&state)]);
    }),
    (Code::RowDiffers, "status", sql!(waiting, "UPDATE runs SET status = 'running' WHERE id = $1")),
    (Code::RowDiffers, "an end undone", sql!(completed, "UPDATE runs SET status = 'failed' WHERE id = $1")),
    (Code::RowDiffers, "waiting", sql!(waiting, "UPDATE runs SET waiting = 1 WHERE id = $1")),
    (Code::RowDiffers, "wake_at", sql!(waiting, "UPDATE runs SET wake_at = 7 WHERE id = $1")),
    (Code::RowDiffers, "created_at", sql!("UPDATE runs SET created_at = created_at + 1")),
    (Code::RowDiffers, "expires_at", sql!("UPDATE runs SET expires_at = expires_at - 1")),
    (Code::RowDiffers, "finished_at", sql!("UPDATE runs SET finished_at = 1")),
    (Code::RowDiffers, "error_code", sql!("UPDATE runs SET error_code = 'x'")),
    (Code::RowDiffers, "failed_steps", sql!("UPDATE runs SET failed_steps = 'x!'")),
    (Code::LabelsDiffer, "lost", sql!("DELETE FROM labels WHERE key = 'kind'")),
    (Code::LabelsDiffer, "changed", sql!("UPDATE labels SET value = 'c2' WHERE key = 'customer'")),
    (Code::Conservation, "an end", sql!(running, "UPDATE runs SET status = 'completed' WHERE id = $1")),
    (Code::Conservation, "a row", sql!(completed, "DELETE FROM runs WHERE id = $1")),
    (Code::EventAfterEnd, "waiting", |p| p.append(p.s.completed, vec![Event::RunWaiting {}])),
    (Code::EventAfterEnd, "cancelled", |p| {
        p.append(p.s.completed, vec![Event::RunCancelled { actor: "me".into(), reason: String::new() }]);
    }),
    (Code::EventAfterEnd, "two notes", |p| {
        let late = Event::LateResult { step: 0, attempt: 1, summary: "done".into() };
        p.append(p.s.completed, vec![late.clone(), late]);
    }),
    (Code::EventOutOfPlace, "waiting twice", |p| p.append(p.s.waiting, vec![Event::RunWaiting {}])),
    (Code::EventOutOfPlace, "created twice", |p| {
        p.edit(p.s.waiting, 1, |r| r.events.push(r.events[0].clone()));
    }),
    (Code::EventOutOfPlace, "no such step", |p| p.append(p.s.waiting, vec![Event::Woken { step: 70 }])),
    (Code::EventOutOfPlace, "a wait is not a sleep", |p| p.append(p.s.waiting, vec![Event::Woken { step: 0 }])),
    (Code::EventOutOfPlace, "a step cancelled in a waiting run", |p| {
        p.append(p.s.waiting, vec![Event::Cancelled { step: 0 }])
    }),
    (Code::WrongEnd, "failed", |p| {
        let failure = Failure::new("step_failed", "");
        p.replace(
            p.s.completed,
            |e| matches!(e, Event::RunCompleted {}),
            vec![Event::RunFailed { failure, step: Some(0) }],
        );
    }),
    (Code::WrongEnd, "too early", |p| p.append(p.s.waiting, vec![Event::RunCompleted {}])),
    (Code::SettledTwice, "succeeded", |p| p.twice(p.s.completed, |e| matches!(e, Event::Succeeded { .. }))),
    (Code::SettledTwice, "woken", |p| p.twice(p.s.woken, |e| matches!(e, Event::Woken { .. }))),
    (Code::StartedTwice, "started", |p| p.twice(p.s.running, |e| matches!(e, Event::Started { .. }))),
    (Code::StartedTwice, "asleep", |p| p.twice(p.s.sleeping, |e| matches!(e, Event::TimerSet { .. }))),
    (Code::StartedTwice, "after its end", |p| {
        p.append(p.s.sleeping, vec![Event::Started { step: 0, attempt: 2, epoch: 1, seen: vec![] }]);
    }),
    (Code::AttemptNumbers, "first", |p| {
        p.replace(p.s.running, started, vec![Event::Started { step: 0, attempt: 2, epoch: 1, seen: vec![] }]);
    }),
    (Code::AttemptNumbers, "lost", |p| {
        p.append(
            p.s.running,
            vec![retrying(3, false, p.now()), Event::Started { step: 0, attempt: 2, epoch: 1, seen: vec![] }],
        );
    }),
    (Code::AttemptsOverPolicy, "endless", |p| {
        let again =
            |n| [retrying(n, true, p.now()), Event::Started { step: 0, attempt: n + 1, epoch: 1, seen: vec![] }];
        p.append(p.s.running, (1..40).flat_map(again).collect());
    }),
    (Code::StartedTooSoon, "needs", |p| {
        let start = Event::Started { step: 1, attempt: 1, epoch: 1, seen: vec![] };
        p.edit(p.s.completed, 1, |r| r.events.push(start));
    }),
    (Code::WrongDecision, "skipped for needs", |p| {
        let because = Because::Needs { steps: vec![1] };
        p.replace(p.s.completed, condition_was_false, vec![Event::Skipped { step: 2, because }]);
    }),
    (Code::WrongDecision, "started", |p| {
        p.replace(
            p.s.completed,
            condition_was_false,
            vec![Event::Started { step: 2, attempt: 1, epoch: 1, seen: vec![] }],
        );
    }),
    (Code::WrongDecision, "the payload says otherwise", |p| {
        p.run("UPDATE payloads SET body = CAST('{\"amount\":99}' AS BLOB)", []);
    }),
    (Code::WrongDecision, "another kind of work", |p| {
        p.replace(p.s.running, started, vec![Event::TimerSet { step: 0, at: Timestamp(9), seen: vec![] }]);
    }),
    (Code::TimerEarly, "woken", |p| {
        p.append(p.s.sleeping, vec![Event::Woken { step: 40 }]);
    }),
    (Code::TimerEarly, "set wrong", |p| {
        p.edit(p.s.sleeping, 41, |r| {
            for event in &mut r.events {
                if let Event::TimerSet { at, .. } = event {
                    at.0 += 1;
                }
            }
        })
    }),
    (Code::TimerEarly, "run", |p| p.append(p.s.waiting, vec![Event::Cancelled { step: 0 }, Event::RunTimeout {}])),
    (Code::Unfinished, "a decision lost", |p| {
        p.replace(p.s.waiting, |e| matches!(e, Event::RunWaiting {}), vec![]);
    }),
    (Code::Unfinished, "a step undecided", |p| {
        p.replace(p.s.running, started, vec![]);
    }),
    (Code::TimerMissing, "lost", sql!("DELETE FROM timers")),
    (Code::TimerMissing, "late", sql!("UPDATE timers SET at = at + 1")),
    (Code::TimerStray, "second", sql!("INSERT INTO timers SELECT at + 1, org, run FROM timers")),
    (Code::TimerStray, "over", sql!(cancelled, "INSERT INTO timers VALUES (1, 1, $1)")),
    (Code::TimerStray, "open", sql!(running, "INSERT INTO timers VALUES (1, 1, $1)")),
    (Code::ReadyMissing, "lost", sql!("DELETE FROM ready")),
    (Code::ReadyMissing, "another key queue", sql!("UPDATE ready SET key = 'k8'")),
    (Code::ReadyMissing, "another type", sql!("UPDATE ready SET name = 'mail.send.v2'")),
    (Code::ReadyStray, "another priority", sql!("UPDATE ready SET priority = 6")),
    (Code::ReadyStray, "another step", sql!(evicted, "INSERT INTO ready VALUES (1, 'mail.send.v1', 'k7', 5, $1, 1)")),
    (Code::ReadyStray, "over", sql!(completed, "INSERT INTO ready VALUES (1, 'mail.send.v1', '', 5, $1, 0)")),
    (Code::ReadyStray, "in memory", sql!(offered, "INSERT INTO ready VALUES (1, 'mail.send.v1', 'k7', 5, $1, 0)")),
    (Code::Dangling, "a task", sql!("INSERT INTO ready VALUES (1, 'mail.send.v1', '', 5, zeroblob(16), 0)")),
    (Code::OtherOrganisation, "a task", sql!("UPDATE ready SET org = 2")),
    (Code::RowDiffers, "not evicted", sql!(waiting, "UPDATE runs SET parked = 0 WHERE id = $1")),
    (Code::RowDiffers, "evicted while executing", sql!(running, "UPDATE runs SET parked = 1 WHERE id = $1")),
    (Code::RowDiffers, "hidden", sql!(waiting, "UPDATE runs SET deleted_at = 1 WHERE id = $1")),
    (Code::TimerMissing, "of an evicted task", sql!(evicted, "DELETE FROM timers WHERE run = $1")),
    (Code::TimerEarly, "a queue timeout too early", |p| p.append(p.s.offered, vec![out_of_time("queue_timeout")])),
    (Code::EventOutOfPlace, "a timeout it does not have", |p| {
        p.append(p.s.offered, vec![out_of_time("total_timeout")])
    }),
    (Code::EventOutOfPlace, "done by the server", |p| {
        p.append(p.s.offered, vec![Event::Started { step: 0, attempt: 1, epoch: 1, seen: vec![] }]);
    }),
    (Code::EventOutOfPlace, "done by a worker", |p| p.append(p.s.running, vec![retrying(1, true, p.now()), leased(2)])),
    (Code::EventOutOfPlace, "progress without a lease", |p| {
        p.append(p.s.offered, vec![Event::Progress { step: 0, attempt: 0, progress: Default::default() }]);
    }),
    (Code::StartedTwice, "two workers", |p| p.append(p.s.offered, vec![leased(1), leased(2)])),
    (Code::AttemptNumbers, "a worker's", |p| p.append(p.s.offered, vec![leased(2)])),
    (Code::WrongDecision, "a worker's step started by the server", |p| {
        let started = Event::Started { step: 0, attempt: 1, epoch: 1, seen: vec![] };
        p.replace(p.s.offered, |e| matches!(e, Event::Scheduled { .. }), vec![started]);
    }),
    (Code::WaitMissing, "lost", sql!("DELETE FROM waits")),
    (
        Code::InboxStray,
        "its run deleted",
        sql!("INSERT INTO inbox VALUES (1, zeroblob(16), x'01', 'input', x'', 0, NULL, NULL)"),
    ),
    (Code::OpenWaitMissing, "lost", sql!("DELETE FROM open_waits")),
    (Code::OpenWaitMissing, "name", sql!("UPDATE open_waits SET name = 'other' WHERE kind = 'signal'")),
    (Code::OpenWaitStray, "over", sql!(completed, "INSERT INTO open_waits VALUES (1, 'approval', '', $1, 0, 9)")),
    (Code::OpenWaitStray, "deadline", sql!("UPDATE open_waits SET deadline = deadline + 1")),
    (Code::ChildMissing, "lost", sql!(child, "DELETE FROM runs WHERE id = $1")),
    (Code::ChildEndLost, "no row for the parent", |p| {
        p.append(p.s.child, vec![Event::RunCancelled { actor: "me".into(), reason: String::new() }]);
        p.run("UPDATE runs SET status = 'cancelled' WHERE id = $1", [p.s.child.0]);
    }),
    (Code::ChildLeft, "no row for the child", |p| {
        p.append(p.s.parent, vec![Event::RunCancelled { actor: "me".into(), reason: String::new() }]);
    }),
    (Code::ChildStray, "started twice", |p| {
        p.edit(p.s.cancelled, 1, |record| {
            if let Some(Event::Created { origin }) = record.events.first_mut() {
                let (run, step) = (p.s.parent, 0);
                origin.parent = Some(Box::new(Parent { run, step, attempt: 1, ..Default::default() }));
            }
        });
    }),
    (Code::EventOutOfPlace, "a signal read twice", |p| {
        p.append(p.s.asking, vec![Event::SignalConsumed { step: 0, signal: 1 }]);
    }),
    (Code::Unfinished, "an early signal that its step has not read", |p| {
        let is_end = |e: &Event| matches!(e, Event::Received { .. });
        p.replace(p.s.asking, |e| matches!(e, Event::SignalConsumed { .. }), vec![]);
        p.replace(p.s.asking, is_end, vec![]);
    }),
    (Code::EventOutOfPlace, "an iteration opened twice", |p| {
        p.twice(p.s.parent, |e| matches!(e, Event::Opened { .. }));
    }),
    (Code::StartedTwice, "a first-join", |p| {
        p.append(p.s.parent, vec![Event::Started { step: 2, attempt: 1, epoch: 1, seen: vec![] }]);
    }),
    (Code::StartedTwice, "a child", |p| p.twice(p.s.parent, |e| matches!(e, Event::ChildStarted { .. }))),
    (Code::EventOutOfPlace, "the end of a child twice", |p| {
        p.twice(p.s.parent, |e| matches!(e, Event::ChildEnded { status: Some(_), .. }));
    }),
    (Code::EventOutOfPlace, "an approval decided twice", |p| {
        let decided = |decision, actor: &str| Event::ApprovalDecided {
            step: 2,
            decision,
            actor: actor.into(),
            comment: String::new(),
        };
        p.append(p.s.asking, vec![decided(Decision::Approved, "me"), decided(Decision::Denied, "you")]);
    }),
    (Code::TimerEarly, "an approval decided by its deadline", |p| {
        let (decision, comment) = (Decision::Denied, String::new());
        p.append(p.s.asking, vec![Event::ApprovalDecided { step: 2, decision, actor: String::new(), comment }]);
    }),
    (Code::AcceptedLate, "a callback at the deadline", |p| {
        let callback = Some(Callback::default());
        p.append_at_deadline(p.s.waiting, 0, vec![Event::Received { step: 0, callback }]);
    }),
    (Code::AcceptedLate, "a signal", |p| {
        let body = Payload::json("1");
        let (key, fingerprint) = (Default::default(), Default::default());
        let arrived = Event::SignalReceived { name: "paid".into(), body, actor: "me".into(), key, fingerprint };
        let signal = p.last_event(p.s.asking) + 1;
        let read = [Event::SignalConsumed { step: 0, signal }, Event::Received { step: 0, callback: None }];
        p.append_at_deadline(p.s.asking, 0, [vec![arrived], read.into()].concat());
    }),
    (Code::AcceptedLate, "an approval", |p| {
        let (decision, comment) = (Decision::Approved, String::new());
        let decided = Event::ApprovalDecided { step: 2, decision, actor: "me".into(), comment };
        p.append_at_deadline(p.s.asking, 2, vec![decided]);
    }),
    (Code::AcceptedLate, "a resume", |p| {
        p.append_at_deadline(p.s.asking, 3, vec![Event::Continued { step: 3, actor: "me".into() }]);
    }),
    (Code::NotificationMissing, "lost", sql!("DELETE FROM notices")),
    (Code::NotificationMissing, "its key lost", sql!("DELETE FROM idempotency WHERE scope = 'notice'")),
    (Code::NotificationStray, "open", sql!(running, "INSERT INTO notices VALUES (1, $1, 0, '')")),
    (Code::NotificationStray, "number", sql!("UPDATE notices SET number = 7")),
    (Code::WaitStray, "step", sql!("UPDATE waits SET step = 1")),
    (Code::WaitStray, "kind", sql!("UPDATE waits SET kind = 'approval'")),
    (Code::PayloadMissing, "lost", sql!("DELETE FROM payloads")),
    (Code::PayloadMissing, "cut", sql!("UPDATE payloads SET body = substr(body, 2)")),
    (Code::PayloadStray, "left over", sql!(woken, "INSERT INTO payloads VALUES (1, $1, 1, x'00')")),
    (Code::VersionMissing, "hash", sql!("UPDATE versions SET hash = zeroblob(32)")),
    (Code::VersionMissing, "lost", sql!("DELETE FROM versions")),
    (Code::VersionLine, "behind", sql!("UPDATE workflows SET version = 2")),
    (Code::VersionLine, "gap", sql!("UPDATE versions SET number = 2")),
    (Code::DefinitionMissing, "lost", sql!("DELETE FROM definitions")),
    (Code::DefinitionMissing, "lowering", sql!("UPDATE runs SET lowering = 9")),
    (Code::DefinitionDamaged, "plan", sql!("UPDATE definitions SET plan = CAST(plan || x'00' AS BLOB)")),
    (Code::DefinitionDamaged, "source", sql!("UPDATE definitions SET source = x'7b'")),
    (Code::DefinitionHash, "edited", sql!("UPDATE definitions SET source = CAST(replace(source, '8h', '9h') AS BLOB)")),
    (Code::LimitExceeded, "one too many", |p| {
        p.edit(p.s.waiting, 1, |record| {
            if let Some(Event::Created { origin }) = record.events.first_mut() {
                origin.concurrency_group = Some(ConcurrencyGroup { key: "k".into(), limit: 0, ..Default::default() });
            }
        });
    }),
    (Code::OriginDiffers, "name", sql!("UPDATE runs SET workflow_name = 'other'")),
    (Code::OriginDiffers, "version", sql!("UPDATE runs SET version = 2")),
    (Code::OriginDiffers, "form", sql!("UPDATE runs SET form = 'script'")),
    (Code::OriginDiffers, "lowering", |p| {
        p.db.execute_batch(
            "INSERT INTO definitions SELECT org, hash, 9, source, plan FROM definitions
             WHERE lowering = (SELECT max(lowering) FROM runs);
             UPDATE runs SET lowering = 9 WHERE lowering = (SELECT max(lowering) FROM runs)",
        )
        .unwrap();
    }),
    (Code::OriginDiffers, "workflow", sql!("UPDATE runs SET workflow = (SELECT max(id) FROM workflows)")),
    (Code::KeyWrong, "scope", sql!("UPDATE idempotency SET scope = 'wf_other' WHERE scope <> 'workflows'")),
    (
        Code::KeyWrong,
        "two",
        sql!(
            waiting,
            "INSERT INTO idempotency SELECT org, scope, 'k2', made, fingerprint, 1 FROM idempotency WHERE made = $1"
        ),
    ),
];

fn started(event: &Event) -> bool {
    matches!(event, Event::Started { .. })
}

fn leased(attempt: u32) -> Event {
    let (worker, lease, key) = ("w".into(), kernel::Span::from_secs(30), "k7".into());
    Event::Leased {
        step: 0,
        attempt,
        worker,
        lease,
        seen: vec![],
        key,
        epoch: 1,
        slot: 0,
        key_slot: 0,
        of_type: String::new(),
    }
}

fn out_of_time(code: &str) -> Event {
    Event::TimedOut { step: 0, attempt: 0, failure: Failure::new(code, ""), took: Default::default() }
}

fn condition_was_false(event: &Event) -> bool {
    matches!(event, Event::Skipped { because: Because::Condition { .. }, .. })
}

/// An attempt that ended at `at` and may be followed by another at once.
fn retrying(attempt: u32, charged: bool, at: Timestamp) -> Event {
    let failure = Failure::new("network", "");
    Event::Retrying { step: 0, attempt, next: at, failure, charged, status_code: None, died: false, digest: 0 }
}

impl<'a> Patient<'a> {
    /// Inserts a trigger that no server would create.
    fn trigger(&self, workflow: &str, kind: &str, config: &str, next_at: &str) {
        let values = format!("1, x'{}', 't', {kind}, {workflow}, 1, NULL, '{config}'", "02".repeat(16));
        let statement = format!("INSERT INTO triggers VALUES ({values}, NULL, 0, 1, 0, {next_at}, 0, 0, NULL, NULL)");
        self.run(&statement, []);
    }

    pub fn new(place: &Place, sample: &'a Sample) -> Patient<'a> {
        Patient { db: place.raw(), path: place.database(), s: sample }
    }

    fn run(&self, statement: &str, params: impl Params) {
        let changed = self.db.execute(statement, params).unwrap();
        assert!(changed > 0, "{statement} changed nothing");
    }

    fn overwrite(&self) {
        let root = "SELECT rootpage FROM sqlite_master WHERE name = 'labels'";
        let root: u32 = self.db.query_row(root, [], |row| row.get(0)).unwrap();
        let mut file = std::fs::read(&self.path).unwrap();
        file[(root as usize - 1) * 4096..root as usize * 4096].fill(0xee);
        std::fs::write(&self.path, file).unwrap();
    }

    /// Changes a record and seals it again.
    fn edit(&self, run: RunId, seq: u32, change: impl FnOnce(&mut Record)) {
        let find = "SELECT body FROM journal WHERE run = $1 AND seq = $2";
        let body: Vec<u8> = self.db.query_row(find, (run.0, seq), |row| row.get(0)).unwrap();
        let mut record = Record::open(&body).unwrap();
        change(&mut record);
        self.run("UPDATE journal SET body = ?3 WHERE run = ?1 AND seq = ?2", (run.0, seq, &*record.seal()));
    }

    /// Replaces the first such event with other events, and renumbers the following ones.
    fn replace(&self, run: RunId, which: fn(&Event) -> bool, with: Vec<Event>) {
        let mut statement = self.db.prepare("SELECT seq, body FROM journal WHERE run = $1 ORDER BY seq").unwrap();
        let rows = statement.query_map([run.0], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?))).unwrap();
        let records: Vec<(u32, Record)> =
            rows.map(|r| r.unwrap()).map(|(n, b)| (n, Record::open(&b).unwrap())).collect();
        let mut with = Some(with);
        let mut first = 1;
        for (seq, mut record) in records {
            if let Some(i) = record.events.iter().position(which)
                && let Some(with) = with.take()
            {
                record.events.splice(i..=i, with);
            }
            record.first = first;
            first += record.events.len() as u64;
            self.edit(run, seq, |stored| *stored = record);
        }
        assert!(with.is_none(), "there is no such event");
    }

    /// Repeats the first such event.
    fn twice(&self, run: RunId, which: fn(&Event) -> bool) {
        let event = self.events(run).into_iter().find(&which).unwrap();
        self.replace(run, which, vec![event.clone(), event]);
    }

    /// Time of the newest record.
    fn now(&self) -> Timestamp {
        let newest = "SELECT body FROM journal ORDER BY pos DESC LIMIT 1";
        let body: Vec<u8> = self.db.query_row(newest, [], |row| row.get(0)).unwrap();
        Record::open(&body).unwrap().at
    }

    /// Appends a record, and updates the `runs` row accordingly.
    fn append(&self, run: RunId, events: Vec<Event>) {
        self.append_at(run, self.now(), events);
    }

    /// Appends a record at the instant when the wait of a step ends.
    fn append_at_deadline(&self, run: RunId, step: u32, events: Vec<Event>) {
        let deadline = self.events(run).into_iter().find_map(|event| match event {
            Event::WaitOpened { step: of, deadline, .. } | Event::ApprovalRequested { step: of, deadline, .. } => {
                Some(deadline).filter(|_| of == step)
            }
            _ => None,
        });
        self.append_at(run, deadline.expect("the step waits"), events);
    }

    fn events(&self, run: RunId) -> Vec<Event> {
        let mut statement = self.db.prepare("SELECT body FROM journal WHERE run = $1 ORDER BY seq").unwrap();
        let rows = statement.query_map([run.0], |row| row.get::<_, Vec<u8>>(0)).unwrap();
        rows.flat_map(|body| Record::open(&body.unwrap()).unwrap().events).collect()
    }

    /// The number of the last event of a run.
    fn last_event(&self, run: RunId) -> u64 {
        self.events(run).len() as u64
    }

    fn append_at(&self, run: RunId, at: Timestamp, events: Vec<Event>) {
        let newest = "SELECT max(pos) FROM journal";
        let newest: i64 = self.db.query_row(newest, [], |row| row.get(0)).unwrap();
        let last = "SELECT pos, seq, body FROM journal WHERE run = $1 ORDER BY seq DESC LIMIT 1";
        let (pos, seq, body): (i64, i64, Vec<u8>) =
            self.db.query_row(last, [run.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        let before = Record::open(&body).unwrap();
        let first = before.first + before.events.len() as u64;
        let record = Record { at, first, events, ..Default::default() }.seal();
        let append = "INSERT INTO journal VALUES ($1, 1, $2, $3, $4, $5)";
        self.run(append, (newest + 1, run.0, seq + 1, pos, &*record));
        self.run("UPDATE runs SET head = $1, seq = $2 WHERE id = $3", (newest + 1, seq + 1, run.0));
    }
}
