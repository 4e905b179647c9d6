//! Bugs put in on purpose, to prove that the tests which hunt for such bugs would find them.
//!
//! Compiled to nothing unless the test-only feature `planted_bugs` is on, and inert until a test arms one.
//! Each is a mistake somebody made in a real system of this kind.

names! {
    pub enum Bug {
        /// A callback that comes before its wait is forgotten.
        EarlyCallbackDropped = 1 "early_callback_dropped",
        /// A result that arrives after cancel is applied as if nothing had happened.
        LateResultApplied = 2 "late_result_applied",
        /// A join starts as soon as one parent has settled.
        JoinPerParent = 3 "join_per_parent",
        /// A step with an `if` is skipped with its needs, without asking its condition.
        CascadeIgnoresIf = 4 "cascade_ignores_if",
        /// Attempts are counted when they fail, so one that never answers is free forever.
        AttemptOnFailureOnly = 5 "attempt_on_failure_only",
        /// A commit whose fate is unknown is treated as if nothing had been written.
        UnknownIsFailed = 6 "unknown_is_failed",
        /// … or as if everything had been.
        UnknownIsSuccess = 7 "unknown_is_success",
        /// A finished run can be finished again.
        TerminalOverwritten = 8 "terminal_overwritten",
        /// A step that was running when the server died is not started again.
        OrphanForgotten = 9 "orphan_forgotten",
        /// A timer row is removed when it is read, before the wake-up that replaces it is durable.
        TimerTakenEarly = 10 "timer_taken_early",
        /// A run that cannot be read while it is being recovered is forgotten.
        RecoverySwallowsUnavailable = 11 "recovery_swallows_unavailable",
        /// What a template was filled with is read as a template again.
        TemplateTwice = 12 "template_twice",
        /// One run's conflict takes back what the same batch wrote for others.
        BatchAborted = 13 "batch_aborted",
        /// A node takes its own wall clock for the time.
        TimeFromWall = 14 "time_from_wall",
        /// An event of a later release is passed over instead of stopping its run.
        UnknownEventDropped = 15 "unknown_event_dropped",
        /// After a restart nobody remembers who holds a place at a gate.
        GroupCountsForgotten = 16 "gate_counts_forgotten",
        /// A run that is cancelled keeps its place at its gate.
        GroupNotFreed = 17 "gate_not_freed",
        /// A run that makes others make room does so before it exists: a repeated request kills its own run.
        SupersedeBeforeCommit = 18 "supersede_before_commit",
        /// A retry that comes due starts although its run is paused.
        PauseForgetsRetries = 19 "pause_forgets_retries",
        /// Somebody is told of an end before it is durable.
        NotificationBeforeCommit = 20 "notice_before_commit",
        /// A notice row is removed when it is read, before the run that tells is durable.
        NotificationLost = 21 "notice_lost",
        /// Whoever says that a task is done is believed, whatever token they have.
        FenceDropped = 22 "fence_dropped",
        /// A heartbeat is known by its task alone: a worker that lost its lease keeps the next one's alive.
        HeartbeatById = 23 "heartbeat_by_id",
        /// A heartbeat that comes after the lease has ended brings it back.
        LeaseRevived = 24 "lease_revived",
        /// A limit is a number that is counted up and down, and a lost lease does not count it down.
        SlotLeaked = 25 "slot_leaked",
        /// A worker gets a task before it is durable that it has it.
        LeaseBeforeCommit = 26 "grant_before_commit",
    }
}

#[cfg(feature = "planted")]
thread_local! {
    static ARMED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Is this bug armed on this thread? Always false in a product build.
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
