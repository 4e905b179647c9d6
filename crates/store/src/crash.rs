//! Named points in the code where tests kill the process: `ONWARD_CRASH=before_commit:2` aborts it when it reaches
//! `before_commit` for the second time. Also a wall clock that is wrong ([`wall_error`]).
//!
//! Compiled to nothing unless the test-only feature `crashpoints` is on, and inert until the environment variable names
//! a point. The list is in this crate because every crate with crash points depends on it. One list lets a test prove
//! that it reaches every point.

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
    /// A migration was executed and is not recorded as applied yet.
    MigrationUnrecorded = "migration_unrecorded",
    /// The secret key is in a temporary file, which was not renamed yet.
    KeyAside = "key_aside",
    /// The database is open and the last record of every active run is known; nothing was written.
    HeadsRecovered = "heads_recovered",
    /// A new process has claimed its epoch and has not used it yet.
    EpochClaimed = "epoch_claimed",
    /// A run was loaded into memory, to be recovered or woken.
    RunLoaded = "run_loaded",

    /// A batch is ready, and its transaction has not begun.
    BeforeBegin = "before_begin",
    /// A new run has taken its idempotency key, and its row is not written yet.
    KeyClaimed = "key_claimed",
    /// A record is in the journal without the rows that go with it.
    RecordWritten = "record_written",
    BeforeSnapshot = "before_snapshot",
    AfterSnapshot = "after_snapshot",
    /// The timer of a run that is being evicted was written.
    TimerWritten = "timer_written",
    /// The timer of a run that wakes was removed.
    TimerRemoved = "timer_removed",
    /// The `ready` row of a run that is being evicted was written.
    ReadyWritten = "ready_written",
    /// The `ready` row of a claimed task was removed, and the row of its run is not updated yet.
    ReadyRemoved = "ready_removed",
    /// The row of a new wait was written.
    WaitWritten = "wait_written",
    /// The row of a wait that ended was removed.
    WaitRemoved = "wait_removed",
    /// A row for the inbox of another run was written, in the transaction of the record that causes it.
    InboxSent = "inbox_sent",
    /// A row of the inbox was removed, in the transaction of the record that consumes it.
    InboxConsumed = "inbox_consumed",
    /// The rows of active runs were brought up to date, and the recovery position was not moved yet.
    RecoveryRows = "recovery_rows",
    BeforeCommit = "before_commit",
    /// The transaction is durable, and this process has not acted on it yet.
    AfterCommit = "after_commit",
    /// The recovery position moved.
    RecoveryMoved = "recovery_moved",
    /// The records of a run that is being deleted are empty, and its row still exists.
    RecordsEmptied = "records_emptied",

    /// The checkpoint thread is about to copy the write-ahead log.
    BeforeCopy = "before_copy",
    AfterCopy = "after_copy",
    /// The writer is about to restart the write-ahead log.
    BeforeRestart = "before_restart",
    AfterRestart = "after_restart",

    /// The store answered a commit, and the mailbox has not settled it yet.
    BeforeSettle = "before_settle",
    /// Callers have their replies, and executors have not received their requests.
    BeforeDispatch = "before_dispatch",
    /// The start of a step is durable, and its effect has not begun.
    BeforeEffect = "before_effect",
    /// The effect is done, and its result is not committed yet.
    AfterEffect = "after_effect",
    /// The run of a fire time is durable, and the schedule has not advanced past that fire time.
    TickStarted = "tick_started",
    /// The row that asks for a child is durable, and the child does not exist yet.
    BeforeChild = "before_child",
    /// The row that closes a child is durable, and the child was not looked for.
    BeforeClosing = "before_closing",
    /// A caller's input that met too many conflicts is a row, and its caller is not remembered yet.
    InputDeferred = "input_deferred",
    /// A row that no record consumes has its answer.
    InboxAnswered = "inbox_answered",
    /// The answers of rows were read and removed, and their callers do not have them yet.
    AnswersTaken = "answers_taken",
    /// A webhook delivery has signalled one more run, and the delivery is not in the log yet.
    SignalSent = "signal_sent",
    /// The process was told to stop and waits for executing steps.
    Draining = "draining",
    /// The new offset of a virtual clock is stored and not used yet.
    OffsetStored = "offset_stored",
}

#[cfg(not(feature = "crashpoints"))]
#[inline(always)]
pub fn point(_: Point) {}

/// Aborts the process here if the environment variable names this point and this is the hit it asks for.
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

/// Is a point armed? If so, thresholds are low, so that a small scenario reaches the code behind them.
pub fn is_armed() -> bool {
    #[cfg(feature = "crashpoints")]
    return armed().is_some();
    #[cfg(not(feature = "crashpoints"))]
    false
}

/// How wrong a test wants the wall clock to be, in microseconds: the content of the file that `ONWARD_WALL_ERROR` names.
pub fn wall_error() -> i64 {
    #[cfg(feature = "crashpoints")]
    {
        static FILE: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
        let file = FILE.get_or_init(|| std::env::var_os("ONWARD_WALL_ERROR")).as_deref();
        let text = file.and_then(|file| std::fs::read_to_string(file).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
    #[cfg(not(feature = "crashpoints"))]
    0
}

/// The armed point and the number of the hit at which the process aborts.
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
