-- A delivery can give a signal to runs that are open (`signalled`). A CHECK cannot be changed, so the table is made anew.
CREATE TABLE new_deliveries (
    org     INTEGER NOT NULL,
    trigger BLOB    NOT NULL,
    seq     INTEGER NOT NULL, -- counts up per trigger
    id      TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    outcome TEXT    NOT NULL CHECK (outcome IN ('started', 'queued', 'skipped', 'rejected', 'signalled')),
    reason  TEXT    NOT NULL,
    run     BLOB,
    nominal INTEGER,
    PRIMARY KEY (org, trigger, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO new_deliveries SELECT org, trigger, seq, id, at, outcome, reason, run, nominal FROM deliveries;
DROP TABLE deliveries;
ALTER TABLE new_deliveries RENAME TO deliveries;
CREATE UNIQUE INDEX deliveries_by_id ON deliveries (org, trigger, id);
CREATE INDEX deliveries_queued ON deliveries (org, trigger, seq) WHERE outcome = 'queued';
