-- What starts runs by itself, and the log of what each trigger did.

CREATE TABLE triggers (
    org         INTEGER NOT NULL,
    id          BLOB    NOT NULL,
    name        TEXT    NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('schedule', 'webhook', 'manual')),
    workflow    BLOB    NOT NULL,
    enabled     INTEGER NOT NULL,
    note        TEXT,
    config      TEXT    NOT NULL, -- checked JSON; a webhook's secret is in it
    path        TEXT,             -- webhooks: what stands after `/webhooks/`
    owned       INTEGER NOT NULL, -- made by the workflow's own definition
    revision    INTEGER NOT NULL, -- counts the changes people made
    cursor      INTEGER,          -- schedules: the last nominal moment that is dealt with
    next_at     INTEGER,          -- schedules: when to look again; none while disabled
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    last_run_at INTEGER,
    last_run    BLOB,
    PRIMARY KEY (org, id)
) STRICT, WITHOUT ROWID;

-- A path is one place for everybody: a request does not say whose it is.
CREATE UNIQUE INDEX triggers_by_path ON triggers (path) WHERE path IS NOT NULL;
CREATE INDEX triggers_by_next ON triggers (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX triggers_by_workflow ON triggers (org, workflow);

CREATE TABLE deliveries (
    org     INTEGER NOT NULL,
    trigger BLOB    NOT NULL,
    seq     INTEGER NOT NULL, -- counts up per trigger
    id      TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    outcome TEXT    NOT NULL CHECK (outcome IN ('started', 'queued', 'skipped', 'rejected')),
    reason  TEXT    NOT NULL,
    run     BLOB,
    nominal INTEGER,
    PRIMARY KEY (org, trigger, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX deliveries_by_id ON deliveries (org, trigger, id);
CREATE INDEX deliveries_queued ON deliveries (org, trigger, seq) WHERE outcome = 'queued';

-- The newest requests of a webhook as they came, to be delivered again.
CREATE TABLE delivery_requests (
    org     INTEGER NOT NULL,
    trigger BLOB    NOT NULL,
    seq     INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (org, trigger, seq)
) STRICT, WITHOUT ROWID;
