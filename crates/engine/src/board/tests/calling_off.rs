//! Workers hear of what nobody wants any more.

use super::*;

#[test]
fn what_is_called_off_is_told_on_the_open_question_or_the_next() {
    let a = lane("a", "");
    for is_open in [true, false] {
        let mut board = Board::default();
        board.post(&a, place(100, 1), NOW);
        board.open(ask(1, &["a"], 1), NOW);
        let claims = board.pair(NOW);
        grant(&mut board, &a, &claims[0], NOW);
        assert_eq!(answered(&mut board), [(1, vec![1])]);
        let again = |place| Ask { worker: "w1".into(), ..ask(place, &["a"], 1) };
        if is_open {
            board.open(again(2), NOW);
            board.pair(NOW);
        }
        board.call_off(run(1), 0, 6, false);
        board.call_off(run(1), 0, 7, false);
        board.ended(run(1), 0, 7, NOW);
        if !is_open {
            board.open(ask(3, &["a"], 1), NOW);
            board.open(again(2), NOW);
            board.pair(NOW);
        }
        let told = board.answers();
        assert_eq!(told, [(2, Handed { tasks: Vec::new(), called_off: vec![(run(1), Some(0))] })], "{is_open}");
        board.open(again(4), NOW);
        board.pair(NOW);
        assert_eq!(board.answers(), [(4, told[0].1.clone())], "the answer may have been lost: it is told again");
        board.open(again(5), NOW);
        board.pair(NOW);
        assert!(board.answers().is_empty(), "but not a third time");
    }
}

#[test]
fn what_ends_before_its_worker_is_answered_is_not_handed_out() {
    let mut board = Board::default();
    let a = lane("a", "");
    for n in 1..=2 {
        board.post(&a, place(100, n), NOW);
    }
    board.open(ask(1, &["a"], 2), NOW);
    let claims = board.pair(NOW);
    grant(&mut board, &a, &claims[0], NOW);
    assert!(board.answers().is_empty(), "more is on its way");
    board.call_off(run(1), 0, 7, false);
    board.ended(run(1), 0, 7, NOW);
    grant(&mut board, &a, &claims[1], NOW);
    let told = board.answers();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].1.tasks.iter().map(|task| task.run).collect::<Vec<_>>(), [run(2)]);
    assert!(told[0].1.called_off.is_empty());
}

#[test]
fn a_question_nobody_is_behind_any_more_does_not_keep_it_from_the_next() {
    let (mut board, a) = (Board::default(), lane("a", ""));
    board.post(&a, place(100, 1), NOW);
    board.open(ask(1, &["a"], 1), NOW);
    let claims = board.pair(NOW);
    grant(&mut board, &a, &claims[0], NOW);
    assert_eq!(answered(&mut board), [(1, vec![1])]);
    // The worker has broken off the first of these, which nobody has noticed yet.
    for place in [2, 3] {
        board.open(Ask { worker: "w1".into(), ..ask(place, &["a"], 1) }, NOW);
    }
    board.pair(NOW);
    board.call_off(run(1), 0, 7, false);
    board.ended(run(1), 0, 7, NOW);
    let told: Vec<u64> = board.answers().into_iter().chain(board.answers()).map(|(ticket, _)| ticket).collect();
    assert_eq!(told, [2, 3]);
}

#[test]
fn whoever_has_it_again_is_not_told_to_stop_because_of_the_last_time() {
    let (mut board, a) = (Board::default(), lane("a", ""));
    let again = |place, credits| Ask { worker: "w1".into(), ..ask(place, &["a"], credits) };
    board.post(&a, place(100, 1), NOW);
    board.open(again(1, 1), NOW);
    let claims = board.pair(NOW);
    grant(&mut board, &a, &claims[0], NOW);
    assert_eq!(answered(&mut board), [(1, vec![1])]);
    board.call_off(run(1), 0, 7, false);
    board.ended(run(1), 0, 7, NOW);
    board.open(again(2, 0), NOW);
    board.pair(NOW);
    assert_eq!(board.answers()[0].1.called_off, [(run(1), Some(0))]);
    board.post(&a, place(100, 1), NOW);
    board.open(again(3, 1), NOW);
    let claims = board.pair(NOW);
    grant_as(&mut board, &a, &claims[0], 8, NOW);
    let told = board.answers();
    assert_eq!((told[0].1.tasks.len(), &told[0].1.called_off[..]), (1, &[][..]));
    board.open(again(4, 0), NOW);
    board.pair(NOW);
    assert!(board.answers().is_empty());
}
