-- Every open wait, so that the inbox of approvals and the runs that wait for a signal are one indexed query.
CREATE TABLE open_waits (
    org      INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    name     TEXT    NOT NULL, -- of a signal; empty for other kinds
    run      BLOB    NOT NULL,
    step     INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    PRIMARY KEY (org, kind, name, run, step)
) STRICT, WITHOUT ROWID;

-- Tokens of steps that are opened later than their run: a run is erased without knowing them.
CREATE INDEX waits_of_run ON waits (org, run);

-- The run whose record wrote the row; NULL for a request. Neither run is deleted before the row is consumed.
ALTER TABLE inbox ADD COLUMN sender BLOB;
CREATE INDEX inbox_of_sender ON inbox (org, sender) WHERE sender IS NOT NULL;
