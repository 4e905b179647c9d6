//! The board by hand: who gets what, and what keeps it.

use super::*;
use kernel::Span;
use kernel::run::Lease;
use store::{Rate, TypePause};

mod cancellations;

const ORG: OrgId = OrgId::DEFAULT;
const NOW: Timestamp = Timestamp(1_000_000_000);
/// No worker may be silent for longer.
const LONGEST: Span = Span::from_secs(3_600);

fn held(lease: Lease<'_>) -> RecordedLease<'_> {
    RecordedLease { lease, name: "a", key: "", longest: LONGEST }
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

fn key_queue(name: &str, key: &str) -> QueueKey {
    QueueKey { org: ORG, name: name.into(), key: key.into() }
}

fn ask(claim_id: u64, types: &[&str], credits: u32) -> ClaimRequest<u64> {
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

fn apply_type(name: &str) -> TypeRow {
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

fn task(claim: &Claim, now: Timestamp) -> Task {
    Task {
        org: ORG,
        run: claim.run,
        step: claim.step,
        step_key: "task".into(),
        name: String::new(),
        workflow: String::new(),
        is_plain: true,
        attempt: 1,
        max_attempts: 3,
        fence: 7,
        lease: claim.offer.lease,
        until: now.after(claim.offer.lease),
        input: Default::default(),
        progress: None,
    }
}

/// The run said yes, and it is durable.
fn grant_lease(task_queue: &mut TaskQueue<u64>, key_queue: &QueueKey, claim: &Claim, now: Timestamp) {
    grant_as(task_queue, key_queue, claim, 7, now);
}

fn grant_as(task_queue: &mut TaskQueue<u64>, key_queue: &QueueKey, claim: &Claim, fence: u64, now: Timestamp) {
    let task = task(claim, now);
    task_queue.dequeue(key_queue, place_of(task_queue, key_queue, claim), now);
    let (name, key) = (Arc::from(key_queue.name.as_str()), Arc::from(key_queue.key.as_str()));
    let (worker, lease, until) = (claim.offer.worker.clone(), task.lease, task.until);
    task_queue.lease_granted(
        claim.run,
        claim.step,
        HeldLease { org: ORG, worker, name, key, fence, lease, longest: LONGEST, until },
    );
    task_queue.deliver(claim.offer.offer_id, task);
}

/// Where a claimed card was. (Its priority is of no consequence once it is gone.)
fn place_of(_: &TaskQueue<u64>, _: &QueueKey, claim: &Claim) -> QueuePosition {
    QueuePosition { priority: 100, run: claim.run, step: claim.step }
}

/// Numbers of the runs that are claimed next, with who gets them.
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
    let numbers = |handed: &ClaimReply| handed.tasks.iter().map(|task| number(task.run)).collect();
    task_queue.answers().iter().map(|(reply_to, handed)| (*reply_to, numbers(handed))).collect()
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
            task_queue.enqueue(&key_queue(name, ""), position(100, n), NOW);
        }
        let other = QueueKey { org: OrgId(2), ..key_queue("a.x", "") };
        task_queue.enqueue(&other, position(1, 9), NOW);
        task_queue.open(ask(1, types, 9), NOW);
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
        task_queue.enqueue(&key_queue(name, key), position(priority, n), NOW);
    }
    for expected in [7, 8, 9, 2, 1, 4] {
        task_queue.open(ask(expected, &["%"], 1), NOW);
        assert_eq!(claimed(&mut task_queue, NOW), [expected]);
    }
}

#[test]
fn keys_are_served_in_turn() {
    let mut task_queue = TaskQueue::default();
    for n in 1..=4 {
        task_queue.enqueue(&key_queue("a", "busy"), position(100, n), NOW);
    }
    for (n, key) in [(11, "x"), (12, "y"), (13, "x")] {
        task_queue.enqueue(&key_queue("a", key), position(100, n), NOW);
    }
    task_queue.enqueue(&key_queue("a", "busy"), position(1, 5), NOW);
    task_queue.open(ask(1, &["a"], 8), NOW);
    let order = claimed(&mut task_queue, NOW);
    assert_eq!(order[0], 5, "a lower number comes first, whatever its key");
    assert_eq!(order[1..4], [11, 12, 1], "then whoever was served longest ago");
    assert_eq!(order[4..], [13, 2, 3, 4]);
}

#[test]
fn limits_count_what_is_out_and_on_its_way() {
    let mut task_queue = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit: Some(3), limit_per_key: Some(2), ..apply_type("a") }, None, NOW);
    for n in 1..=4 {
        task_queue.enqueue(&key_queue("a", "k"), position(100, n), NOW);
    }
    for n in 5..=6 {
        task_queue.enqueue(&key_queue("a", ""), position(100, n), NOW);
    }
    task_queue.enqueue(&key_queue("b", ""), position(100, 7), NOW);
    task_queue.open(ask(1, &["%"], 9), NOW);
    let claims = task_queue.pair(NOW);
    assert_eq!(
        claims.iter().map(|claim| number(claim.run)).collect::<Vec<_>>(),
        [5, 1, 6, 7],
        "two of `k`, three of `a`"
    );
    assert_eq!(task_queue.claim_status(&key_queue("a", "k"), NOW).blocked_reason, Some(BlockedReason::Limit(3)));
    grant_lease(&mut task_queue, &key_queue("a", ""), &claims[0], NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "a grant takes the room its promise had");
    task_queue.ended(run(5), 0, 7, NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [2], "one of `k` is out");
    task_queue.ended(run(5), 0, 7, NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "what has ended does not end again");
    assert_eq!(task_queue.tally(ORG, "a", NOW).1, 3);
    task_queue.apply_type(&apply_type("a"), None, NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [3, 4]);
}

#[test]
fn a_key_with_no_room_does_not_keep_the_others() {
    let mut task_queue = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit_per_key: Some(1), ..apply_type("a") }, None, NOW);
    for (n, key) in [(1, "k"), (2, "k"), (3, "l")] {
        task_queue.enqueue(&key_queue("a", key), position(100, n), NOW);
    }
    task_queue.open(ask(1, &["a"], 9), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1, 3]);
    assert_eq!(task_queue.claim_status(&key_queue("a", "k"), NOW).blocked_reason, Some(BlockedReason::KeyLimit(1)));
}

#[test]
fn rates_hold_for_every_stretch_of_time() {
    let mut task_queue = TaskQueue::default();
    let rate = Rate { limit: 2, per: Span::from_secs(10), per_key: false };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..apply_type("a") }, None, NOW);
    for n in 1..=6 {
        task_queue.enqueue(&key_queue("a", if n % 2 == 0 { "k" } else { "" }), position(100, n), NOW);
    }
    task_queue.open(ask(1, &["a"], 1), NOW);
    assert_eq!(claimed(&mut task_queue, NOW).len(), 1);
    task_queue.open(ask(2, &["a"], 9), after(4));
    assert_eq!(claimed(&mut task_queue, after(4)).len(), 1);
    assert_eq!(
        task_queue.claim_status(&key_queue("a", ""), after(4)).blocked_reason,
        Some(BlockedReason::Rate(after(10)))
    );
    assert_eq!(task_queue.next_due(), Some(after(10)));
    for (second, expected) in [(9, 0), (10, 1), (13, 0), (14, 1), (19, 0), (20, 1)] {
        task_queue.advance_time(after(second));
        assert_eq!(claimed(&mut task_queue, after(second)).len(), expected, "at {second} s");
    }
}

#[test]
fn a_rate_of_each_key_keeps_only_its_key() {
    let mut task_queue = TaskQueue::default();
    let rate = Rate { limit: 1, per: Span::from_secs(10), per_key: true };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..apply_type("a") }, None, NOW);
    for (n, key) in [(1, "k"), (2, "k"), (3, "l")] {
        task_queue.enqueue(&key_queue("a", key), position(100, n), NOW);
    }
    task_queue.open(ask(1, &["a"], 9), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1, 3]);
    task_queue.advance_time(after(10));
    assert_eq!(claimed(&mut task_queue, after(10)), [2]);
}

#[test]
fn a_restart_is_no_way_around_a_rate() {
    let mut task_queue = TaskQueue::default();
    let rate = Rate { limit: 2, per: Span::from_secs(10), per_key: false };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..apply_type("a") }, Some(NOW), NOW);
    for n in 1..=4 {
        task_queue.enqueue(&key_queue("a", ""), position(100, n), NOW);
    }
    task_queue.open(ask(1, &["a"], 9), NOW);
    for (second, expected) in [(0, 0), (4, 0), (5, 1), (9, 0), (10, 1), (15, 1)] {
        task_queue.advance_time(after(second));
        assert_eq!(claimed(&mut task_queue, after(second)).len(), expected, "at {second} s");
    }
}

#[test]
fn nothing_of_a_type_that_is_paused_disabled_or_of_another_runtime() {
    let pause = TypePause { at: NOW, actor: "ada".into(), note: "broken".into() };
    let paused = BlockedReason::Paused { since: NOW, note: "broken".into() };
    let shut = [
        (TypeRow { enabled: false, ..apply_type("a") }, Some(BlockedReason::Disabled)),
        (TypeRow { paused: Some(pause), ..apply_type("a") }, Some(paused)),
        (TypeRow { runtime: Some("rust".into()), ..apply_type("a") }, None),
    ];
    for (row, blocked_reason) in shut {
        let mut task_queue = TaskQueue::default();
        task_queue.enqueue(&key_queue("a", ""), position(100, 1), NOW);
        task_queue.apply_type(&row, None, NOW);
        task_queue.open(ClaimRequest { runtime: Some("python".into()), ..ask(1, &["%"], 1) }, NOW);
        assert!(claimed(&mut task_queue, NOW).is_empty(), "{row:?}");
        assert_eq!(task_queue.claim_status(&key_queue("a", ""), NOW).blocked_reason, blocked_reason);
        task_queue.apply_type(&apply_type("a"), None, NOW);
        assert_eq!(claimed(&mut task_queue, NOW), [1], "once it is open again, whoever waits gets it");
    }
    for (runtime, expected) in [(None, 1), (Some("rust"), 1), (Some("python"), 0)] {
        let mut task_queue = TaskQueue::default();
        task_queue.apply_type(&TypeRow { runtime: Some("rust".into()), ..apply_type("a") }, None, NOW);
        task_queue.enqueue(&key_queue("a", ""), position(100, 1), NOW);
        task_queue.open(ClaimRequest { runtime: runtime.map(str::to_owned), ..ask(1, &["%"], 1) }, NOW);
        assert_eq!(claimed(&mut task_queue, NOW).len(), expected, "{runtime:?}");
    }
}

#[test]
fn whoever_waits_longest_is_served_first() {
    let mut task_queue = TaskQueue::default();
    for n in 1..=3 {
        task_queue.open(ask(n, &["a"], 2), NOW);
    }
    assert!(pairs(&mut task_queue, NOW).is_empty());
    for n in 11..=15 {
        task_queue.enqueue(&key_queue("a", ""), position(100, n), NOW);
    }
    let served: Vec<String> = pairs(&mut task_queue, NOW).into_iter().map(|(_, worker)| worker).collect();
    assert_eq!(served, ["w1", "w1", "w2", "w2", "w3"]);
}

fn wanted(name: &str, priority: u32) -> Wanted<'_> {
    Wanted { step: 0, name, key: "", priority }
}

#[test]
fn what_becomes_ready_goes_to_the_worker_that_is_at_it_if_it_asks() {
    for (worker, expected) in [(None, "w1"), (Some("w2"), "w2"), (Some("w9"), "w1")] {
        let mut task_queue = TaskQueue::default();
        task_queue.open(ask(1, &["a"], 1), NOW);
        task_queue.open(ask(2, &["a"], 1), NOW);
        task_queue.open(ask(3, &["b"], 1), NOW);
        let offer = task_queue.offer(ORG, &wanted("a", 100), worker, true, NOW);
        assert_eq!(offer.map(|offer| offer.worker).as_deref(), Some(expected), "{worker:?}");
        assert_eq!(task_queue.offer(ORG, &wanted("c", 100), worker, true, NOW), None);
        assert_eq!(task_queue.offer(OrgId(2), &wanted("a", 100), worker, true, NOW), None);
    }
}

#[test]
fn what_becomes_ready_passes_nothing_by() {
    // What waits, how urgent the new one is, whether its run is new, and whether it may go at once.
    let cases = [
        (None, 100, true, true),
        (Some(("a", 50)), 40, true, false),
        (Some(("a", 50)), 50, false, true),
        (Some(("a", 50)), 51, false, false),
        (Some(("b", 50)), 49, true, true),
        (Some(("b", 50)), 50, true, true),
        (Some(("b", 50)), 51, true, false),
    ];
    for (claim_index, priority, is_new, expected) in cases {
        let mut task_queue = TaskQueue::default();
        task_queue.open(ask(1, &["%"], 9), NOW);
        if let Some((name, priority)) = claim_index {
            task_queue.enqueue(&key_queue(name, ""), position(priority, 1), NOW);
        }
        let offer = task_queue.offer(ORG, &wanted("a", priority), None, is_new, NOW);
        assert_eq!(offer.is_some(), expected, "{claim_index:?} before {priority}");
    }
    let mut task_queue = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit: Some(1), ..apply_type("a") }, None, NOW);
    task_queue.open(ask(1, &["%"], 9), NOW);
    assert!(task_queue.offer(ORG, &wanted("a", 100), None, true, NOW).is_some());
    assert!(task_queue.offer(ORG, &wanted("a", 100), None, true, NOW).is_none(), "there is room for one");
}

#[test]
fn a_hasty_question_is_answered_at_once_and_another_when_its_time_is_up() {
    let mut task_queue = TaskQueue::default();
    task_queue.open(ClaimRequest { is_immediate: true, ..ask(1, &["a"], 1) }, NOW);
    task_queue.open(ask(2, &["a"], 1), NOW);
    task_queue.open(ask(3, &["a"], 0), NOW);
    assert!(task_queue.answers().is_empty(), "nobody has looked yet");
    task_queue.pair(NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![])]);
    task_queue.withdraw(2);
    task_queue.withdraw(99);
    assert_eq!(answered(&mut task_queue), [(2, vec![])]);
    task_queue.withdraw(3);
    assert_eq!(answered(&mut task_queue), [(3, vec![])], "it only wanted to hear what is called off");
    task_queue.enqueue(&key_queue("a", ""), position(100, 1), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "nobody is there any more");
}

#[test]
fn what_is_on_its_way_is_waited_for() {
    let mut task_queue = TaskQueue::default();
    let a = key_queue("a", "");
    task_queue.open(ask(1, &["a"], 3), NOW);
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
fn a_question_nobody_is_behind_is_forgotten_unless_something_is_on_its_way() {
    let mut task_queue = TaskQueue::default();
    task_queue.open(ask(1, &["a"], 1), NOW);
    task_queue.open(ask(2, &["b"], 1), NOW);
    task_queue.enqueue(&key_queue("a", ""), position(100, 1), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1]);
    task_queue.retain(|_| false);
    task_queue.enqueue(&key_queue("b", ""), position(100, 2), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty());
    task_queue.withdraw_all();
    assert!(task_queue.answers().is_empty(), "one is on its way, the other is gone");
}

#[test]
fn a_lease_ends_unless_its_holder_is_heard_of() {
    let mut task_queue = TaskQueue::default();
    let a = key_queue("a", "");
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open(ask(1, &["a"], 1), NOW);
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
    assert_eq!(task_queue.extend(ORG, task, 7, None, after(70)), None, "it has ended, even if nobody looked yet");
    assert_eq!(task_queue.advance_time(after(70)), [(ORG, run(1), 0, 7)]);
    assert!(task_queue.advance_time(after(71)).is_empty(), "it is said once");
    assert_eq!(task_queue.overdue(run(1), after(71)), [(0, 7)]);
    assert_eq!(task_queue.leased(), 1, "it has its room until the run agrees");
    task_queue.ended(run(1), 0, 6, after(71));
    assert_eq!(task_queue.leased(), 1);
    task_queue.ended(run(1), 0, 7, after(71));
    assert_eq!((task_queue.leased(), task_queue.tally(ORG, "a", after(71)).1), (0, 0));
}

#[test]
fn a_hand_over_that_does_not_come_about_gives_everything_back() {
    let a = key_queue("a", "");
    let setup = || {
        let mut task_queue = TaskQueue::default();
        task_queue.apply_type(&TypeRow { limit: Some(1), ..apply_type("a") }, None, NOW);
        task_queue.enqueue(&a, position(100, 1), NOW);
        task_queue.enqueue(&a, position(100, 2), NOW);
        task_queue.open(ask(1, &["a"], 1), NOW);
        let claims = task_queue.pair(NOW);
        assert_eq!(claims.len(), 1);
        (task_queue, claims[0].offer.offer_id)
    };
    let (mut task_queue, offer_id) = setup();
    task_queue.revoke(offer_id, NOW);
    task_queue.revoke(offer_id, NOW);
    assert_eq!(task_queue.resident(), 2);
    assert_eq!(claimed(&mut task_queue, NOW), [1], "it waits where it was");
    let (mut task_queue, offer_id) = setup();
    task_queue.refuse(offer_id, NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [2], "that one is not to be had");
    let (mut task_queue, offer_id) = setup();
    task_queue.retry_later(offer_id, NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "not before the rows have been read again");
    task_queue.advance_time(after(1));
    task_queue.pair(after(1));
    assert_eq!(task_queue.refills(), [(a.clone(), None)]);
    task_queue.refilled(&a, Some(vec![position(100, 1)]), after(1));
    assert_eq!(claimed(&mut task_queue, after(1)), [1]);
}

/// A board that keeps little.
fn cramped(page: usize) -> TaskQueue<u64> {
    TaskQueue::new(Sizes { resident: 2, page, window: 2 * page, low: page / 2 })
}

/// Answers every question for rows from a store that has these.
fn refill(task_queue: &mut TaskQueue<u64>, rows: &BTreeSet<QueuePosition>, page: usize) -> usize {
    let refills = task_queue.refills();
    for (key_queue, from) in &refills {
        let later = rows.iter().filter(|position| from.is_none_or(|from| **position > from));
        task_queue.refilled(key_queue, Some(later.take(page).copied().collect()), NOW);
    }
    refills.len()
}

#[test]
fn ten_thousand_tasks_come_in_their_order_and_few_of_them_are_known_at_a_time() {
    let (page, a) = (PAGE, key_queue("a", ""));
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
    for question in 0..10_000 {
        if rows.is_empty() {
            break;
        }
        task_queue.open(ask(question, &["a"], 100), NOW);
        for claim in task_queue.pair(NOW) {
            let position = *rows.iter().find(|position| position.run == claim.run).expect("it waits");
            order.push(position);
            rows.remove(&position);
            task_queue.dequeue(&a, position, NOW);
            task_queue.deliver(claim.offer.offer_id, task(&claim, NOW));
        }
        refill(&mut task_queue, &rows, page);
        task_queue.withdraw(question);
        task_queue.pair(NOW);
        task_queue.answers();
        let known = task_queue.type_queue((ORG, "a".into())).key_queue("").tasks.len();
        assert!(known <= 3 * page, "{known} are kept");
    }
    assert_eq!(order.len(), 10_000);
    assert!(order.is_sorted(), "nothing was passed by");
    assert_eq!(task_queue.ready(), 0);
}

#[test]
fn a_task_beyond_the_horizon_waits_for_those_before_it_to_be_read() {
    let (a, mut task_queue) = (key_queue("a", ""), cramped(2));
    task_queue.restore(vec![(a.clone(), 3)], NOW);
    assert_eq!(task_queue.ready(), 3);
    task_queue.enqueue(&a, position(100, 9), NOW);
    task_queue.open(ask(1, &["a"], 9), NOW);
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
fn tasks_in_memory_beyond_the_horizon_do_not_keep_a_lane_from_being_read() {
    let (a, mut task_queue) = (key_queue("a", ""), cramped(2));
    task_queue.restore(vec![(a.clone(), 1)], NOW);
    for n in 10..20 {
        task_queue.enqueue(&a, position(100, n), NOW);
    }
    task_queue.open(ask(1, &["a"], 20), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty());
    assert_eq!(refill(&mut task_queue, &[position(100, 1)].into(), 2), 1);
    assert_eq!(claimed(&mut task_queue, NOW).len(), 11);
}

#[test]
fn a_row_that_is_written_while_its_lane_is_read_is_not_missed() {
    let (a, mut task_queue) = (key_queue("a", ""), cramped(2));
    task_queue.restore(vec![(a.clone(), 1)], NOW);
    task_queue.open(ask(1, &["a"], 9), NOW);
    task_queue.pair(NOW);
    assert_eq!(task_queue.refills().len(), 1, "it is being read");
    task_queue.enqueue(&a, position(100, 5), NOW);
    task_queue.evict(&a, position(100, 5), NOW);
    task_queue.refilled(&a, Some(vec![position(100, 1)]), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1, 5]);
}

#[test]
fn rows_that_begin_elsewhere_by_now_are_read_again() {
    let (a, mut task_queue) = (key_queue("a", ""), cramped(4));
    let rows: BTreeSet<QueuePosition> = (1..=6).map(|n| position(100, n)).collect();
    task_queue.restore(vec![(a.clone(), 6)], NOW);
    task_queue.open(ask(1, &["a"], 3), NOW);
    task_queue.pair(NOW);
    refill(&mut task_queue, &rows, 4);
    let claims = task_queue.pair(NOW);
    assert_eq!(claims.len(), 3);
    task_queue.open(ask(2, &["a"], 1), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [4]);
    let asked = task_queue.refills();
    assert_eq!(asked, [(a.clone(), Some(position(100, 4)))]);
    // Nothing that is known of the lane counts any more, and then the rows arrive.
    task_queue.retry_later(claims[0].offer.offer_id, NOW);
    task_queue.refilled(&a, Some(vec![position(100, 5), position(100, 6)]), NOW);
    task_queue.advance_time(after(1));
    task_queue.pair(after(1));
    assert_eq!(refill(&mut task_queue, &rows, 4), 1, "from the beginning");
    assert_eq!(claimed(&mut task_queue, after(1)), [1]);
}

#[test]
fn rows_that_cannot_be_read_are_asked_for_again_in_a_while() {
    let (a, mut task_queue) = (key_queue("a", ""), cramped(2));
    task_queue.restore(vec![(a.clone(), 1)], NOW);
    task_queue.open(ClaimRequest { is_immediate: true, ..ask(1, &["a"], 1) }, NOW);
    task_queue.open(ask(2, &["a"], 1), NOW);
    task_queue.pair(NOW);
    assert_eq!(task_queue.refills().len(), 1);
    assert!(task_queue.answers().is_empty(), "rows are on their way to whoever wants an answer now");
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
fn a_parked_card_that_is_not_claimed_after_all_is_there_once() {
    let (a, mut task_queue) = (key_queue("a", ""), cramped(2));
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.evict(&a, position(100, 1), NOW);
    assert_eq!((task_queue.ready(), task_queue.resident()), (1, 0));
    task_queue.open(ask(1, &["a"], 1), NOW);
    let claims = task_queue.pair(NOW);
    // Its run was read to be claimed; the record met a conflict; it is read again.
    task_queue.restore_ready(&a, position(100, 1), true, NOW);
    task_queue.revoke(claims[0].offer.offer_id, NOW);
    task_queue.restore_ready(&a, position(100, 1), true, NOW);
    assert_eq!((task_queue.ready(), task_queue.resident()), (1, 1));
    assert_eq!(claimed(&mut task_queue, NOW), [1]);
    assert_eq!(task_queue.resident(), 0);
}

#[test]
fn leases_are_found_again_and_begin_anew() {
    let mut task_queue: TaskQueue<u64> = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit: Some(1), ..apply_type("a") }, Some(NOW), NOW);
    let lease = |fence| Lease { step: 0, fence, worker: "w1", lease: Span::from_secs(30), epoch: 1 };
    task_queue.set_recovering(true);
    task_queue.enqueue(&key_queue("a", ""), position(100, 2), NOW);
    task_queue.open(ask(1, &["a"], 1), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "nobody knows yet how many are out");
    task_queue.reconcile(ORG, run(1), &[held(lease(7))], NOW);
    task_queue.reconcile(ORG, run(1), &[held(lease(7))], after(5));
    task_queue.set_recovering(false);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "one is out");
    assert_eq!(task_queue.lease_until(run(1), 0), Some(after(30)), "it began when it was found");
    assert_eq!(task_queue.tally(ORG, "a", NOW).1, 1);
    task_queue.reconcile(ORG, run(1), &[held(lease(9))], after(6));
    assert_eq!(task_queue.lease_until(run(1), 0), Some(after(36)), "another lease of the same step");
    assert_eq!(task_queue.tally(ORG, "a", NOW).1, 1);
    task_queue.reconcile(ORG, run(1), &[], after(7));
    assert_eq!(claimed(&mut task_queue, after(7)), [2]);
}

#[test]
fn a_type_without_workers_is_known_as_such() {
    let mut task_queue: TaskQueue<u64> = TaskQueue::default();
    task_queue.enqueue(&key_queue("a.x", ""), position(100, 1), NOW);
    assert_eq!(task_queue.unserved(NOW), 1);
    assert_eq!(
        task_queue.claim_status(&key_queue("a.x", ""), NOW),
        ClaimStatus { workers: 0, last_seen: None, blocked_reason: None }
    );
    task_queue.open(ClaimRequest { is_immediate: true, credits: 0, ..ask(1, &["a.%"], 0) }, NOW);
    assert_eq!((task_queue.unserved(NOW), task_queue.tally(ORG, "a.x", NOW)), (0, (1, 0, 1)));
    let later = NOW.after(ABSENT);
    assert_eq!(task_queue.unserved(later), 1);
    assert_eq!(
        task_queue.claim_status(&key_queue("a.x", ""), later),
        ClaimStatus { workers: 0, last_seen: Some(NOW), blocked_reason: None }
    );
    let (changed_workers, none) = (task_queue.changed_workers(false), task_queue.changed_workers(false));
    assert_eq!((changed_workers.len(), none.len(), task_queue.changed_workers(true).len()), (1, 0, 1));
    let mut next: TaskQueue<u64> = TaskQueue::default();
    next.remember(changed_workers);
    next.enqueue(&key_queue("a.x", ""), position(100, 1), later);
    assert_eq!(next.claim_status(&key_queue("a.x", ""), NOW).workers, 1);
    next.forget_workers(later);
    assert!(next.workers(ORG).is_empty());
}

#[test]
fn whoever_has_something_already_takes_no_more() {
    let mut task_queue = TaskQueue::default();
    let a = key_queue("a", "");
    for n in 1..=2 {
        task_queue.enqueue(&a, position(100, n), NOW);
    }
    task_queue.open(ask(1, &["a"], 5), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    task_queue.enqueue(&a, position(100, 3), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "it would keep the first one waiting");
    assert!(task_queue.offer(ORG, &wanted("a", 1), None, false, NOW).is_none());
    grant_lease(&mut task_queue, &a, &claims[1], NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![1, 2])]);
}

#[test]
fn a_heartbeat_keeps_nothing_for_longer_than_a_worker_may_be_silent() {
    let mut task_queue: TaskQueue<u64> = TaskQueue::default();
    let lease = Lease { step: 0, fence: 7, worker: "w1", lease: Span::from_secs(30), epoch: 1 };
    task_queue.reconcile(ORG, run(1), &[RecordedLease { longest: Span::from_secs(40), ..held(lease) }], NOW);
    for (at, by, until) in [(0, 35, 35), (10, 3_600, 50), (11, 60, 51)] {
        let by = Some(Span::from_secs(by));
        assert_eq!(task_queue.extend(ORG, (run(1), 0), 7, by, after(at)), Some(after(until)));
    }
}

/// Nodes 3 and 8, as one of them sees them.
fn nodes(own: u64) -> Nodes {
    Nodes::of(own, &[(3, Span::from_secs(60)), (8, Span::from_secs(60))])
}

/// A board of node 3 on a store it shares with node 8.
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
fn on_a_shared_store_a_lane_is_read_again_when_others_may_have_changed_it() {
    let (mut task_queue, a) = (shared(), key_queue("a", ""));
    task_queue.open(ask(1, &["a"], 1), NOW);
    assert_eq!(
        (task_queue.pair(NOW), task_queue.refills()),
        (vec![], vec![]),
        "nothing is known of, so nothing is read"
    );
    task_queue.ready_elsewhere(&a, NOW);
    assert_eq!(task_queue.pair(NOW), []);
    assert_eq!(task_queue.refills(), [(a.clone(), None)]);
    task_queue.ready_elsewhere(&a, NOW);
    task_queue.refilled(&a, Some(vec![]), NOW);
    assert_eq!(
        (task_queue.pair(NOW), task_queue.refills()),
        (vec![], vec![(a.clone(), None)]),
        "it came while it was read"
    );
    task_queue.refilled(&a, Some(vec![position(1, 5), position(1, 6)]), NOW);
    assert_eq!(task_queue.pair(NOW).len(), 1);
    task_queue.open(ask(2, &["a"], 1), after(1));
    assert_eq!(task_queue.pair(after(1)), [], "somebody may have taken it by now");
    assert_eq!(task_queue.refills(), [(a.clone(), None)]);
    task_queue.refilled(&a, Some(vec![position(1, 7)]), after(1));
    assert_eq!(task_queue.pair(after(1))[0].run, run(7));
}

#[test]
fn types_and_keys_that_are_new_are_looked_for_when_somebody_asks() {
    let (mut task_queue, k) = (shared(), key_queue("a", "k"));
    task_queue.ready_elsewhere(&key_queue("a", "k"), NOW);
    task_queue.mark_behind(vec![(ORG, "b".into())]);
    assert_eq!(task_queue.key_reads(), [], "nobody asks");
    task_queue.open(ClaimRequest { is_immediate: true, ..ask(1, &["a"], 1) }, NOW);
    assert_eq!(task_queue.pair(NOW), []);
    assert_eq!(task_queue.key_reads(), [(ORG, "a".into(), None)]);
    assert!(task_queue.answers().is_empty(), "it is not told that there is nothing before that is known");
    task_queue.keys_read(ORG, "a", Some(vec!["k".into()]), NOW);
    assert_eq!((task_queue.pair(NOW), task_queue.refills()), (vec![], vec![(k.clone(), None)]));
    task_queue.refilled(&k, Some(vec![position(1, 5)]), NOW);
    assert_eq!(task_queue.pair(NOW)[0].run, run(5));
    task_queue.open(ClaimRequest { is_immediate: true, ..ask(2, &["b"], 1) }, NOW);
    assert_eq!(task_queue.pair(NOW), []);
    assert_eq!(task_queue.key_reads(), [(ORG, "b".into(), None)]);
    task_queue.keys_read(ORG, "b", None, NOW);
    assert_eq!(task_queue.answers().len(), 1, "what cannot be read is nobody's reason to wait");
}

#[test]
fn a_node_that_lost_a_task_to_another_keeps_to_its_own_but_not_always() {
    let (mut task_queue, a) = (shared(), key_queue("a", ""));
    let (own, foreign) = (runs_of(3), runs_of(8));
    let mut rows: Vec<QueuePosition> = (1..100).map(|n| position(5, n)).chain([position(1, foreign[0])]).collect();
    rows.sort();
    task_queue.open(ask(1, &["a"], 40), NOW);
    task_queue.ready_elsewhere(&a, NOW);
    task_queue.pair(NOW);
    task_queue.refills();
    task_queue.refilled(&a, Some(rows), NOW);
    let first = task_queue.pair(NOW);
    let ages: Vec<RunId> = first[1..].iter().map(|claim| claim.run).collect();
    assert_eq!(first[0].run, run(foreign[0]), "priority goes first");
    assert!(ages.is_sorted(), "nobody is in its way: by age");
    task_queue.refuse(first[39].offer.offer_id, NOW);
    task_queue.open(ask(2, &["a"], 16), NOW);
    let second = task_queue.pair(NOW);
    let is_own = |claim: &&Claim| own.iter().any(|n| run(*n) == claim.run);
    let count = second.iter().filter(is_own).count();
    assert!((13..second.len()).contains(&count), "{count} of {} are its own", second.len());
}

#[test]
fn seats_are_taken_with_a_hand_over_and_free_when_it_does_not_come_to_it() {
    let (mut task_queue, a) = (shared(), key_queue("a", ""));
    task_queue.apply_type(&TypeRow { limit: Some(2), ..apply_type("a") }, None, NOW);
    task_queue.open(ask(1, &["a"], 9), NOW);
    for n in 1..5 {
        task_queue.enqueue(&a, position(1, n), NOW);
    }
    let claims = task_queue.pair(NOW);
    let mut limit_slots: Vec<u32> = claims.iter().map(|claim| claim.offer.slot).collect();
    limit_slots.sort_unstable();
    assert_eq!(limit_slots, [1, 2], "two at once, each with a seat of its own");
    let taken = task_queue.slots_of(claims[0].offer.offer_id, ORG, claims[0].run, 0, NOW);
    assert_eq!((taken.len(), taken[0].slot.number + 1), (1, claims[0].offer.slot));
    task_queue.revoke(claims[0].offer.offer_id, NOW);
    let again = task_queue.pair(NOW);
    assert_eq!((again.len(), again[0].offer.slot), (1, claims[0].offer.slot), "it is free again");
    // Another node has it.
    task_queue.revoke(again[0].offer.offer_id, NOW);
    task_queue.slot_contested(&slot(again[0].offer.slot - 1).slot);
    assert_eq!((task_queue.pair(NOW), task_queue.slot_reads()), (vec![], vec![(ORG, "a".into())]));
    task_queue.limit_slots_read(ORG, "a", Some(&[slot(again[0].offer.slot - 1)]), NOW);
    assert_eq!(task_queue.pair(NOW), [], "what is on its way has the other one");
    assert_eq!(task_queue.claim_status(&a, NOW).blocked_reason, Some(BlockedReason::Limit(2)));
    task_queue.freed(&slot(again[0].offer.slot - 1).slot, NOW);
    assert_eq!(task_queue.pair(NOW).len(), 1);
}

#[test]
fn the_time_of_a_rate_begins_when_its_hand_over_is_recorded() {
    let (mut task_queue, a) = (shared(), key_queue("a", ""));
    let rate = Rate { limit: 1, per: Span::from_secs(1), per_key: false };
    task_queue.apply_type(&TypeRow { rate: Some(rate), ..apply_type("a") }, None, NOW);
    task_queue.open(ask(1, &["a"], 9), NOW);
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
    assert_eq!(task_queue.pair(NOW.after(rate.per)), [], "a second after it was chosen");
}

#[test]
fn a_run_is_not_created_at_the_risk_of_a_seat() {
    let mut task_queue = shared();
    let wanted = Wanted { step: 0, name: "a", key: "", priority: 1 };
    task_queue.open(ask(1, &["a"], 3), NOW);
    assert!(task_queue.offer(ORG, &wanted, None, true, NOW).is_some(), "no limits, no seats");
    task_queue.apply_type(&TypeRow { limit: Some(2), ..apply_type("a") }, None, NOW);
    assert_eq!(task_queue.offer(ORG, &wanted, None, true, NOW), None);
    let offer = task_queue.offer(ORG, &wanted, None, false, NOW);
    assert!(offer.is_some_and(|offer| offer.slot > 0), "a run that exists can be read again");
}
