//! Workers hear of what nobody wants any more.

use super::*;

#[test]
fn what_is_called_off_is_told_on_the_open_question_or_the_next() {
    let a = key_queue("a", "");
    for is_open in [true, false] {
        let mut task_queue = TaskQueue::default();
        task_queue.enqueue(&a, position(100, 1), NOW);
        task_queue.open(ask(1, &["a"], 1), NOW);
        let claims = task_queue.pair(NOW);
        grant_lease(&mut task_queue, &a, &claims[0], NOW);
        assert_eq!(answered(&mut task_queue), [(1, vec![1])]);
        let again = |position| ClaimRequest { worker: "w1".into(), ..ask(position, &["a"], 1) };
        if is_open {
            task_queue.open(again(2), NOW);
            task_queue.pair(NOW);
        }
        task_queue.cancel_lease(run(1), 0, 6, false);
        task_queue.cancel_lease(run(1), 0, 7, false);
        task_queue.ended(run(1), 0, 7, NOW);
        if !is_open {
            task_queue.open(ask(3, &["a"], 1), NOW);
            task_queue.open(again(2), NOW);
            task_queue.pair(NOW);
        }
        let told = task_queue.answers();
        assert_eq!(told, [(2, ClaimReply { tasks: Vec::new(), cancellations: vec![(run(1), Some(0))] })], "{is_open}");
        task_queue.open(again(4), NOW);
        task_queue.pair(NOW);
        assert_eq!(task_queue.answers(), [(4, told[0].1.clone())], "the answer may have been lost: it is told again");
        task_queue.open(again(5), NOW);
        task_queue.pair(NOW);
        assert!(task_queue.answers().is_empty(), "but not a third time");
    }
}

#[test]
fn what_ends_before_its_worker_is_answered_is_not_handed_out() {
    let mut task_queue = TaskQueue::default();
    let a = key_queue("a", "");
    for n in 1..=2 {
        task_queue.enqueue(&a, position(100, n), NOW);
    }
    task_queue.open(ask(1, &["a"], 2), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    assert!(task_queue.answers().is_empty(), "more is on its way");
    task_queue.cancel_lease(run(1), 0, 7, false);
    task_queue.ended(run(1), 0, 7, NOW);
    grant_lease(&mut task_queue, &a, &claims[1], NOW);
    let told = task_queue.answers();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].1.tasks.iter().map(|task| task.run).collect::<Vec<_>>(), [run(2)]);
    assert!(told[0].1.cancellations.is_empty());
}

#[test]
fn a_question_nobody_is_behind_any_more_does_not_keep_it_from_the_next() {
    let (mut task_queue, a) = (TaskQueue::default(), key_queue("a", ""));
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open(ask(1, &["a"], 1), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![1])]);
    // The worker has broken off the first of these, which nobody has noticed yet.
    for position in [2, 3] {
        task_queue.open(ClaimRequest { worker: "w1".into(), ..ask(position, &["a"], 1) }, NOW);
    }
    task_queue.pair(NOW);
    task_queue.cancel_lease(run(1), 0, 7, false);
    task_queue.ended(run(1), 0, 7, NOW);
    let told: Vec<u64> =
        task_queue.answers().into_iter().chain(task_queue.answers()).map(|(reply_to, _)| reply_to).collect();
    assert_eq!(told, [2, 3]);
}

#[test]
fn whoever_has_it_again_is_not_told_to_stop_because_of_the_last_time() {
    let (mut task_queue, a) = (TaskQueue::default(), key_queue("a", ""));
    let again = |position, credits| ClaimRequest { worker: "w1".into(), ..ask(position, &["a"], credits) };
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open(again(1, 1), NOW);
    let claims = task_queue.pair(NOW);
    grant_lease(&mut task_queue, &a, &claims[0], NOW);
    assert_eq!(answered(&mut task_queue), [(1, vec![1])]);
    task_queue.cancel_lease(run(1), 0, 7, false);
    task_queue.ended(run(1), 0, 7, NOW);
    task_queue.open(again(2, 0), NOW);
    task_queue.pair(NOW);
    assert_eq!(task_queue.answers()[0].1.cancellations, [(run(1), Some(0))]);
    task_queue.enqueue(&a, position(100, 1), NOW);
    task_queue.open(again(3, 1), NOW);
    let claims = task_queue.pair(NOW);
    grant_as(&mut task_queue, &a, &claims[0], 8, NOW);
    let told = task_queue.answers();
    assert_eq!((told[0].1.tasks.len(), &told[0].1.cancellations[..]), (1, &[][..]));
    task_queue.open(again(4, 0), NOW);
    task_queue.pair(NOW);
    assert!(task_queue.answers().is_empty());
}
