-- A definition may be lowered differently by a later release. Runs keep the plan they began with: a plan is found by the
-- hash of its definition and the number of its lowering. 0 is the lowering of all earlier releases.
ALTER TABLE runs ADD COLUMN lowering INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workflows ADD COLUMN lowering INTEGER NOT NULL DEFAULT 0;

CREATE TABLE lowered (
    org      INTEGER NOT NULL,
    hash     BLOB    NOT NULL,
    lowering INTEGER NOT NULL,
    source   BLOB    NOT NULL,
    plan     BLOB    NOT NULL,
    PRIMARY KEY (org, hash, lowering)
) STRICT, WITHOUT ROWID;
INSERT INTO lowered SELECT org, hash, 0, source, plan FROM definitions;
DROP TABLE definitions;
ALTER TABLE lowered RENAME TO definitions;
