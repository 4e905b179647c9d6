//! Deliberate bugs that prove that the tests find such bugs.
//!
//! They compile to nothing unless the test-only feature `planted` is on, and do nothing until a test arms one. Each
//! is a mistake that a real system of this kind has made.

names! {
    pub enum Bug {
        /// A callback that arrives before its step waits is dropped.
        EarlyCallbackDropped = 1 "early_callback_dropped",
        /// A result that arrives after the run was cancelled is applied.
        LateResultApplied = 2 "late_result_applied",
        /// A join starts as soon as one parent has settled.
        JoinPerParent = 3 "join_per_parent",
        /// A step with an `if` is skipped when a need failed, without evaluating the condition.
        CascadeIgnoresIf = 4 "cascade_ignores_if",
        /// Attempts are counted when they fail, so an attempt that never answers is not counted.
        AttemptOnFailureOnly = 5 "attempt_on_failure_only",
        /// A commit with an unknown outcome is treated as failed.
        UnknownIsFailed = 6 "unknown_is_failed",
        /// A commit with an unknown outcome is treated as successful.
        UnknownIsSuccess = 7 "unknown_is_success",
        /// A run that has ended can end again.
        TerminalOverwritten = 8 "terminal_overwritten",
        /// A step that was executing when the server died is not started again.
        OrphanForgotten = 9 "orphan_forgotten",
        /// A timer row is removed when it is read, before the wake-up that replaces it is durable.
        TimerTakenEarly = 10 "timer_taken_early",
        /// Recovery skips a run that cannot be read at the moment, instead of retrying.
        RecoverySwallowsUnavailable = 11 "recovery_swallows_unavailable",
        /// A value that fills a template is itself read as a template.
        TemplateTwice = 12 "template_twice",
        /// The conflict of one run rolls back the whole batch.
        BatchAborted = 13 "batch_aborted",
        /// A node uses its own wall clock as engine time.
        TimeFromWall = 14 "time_from_wall",
        /// An event of a later release is ignored instead of stopping its run.
        UnknownEventDropped = 15 "unknown_event_dropped",
        /// A restart forgets which runs are open in a concurrency group.
        GroupCountsForgotten = 16 "group_counts_forgotten",
        /// A cancelled run still counts as open in its concurrency group.
        GroupNotFreed = 17 "group_not_freed",
        /// A run with `on_conflict: cancel_running` cancels the others before it is durable, so a repeated request
        /// cancels its own run.
        SupersedeBeforeCommit = 18 "supersede_before_commit",
        /// A due retry starts although its run is paused.
        PauseForgetsRetries = 19 "pause_forgets_retries",
        /// A notification is sent before the end of the run is durable.
        NotificationBeforeCommit = 20 "notification_before_commit",
        /// A notification row is removed when it is read, before the run that delivers it is durable.
        NotificationLost = 21 "notification_lost",
        /// A report that a task is done is accepted with any claim token.
        FenceDropped = 22 "fence_dropped",
        /// A heartbeat is matched by its task alone, so a worker that lost its lease extends the lease of the next.
        HeartbeatById = 23 "heartbeat_by_id",
        /// A heartbeat after the end of a lease revives it.
        LeaseRevived = 24 "lease_revived",
        /// A limit is a counter, and a lost lease does not decrement it.
        SlotLeaked = 25 "slot_leaked",
        /// A worker gets a task before its lease is durable.
        LeaseBeforeCommit = 26 "lease_before_commit",
        /// A signal that arrives before its step waits is not looked for when the step begins.
        EarlySignalLost = 27 "early_signal_lost",
        /// A signal that a step has read stays unread for the next step.
        SignalReadTwice = 28 "signal_read_twice",
        /// A first-join starts again when another of its needs succeeds.
        FirstJoinTwice = 29 "first_join_twice",
        /// A decision is applied although the deadline of the approval has passed.
        DecisionAfterDeadline = 30 "decision_after_deadline",
        /// An idempotency key of one workflow is taken for all workflows.
        KeyIsGlobal = 31 "key_is_global",
        /// The number of a new iteration is how many have ended, not how many were opened.
        IterationReused = 32 "iteration_reused",
        /// The row that asks for a child stays when the child exists, so the child is started again.
        ChildStartedTwice = 33 "child_started_twice",
        /// A run that was cancelled does not tell its parent that it has ended.
        ChildEndLost = 34 "child_end_lost",
        /// A run is deleted by its status alone, although it still owes another run a message.
        ErasedUnderRows = 35 "erased_under_rows",
        /// A run that has a parent itself does not close its children, so a cancel does not reach its grandchildren.
        GrandchildMissed = 36 "grandchild_missed",
        /// A run that is read again gets the current version of its workflow instead of its own.
        VersionNotPinned = 37 "version_not_pinned",
        /// The next fire time of a schedule is computed from now, so what came due meanwhile is skipped.
        NextFireTimeFromNow = 38 "next_fire_time_from_now",
        /// The step that succeeded first is undone first.
        UndoInOrder = 39 "undo_in_order",
        /// A run that is read again forgets what it has undone already.
        UndoneTwice = 40 "undone_twice",
        /// A failing undo ends the run, and the rest is not undone.
        UndoStopsAtFailure = 41 "undo_stops_at_failure",
        /// Undo begins although an attempt that was called off may still be at work.
        UndoBesideAttempt = 42 "undo_beside_attempt",
        /// An attempt that was called off and succeeds all the same is not undone.
        LateSuccessKept = 43 "late_success_kept",
        /// A retry of a run that failed runs the steps again that had succeeded.
        RetryRepeatsAll = 44 "retry_repeats_all",
        /// A step that failed gets another idempotency key when its run is retried.
        KeyChangedByRetry = 45 "key_changed_by_retry",
        /// The key of a notification does not say which end of the run it is about.
        SecondEndSilent = 46 "second_end_silent",
        /// The result of an attempt that was called off replaces the one that an operator gave.
        LateResultOverrides = 47 "late_result_overrides",
        /// An operator can decide about a step that has settled.
        OverriddenTwice = 48 "overridden_twice",
    }
}

#[cfg(feature = "planted")]
thread_local! {
    static ARMED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is armed on this thread. Always false in a product build.
#[inline(always)]
pub fn is(_bug: Bug) -> bool {
    #[cfg(feature = "planted")]
    return ARMED.get() == Some(_bug);
    #[cfg(not(feature = "planted"))]
    false
}

/// Arms one bug, or none, on this thread.
#[cfg(feature = "planted")]
pub fn arm(bug: Option<Bug>) {
    ARMED.set(bug);
}
