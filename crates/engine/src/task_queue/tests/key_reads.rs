//! Reads of the keys of a type, and what changes meanwhile.

use super::*;

#[test]
fn a_task_that_becomes_ready_while_the_keys_are_read_is_not_forgotten() {
    for is_wanted in [true, false] {
        let mut task_queue = shared();
        task_queue.mark_unread_keys(vec![(ORG, "a".into())]);
        task_queue.open_claim(request(1, &["a"], 1), NOW);
        assert_eq!(task_queue.pair(NOW), []);
        assert_eq!(task_queue.key_reads(), [(ORG, "a".into(), None)]);
        if !is_wanted {
            task_queue.withdraw(1);
        }
        task_queue.ready_elsewhere(&queue_key("a", "k"), NOW);
        if !is_wanted {
            task_queue.open_claim(request(2, &["a"], 1), NOW);
        }
        // The read began before the task was there.
        task_queue.keys_read(ORG, "a", Some(vec![]), NOW);
        task_queue.pair(NOW);
        let (refills, reads) = (task_queue.refills(), task_queue.key_reads());
        assert!(!is_wanted || refills.contains(&(queue_key("a", "k"), None)), "{refills:?}");
        assert_eq!(reads, [(ORG, "a".into(), None)], "the keys are read once more");
        task_queue.keys_read(ORG, "a", Some(vec!["k".into()]), NOW);
        task_queue.pair(NOW);
        task_queue.refills();
        task_queue.refilled(&queue_key("a", "k"), Some(vec![position(1, 5)]), NOW);
        assert_eq!(task_queue.pair(NOW).len(), 1);
    }
}
