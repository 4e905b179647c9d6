//! Named moments at which tests kill the process: `ONWARD_CRASH=before_commit:2` aborts it when it gets
//! to `before_commit` for the second time.
//!
//! Compiled to nothing unless the test-only feature `crashpoints` is on, and inert until the environment
//! names a point. The list is here, at the bottom of the crates that act, so that each of them can have
//! points and a test can prove that it reaches every one.

macro_rules! points {
    ($($(#[$meta:meta])* $name:ident = $text:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($(#[$meta])* $name),* }

        impl Point {
            pub const ALL: &'static [Point] = &[$(Point::$name),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Point::$name => $text),* }
            }
        }
    };
}

points! {
    /// A statement of a migration was executed.
    MigrationStatement = "migration_statement",
    /// All of a migration but the line that says so.
    MigrationUnrecorded = "migration_unrecorded",
    /// The secret key is in its file, which does not have its name yet.
    KeyAside = "key_aside",
    /// The database is open and the ends of all chains are known; nothing was written.
    HeadsRecovered = "heads_recovered",
    /// A new process has its number and has not told anybody.
    EpochClaimed = "epoch_claimed",
    /// A run was read back into memory, to be recovered or woken.
    RunLoaded = "run_loaded",

    /// A batch was made, no transaction begun.
    BeforeBegin = "before_begin",
    /// An idempotency key is taken by a run that is not there yet.
    KeyClaimed = "key_claimed",
    /// A record is in the journal without the rows that go with it.
    RecordWritten = "record_written",
    BeforeSnapshot = "before_snapshot",
    AfterSnapshot = "after_snapshot",
    /// A run that parks has its timer.
    TimerWritten = "timer_written",
    /// A run that wakes has lost its timer.
    TimerRemoved = "timer_removed",
    /// A run that parks has left a task where workers find it.
    ReadyWritten = "ready_written",
    /// A task was taken, and its run does not say so yet.
    ReadyRemoved = "ready_removed",
    /// Rows of runs were brought up to date, the recovery position was not.
    RecoveryRows = "recovery_rows",
    BeforeCommit = "before_commit",
    /// Durable; nobody in this process knows.
    AfterCommit = "after_commit",
    /// The recovery position moved.
    RecoveryMoved = "recovery_moved",
    /// The records of a run that is being erased are empty, and it still has its row.
    RecordsEmptied = "records_emptied",

    /// The helper is about to copy the log.
    BeforeCopy = "before_copy",
    AfterCopy = "after_copy",
    /// The writer is about to start the log over.
    BeforeRestart = "before_restart",
    AfterRestart = "after_restart",

    /// A commit was answered, the mailbox does not know.
    BeforeSettle = "before_settle",
    /// Callers have their answers, executors do not have their work.
    BeforeDispatch = "before_dispatch",
    /// The intent is durable, the effect has not begun.
    BeforeEffect = "before_effect",
    /// The effect is done, its result is known here only.
    AfterEffect = "after_effect",
    /// The run of a schedule's moment is durable, the schedule has not moved past it.
    TickStarted = "tick_started",
    /// Told to stop, waiting for steps under way.
    Draining = "draining",
    /// A virtual clock's new offset is stored and not used yet.
    OffsetStored = "offset_stored",
}

#[cfg(not(feature = "crashpoints"))]
#[inline(always)]
pub fn point(_: Point) {}

/// Aborts the process here if the environment says so.
#[cfg(feature = "crashpoints")]
pub fn point(at: Point) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static HITS: AtomicU32 = AtomicU32::new(0);
    if let Some((point, hit)) = armed()
        && *point == at.as_str()
        && HITS.fetch_add(1, Ordering::Relaxed) + 1 == *hit
    {
        std::process::abort();
    }
}

/// Is a point armed? Then thresholds are low, so that a small scenario reaches what lies behind them.
pub fn is_armed() -> bool {
    #[cfg(feature = "crashpoints")]
    return armed().is_some();
    #[cfg(not(feature = "crashpoints"))]
    false
}

/// The point and which hit of it.
#[cfg(feature = "crashpoints")]
fn armed() -> Option<&'static (String, u32)> {
    static ARMED: std::sync::OnceLock<Option<(String, u32)>> = std::sync::OnceLock::new();
    let read = || {
        let wanted = std::env::var("ONWARD_CRASH").ok()?;
        let (point, hit) = wanted.split_once(':')?;
        Some((point.to_owned(), hit.parse().ok()?))
    };
    ARMED.get_or_init(read).as_ref()
}
