//! Tests of the task queue without a mailbox: which claim gets which task, and what blocks a task.

use super::*;
use kernel::Span;
use kernel::run::Lease;
use store::{Rate, TypePause};

mod cancellations;
mod cost;
mod key_reads;

const ORG: OrgId = OrgId::DEFAULT;
const NOW: Timestamp = Timestamp(1_000_000_000);
/// The most that a heartbeat extends a lease by.
const MAX_LEASE: Span = Span::from_secs(3_600);

fn recorded(lease: Lease<'_>) -> RecordedLease<'_> {
    RecordedLease { lease, name: "a", key: "", max_lease: MAX_LEASE }
}

fn after(seconds: u64) -> Timestamp {
    NOW.after(Span::from_secs(seconds))
}

fn run(n: u64) -> RunId {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&n.to_be_bytes());
    RunId(id)
}

fn position(priority: u32, n: u64) -> QueuePosition {
    QueuePosition { priority, run: run(n), step: 0 }
}

fn queue_key(name: &str, key: &str) -> QueueKey {
    QueueKey { org: ORG, name: name.into(), key: key.into() }
}

fn request(claim_id: u64, types: &[&str], credits: u32) -> ClaimRequest<u64> {
    ClaimRequest {
        claim_id,
        reply_to: claim_id,
        org: ORG,
        worker: format!("w{claim_id}"),
        types: types.iter().map(|text| (*text).to_owned()).collect(),
        patterns: types.iter().filter_map(|text| Pattern::parse(text)).collect(),
        runtime: None,
        version: None,
        slots: None,
        credits,
        lease: Span::from_secs(30),
        is_immediate: false,
        is_strict: false,
    }
}

fn type_row(name: &str) -> TypeRow {
    TypeRow {
        org: ORG,
        name: name.into(),
        runtime: None,
        description: None,
        enabled: true,
        paused: None,
        limit: None,
        limit_per_key: None,
        rate: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

fn task(claim: &Claim, now: Timestamp) -> ClaimedTask {
    ClaimedTask {
        org: ORG,
        run: claim.run,
        step: claim.step,
        step_key: "task".into(),
        name: String::new(),
        workflow: String::new(),
        is_plain: true,
        attempt: 1,
        repeats: 0,
        max_attempts: 3,
        fence: 7,
        lease: claim.offer.lease,
        until: now.after(claim.offer.lease),
        input: Default::default(),
        progress: None,
    }
}

/// The run has recorded the lease, and the record is durable.
fn grant_lease(task_queue: &mut TaskQueue<u64>, queue_key: &QueueKey, claim: &Claim, now: Timestamp) {
    grant_as(task_queue, queue_key, claim, 7, now);
}

fn grant_as(task_queue: &mut TaskQueue<u64>, queue_key: &QueueKey, claim: &Claim, fence: u64, now: Timestamp) {
    let task = task(claim, now);
    task_queue.dequeue(queue_key, position_of(task_queue, queue_key, claim), now);
    let (name, key) = (Arc::from(queue_key.name.as_str()), Arc::from(queue_key.key.as_str()));
    let (worker, lease, until) = (claim.offer.worker.clone(), task.lease, task.until);
    task_queue.lease_granted(
        claim.run,
        claim.step,
        HeldLease { org: ORG, worker, name, key, fence, lease, max_lease: MAX_LEASE, until, noted_at: now },
    );
    task_queue.deliver(claim.offer.offer_id, task);
}

/// Where a claimed task was. Its priority does not matter once it is gone.
fn position_of(_: &TaskQueue<u64>, _: &QueueKey, claim: &Claim) -> QueuePosition {
    QueuePosition { priority: 100, run: claim.run, step: claim.step }
}

/// Numbers of the runs that are claimed next, with the workers that get them.
fn pairs(task_queue: &mut TaskQueue<u64>, now: Timestamp) -> Vec<(u64, String)> {
    task_queue.pair(now).iter().map(|claim| (number(claim.run), claim.offer.worker.clone())).collect()
}

fn claimed(task_queue: &mut TaskQueue<u64>, now: Timestamp) -> Vec<u64> {
    task_queue.pair(now).iter().map(|claim| number(claim.run)).collect()
}

fn number(run: RunId) -> u64 {
    run.0[8..].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn answered(task_queue: &mut TaskQueue<u64>) -> Vec<(u64, Vec<u64>)> {
    let numbers = |reply: &ClaimReply| reply.tasks.iter().map(|task| number(task.run)).collect();
    task_queue.answers().iter().map(|(reply_to, reply)| (*reply_to, numbers(reply))).collect()
}

#[test]
fn a_wildcard_stands_at_the_end_only() {
    use Pattern::{Exact, Prefix};
    let cases = [
        ("mail.send", Some(Exact("mail.send".into()))),
        ("mail.%", Some(Prefix("mail.".into()))),
        ("mail%", Some(Prefix("mail".into()))),
        ("%", Some(Prefix("".into()))),
        ("", None),
        ("%%", None),
        ("%.send", None),
        ("ma%l.%", None),
    ];
    for (text, expected) in cases {
        assert_eq!(Pattern::parse(text), expected, "{text}");
    }
    let cases = [
        ("mail.send", "mail.send", true),
        ("mail.send", "mail.sender", false),
        ("mail.%", "mail.send", true),
        ("mail.%", "mail", false),
        ("mail.%", "mailer.send", false),
        ("%", "anything", true),
    ];
    for (pattern, name, expected) in cases {
        assert_eq!(Pattern::parse(pattern).is_some_and(|p| p.matches(name)), expected, "{pattern} {name}");
    }
}

#[test]
fn a_worker_gets_only_what_it_claims() {
    for (types, expected) in [
        (&["a.x"][..], vec![1]),
        (&["a.%"], vec![1, 2]),
        (&["b", "a.y"], vec![2, 3]),
        (&["%"], vec![1, 2, 3]),
        (&["a.%", "a.x", "%"], vec![1, 2, 3]),
        (&["c", "ab%"], vec![]),
    ] {
        let mut task_queue = TaskQueue::default();
        for (n, name) in [(1, "a.x"), (2, "a.y"), (3, "b")] {
            task_queue.enqueue(&queue_key(name, ""), position(100, n), NOW);
        }
        let other = QueueKey { org: OrgId(2), ..queue_key("a.x", "") };
        task_queue.enqueue(&other, position(1, 9), NOW);
        task_queue.open_claim(request(1, types, 9), NOW);
        assert_eq!(claimed(&mut task_queue, NOW), expected, "{types:?}");
        assert!(claimed(&mut task_queue, NOW).is_empty(), "nothing is claimed twice");
    }
}

#[test]
fn lower_numbers_go_first_then_older_runs_across_types_and_keys() {
    let mut task_queue = TaskQueue::default();
    let tasks =
        [("a", "", 100, 4), ("a", "", 100, 1), ("a", "k", 5, 9), ("b", "", 5, 8), ("b", "", 7, 2), ("a", "", 0, 7)];
    for (name, key, priority, n) in tasks {
        task_queue.enqueue(&queue_key(name, key), position(priority, n), NOW);
    }
    for expected in [7, 8, 9, 2, 1, 4] {
        task_queue.open_claim(request(expected, &["%"], 1), NOW);
        assert_eq!(claimed(&mut task_queue, NOW), [expected]);
    }
}

#[test]
fn keys_are_served_in_turn() {
    let mut task_queue = TaskQueue::default();
    for n in 1..=4 {
        task_queue.enqueue(&queue_key("a", "busy"), position(100, n), NOW);
    }
    for (n, key) in [(11, "x"), (12, "y"), (13, "x")] {
        task_queue.enqueue(&queue_key("a", key), position(100, n), NOW);
    }
    task_queue.enqueue(&queue_key("a", "busy"), position(1, 5), NOW);
    task_queue.open_claim(request(1, &["a"], 8), NOW);
    let order = claimed(&mut task_queue, NOW);
    assert_eq!(order[0], 5, "a lower number comes first, of any key");
    assert_eq!(order[1..4], [11, 12, 1], "then the key that was served longest ago");
    assert_eq!(order[4..], [13, 2, 3, 4]);
}

#[test]
fn limits_count_held_and_pending_leases() {
    let mut task_queue = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit: Some(3), limit_per_key: Some(2), ..type_row("a") }, None, NOW);
    for n in 1..=4 {
        task_queue.enqueue(&queue_key("a", "k"), position(100, n), NOW);
    }
    for n in 5..=6 {
        task_queue.enqueue(&queue_key("a", ""), position(100, n), NOW);
    }
    task_queue.enqueue(&queue_key("b", ""), position(100, 7), NOW);
    task_queue.open_claim(request(1, &["%"], 9), NOW);
    let claims = task_queue.pair(NOW);
    assert_eq!(
        claims.iter().map(|claim| number(claim.run)).collect::<Vec<_>>(),
        [5, 1, 6, 7],
        "two of `k`, three of `a`"
    );
    assert_eq!(task_queue.claim_status(&queue_key("a", "k"), NOW).blocked_reason, Some(BlockedReason::Limit(3)));
    grant_lease(&mut task_queue, &queue_key("a", ""), &claims[0], NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "a held lease takes the room of its pending lease");
    task_queue.lease_ended(run(5), 0, 7, NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [2], "one task of `k` is leased");
    task_queue.lease_ended(run(5), 0, 7, NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "a lease ends once");
    assert_eq!(task_queue.tally(ORG, "a", NOW).1, 3);
    task_queue.apply_type(&type_row("a"), None, NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [3, 4]);
}

#[test]
fn a_key_at_its_limit_does_not_block_other_keys() {
    let mut task_queue = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit_per_key: Some(1), ..type_row("a") }, None, NOW);
    for (n, key) in [(1, "k"), (2, "k"), (3, "l")] {
        task_queue.enqueue(&queue_key("a", key), position(100, n), NOW);
    }
    task_queue.open_claim(request(1, &["a"], 9), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1, 3]);
    assert_eq!(task_queue.claim_status(&queue_key("a", "k"), NOW).blocked_reason, Some(BlockedReason::KeyLimit(1)));
}

#[test]
fn a_rate_holds_in_every_period() {
    let mut task_queue = TaskQueue::default();
    let rate = Rate { limit: 2, per: Span::from_secs(10), per_key: false };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..type_row("a") }, None, NOW);
    for n in 1..=6 {
        task_queue.enqueue(&queue_key("a", if n % 2 == 0 { "k" } else { "" }), position(100, n), NOW);
    }
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    assert_eq!(claimed(&mut task_queue, NOW).len(), 1);
    task_queue.open_claim(request(2, &["a"], 9), after(4));
    assert_eq!(claimed(&mut task_queue, after(4)).len(), 1);
    assert_eq!(
        task_queue.claim_status(&queue_key("a", ""), after(4)).blocked_reason,
        Some(BlockedReason::Rate(after(10)))
    );
    assert_eq!(task_queue.next_due(), Some(after(10)));
    for (second, expected) in [(9, 0), (10, 1), (13, 0), (14, 1), (19, 0), (20, 1)] {
        task_queue.advance_time(after(second));
        assert_eq!(claimed(&mut task_queue, after(second)).len(), expected, "at {second} s");
    }
}

#[test]
fn a_rate_per_key_blocks_only_that_key() {
    let mut task_queue = TaskQueue::default();
    let rate = Rate { limit: 1, per: Span::from_secs(10), per_key: true };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..type_row("a") }, None, NOW);
    for (n, key) in [(1, "k"), (2, "k"), (3, "l")] {
        task_queue.enqueue(&queue_key("a", key), position(100, n), NOW);
    }
    task_queue.open_claim(request(1, &["a"], 9), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1, 3]);
    task_queue.advance_time(after(10));
    assert_eq!(claimed(&mut task_queue, after(10)), [2]);
}

#[test]
fn a_restart_does_not_exceed_a_rate() {
    let mut task_queue = TaskQueue::default();
    let rate = Rate { limit: 2, per: Span::from_secs(10), per_key: false };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..type_row("a") }, Some(NOW), NOW);
    for n in 1..=4 {
        task_queue.enqueue(&queue_key("a", ""), position(100, n), NOW);
    }
    task_queue.open_claim(request(1, &["a"], 9), NOW);
    for (second, expected) in [(0, 0), (4, 0), (5, 1), (9, 0), (10, 1), (15, 1)] {
        task_queue.advance_time(after(second));
        assert_eq!(claimed(&mut task_queue, after(second)).len(), expected, "at {second} s");
    }
}

#[test]
fn paused_disabled_and_other_runtime_types_are_not_leased() {
    let pause = TypePause { at: NOW, actor: "ada".into(), note: "broken".into() };
    let paused = BlockedReason::Paused { since: NOW, note: "broken".into() };
    let blocked = [
        (TypeRow { enabled: false, ..type_row("a") }, Some(BlockedReason::Disabled)),
        (TypeRow { paused: Some(pause), ..type_row("a") }, Some(paused)),
        (TypeRow { runtime: Some("rust".into()), ..type_row("a") }, None),
    ];
    for (row, blocked_reason) in blocked {
        let mut task_queue = TaskQueue::default();
        task_queue.enqueue(&queue_key("a", ""), position(100, 1), NOW);
        task_queue.apply_type(&row, None, NOW);
        task_queue.open_claim(ClaimRequest { runtime: Some("python".into()), ..request(1, &["%"], 1) }, NOW);
        assert!(claimed(&mut task_queue, NOW).is_empty(), "{row:?}");
        assert_eq!(task_queue.claim_status(&queue_key("a", ""), NOW).blocked_reason, blocked_reason);
        task_queue.apply_type(&type_row("a"), None, NOW);
        assert_eq!(claimed(&mut task_queue, NOW), [1], "the open claim gets it once the type is unblocked");
    }
    for (runtime, expected) in [(None, 1), (Some("rust"), 1), (Some("python"), 0)] {
        let mut task_queue = TaskQueue::default();
        task_queue.apply_type(&TypeRow { runtime: Some("rust".into()), ..type_row("a") }, None, NOW);
        task_queue.enqueue(&queue_key("a", ""), position(100, 1), NOW);
        task_queue.open_claim(ClaimRequest { runtime: runtime.map(str::to_owned), ..request(1, &["%"], 1) }, NOW);
        assert_eq!(claimed(&mut task_queue, NOW).len(), expected, "{runtime:?}");
    }
}

#[test]
fn the_oldest_claim_is_served_first() {
    let mut task_queue = TaskQueue::default();
    for n in 1..=3 {
        task_queue.open_claim(request(n, &["a"], 2), NOW);
    }
    assert!(pairs(&mut task_queue, NOW).is_empty());
    for n in 11..=15 {
        task_queue.enqueue(&queue_key("a", ""), position(100, n), NOW);
    }
    let served: Vec<String> = pairs(&mut task_queue, NOW).into_iter().map(|(_, worker)| worker).collect();
    assert_eq!(served, ["w1", "w1", "w2", "w2", "w3"]);
}

fn wanted(name: &str, priority: u32) -> OfferedTask<'_> {
    OfferedTask { step: 0, name, key: "", priority }
}

#[test]
fn a_new_ready_task_goes_to_the_worker_of_the_same_run_if_it_has_an_open_claim() {
    for (worker, expected) in [(None, "w1"), (Some("w2"), "w2"), (Some("w9"), "w1")] {
        let mut task_queue = TaskQueue::default();
        task_queue.open_claim(request(1, &["a"], 1), NOW);
        task_queue.open_claim(request(2, &["a"], 1), NOW);
        task_queue.open_claim(request(3, &["b"], 1), NOW);
        let offer = task_queue.offer(ORG, &wanted("a", 100), worker, true, NOW);
        assert_eq!(offer.map(|offer| offer.worker).as_deref(), Some(expected), "{worker:?}");
        assert_eq!(task_queue.offer(ORG, &wanted("c", 100), worker, true, NOW), None);
        assert_eq!(task_queue.offer(OrgId(2), &wanted("a", 100), worker, true, NOW), None);
    }
}

#[test]
fn a_new_ready_task_does_not_overtake_waiting_tasks() {
    // The task that waits, the priority of the new task, whether its run is new, and whether it is offered.
    let cases = [
        (None, 100, true, true),
        (Some(("a", 50)), 40, true, false),
        (Some(("a", 50)), 50, false, true),
        (Some(("a", 50)), 51, false, false),
        (Some(("b", 50)), 49, true, true),
        (Some(("b", 50)), 50, true, true),
        (Some(("b", 50)), 51, true, false),
    ];
    for (waiting, priority, is_new, expected) in cases {
        let mut task_queue = TaskQueue::default();
        task_queue.open_claim(request(1, &["%"], 9), NOW);
        if let Some((name, priority)) = waiting {
            task_queue.enqueue(&queue_key(name, ""), position(priority, 1), NOW);
        }
        let offer = task_queue.offer(ORG, &wanted("a", priority), None, is_new, NOW);
        assert_eq!(offer.is_some(), expected, "{waiting:?} before {priority}");
    }
    let mut task_queue = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit: Some(1), ..type_row("a") }, None, NOW);
    task_queue.open_claim(request(1, &["%"], 9), NOW);
    assert!(task_queue.offer(ORG, &wanted("a", 100), None, true, NOW).is_some());
    assert!(task_queue.offer(ORG, &wanted("a", 100), None, true, NOW).is_none(), "there is room for one");
}

#[test]
fn an_immediate_claim_is_answered_at_once_and_others_when_withdrawn() {
    let mut task_queue = TaskQueue::default();
    task_queue.open_claim(ClaimRequest { is_immediate: true, ..request(1, &["a"], 1) }, NOW);
    task_queue.open_claim(request(2, &["a"], 1), NOW);
    task_queue.open_claim(request(3, &["a"], 0), NOW);
    assert!(task_queue.answers().is_empty(), "nothing is paired yet");
    task_queue.pair(NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![])]);
    task_queue.withdraw(2);
    task_queue.withdraw(99);
    assert_eq!(answered(&mut task_queue), [(2, vec![])]);
    task_queue.withdraw(3);
    assert_eq!(answered(&mut task_queue), [(3, vec![])], "a claim without credits only takes cancellations");
    task_queue.enqueue(&queue_key("a", ""), position(100, 1), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "no claim is open any more");
}

#[test]
fn a_reply_waits_for_pending_leases() {
    let mut task_queue = TaskQueue::default();
    let a = queue_key("a", "");
    task_queue.open_claim(request(1, &["a"], 3), NOW);
    for n in 1..=2 {
        task_queue.enqueue(&a, position(100, n), NOW);
    }
    let claims = task_queue.pair(NOW);
    task_queue.withdraw(1);
    assert!(task_queue.answers().is_empty());
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    assert!(task_queue.answers().is_empty());
    task_queue.refuse(claims[1].offer.offer_id, NOW);
    task_queue.pair(NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![1])]);
    assert_eq!((task_queue.leased(), task_queue.tally(ORG, "a", NOW).1), (1, 1));
}

#[test]
fn a_claim_without_a_caller_is_dropped_unless_a_lease_is_pending() {
    let mut task_queue = TaskQueue::default();
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    task_queue.open_claim(request(2, &["b"], 1), NOW);
    task_queue.enqueue(&queue_key("a", ""), position(100, 1), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1]);
    task_queue.retain_claims(|_| false);
    task_queue.enqueue(&queue_key("b", ""), position(100, 2), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty());
    task_queue.withdraw_all();
    assert!(task_queue.answers().is_empty(), "one has a pending lease, the other is gone");
}

#[test]
fn a_lease_expires_without_heartbeats() {
    let mut task_queue = TaskQueue::default();
    let a = queue_key("a", "");
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    let task = (run(1), 0);
    assert_eq!(task_queue.next_due(), Some(after(30)));
    assert_eq!(task_queue.extend(ORG, task, 6, None, after(1)), None, "another fence");
    assert_eq!(task_queue.extend(OrgId(2), task, 7, None, after(1)), None, "another organisation");
    assert_eq!(task_queue.extend(ORG, (run(1), 1), 7, None, after(1)), None, "another step");
    assert_eq!(task_queue.extend(ORG, task, 7, None, after(10)), Some(after(40)));
    assert_eq!(task_queue.extend(ORG, task, 7, Some(Span::from_secs(60)), after(10)), Some(after(70)));
    assert_eq!(task_queue.extend(ORG, task, 7, Some(Span::from_secs(1)), after(10)), Some(after(70)), "never shorter");
    assert!(task_queue.advance_time(after(69)).is_empty());
    assert_eq!(task_queue.extend(ORG, task, 7, None, after(70)), None, "it has expired, even before time was advanced");
    assert_eq!(task_queue.advance_time(after(70)), [(ORG, run(1), 0, 7)]);
    assert!(task_queue.advance_time(after(71)).is_empty(), "an expiry is reported once");
    assert_eq!(task_queue.overdue(run(1), after(71)), [(0, 7)]);
    assert_eq!(task_queue.leased(), 1, "it counts against limits until the run records the end");
    task_queue.lease_ended(run(1), 0, 6, after(71));
    assert_eq!(task_queue.leased(), 1);
    task_queue.lease_ended(run(1), 0, 7, after(71));
    assert_eq!((task_queue.leased(), task_queue.tally(ORG, "a", after(71)).1), (0, 0));
}

#[test]
fn a_pending_lease_that_fails_gives_everything_back() {
    let a = queue_key("a", "");
    let setup = || {
        let mut task_queue = TaskQueue::default();
        task_queue.apply_type(&TypeRow { limit: Some(1), ..type_row("a") }, None, NOW);
        task_queue.enqueue(&a, position(100, 1), NOW);
        task_queue.enqueue(&a, position(100, 2), NOW);
        task_queue.open_claim(request(1, &["a"], 1), NOW);
        let claims = task_queue.pair(NOW);
        assert_eq!(claims.len(), 1);
        (task_queue, claims[0].offer.offer_id)
    };
    let (mut task_queue, offer_id) = setup();
    task_queue.revoke(offer_id, NOW);
    task_queue.revoke(offer_id, NOW);
    assert_eq!(task_queue.resident(), 2);
    assert_eq!(claimed(&mut task_queue, NOW), [1], "it is ready again, in its old place");
    let (mut task_queue, offer_id) = setup();
    task_queue.refuse(offer_id, NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [2], "the refused task is gone");
    let (mut task_queue, offer_id) = setup();
    task_queue.retry_later(offer_id, NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "not before the rows have been read again");
    task_queue.advance_time(after(1));
    task_queue.pair(after(1));
    assert_eq!(task_queue.refills(), [(a.clone(), None)]);
    task_queue.refilled(&a, Some(vec![position(100, 1)]), after(1));
    assert_eq!(claimed(&mut task_queue, after(1)), [1]);
}

/// A task queue that keeps little in memory.
fn small_queue(page: usize) -> TaskQueue<u64> {
    TaskQueue::new(Sizes { resident: 2, page, window: 2 * page, low: page / 2 })
}

/// Answers every requested read from a store with these rows.
fn refill(task_queue: &mut TaskQueue<u64>, rows: &BTreeSet<QueuePosition>, page: usize) -> usize {
    let refills = task_queue.refills();
    for (queue_key, from) in &refills {
        let later = rows.iter().filter(|position| from.is_none_or(|from| **position > from));
        task_queue.refilled(queue_key, Some(later.take(page).copied().collect()), NOW);
    }
    refills.len()
}

#[test]
fn ten_thousand_tasks_are_leased_in_order_with_few_in_memory() {
    let (page, a) = (PAGE, queue_key("a", ""));
    let mut task_queue: TaskQueue<u64> = TaskQueue::default();
    let mut rows = BTreeSet::new();
    for n in 0..10_000 {
        let position = position((n % 7) as u32, n);
        task_queue.enqueue(&a, position, NOW);
        task_queue.evict(&a, position, NOW);
        rows.insert(position);
    }
    assert_eq!((task_queue.ready(), task_queue.resident()), (10_000, 0));
    let mut order = Vec::new();
    for claim_id in 0..10_000 {
        if rows.is_empty() {
            break;
        }
        task_queue.open_claim(request(claim_id, &["a"], 100), NOW);
        for claim in task_queue.pair(NOW) {
            let position = *rows.iter().find(|position| position.run == claim.run).expect("it waits");
            order.push(position);
            rows.remove(&position);
            task_queue.dequeue(&a, position, NOW);
            task_queue.deliver(claim.offer.offer_id, task(&claim, NOW));
        }
        refill(&mut task_queue, &rows, page);
        task_queue.withdraw(claim_id);
        task_queue.pair(NOW);
        task_queue.answers();
        let known = task_queue.type_queue((ORG, "a".into())).key_queue("").tasks.len();
        assert!(known <= 3 * page, "{known} tasks are in memory");
    }
    assert_eq!(order.len(), 10_000);
    assert!(order.is_sorted(), "no task overtook another");
    assert_eq!(task_queue.ready(), 0);
}

#[test]
fn a_task_beyond_the_read_position_waits_until_the_rows_before_it_are_read() {
    let (a, mut task_queue) = (queue_key("a", ""), small_queue(2));
    task_queue.restore(vec![(a.clone(), 3)], NOW);
    assert_eq!(task_queue.ready(), 3);
    task_queue.enqueue(&a, position(100, 9), NOW);
    task_queue.open_claim(request(1, &["a"], 9), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "what the last process left may come before it");
    let mut rows: BTreeSet<QueuePosition> = [position(100, 1), position(100, 2), position(200, 3)].into();
    assert_eq!(refill(&mut task_queue, &rows, 2), 1);
    assert_eq!(claimed(&mut task_queue, NOW), [1, 2]);
    rows.pop_first();
    rows.pop_first();
    refill(&mut task_queue, &rows, 2);
    assert_eq!(claimed(&mut task_queue, NOW), [9, 3]);
}

#[test]
fn tasks_in_memory_beyond_the_read_position_do_not_prevent_reads() {
    let (a, mut task_queue) = (queue_key("a", ""), small_queue(2));
    task_queue.restore(vec![(a.clone(), 1)], NOW);
    for n in 10..20 {
        task_queue.enqueue(&a, position(100, n), NOW);
    }
    task_queue.open_claim(request(1, &["a"], 20), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty());
    assert_eq!(refill(&mut task_queue, &[position(100, 1)].into(), 2), 1);
    assert_eq!(claimed(&mut task_queue, NOW).len(), 11);
}

#[test]
fn a_row_written_during_a_read_is_not_missed() {
    let (a, mut task_queue) = (queue_key("a", ""), small_queue(2));
    task_queue.restore(vec![(a.clone(), 1)], NOW);
    task_queue.open_claim(request(1, &["a"], 9), NOW);
    task_queue.pair(NOW);
    assert_eq!(task_queue.refills().len(), 1, "it is being read");
    task_queue.enqueue(&a, position(100, 5), NOW);
    task_queue.evict(&a, position(100, 5), NOW);
    task_queue.refilled(&a, Some(vec![position(100, 1)]), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1, 5]);
}

#[test]
fn rows_after_an_old_read_position_are_read_again() {
    let (a, mut task_queue) = (queue_key("a", ""), small_queue(4));
    let rows: BTreeSet<QueuePosition> = (1..=6).map(|n| position(100, n)).collect();
    task_queue.restore(vec![(a.clone(), 6)], NOW);
    task_queue.open_claim(request(1, &["a"], 3), NOW);
    task_queue.pair(NOW);
    refill(&mut task_queue, &rows, 4);
    let claims = task_queue.pair(NOW);
    assert_eq!(claims.len(), 3);
    task_queue.open_claim(request(2, &["a"], 1), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [4]);
    let refills = task_queue.refills();
    assert_eq!(refills, [(a.clone(), Some(position(100, 4)))]);
    // The known rows are forgotten, and then the requested rows arrive.
    task_queue.retry_later(claims[0].offer.offer_id, NOW);
    task_queue.refilled(&a, Some(vec![position(100, 5), position(100, 6)]), NOW);
    task_queue.advance_time(after(1));
    task_queue.pair(after(1));
    assert_eq!(refill(&mut task_queue, &rows, 4), 1, "from the beginning");
    assert_eq!(claimed(&mut task_queue, after(1)), [1]);
}

#[test]
fn a_failed_read_is_repeated_after_a_pause() {
    let (a, mut task_queue) = (queue_key("a", ""), small_queue(2));
    task_queue.restore(vec![(a.clone(), 1)], NOW);
    task_queue.open_claim(ClaimRequest { is_immediate: true, ..request(1, &["a"], 1) }, NOW);
    task_queue.open_claim(request(2, &["a"], 1), NOW);
    task_queue.pair(NOW);
    assert_eq!(task_queue.refills().len(), 1);
    assert!(task_queue.answers().is_empty(), "an immediate claim waits for rows that are being read");
    task_queue.refilled(&a, None, NOW);
    task_queue.pair(NOW);
    assert!(task_queue.refills().is_empty());
    assert_eq!(answered(&mut task_queue), [(1, vec![])]);
    let due = task_queue.next_due().expect("it tries again");
    assert!(due > NOW && due <= after(1));
    task_queue.advance_time(due);
    task_queue.pair(due);
    assert_eq!(task_queue.refills().len(), 1);
}

#[test]
fn an_evicted_task_whose_lease_is_revoked_is_queued_once() {
    let (a, mut task_queue) = (queue_key("a", ""), small_queue(2));
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.evict(&a, position(100, 1), NOW);
    assert_eq!((task_queue.ready(), task_queue.resident()), (1, 0));
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    let claims = task_queue.pair(NOW);
    // Its run is read for the claim, the record meets a conflict, and the run is read again.
    task_queue.restore_ready(&a, position(100, 1), true, NOW);
    task_queue.revoke(claims[0].offer.offer_id, NOW);
    task_queue.restore_ready(&a, position(100, 1), true, NOW);
    assert_eq!((task_queue.ready(), task_queue.resident()), (1, 1));
    assert_eq!(claimed(&mut task_queue, NOW), [1]);
    assert_eq!(task_queue.resident(), 0);
}

#[test]
fn recovered_leases_begin_anew() {
    let mut task_queue: TaskQueue<u64> = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit: Some(1), ..type_row("a") }, Some(NOW), NOW);
    let lease = |fence| Lease { step: 0, fence, worker: "w1", lease: Span::from_secs(30), epoch: 1 };
    task_queue.set_recovering(true);
    task_queue.enqueue(&queue_key("a", ""), position(100, 2), NOW);
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "the number of leased tasks is not known yet");
    task_queue.reconcile(ORG, run(1), &[recorded(lease(7))], NOW);
    task_queue.reconcile(ORG, run(1), &[recorded(lease(7))], after(5));
    task_queue.set_recovering(false);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "one is leased");
    assert_eq!(task_queue.lease_until(run(1), 0), Some(after(30)), "it began when it was found");
    assert_eq!(task_queue.tally(ORG, "a", NOW).1, 1);
    task_queue.reconcile(ORG, run(1), &[recorded(lease(9))], after(6));
    assert_eq!(task_queue.lease_until(run(1), 0), Some(after(36)), "another lease of the same step");
    assert_eq!(task_queue.tally(ORG, "a", NOW).1, 1);
    task_queue.reconcile(ORG, run(1), &[], after(7));
    assert_eq!(claimed(&mut task_queue, after(7)), [2]);
}

#[test]
fn types_without_workers_are_counted() {
    let mut task_queue: TaskQueue<u64> = TaskQueue::default();
    task_queue.enqueue(&queue_key("a.x", ""), position(100, 1), NOW);
    assert_eq!(task_queue.unserved(NOW), 1);
    assert_eq!(
        task_queue.claim_status(&queue_key("a.x", ""), NOW),
        ClaimStatus { workers: 0, last_seen: None, blocked_reason: None }
    );
    task_queue.open_claim(ClaimRequest { is_immediate: true, credits: 0, ..request(1, &["a.%"], 0) }, NOW);
    assert_eq!((task_queue.unserved(NOW), task_queue.tally(ORG, "a.x", NOW)), (0, (1, 0, 1)));
    let later = NOW.after(ABSENT);
    assert_eq!(task_queue.unserved(later), 1);
    assert_eq!(
        task_queue.claim_status(&queue_key("a.x", ""), later),
        ClaimStatus { workers: 0, last_seen: Some(NOW), blocked_reason: None }
    );
    let (changed_workers, none) = (task_queue.changed_workers(false), task_queue.changed_workers(false));
    assert_eq!((changed_workers.len(), none.len(), task_queue.changed_workers(true).len()), (1, 0, 1));
    let mut next: TaskQueue<u64> = TaskQueue::default();
    next.merge_workers(changed_workers);
    next.enqueue(&queue_key("a.x", ""), position(100, 1), later);
    assert_eq!(next.claim_status(&queue_key("a.x", ""), NOW).workers, 1);
    next.forget_workers(later);
    assert!(next.workers(ORG).is_empty());
}

#[test]
fn a_claim_with_a_durable_lease_takes_no_more() {
    let mut task_queue = TaskQueue::default();
    let a = queue_key("a", "");
    for n in 1..=2 {
        task_queue.enqueue(&a, position(100, n), NOW);
    }
    task_queue.open_claim(request(1, &["a"], 5), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    task_queue.enqueue(&a, position(100, 3), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "another task would delay the first");
    assert!(task_queue.offer(ORG, &wanted("a", 1), None, false, NOW).is_none());
    grant_lease(&mut task_queue, &a, &claims[1], NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![1, 2])]);
}

#[test]
fn a_heartbeat_extends_a_lease_by_at_most_its_maximum() {
    let mut task_queue: TaskQueue<u64> = TaskQueue::default();
    let lease = Lease { step: 0, fence: 7, worker: "w1", lease: Span::from_secs(30), epoch: 1 };
    task_queue.reconcile(ORG, run(1), &[RecordedLease { max_lease: Span::from_secs(40), ..recorded(lease) }], NOW);
    for (at, by, until) in [(0, 35, 35), (10, 3_600, 50), (11, 60, 51)] {
        let by = Some(Span::from_secs(by));
        assert_eq!(task_queue.extend(ORG, (run(1), 0), 7, by, after(at)), Some(after(until)));
    }
}

/// Nodes 3 and 8, as node `own` sees them.
fn nodes(own: u64) -> Nodes {
    Nodes::of(own, &[(3, Span::from_secs(60)), (8, Span::from_secs(60))])
}

/// The task queue of node 3 on a store that it shares with node 8.
fn shared() -> TaskQueue<u64> {
    let mut task_queue = TaskQueue::default();
    task_queue.share(nodes(3));
    task_queue
}

fn runs_of(node: u64) -> Vec<u64> {
    let nodes = nodes(node);
    (1..200).filter(|n| nodes.is_mine(run(*n))).collect()
}

fn slot(number: u32) -> LimitSlotRow {
    let slot = LimitSlot { org: ORG, name: "a".into(), of: LimitScope::Type, key: String::new(), number };
    LimitSlotRow { slot, run: run(99), step: 0, until: LimitSlotRow::FREED }
}

#[test]
fn on_a_shared_store_rows_are_read_again_when_other_nodes_may_have_changed_them() {
    let (mut task_queue, a) = (shared(), queue_key("a", ""));
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    assert_eq!((task_queue.pair(NOW), task_queue.refills()), (vec![], vec![]), "no task is known, so nothing is read");
    task_queue.ready_elsewhere(&a, NOW);
    assert_eq!(task_queue.pair(NOW), []);
    assert_eq!(task_queue.refills(), [(a.clone(), None)]);
    task_queue.ready_elsewhere(&a, NOW);
    task_queue.refilled(&a, Some(vec![]), NOW);
    assert_eq!(
        (task_queue.pair(NOW), task_queue.refills()),
        (vec![], vec![(a.clone(), None)]),
        "another task came during the read"
    );
    task_queue.refilled(&a, Some(vec![position(1, 5), position(1, 6)]), NOW);
    assert_eq!(task_queue.pair(NOW).len(), 1);
    task_queue.open_claim(request(2, &["a"], 1), after(1));
    assert_eq!(task_queue.pair(after(1)), [], "another node may have taken it by now");
    assert_eq!(task_queue.refills(), [(a.clone(), None)]);
    task_queue.refilled(&a, Some(vec![position(1, 7)]), after(1));
    assert_eq!(task_queue.pair(after(1))[0].run, run(7));
}

#[test]
fn new_types_and_keys_are_read_when_a_worker_claims_them() {
    let (mut task_queue, k) = (shared(), queue_key("a", "k"));
    task_queue.ready_elsewhere(&queue_key("a", "k"), NOW);
    task_queue.mark_unread_keys(vec![(ORG, "b".into())]);
    assert_eq!(task_queue.key_reads(), [], "no claim is open");
    task_queue.open_claim(ClaimRequest { is_immediate: true, ..request(1, &["a"], 1) }, NOW);
    assert_eq!(task_queue.pair(NOW), []);
    assert_eq!(task_queue.key_reads(), [(ORG, "a".into(), None)]);
    assert!(task_queue.answers().is_empty(), "no empty reply before the keys have been read");
    task_queue.keys_read(ORG, "a", Some(vec!["k".into()]), NOW);
    assert_eq!((task_queue.pair(NOW), task_queue.refills()), (vec![], vec![(k.clone(), None)]));
    task_queue.refilled(&k, Some(vec![position(1, 5)]), NOW);
    assert_eq!(task_queue.pair(NOW)[0].run, run(5));
    task_queue.open_claim(ClaimRequest { is_immediate: true, ..request(2, &["b"], 1) }, NOW);
    assert_eq!(task_queue.pair(NOW), []);
    assert_eq!(task_queue.key_reads(), [(ORG, "b".into(), None)]);
    task_queue.keys_read(ORG, "b", None, NOW);
    assert_eq!(task_queue.answers().len(), 1, "a failed read does not delay the reply");
}

#[test]
fn a_node_that_lost_a_task_mostly_prefers_tasks_of_its_own_runs() {
    let (mut task_queue, a) = (shared(), queue_key("a", ""));
    let (own, foreign) = (runs_of(3), runs_of(8));
    let mut rows: Vec<QueuePosition> = (1..100).map(|n| position(5, n)).chain([position(1, foreign[0])]).collect();
    rows.sort();
    task_queue.open_claim(request(1, &["a"], 40), NOW);
    task_queue.ready_elsewhere(&a, NOW);
    task_queue.pair(NOW);
    task_queue.refills();
    task_queue.refilled(&a, Some(rows), NOW);
    let first = task_queue.pair(NOW);
    let ages: Vec<RunId> = first[1..].iter().map(|claim| claim.run).collect();
    assert_eq!(first[0].run, run(foreign[0]), "lower priority numbers go first");
    assert!(ages.is_sorted(), "without contention: by age");
    task_queue.refuse(first[39].offer.offer_id, NOW);
    task_queue.open_claim(request(2, &["a"], 16), NOW);
    let second = task_queue.pair(NOW);
    let is_own = |claim: &&Claim| own.iter().any(|n| run(*n) == claim.run);
    let count = second.iter().filter(is_own).count();
    assert!((13..second.len()).contains(&count), "{count} of {} are its own", second.len());
}

#[test]
fn a_lease_takes_limit_slots_and_frees_them_if_revoked() {
    let (mut task_queue, a) = (shared(), queue_key("a", ""));
    task_queue.apply_type(&TypeRow { limit: Some(2), ..type_row("a") }, None, NOW);
    task_queue.open_claim(request(1, &["a"], 9), NOW);
    for n in 1..5 {
        task_queue.enqueue(&a, position(1, n), NOW);
    }
    let claims = task_queue.pair(NOW);
    let mut limit_slots: Vec<u32> = claims.iter().map(|claim| claim.offer.slot).collect();
    limit_slots.sort_unstable();
    assert_eq!(limit_slots, [1, 2], "two leases, each with its own slot");
    let taken = task_queue.slots_of(claims[0].offer.offer_id, ORG, claims[0].run, 0, NOW);
    assert_eq!((taken.len(), taken[0].slot.number + 1), (1, claims[0].offer.slot));
    task_queue.revoke(claims[0].offer.offer_id, NOW);
    let again = task_queue.pair(NOW);
    assert_eq!((again.len(), again[0].offer.slot), (1, claims[0].offer.slot), "the slot is free again");
    // Another node has the slot.
    task_queue.revoke(again[0].offer.offer_id, NOW);
    task_queue.slot_contested(&slot(again[0].offer.slot - 1).slot);
    assert_eq!((task_queue.pair(NOW), task_queue.slot_reads()), (vec![], vec![(ORG, "a".into())]));
    task_queue.limit_slots_read(ORG, "a", Some(&[slot(again[0].offer.slot - 1)]), NOW);
    assert_eq!(task_queue.pair(NOW), [], "a pending lease has the other slot");
    assert_eq!(task_queue.claim_status(&a, NOW).blocked_reason, Some(BlockedReason::Limit(2)));
    task_queue.slot_freed(&slot(again[0].offer.slot - 1).slot, NOW);
    assert_eq!(task_queue.pair(NOW).len(), 1);
}

#[test]
fn the_period_of_a_rate_begins_when_the_lease_is_recorded() {
    let (mut task_queue, a) = (shared(), queue_key("a", ""));
    let rate = Rate { limit: 1, per: Span::from_secs(1), per_key: false };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..type_row("a") }, None, NOW);
    task_queue.open_claim(request(1, &["a"], 9), NOW);
    task_queue.enqueue(&a, position(1, 1), NOW);
    task_queue.enqueue(&a, position(1, 2), NOW);
    let claims = task_queue.pair(NOW);
    assert_eq!(claims.len(), 1);
    // Its run had to be read first.
    let recorded = NOW.after(Span::from_millis(700));
    let taken = task_queue.slots_of(claims[0].offer.offer_id, ORG, claims[0].run, 0, recorded);
    assert_eq!(taken[0].until, recorded.after(rate.per));
    assert_eq!(
        task_queue.claim_status(&a, recorded).blocked_reason,
        Some(BlockedReason::Rate(recorded.after(rate.per)))
    );
    assert_eq!(task_queue.pair(NOW.after(rate.per)), [], "one period after the claim is too early");
}

#[test]
fn a_new_run_is_not_offered_a_limited_task() {
    let mut task_queue = shared();
    let wanted = OfferedTask { step: 0, name: "a", key: "", priority: 1 };
    task_queue.open_claim(request(1, &["a"], 3), NOW);
    assert!(task_queue.offer(ORG, &wanted, None, true, NOW).is_some(), "no limits, no slots");
    task_queue.apply_type(&TypeRow { limit: Some(2), ..type_row("a") }, None, NOW);
    assert_eq!(task_queue.offer(ORG, &wanted, None, true, NOW), None);
    let offer = task_queue.offer(ORG, &wanted, None, false, NOW);
    assert!(offer.is_some_and(|offer| offer.slot > 0), "a run that exists can be read again");
}
