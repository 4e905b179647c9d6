//! What matching a claim with a task costs: not more with many claims, keys or tasks.

use super::*;

/// How many other claims, keys at their limit and waiting tasks there are.
#[derive(Clone, Copy, Default)]
struct Others {
    claims: u64,
    full_keys: u64,
    tasks: u64,
}

/// What the queue looks at while one worker gets a task, reports it, and gets the next task of the same run.
fn cost(others: Others) -> usize {
    let mut task_queue = TaskQueue::default();
    task_queue.apply_type(&TypeRow { limit_per_key: Some(1), ..type_row("a") }, None, NOW);
    task_queue.apply_type(&TypeRow { runtime: Some("python".into()), ..type_row("b") }, None, NOW);
    for n in 0..others.full_keys {
        let queue = queue_key("a", &format!("key {n}"));
        for task in [2 * n, 2 * n + 1] {
            task_queue.enqueue(&queue, position(1, 1_000_000 + task), NOW);
        }
        task_queue.open_claim(request(n, &["a"], 1), NOW);
        let claims = task_queue.pair(NOW);
        grant_lease(&mut task_queue, &queue, &claims[0], NOW);
        assert_eq!(answered(&mut task_queue).len(), 1);
    }
    for n in 0..others.tasks {
        task_queue.enqueue(&queue_key("c", ""), position(100, n), NOW);
    }
    for n in 0..others.claims {
        // None of them takes a task of this test: another type, another runtime.
        let claim = request(100_000 + n, &["b"], 1);
        task_queue.open_claim(ClaimRequest { runtime: Some("node".into()), ..claim }, NOW);
        task_queue.open_claim(request(200_000 + n, &["d"], 1), NOW);
    }
    task_queue.pair(NOW);

    let before = LOOKED_AT.get();
    let queue = queue_key("c", "");
    task_queue.open_claim(request(300_000, &["c"], 1), NOW);
    task_queue.enqueue(&queue, position(1, 900_000), NOW);
    let claims = task_queue.pair(NOW);
    assert_eq!(claims.iter().map(|claim| number(claim.run)).collect::<Vec<_>>(), [900_000]);
    grant_lease(&mut task_queue, &queue, &claims[0], NOW);
    assert_eq!(answered(&mut task_queue), [(300_000, vec![900_000])]);
    let python = ClaimRequest { runtime: Some("python".into()), ..request(300_001, &["b", "d"], 1) };
    task_queue.open_claim(ClaimRequest { worker: "w300000".into(), ..python }, NOW);
    task_queue.pair(NOW);
    let offer = task_queue.offer(ORG, &wanted("d", 1), Some("w300000"), false, NOW);
    assert_eq!(offer.map(|offer| offer.worker).as_deref(), Some("w300000"), "before the claims that came earlier");
    assert!(task_queue.offer(ORG, &wanted("b", 1), None, false, NOW).is_none(), "no claim has the runtime");
    task_queue.cancel_lease(run(900_000), 0, 7, true);
    LOOKED_AT.get() - before
}

#[test]
fn the_cost_of_a_claim_does_not_grow_with_other_claims_full_keys_or_waiting_tasks() {
    let few = Others { claims: 2, full_keys: 2, tasks: 2 };
    let expected = cost(few);
    assert!(expected > 0);
    for many in [Others { claims: 2_000, ..few }, Others { full_keys: 2_000, ..few }, Others { tasks: 2_000, ..few }] {
        assert_eq!(cost(many), expected);
    }
}

#[test]
fn a_burst_of_tasks_looks_at_each_of_many_claims_once() {
    let looked_at = |claims: u64| {
        let mut task_queue = TaskQueue::default();
        task_queue.enqueue(&queue_key("a", ""), position(1, 1), NOW);
        task_queue.open_claim(request(0, &["a"], 1), NOW);
        assert_eq!(claimed(&mut task_queue, NOW), [1]);
        for n in 1..=claims {
            task_queue.open_claim(request(n, &["a"], 1), NOW);
        }
        let before = LOOKED_AT.get();
        // Before they have been paired, and without a commit in between.
        for n in 1..=claims {
            let offer = task_queue.offer(ORG, &wanted("a", 1), None, false, NOW);
            assert_eq!(offer.map(|offer| offer.worker), Some(format!("w{n}")), "oldest first");
        }
        assert!(task_queue.offer(ORG, &wanted("a", 1), None, false, NOW).is_none());
        LOOKED_AT.get() - before
    };
    assert!(looked_at(1_000) <= 101 * looked_at(10));
}

#[test]
fn a_failed_read_of_limit_slots_is_requested_again_by_the_next_claim() {
    let mut task_queue = shared();
    task_queue.apply_type(&TypeRow { limit: Some(2), ..type_row("a") }, None, NOW);
    let a = queue_key("a", "");
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.slot_contested(&slot(0).slot);
    assert_eq!(task_queue.slot_reads().len(), 1);
    task_queue.limit_slots_read(ORG, "a", None, NOW);
    assert!(task_queue.slot_reads().is_empty(), "not at once");
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    assert!(claimed(&mut task_queue, NOW).is_empty(), "the slots are not known");
    assert_eq!(task_queue.slot_reads(), [(ORG, "a".to_owned())]);
    task_queue.limit_slots_read(ORG, "a", Some(&[slot(0)]), NOW);
    assert_eq!(claimed(&mut task_queue, NOW), [1]);
}
