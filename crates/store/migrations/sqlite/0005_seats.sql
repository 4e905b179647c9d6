-- What tasks that workers have take up of the limits of their types: see `Seat`.
CREATE TABLE seats (
    org    INTEGER NOT NULL,
    name   TEXT    NOT NULL, -- the type
    of     INTEGER NOT NULL, -- 0 its limit, 1 the limit of its keys, 2 its rate
    key    TEXT    NOT NULL, -- '' for what all keys share
    number INTEGER NOT NULL,
    run    BLOB    NOT NULL,
    step   INTEGER NOT NULL,
    until  INTEGER NOT NULL, -- free again from then on
    PRIMARY KEY (org, name, of, key, number)
) STRICT, WITHOUT ROWID;
