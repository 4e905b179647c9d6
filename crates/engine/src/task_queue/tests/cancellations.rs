//! Workers learn of cancelled tasks.

use super::*;

#[test]
fn a_cancellation_is_delivered_on_the_open_claim_or_the_next() {
    let a = queue_key("a", "");
    for is_open in [true, false] {
        let mut task_queue = TaskQueue::default();
        task_queue.enqueue(&a, position(100, 1), NOW);
        task_queue.open_claim(request(1, &["a"], 1), NOW);
        let claims = task_queue.pair(NOW);
        grant_lease(&mut task_queue, &a, &claims[0], NOW);
        assert_eq!(answered(&mut task_queue), [(1, vec![1])]);
        let again = |position| ClaimRequest { worker: "w1".into(), ..request(position, &["a"], 1) };
        if is_open {
            task_queue.open_claim(again(2), NOW);
            task_queue.pair(NOW);
        }
        task_queue.cancel_lease(run(1), 0, 6, false);
        task_queue.cancel_lease(run(1), 0, 7, false);
        task_queue.lease_ended(run(1), 0, 7, NOW);
        if !is_open {
            task_queue.open_claim(request(3, &["a"], 1), NOW);
            task_queue.open_claim(again(2), NOW);
            task_queue.pair(NOW);
        }
        let replies = task_queue.answers();
        assert_eq!(
            replies,
            [(2, ClaimReply { tasks: Vec::new(), cancellations: vec![(run(1), Some(0))] })],
            "{is_open}"
        );
        task_queue.open_claim(again(4), NOW);
        task_queue.pair(NOW);
        assert_eq!(task_queue.answers(), [(4, replies[0].1.clone())], "the reply may have been lost: it is sent again");
        task_queue.open_claim(again(5), NOW);
        task_queue.pair(NOW);
        assert!(task_queue.answers().is_empty(), "but not a third time");
    }
}

#[test]
fn a_task_that_ends_before_the_reply_is_not_delivered() {
    let mut task_queue = TaskQueue::default();
    let a = queue_key("a", "");
    for n in 1..=2 {
        task_queue.enqueue(&a, position(100, n), NOW);
    }
    task_queue.open_claim(request(1, &["a"], 2), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    assert!(task_queue.answers().is_empty(), "another lease is pending");
    task_queue.cancel_lease(run(1), 0, 7, false);
    task_queue.lease_ended(run(1), 0, 7, NOW);
    grant_lease(&mut task_queue, &a, &claims[1], NOW);
    let replies = task_queue.answers();
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].1.tasks.iter().map(|task| task.run).collect::<Vec<_>>(), [run(2)]);
    assert!(replies[0].1.cancellations.is_empty());
}

#[test]
fn a_claim_whose_caller_is_gone_does_not_swallow_a_cancellation() {
    let (mut task_queue, a) = (TaskQueue::default(), queue_key("a", ""));
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open_claim(request(1, &["a"], 1), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![1])]);
    // The worker has abandoned the first of these, which the server has not noticed yet.
    for position in [2, 3] {
        task_queue.open_claim(ClaimRequest { worker: "w1".into(), ..request(position, &["a"], 1) }, NOW);
    }
    task_queue.pair(NOW);
    task_queue.cancel_lease(run(1), 0, 7, false);
    task_queue.lease_ended(run(1), 0, 7, NOW);
    let replies: Vec<u64> =
        task_queue.answers().into_iter().chain(task_queue.answers()).map(|(reply_to, _)| reply_to).collect();
    assert_eq!(replies, [2, 3]);
}

#[test]
fn an_old_cancellation_does_not_stop_a_worker_with_a_new_lease() {
    let (mut task_queue, a) = (TaskQueue::default(), queue_key("a", ""));
    let again = |position, credits| ClaimRequest { worker: "w1".into(), ..request(position, &["a"], credits) };
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open_claim(again(1, 1), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![1])]);
    task_queue.cancel_lease(run(1), 0, 7, false);
    task_queue.lease_ended(run(1), 0, 7, NOW);
    task_queue.open_claim(again(2, 0), NOW);
    task_queue.pair(NOW);
    assert_eq!(task_queue.answers()[0].1.cancellations, [(run(1), Some(0))]);
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open_claim(again(3, 1), NOW);
    let claims = task_queue.pair(NOW);
    grant_as(&mut task_queue, &a, &claims[0], 8, NOW);
    let replies = task_queue.answers();
    assert_eq!((replies[0].1.tasks.len(), &replies[0].1.cancellations[..]), (1, &[][..]));
    task_queue.open_claim(again(4, 0), NOW);
    task_queue.pair(NOW);
    assert!(task_queue.answers().is_empty());
}
