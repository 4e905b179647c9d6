-- What a run has yet to consume, written without its records: an input whose record kept losing against other nodes.
-- The record that consumes a row stores the answer in it. The node whose caller waits for the answer deletes the row.
CREATE TABLE inbox (
    org        integer NOT NULL,
    run        uuid    NOT NULL,
    id         uuid    NOT NULL,
    kind       text    NOT NULL COLLATE "C",
    body       bytea   NOT NULL, -- the message that the kind says
    written_at bigint  NOT NULL,
    answer     bytea,            -- NULL until the row is consumed
    PRIMARY KEY (org, run, id)
);
