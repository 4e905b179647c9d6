-- Work for whoever claims it: the tasks that wait, their types, and the workers that have been seen. Leases
-- are events of their runs and nothing else, so the table that was meant for them goes.
DROP TABLE grants;

-- It is not in memory, whatever its status: until now a status alone said so.
ALTER TABLE runs ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET parked = 1 WHERE status IN ('pending', 'waiting');
-- Since when no list shows it.
ALTER TABLE runs ADD COLUMN deleted_at INTEGER;

-- A start looks for what is not parked, beside any number of tasks that nobody has claimed.
DROP INDEX runs_by_status;
CREATE INDEX runs_by_status ON runs (status, parked, id) WHERE status <> 'completed';
-- Runs whose turn has not come; tasks that only wait for their time have a timer.
CREATE INDEX runs_queued ON runs (id) WHERE status = 'pending' AND form <> 'task';

-- Tasks nobody has claimed, of parked runs. The key is the order in which a lane is worked off.
CREATE TABLE ready (
    org      INTEGER NOT NULL,
    name     TEXT    NOT NULL, -- the type
    key      TEXT    NOT NULL, -- what it shares limits with; '' for nothing
    priority INTEGER NOT NULL,
    run      BLOB    NOT NULL,
    step     INTEGER NOT NULL,
    PRIMARY KEY (org, name, key, priority, run, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE types (
    org           INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    runtime       TEXT,
    description   TEXT,
    enabled       INTEGER NOT NULL,
    paused_at     INTEGER, -- with who and why, or all three are NULL
    paused_by     TEXT,
    pause_note    TEXT,
    max_leased    INTEGER,
    max_per_key   INTEGER,
    rate_limit    INTEGER, -- with the two below, or all three are NULL
    rate_per_us   INTEGER,
    rate_is_keyed INTEGER,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (org, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    org        INTEGER NOT NULL,
    id         TEXT    NOT NULL,
    types      TEXT    NOT NULL, -- a JSON list
    runtime    TEXT,
    version    TEXT,
    slots      INTEGER,
    first_seen INTEGER NOT NULL,
    last_seen  INTEGER NOT NULL,
    PRIMARY KEY (org, id)
) STRICT, WITHOUT ROWID;
