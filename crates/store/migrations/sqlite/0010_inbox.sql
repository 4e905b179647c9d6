-- What a run has yet to consume, written without its records: an input whose record kept losing against other nodes.
-- The record that consumes a row stores the answer in it. The node whose caller waits for the answer deletes the row.
CREATE TABLE inbox (
    org        INTEGER NOT NULL,
    run        BLOB    NOT NULL,
    id         BLOB    NOT NULL,
    kind       TEXT    NOT NULL,
    body       BLOB    NOT NULL, -- the message that the kind says
    written_at INTEGER NOT NULL,
    answer     BLOB,             -- NULL until the row is consumed
    PRIMARY KEY (org, run, id)
) STRICT, WITHOUT ROWID;
