-- What a run shares a limit with: 16 bytes of id, 4 of limit (big-endian), 1 for what happens when it is
-- full. NULL for the many that share none.
ALTER TABLE runs ADD COLUMN gate BLOB;

-- Places are counted from open runs at every start, never from a counter.
CREATE INDEX runs_by_gate ON runs (gate, id) WHERE gate IS NOT NULL AND finished_at IS NULL;

-- Workflows whose runs wait for their turn until somebody resumes them.
CREATE TABLE workflow_pauses (
    org      INTEGER NOT NULL,
    workflow BLOB    NOT NULL,
    at       INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    note     TEXT    NOT NULL,
    PRIMARY KEY (org, workflow)
) STRICT, WITHOUT ROWID;

-- Somebody has yet to be told that a run ended: written with its last record, removed with the first record
-- of the run that tells them.
CREATE TABLE notices (
    org    INTEGER NOT NULL,
    run    BLOB    NOT NULL,
    number INTEGER NOT NULL,
    error  TEXT    NOT NULL, -- why it could not be handed over yet
    PRIMARY KEY (org, run, number)
) STRICT, WITHOUT ROWID;
