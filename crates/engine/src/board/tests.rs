//! The board by hand: who gets what, and what keeps it.

use super::*;
use kernel::Span;
use kernel::run::Lease;
use store::{Rate, TypePause};

mod calling_off;

const ORG: OrgId = OrgId::DEFAULT;
const NOW: Timestamp = Timestamp(1_000_000_000);
/// No worker may be silent for longer.
const LONGEST: Span = Span::from_secs(3_600);

fn held(lease: Lease<'_>) -> Held<'_> {
    Held { lease, name: "a", key: "", longest: LONGEST }
}

fn after(seconds: u64) -> Timestamp {
    NOW.after(Span::from_secs(seconds))
}

fn run(n: u64) -> RunId {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&n.to_be_bytes());
    RunId(id)
}

fn place(priority: u32, n: u64) -> Place {
    Place { priority, run: run(n), step: 0 }
}

fn lane(name: &str, key: &str) -> Lane {
    Lane { org: ORG, name: name.into(), key: key.into() }
}

fn ask(place: u64, types: &[&str], credits: u32) -> Ask<u64> {
    Ask {
        place,
        ticket: place,
        org: ORG,
        worker: format!("w{place}"),
        types: types.iter().map(|text| (*text).to_owned()).collect(),
        patterns: types.iter().filter_map(|text| Pattern::parse(text)).collect(),
        runtime: None,
        version: None,
        slots: None,
        credits,
        lease: Span::from_secs(30),
        is_hasty: false,
        is_exact: false,
    }
}

fn rule(name: &str) -> TypeRow {
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
fn grant(board: &mut Board<u64>, lane: &Lane, claim: &Claim, now: Timestamp) {
    grant_as(board, lane, claim, 7, now);
}

fn grant_as(board: &mut Board<u64>, lane: &Lane, claim: &Claim, fence: u64, now: Timestamp) {
    let task = task(claim, now);
    board.unpost(lane, place_of(board, lane, claim), now);
    let (name, key) = (Arc::from(lane.name.as_str()), Arc::from(lane.key.as_str()));
    let (worker, lease, until) = (claim.offer.worker.clone(), task.lease, task.until);
    board.granted(claim.run, claim.step, Grant { org: ORG, worker, name, key, fence, lease, longest: LONGEST, until });
    board.hand(claim.offer.place, task);
}

/// Where a claimed card was. (Its priority is of no consequence once it is gone.)
fn place_of(_: &Board<u64>, _: &Lane, claim: &Claim) -> Place {
    Place { priority: 100, run: claim.run, step: claim.step }
}

/// Numbers of the runs that are claimed next, with who gets them.
fn pairs(board: &mut Board<u64>, now: Timestamp) -> Vec<(u64, String)> {
    board.pair(now).iter().map(|claim| (number(claim.run), claim.offer.worker.clone())).collect()
}

fn claimed(board: &mut Board<u64>, now: Timestamp) -> Vec<u64> {
    board.pair(now).iter().map(|claim| number(claim.run)).collect()
}

fn number(run: RunId) -> u64 {
    run.0[8..].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn answered(board: &mut Board<u64>) -> Vec<(u64, Vec<u64>)> {
    let numbers = |handed: &Handed| handed.tasks.iter().map(|task| number(task.run)).collect();
    board.answers().iter().map(|(ticket, handed)| (*ticket, numbers(handed))).collect()
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
        let mut board = Board::default();
        for (n, name) in [(1, "a.x"), (2, "a.y"), (3, "b")] {
            board.post(&lane(name, ""), place(100, n), NOW);
        }
        let other = Lane { org: OrgId(2), ..lane("a.x", "") };
        board.post(&other, place(1, 9), NOW);
        board.open(ask(1, types, 9), NOW);
        assert_eq!(claimed(&mut board, NOW), expected, "{types:?}");
        assert!(claimed(&mut board, NOW).is_empty(), "nothing is claimed twice");
    }
}

#[test]
fn lower_numbers_go_first_then_older_runs_across_types_and_keys() {
    let mut board = Board::default();
    let cards =
        [("a", "", 100, 4), ("a", "", 100, 1), ("a", "k", 5, 9), ("b", "", 5, 8), ("b", "", 7, 2), ("a", "", 0, 7)];
    for (name, key, priority, n) in cards {
        board.post(&lane(name, key), place(priority, n), NOW);
    }
    for expected in [7, 8, 9, 2, 1, 4] {
        board.open(ask(expected, &["%"], 1), NOW);
        assert_eq!(claimed(&mut board, NOW), [expected]);
    }
}

#[test]
fn keys_are_served_in_turn() {
    let mut board = Board::default();
    for n in 1..=4 {
        board.post(&lane("a", "busy"), place(100, n), NOW);
    }
    for (n, key) in [(11, "x"), (12, "y"), (13, "x")] {
        board.post(&lane("a", key), place(100, n), NOW);
    }
    board.post(&lane("a", "busy"), place(1, 5), NOW);
    board.open(ask(1, &["a"], 8), NOW);
    let order = claimed(&mut board, NOW);
    assert_eq!(order[0], 5, "a lower number comes first, whatever its key");
    assert_eq!(order[1..4], [11, 12, 1], "then whoever was served longest ago");
    assert_eq!(order[4..], [13, 2, 3, 4]);
}

#[test]
fn limits_count_what_is_out_and_on_its_way() {
    let mut board = Board::default();
    board.rule(&TypeRow { limit: Some(3), limit_per_key: Some(2), ..rule("a") }, None, NOW);
    for n in 1..=4 {
        board.post(&lane("a", "k"), place(100, n), NOW);
    }
    for n in 5..=6 {
        board.post(&lane("a", ""), place(100, n), NOW);
    }
    board.post(&lane("b", ""), place(100, 7), NOW);
    board.open(ask(1, &["%"], 9), NOW);
    let claims = board.pair(NOW);
    assert_eq!(
        claims.iter().map(|claim| number(claim.run)).collect::<Vec<_>>(),
        [5, 1, 6, 7],
        "two of `k`, three of `a`"
    );
    assert_eq!(board.stance(&lane("a", "k"), NOW).hold, Some(Hold::Limit(3)));
    grant(&mut board, &lane("a", ""), &claims[0], NOW);
    assert!(claimed(&mut board, NOW).is_empty(), "a grant takes the room its promise had");
    board.ended(run(5), 0, 7, NOW);
    assert_eq!(claimed(&mut board, NOW), [2], "one of `k` is out");
    board.ended(run(5), 0, 7, NOW);
    assert!(claimed(&mut board, NOW).is_empty(), "what has ended does not end again");
    assert_eq!(board.tally(ORG, "a", NOW).1, 3);
    board.rule(&rule("a"), None, NOW);
    assert_eq!(claimed(&mut board, NOW), [3, 4]);
}

#[test]
fn a_key_with_no_room_does_not_keep_the_others() {
    let mut board = Board::default();
    board.rule(&TypeRow { limit_per_key: Some(1), ..rule("a") }, None, NOW);
    for (n, key) in [(1, "k"), (2, "k"), (3, "l")] {
        board.post(&lane("a", key), place(100, n), NOW);
    }
    board.open(ask(1, &["a"], 9), NOW);
    assert_eq!(claimed(&mut board, NOW), [1, 3]);
    assert_eq!(board.stance(&lane("a", "k"), NOW).hold, Some(Hold::KeyLimit(1)));
}

#[test]
fn rates_hold_for_every_stretch_of_time() {
    let mut board = Board::default();
    let rate = Rate { limit: 2, per: Span::from_secs(10), per_key: false };
    board.rule(&TypeRow { rate: Some(rate), ..rule("a") }, None, NOW);
    for n in 1..=6 {
        board.post(&lane("a", if n % 2 == 0 { "k" } else { "" }), place(100, n), NOW);
    }
    board.open(ask(1, &["a"], 1), NOW);
    assert_eq!(claimed(&mut board, NOW).len(), 1);
    board.open(ask(2, &["a"], 9), after(4));
    assert_eq!(claimed(&mut board, after(4)).len(), 1);
    assert_eq!(board.stance(&lane("a", ""), after(4)).hold, Some(Hold::Rate(after(10))));
    assert_eq!(board.next_due(), Some(after(10)));
    for (second, expected) in [(9, 0), (10, 1), (13, 0), (14, 1), (19, 0), (20, 1)] {
        board.pass(after(second));
        assert_eq!(claimed(&mut board, after(second)).len(), expected, "at {second} s");
    }
}

#[test]
fn a_rate_of_each_key_keeps_only_its_key() {
    let mut board = Board::default();
    let rate = Rate { limit: 1, per: Span::from_secs(10), per_key: true };
    board.rule(&TypeRow { rate: Some(rate), ..rule("a") }, None, NOW);
    for (n, key) in [(1, "k"), (2, "k"), (3, "l")] {
        board.post(&lane("a", key), place(100, n), NOW);
    }
    board.open(ask(1, &["a"], 9), NOW);
    assert_eq!(claimed(&mut board, NOW), [1, 3]);
    board.pass(after(10));
    assert_eq!(claimed(&mut board, after(10)), [2]);
}

#[test]
fn a_restart_is_no_way_around_a_rate() {
    let mut board = Board::default();
    let rate = Rate { limit: 2, per: Span::from_secs(10), per_key: false };
    board.rule(&TypeRow { rate: Some(rate), ..rule("a") }, Some(NOW), NOW);
    for n in 1..=4 {
        board.post(&lane("a", ""), place(100, n), NOW);
    }
    board.open(ask(1, &["a"], 9), NOW);
    for (second, expected) in [(0, 0), (4, 0), (5, 1), (9, 0), (10, 1), (15, 1)] {
        board.pass(after(second));
        assert_eq!(claimed(&mut board, after(second)).len(), expected, "at {second} s");
    }
}

#[test]
fn nothing_of_a_type_that_is_paused_disabled_or_of_another_runtime() {
    let pause = TypePause { at: NOW, actor: "ada".into(), note: "broken".into() };
    let paused = Hold::Paused { since: NOW, note: "broken".into() };
    let shut = [
        (TypeRow { enabled: false, ..rule("a") }, Some(Hold::Disabled)),
        (TypeRow { paused: Some(pause), ..rule("a") }, Some(paused)),
        (TypeRow { runtime: Some("rust".into()), ..rule("a") }, None),
    ];
    for (row, hold) in shut {
        let mut board = Board::default();
        board.post(&lane("a", ""), place(100, 1), NOW);
        board.rule(&row, None, NOW);
        board.open(Ask { runtime: Some("python".into()), ..ask(1, &["%"], 1) }, NOW);
        assert!(claimed(&mut board, NOW).is_empty(), "{row:?}");
        assert_eq!(board.stance(&lane("a", ""), NOW).hold, hold);
        board.rule(&rule("a"), None, NOW);
        assert_eq!(claimed(&mut board, NOW), [1], "once it is open again, whoever waits gets it");
    }
    for (runtime, expected) in [(None, 1), (Some("rust"), 1), (Some("python"), 0)] {
        let mut board = Board::default();
        board.rule(&TypeRow { runtime: Some("rust".into()), ..rule("a") }, None, NOW);
        board.post(&lane("a", ""), place(100, 1), NOW);
        board.open(Ask { runtime: runtime.map(str::to_owned), ..ask(1, &["%"], 1) }, NOW);
        assert_eq!(claimed(&mut board, NOW).len(), expected, "{runtime:?}");
    }
}

#[test]
fn whoever_waits_longest_is_served_first() {
    let mut board = Board::default();
    for n in 1..=3 {
        board.open(ask(n, &["a"], 2), NOW);
    }
    assert!(pairs(&mut board, NOW).is_empty());
    for n in 11..=15 {
        board.post(&lane("a", ""), place(100, n), NOW);
    }
    let served: Vec<String> = pairs(&mut board, NOW).into_iter().map(|(_, worker)| worker).collect();
    assert_eq!(served, ["w1", "w1", "w2", "w2", "w3"]);
}

fn wanted(name: &str, priority: u32) -> Wanted<'_> {
    Wanted { step: 0, name, key: "", priority }
}

#[test]
fn what_becomes_ready_goes_to_the_worker_that_is_at_it_if_it_asks() {
    for (worker, expected) in [(None, "w1"), (Some("w2"), "w2"), (Some("w9"), "w1")] {
        let mut board = Board::default();
        board.open(ask(1, &["a"], 1), NOW);
        board.open(ask(2, &["a"], 1), NOW);
        board.open(ask(3, &["b"], 1), NOW);
        let offer = board.offer(ORG, &wanted("a", 100), worker, true, NOW);
        assert_eq!(offer.map(|offer| offer.worker).as_deref(), Some(expected), "{worker:?}");
        assert_eq!(board.offer(ORG, &wanted("c", 100), worker, true, NOW), None);
        assert_eq!(board.offer(OrgId(2), &wanted("a", 100), worker, true, NOW), None);
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
    for (waiting, priority, is_new, expected) in cases {
        let mut board = Board::default();
        board.open(ask(1, &["%"], 9), NOW);
        if let Some((name, priority)) = waiting {
            board.post(&lane(name, ""), place(priority, 1), NOW);
        }
        let offer = board.offer(ORG, &wanted("a", priority), None, is_new, NOW);
        assert_eq!(offer.is_some(), expected, "{waiting:?} before {priority}");
    }
    let mut board = Board::default();
    board.rule(&TypeRow { limit: Some(1), ..rule("a") }, None, NOW);
    board.open(ask(1, &["%"], 9), NOW);
    assert!(board.offer(ORG, &wanted("a", 100), None, true, NOW).is_some());
    assert!(board.offer(ORG, &wanted("a", 100), None, true, NOW).is_none(), "there is room for one");
}

#[test]
fn a_hasty_question_is_answered_at_once_and_another_when_its_time_is_up() {
    let mut board = Board::default();
    board.open(Ask { is_hasty: true, ..ask(1, &["a"], 1) }, NOW);
    board.open(ask(2, &["a"], 1), NOW);
    board.open(ask(3, &["a"], 0), NOW);
    assert!(board.answers().is_empty(), "nobody has looked yet");
    board.pair(NOW);
    assert_eq!(answered(&mut board), [(1, vec![])]);
    board.withdraw(2);
    board.withdraw(99);
    assert_eq!(answered(&mut board), [(2, vec![])]);
    board.withdraw(3);
    assert_eq!(answered(&mut board), [(3, vec![])], "it only wanted to hear what is called off");
    board.post(&lane("a", ""), place(100, 1), NOW);
    assert!(claimed(&mut board, NOW).is_empty(), "nobody is there any more");
}

#[test]
fn what_is_on_its_way_is_waited_for() {
    let mut board = Board::default();
    let a = lane("a", "");
    board.open(ask(1, &["a"], 3), NOW);
    for n in 1..=2 {
        board.post(&a, place(100, n), NOW);
    }
    let claims = board.pair(NOW);
    board.withdraw(1);
    assert!(board.answers().is_empty());
    grant(&mut board, &a, &claims[0], NOW);
    assert!(board.answers().is_empty());
    board.refuse(claims[1].offer.place, NOW);
    board.pair(NOW);
    assert_eq!(answered(&mut board), [(1, vec![1])]);
    assert_eq!((board.leased(), board.tally(ORG, "a", NOW).1), (1, 1));
}

#[test]
fn a_question_nobody_is_behind_is_forgotten_unless_something_is_on_its_way() {
    let mut board = Board::default();
    board.open(ask(1, &["a"], 1), NOW);
    board.open(ask(2, &["b"], 1), NOW);
    board.post(&lane("a", ""), place(100, 1), NOW);
    assert_eq!(claimed(&mut board, NOW), [1]);
    board.retain(|_| false);
    board.post(&lane("b", ""), place(100, 2), NOW);
    assert!(claimed(&mut board, NOW).is_empty());
    board.withdraw_all();
    assert!(board.answers().is_empty(), "one is on its way, the other is gone");
}

#[test]
fn a_lease_ends_unless_its_holder_is_heard_of() {
    let mut board = Board::default();
    let a = lane("a", "");
    board.post(&a, place(100, 1), NOW);
    board.open(ask(1, &["a"], 1), NOW);
    let claims = board.pair(NOW);
    grant(&mut board, &a, &claims[0], NOW);
    let task = (run(1), 0);
    assert_eq!(board.next_due(), Some(after(30)));
    assert_eq!(board.extend(ORG, task, 6, None, after(1)), None, "another fence");
    assert_eq!(board.extend(OrgId(2), task, 7, None, after(1)), None, "another organisation");
    assert_eq!(board.extend(ORG, (run(1), 1), 7, None, after(1)), None, "another step");
    assert_eq!(board.extend(ORG, task, 7, None, after(10)), Some(after(40)));
    assert_eq!(board.extend(ORG, task, 7, Some(Span::from_secs(60)), after(10)), Some(after(70)));
    assert_eq!(board.extend(ORG, task, 7, Some(Span::from_secs(1)), after(10)), Some(after(70)), "never shorter");
    assert!(board.pass(after(69)).is_empty());
    assert_eq!(board.extend(ORG, task, 7, None, after(70)), None, "it has ended, even if nobody looked yet");
    assert_eq!(board.pass(after(70)), [(ORG, run(1), 0, 7)]);
    assert!(board.pass(after(71)).is_empty(), "it is said once");
    assert_eq!(board.overdue(run(1), after(71)), [(0, 7)]);
    assert_eq!(board.leased(), 1, "it has its room until the run agrees");
    board.ended(run(1), 0, 6, after(71));
    assert_eq!(board.leased(), 1);
    board.ended(run(1), 0, 7, after(71));
    assert_eq!((board.leased(), board.tally(ORG, "a", after(71)).1), (0, 0));
}

#[test]
fn a_hand_over_that_does_not_come_about_gives_everything_back() {
    let a = lane("a", "");
    let setup = || {
        let mut board = Board::default();
        board.rule(&TypeRow { limit: Some(1), ..rule("a") }, None, NOW);
        board.post(&a, place(100, 1), NOW);
        board.post(&a, place(100, 2), NOW);
        board.open(ask(1, &["a"], 1), NOW);
        let claims = board.pair(NOW);
        assert_eq!(claims.len(), 1);
        (board, claims[0].offer.place)
    };
    let (mut board, promise) = setup();
    board.revoke(promise, NOW);
    board.revoke(promise, NOW);
    assert_eq!(board.resident(), 2);
    assert_eq!(claimed(&mut board, NOW), [1], "it waits where it was");
    let (mut board, promise) = setup();
    board.refuse(promise, NOW);
    assert_eq!(claimed(&mut board, NOW), [2], "that one is not to be had");
    let (mut board, promise) = setup();
    board.mistrust(promise, NOW);
    assert!(claimed(&mut board, NOW).is_empty(), "not before the rows have been read again");
    board.pass(after(1));
    board.pair(after(1));
    assert_eq!(board.refills(), [(a.clone(), None)]);
    board.refilled(&a, Some(vec![place(100, 1)]), after(1));
    assert_eq!(claimed(&mut board, after(1)), [1]);
}

/// A board that keeps little.
fn cramped(page: usize) -> Board<u64> {
    Board::new(Sizes { resident: 2, page, window: 2 * page, low: page / 2 })
}

/// Answers every question for rows from a store that has these.
fn refill(board: &mut Board<u64>, rows: &BTreeSet<Place>, page: usize) -> usize {
    let refills = board.refills();
    for (lane, from) in &refills {
        let later = rows.iter().filter(|place| from.is_none_or(|from| **place > from));
        board.refilled(lane, Some(later.take(page).copied().collect()), NOW);
    }
    refills.len()
}

#[test]
fn ten_thousand_tasks_come_in_their_order_and_few_of_them_are_known_at_a_time() {
    let (page, a) = (PAGE, lane("a", ""));
    let mut board: Board<u64> = Board::default();
    let mut rows = BTreeSet::new();
    for n in 0..10_000 {
        let place = place((n % 7) as u32, n);
        board.post(&a, place, NOW);
        board.park(&a, place, NOW);
        rows.insert(place);
    }
    assert_eq!((board.ready(), board.resident()), (10_000, 0));
    let mut order = Vec::new();
    for question in 0..10_000 {
        if rows.is_empty() {
            break;
        }
        board.open(ask(question, &["a"], 100), NOW);
        for claim in board.pair(NOW) {
            let place = *rows.iter().find(|place| place.run == claim.run).expect("it waits");
            order.push(place);
            rows.remove(&place);
            board.unpost(&a, place, NOW);
            board.hand(claim.offer.place, task(&claim, NOW));
        }
        refill(&mut board, &rows, page);
        board.withdraw(question);
        board.pair(NOW);
        board.answers();
        let known = board.line((ORG, "a".into())).lane("").cards.len();
        assert!(known <= 3 * page, "{known} are kept");
    }
    assert_eq!(order.len(), 10_000);
    assert!(order.is_sorted(), "nothing was passed by");
    assert_eq!(board.ready(), 0);
}

#[test]
fn a_task_beyond_the_horizon_waits_for_those_before_it_to_be_read() {
    let (a, mut board) = (lane("a", ""), cramped(2));
    board.restore(vec![(a.clone(), 3)], NOW);
    assert_eq!(board.ready(), 3);
    board.post(&a, place(100, 9), NOW);
    board.open(ask(1, &["a"], 9), NOW);
    assert!(claimed(&mut board, NOW).is_empty(), "what the last process left may come before it");
    let mut rows: BTreeSet<Place> = [place(100, 1), place(100, 2), place(200, 3)].into();
    assert_eq!(refill(&mut board, &rows, 2), 1);
    assert_eq!(claimed(&mut board, NOW), [1, 2]);
    rows.pop_first();
    rows.pop_first();
    refill(&mut board, &rows, 2);
    assert_eq!(claimed(&mut board, NOW), [9, 3]);
}

#[test]
fn tasks_in_memory_beyond_the_horizon_do_not_keep_a_lane_from_being_read() {
    let (a, mut board) = (lane("a", ""), cramped(2));
    board.restore(vec![(a.clone(), 1)], NOW);
    for n in 10..20 {
        board.post(&a, place(100, n), NOW);
    }
    board.open(ask(1, &["a"], 20), NOW);
    assert!(claimed(&mut board, NOW).is_empty());
    assert_eq!(refill(&mut board, &[place(100, 1)].into(), 2), 1);
    assert_eq!(claimed(&mut board, NOW).len(), 11);
}

#[test]
fn a_row_that_is_written_while_its_lane_is_read_is_not_missed() {
    let (a, mut board) = (lane("a", ""), cramped(2));
    board.restore(vec![(a.clone(), 1)], NOW);
    board.open(ask(1, &["a"], 9), NOW);
    board.pair(NOW);
    assert_eq!(board.refills().len(), 1, "it is being read");
    board.post(&a, place(100, 5), NOW);
    board.park(&a, place(100, 5), NOW);
    board.refilled(&a, Some(vec![place(100, 1)]), NOW);
    assert_eq!(claimed(&mut board, NOW), [1, 5]);
}

#[test]
fn rows_that_begin_elsewhere_by_now_are_read_again() {
    let (a, mut board) = (lane("a", ""), cramped(4));
    let rows: BTreeSet<Place> = (1..=6).map(|n| place(100, n)).collect();
    board.restore(vec![(a.clone(), 6)], NOW);
    board.open(ask(1, &["a"], 3), NOW);
    board.pair(NOW);
    refill(&mut board, &rows, 4);
    let claims = board.pair(NOW);
    assert_eq!(claims.len(), 3);
    board.open(ask(2, &["a"], 1), NOW);
    assert_eq!(claimed(&mut board, NOW), [4]);
    let asked = board.refills();
    assert_eq!(asked, [(a.clone(), Some(place(100, 4)))]);
    // Nothing that is known of the lane counts any more, and then the rows arrive.
    board.mistrust(claims[0].offer.place, NOW);
    board.refilled(&a, Some(vec![place(100, 5), place(100, 6)]), NOW);
    board.pass(after(1));
    board.pair(after(1));
    assert_eq!(refill(&mut board, &rows, 4), 1, "from the beginning");
    assert_eq!(claimed(&mut board, after(1)), [1]);
}

#[test]
fn rows_that_cannot_be_read_are_asked_for_again_in_a_while() {
    let (a, mut board) = (lane("a", ""), cramped(2));
    board.restore(vec![(a.clone(), 1)], NOW);
    board.open(Ask { is_hasty: true, ..ask(1, &["a"], 1) }, NOW);
    board.open(ask(2, &["a"], 1), NOW);
    board.pair(NOW);
    assert_eq!(board.refills().len(), 1);
    assert!(board.answers().is_empty(), "rows are on their way to whoever wants an answer now");
    board.refilled(&a, None, NOW);
    board.pair(NOW);
    assert!(board.refills().is_empty());
    assert_eq!(answered(&mut board), [(1, vec![])]);
    let due = board.next_due().expect("it tries again");
    assert!(due > NOW && due <= after(1));
    board.pass(due);
    board.pair(due);
    assert_eq!(board.refills().len(), 1);
}

#[test]
fn a_parked_card_that_is_not_claimed_after_all_is_there_once() {
    let (a, mut board) = (lane("a", ""), cramped(2));
    board.post(&a, place(100, 1), NOW);
    board.park(&a, place(100, 1), NOW);
    assert_eq!((board.ready(), board.resident()), (1, 0));
    board.open(ask(1, &["a"], 1), NOW);
    let claims = board.pair(NOW);
    // Its run was read to be claimed; the record met a conflict; it is read again.
    board.recall(&a, place(100, 1), true, NOW);
    board.revoke(claims[0].offer.place, NOW);
    board.recall(&a, place(100, 1), true, NOW);
    assert_eq!((board.ready(), board.resident()), (1, 1));
    assert_eq!(claimed(&mut board, NOW), [1]);
    assert_eq!(board.resident(), 0);
}

#[test]
fn leases_are_found_again_and_begin_anew() {
    let mut board: Board<u64> = Board::default();
    board.rule(&TypeRow { limit: Some(1), ..rule("a") }, Some(NOW), NOW);
    let lease = |fence| Lease { step: 0, fence, worker: "w1", lease: Span::from_secs(30), epoch: 1 };
    board.recovers(true);
    board.post(&lane("a", ""), place(100, 2), NOW);
    board.open(ask(1, &["a"], 1), NOW);
    assert!(claimed(&mut board, NOW).is_empty(), "nobody knows yet how many are out");
    board.reconcile(ORG, run(1), &[held(lease(7))], NOW);
    board.reconcile(ORG, run(1), &[held(lease(7))], after(5));
    board.recovers(false);
    assert!(claimed(&mut board, NOW).is_empty(), "one is out");
    assert_eq!(board.lease_until(run(1), 0), Some(after(30)), "it began when it was found");
    assert_eq!(board.tally(ORG, "a", NOW).1, 1);
    board.reconcile(ORG, run(1), &[held(lease(9))], after(6));
    assert_eq!(board.lease_until(run(1), 0), Some(after(36)), "another lease of the same step");
    assert_eq!(board.tally(ORG, "a", NOW).1, 1);
    board.reconcile(ORG, run(1), &[], after(7));
    assert_eq!(claimed(&mut board, after(7)), [2]);
}

#[test]
fn a_type_without_workers_is_known_as_such() {
    let mut board: Board<u64> = Board::default();
    board.post(&lane("a.x", ""), place(100, 1), NOW);
    assert_eq!(board.unserved(NOW), 1);
    assert_eq!(board.stance(&lane("a.x", ""), NOW), Stance { workers: 0, last_seen: None, hold: None });
    board.open(Ask { is_hasty: true, credits: 0, ..ask(1, &["a.%"], 0) }, NOW);
    assert_eq!((board.unserved(NOW), board.tally(ORG, "a.x", NOW)), (0, (1, 0, 1)));
    let later = NOW.after(ABSENT);
    assert_eq!(board.unserved(later), 1);
    assert_eq!(board.stance(&lane("a.x", ""), later), Stance { workers: 0, last_seen: Some(NOW), hold: None });
    let (news, none) = (board.news(false), board.news(false));
    assert_eq!((news.len(), none.len(), board.news(true).len()), (1, 0, 1));
    let mut next: Board<u64> = Board::default();
    next.remember(news);
    next.post(&lane("a.x", ""), place(100, 1), later);
    assert_eq!(next.stance(&lane("a.x", ""), NOW).workers, 1);
    next.forget_workers(later);
    assert!(next.workers(ORG).is_empty());
}

#[test]
fn whoever_has_something_already_takes_no_more() {
    let mut board = Board::default();
    let a = lane("a", "");
    for n in 1..=2 {
        board.post(&a, place(100, n), NOW);
    }
    board.open(ask(1, &["a"], 5), NOW);
    let claims = board.pair(NOW);
    grant(&mut board, &a, &claims[0], NOW);
    board.post(&a, place(100, 3), NOW);
    assert!(claimed(&mut board, NOW).is_empty(), "it would keep the first one waiting");
    assert!(board.offer(ORG, &wanted("a", 1), None, false, NOW).is_none());
    grant(&mut board, &a, &claims[1], NOW);
    assert_eq!(answered(&mut board), [(1, vec![1, 2])]);
}

#[test]
fn a_heartbeat_keeps_nothing_for_longer_than_a_worker_may_be_silent() {
    let mut board: Board<u64> = Board::default();
    let lease = Lease { step: 0, fence: 7, worker: "w1", lease: Span::from_secs(30), epoch: 1 };
    board.reconcile(ORG, run(1), &[Held { longest: Span::from_secs(40), ..held(lease) }], NOW);
    for (at, by, until) in [(0, 35, 35), (10, 3_600, 50), (11, 60, 51)] {
        let by = Some(Span::from_secs(by));
        assert_eq!(board.extend(ORG, (run(1), 0), 7, by, after(at)), Some(after(until)));
    }
}

/// Nodes 3 and 8, as one of them sees them.
fn nodes(own: u64) -> Nodes {
    Nodes::of(own, &[(3, Span::from_secs(60)), (8, Span::from_secs(60))])
}

/// A board of node 3 on a store it shares with node 8.
fn shared() -> Board<u64> {
    let mut board = Board::default();
    board.share(nodes(3));
    board
}

fn runs_of(node: u64) -> Vec<u64> {
    let nodes = nodes(node);
    (1..200).filter(|n| nodes.is_mine(run(*n))).collect()
}

fn seat(number: u32) -> SeatRow {
    let seat = Seat { org: ORG, name: "a".into(), of: SeatOf::Type, key: String::new(), number };
    SeatRow { seat, run: run(99), step: 0, until: SeatRow::FREED }
}

#[test]
fn on_a_shared_store_a_lane_is_read_again_when_others_may_have_changed_it() {
    let (mut board, a) = (shared(), lane("a", ""));
    board.open(ask(1, &["a"], 1), NOW);
    assert_eq!((board.pair(NOW), board.refills()), (vec![], vec![]), "nothing is known of, so nothing is read");
    board.posted(&a, NOW);
    assert_eq!(board.pair(NOW), []);
    assert_eq!(board.refills(), [(a.clone(), None)]);
    board.posted(&a, NOW);
    board.refilled(&a, Some(vec![]), NOW);
    assert_eq!((board.pair(NOW), board.refills()), (vec![], vec![(a.clone(), None)]), "it came while it was read");
    board.refilled(&a, Some(vec![place(1, 5), place(1, 6)]), NOW);
    assert_eq!(board.pair(NOW).len(), 1);
    board.open(ask(2, &["a"], 1), after(1));
    assert_eq!(board.pair(after(1)), [], "somebody may have taken it by now");
    assert_eq!(board.refills(), [(a.clone(), None)]);
    board.refilled(&a, Some(vec![place(1, 7)]), after(1));
    assert_eq!(board.pair(after(1))[0].run, run(7));
}

#[test]
fn types_and_keys_that_are_new_are_looked_for_when_somebody_asks() {
    let (mut board, k) = (shared(), lane("a", "k"));
    board.posted(&lane("a", "k"), NOW);
    board.behind(vec![(ORG, "b".into())]);
    assert_eq!(board.asks(), [], "nobody asks");
    board.open(Ask { is_hasty: true, ..ask(1, &["a"], 1) }, NOW);
    assert_eq!(board.pair(NOW), []);
    assert_eq!(board.asks(), [(ORG, "a".into(), None)]);
    assert!(board.answers().is_empty(), "it is not told that there is nothing before that is known");
    board.heard_of(ORG, "a", Some(vec!["k".into()]), NOW);
    assert_eq!((board.pair(NOW), board.refills()), (vec![], vec![(k.clone(), None)]));
    board.refilled(&k, Some(vec![place(1, 5)]), NOW);
    assert_eq!(board.pair(NOW)[0].run, run(5));
    board.open(Ask { is_hasty: true, ..ask(2, &["b"], 1) }, NOW);
    assert_eq!(board.pair(NOW), []);
    assert_eq!(board.asks(), [(ORG, "b".into(), None)]);
    board.heard_of(ORG, "b", None, NOW);
    assert_eq!(board.answers().len(), 1, "what cannot be read is nobody's reason to wait");
}

#[test]
fn a_node_that_lost_a_task_to_another_keeps_to_its_own_but_not_always() {
    let (mut board, a) = (shared(), lane("a", ""));
    let (own, foreign) = (runs_of(3), runs_of(8));
    let mut rows: Vec<Place> = (1..100).map(|n| place(5, n)).chain([place(1, foreign[0])]).collect();
    rows.sort();
    board.open(ask(1, &["a"], 40), NOW);
    board.posted(&a, NOW);
    board.pair(NOW);
    board.refills();
    board.refilled(&a, Some(rows), NOW);
    let first = board.pair(NOW);
    let ages: Vec<RunId> = first[1..].iter().map(|claim| claim.run).collect();
    assert_eq!(first[0].run, run(foreign[0]), "priority goes first");
    assert!(ages.is_sorted(), "nobody is in its way: by age");
    board.refuse(first[39].offer.place, NOW);
    board.open(ask(2, &["a"], 16), NOW);
    let second = board.pair(NOW);
    let is_own = |claim: &&Claim| own.iter().any(|n| run(*n) == claim.run);
    let count = second.iter().filter(is_own).count();
    assert!((13..second.len()).contains(&count), "{count} of {} are its own", second.len());
}

#[test]
fn seats_are_taken_with_a_hand_over_and_free_when_it_does_not_come_to_it() {
    let (mut board, a) = (shared(), lane("a", ""));
    board.rule(&TypeRow { limit: Some(2), ..rule("a") }, None, NOW);
    board.open(ask(1, &["a"], 9), NOW);
    for n in 1..5 {
        board.post(&a, place(1, n), NOW);
    }
    let claims = board.pair(NOW);
    let mut seats: Vec<u32> = claims.iter().map(|claim| claim.offer.seat).collect();
    seats.sort_unstable();
    assert_eq!(seats, [1, 2], "two at once, each with a seat of its own");
    let taken = board.seats_of(claims[0].offer.place, ORG, claims[0].run, 0, NOW);
    assert_eq!((taken.len(), taken[0].seat.number + 1), (1, claims[0].offer.seat));
    board.revoke(claims[0].offer.place, NOW);
    let again = board.pair(NOW);
    assert_eq!((again.len(), again[0].offer.seat), (1, claims[0].offer.seat), "it is free again");
    // Another node has it.
    board.revoke(again[0].offer.place, NOW);
    board.contested(&seat(again[0].offer.seat - 1).seat);
    assert_eq!((board.pair(NOW), board.seat_asks()), (vec![], vec![(ORG, "a".into())]));
    board.seated(ORG, "a", Some(&[seat(again[0].offer.seat - 1)]), NOW);
    assert_eq!(board.pair(NOW), [], "what is on its way has the other one");
    assert_eq!(board.stance(&a, NOW).hold, Some(Hold::Limit(2)));
    board.freed(&seat(again[0].offer.seat - 1).seat, NOW);
    assert_eq!(board.pair(NOW).len(), 1);
}

#[test]
fn the_time_of_a_rate_begins_when_its_hand_over_is_recorded() {
    let (mut board, a) = (shared(), lane("a", ""));
    let rate = Rate { limit: 1, per: Span::from_secs(1), per_key: false };
    board.rule(&TypeRow { rate: Some(rate), ..rule("a") }, None, NOW);
    board.open(ask(1, &["a"], 9), NOW);
    board.post(&a, place(1, 1), NOW);
    board.post(&a, place(1, 2), NOW);
    let claims = board.pair(NOW);
    assert_eq!(claims.len(), 1);
    // Its run had to be read first.
    let recorded = NOW.after(Span::from_millis(700));
    let taken = board.seats_of(claims[0].offer.place, ORG, claims[0].run, 0, recorded);
    assert_eq!(taken[0].until, recorded.after(rate.per));
    assert_eq!(board.stance(&a, recorded).hold, Some(Hold::Rate(recorded.after(rate.per))));
    assert_eq!(board.pair(NOW.after(rate.per)), [], "a second after it was chosen");
}

#[test]
fn a_run_is_not_created_at_the_risk_of_a_seat() {
    let mut board = shared();
    let wanted = Wanted { step: 0, name: "a", key: "", priority: 1 };
    board.open(ask(1, &["a"], 3), NOW);
    assert!(board.offer(ORG, &wanted, None, true, NOW).is_some(), "no limits, no seats");
    board.rule(&TypeRow { limit: Some(2), ..rule("a") }, None, NOW);
    assert_eq!(board.offer(ORG, &wanted, None, true, NOW), None);
    let offer = board.offer(ORG, &wanted, None, false, NOW);
    assert!(offer.is_some_and(|offer| offer.seat > 0), "a run that exists can be read again");
}
