//! Every kind of problem `onward verify` can find: a stable code, the group of promises it breaks, and a sentence.
//!
//! The table in `docs/reference/cli.md` is this one; a test holds them equal.

macro_rules! codes {
    ($($name:ident $code:literal $promise:literal $sentence:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $($name),* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code),* }
            }
            /// The group of promises it belongs to.
            pub fn promise(self) -> &'static str {
                match self { $(Code::$name => $promise),* }
            }
            pub fn sentence(self) -> &'static str {
                match self { $(Code::$name => $sentence),* }
            }
        }
    };
}

codes! {
    DatabaseDamaged "database_damaged" "storage" "the database's own integrity check found damage";
    ForeignKey "foreign_key" "storage" "a row refers to a row of another table that is not there";
    SchemaUnknown "schema_unknown" "storage" "the schema is not the one this release knows";
    RowUnreadable "row_unreadable" "storage" "a column holds a value that cannot be decoded";
    SettingDamaged "setting_damaged" "storage" "a setting that the server needs at its start has an invalid value";
    Dangling "dangling" "storage" "a row names a run or workflow that does not exist";
    OtherOrganisation "other_organisation" "storage" "a row of one organisation names a run of another";

    ChainBroken "chain_broken" "history" "a run's records cannot be followed from the last to the first";
    RecordDamaged "record_damaged" "history" "a record's checksum or encoding is wrong";
    RecordNewer "record_newer" "history" "a record was written by a later release";
    EventNumbers "event_numbers" "history" "a run's events are not numbered 1, 2, 3 …";
    JournalOrphan "journal_orphan" "history" "a record belongs to no run's history";
    JournalGap "journal_gap" "history" "a position of the journal has no record";
    TimeBackwards "time_backwards" "history" "a record is older than the one before it";

    SnapshotDiffers "snapshot_differs" "state" "a snapshot is not what the records before it add up to";
    RowDiffers "row_differs" "state" "a run's row is not what its records add up to";
    LabelsDiffer "labels_differ" "state" "a run's labels are not those it was created with";
    Conservation "conservation" "state" "runs created are not runs ended plus runs open";

    EventAfterEnd "event_after_end" "rules" "an event follows the end of the run";
    EventOutOfPlace "event_out_of_place" "rules" "an event does not follow from the state before it";
    WrongEnd "wrong_end" "rules" "the run's end does not follow from how its steps ended";
    SettledTwice "settled_twice" "rules" "a step that had ended ended again";
    StartedTwice "started_twice" "rules" "a step was started while it was under way or after it had ended";
    AttemptNumbers "attempt_numbers" "rules" "attempts are not numbered 1, 2, 3 …, or a result names another attempt";
    AttemptsOverPolicy "attempts_over_policy" "rules" "a step was tried more often than its retry policy allows";
    StartedTooSoon "started_too_soon" "rules" "a step was decided before everything it needs had ended";
    WrongDecision "wrong_decision" "rules" "a step was started or skipped against its needs or condition";
    TimerEarly "timer_early" "rules" "a timer fired before its time, or was set for another time";
    AcceptedLate "accepted_late" "rules" "a callback, signal, decision or resume was accepted after its wait's deadline";
    LimitExceeded "limit_exceeded" "rules" "more runs of a concurrency group were open at once than its limit allows";
    Unfinished "unfinished" "rules" "a decision is due that no input will trigger: the run is stuck";

    TimerMissing "timer_missing" "wake-ups" "a waiting run has no timer row for its next due time";
    TimerStray "timer_stray" "wake-ups" "a timer row that no run waits for";
    ReadyMissing "ready_missing" "wake-ups" "a task of an evicted run can be claimed but is not in the task queue";
    ReadyStray "ready_stray" "wake-ups" "a row of the task queue whose task cannot be claimed, or that is at the wrong position";
    WaitMissing "wait_missing" "wake-ups" "a callback step has no row with its token";
    WaitStray "wait_stray" "wake-ups" "a callback row of a step that takes no callback";
    OpenWaitMissing "open_wait_missing" "wake-ups" "a step waits for a signal, an approval or to be resumed, and has no row that says so";
    OpenWaitStray "open_wait_stray" "wake-ups" "a row says that a step waits, and it does not";
    InboxStray "inbox_stray" "wake-ups" "a request in the inbox whose run does not exist";
    NotificationMissing "notification_missing" "wake-ups" "a run has ended, and one of its notifications is neither waiting nor delivered";
    NotificationStray "notification_stray" "wake-ups" "a notification waits that its run does not send";
    TriggerWrong "trigger_wrong" "wake-ups" "a trigger's settings cannot be read, or its next fire time is missing or should not be set";

    ChildMissing "child_missing" "families" "a step waits for a child that does not exist and is not asked for";
    ChildEndLost "child_end_lost" "families" "a step waits for news of its child, and no row will bring them";
    ChildLeft "child_left" "families" "a child that ends with its parent goes on, and no row will end it";
    ChildStray "child_stray" "families" "the children that exist are not those that their parents asked for";

    PayloadMissing "payload_missing" "payloads" "an event refers to a stored payload that is missing or incomplete";
    PayloadStray "payload_stray" "payloads" "a stored payload that no event refers to";

    VersionMissing "version_missing" "versions" "the version a run or workflow names does not exist, or has another hash";
    VersionLine "version_line" "versions" "a workflow's versions are not numbered 1, 2, 3 … up to its own";
    DefinitionMissing "definition_missing" "versions" "the definition a run or version names does not exist";
    DefinitionDamaged "definition_damaged" "versions" "a definition's plan or source cannot be read";
    DefinitionHash "definition_hash" "versions" "a definition's source is not what its hash names";
    OriginDiffers "origin_differs" "versions" "a run was created with another version than its row says";
    KeyWrong "key_wrong" "versions" "an idempotency key's scope is neither the workflow, the type nor the trigger of the run it made";

    CheckFailed "check_failed" "storage" "the check itself failed on a run";
}
