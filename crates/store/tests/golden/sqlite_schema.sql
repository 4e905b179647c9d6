CREATE TABLE "definitions" (
    org      INTEGER NOT NULL,
    hash     BLOB    NOT NULL,
    lowering INTEGER NOT NULL,
    source   BLOB    NOT NULL,
    plan     BLOB    NOT NULL,
    PRIMARY KEY (org, hash, lowering)
) STRICT, WITHOUT ROWID;

CREATE TABLE "deliveries" (
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

CREATE TABLE delivery_requests (
    org     INTEGER NOT NULL,
    trigger BLOB    NOT NULL,
    seq     INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (org, trigger, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    org         INTEGER NOT NULL,
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    made        BLOB    NOT NULL, -- the run or workflow the key brought about
    fingerprint BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (org, scope, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE inbox (
    org        INTEGER NOT NULL,
    run        BLOB    NOT NULL,
    id         BLOB    NOT NULL,
    kind       TEXT    NOT NULL,
    body       BLOB    NOT NULL, -- the message that the kind says
    written_at INTEGER NOT NULL,
    answer     BLOB, sender BLOB,             -- NULL until the row is consumed
    PRIMARY KEY (org, run, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE journal (
    pos  INTEGER PRIMARY KEY,
    org  INTEGER NOT NULL,
    run  BLOB    NOT NULL,
    seq  INTEGER NOT NULL,
    prev INTEGER NOT NULL, -- `pos` of the run's record before this one; 0 before the first
    body BLOB    NOT NULL
) STRICT;

CREATE TABLE labels (
    org   INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    value TEXT    NOT NULL,
    run   BLOB    NOT NULL,
    PRIMARY KEY (org, key, value, run)
) STRICT, WITHOUT ROWID;

CREATE TABLE notices (
    org    INTEGER NOT NULL,
    run    BLOB    NOT NULL,
    number INTEGER NOT NULL,
    error  TEXT    NOT NULL, -- why it could not be handed over yet
    PRIMARY KEY (org, run, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE open_waits (
    org      INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    name     TEXT    NOT NULL, -- of a signal; empty for other kinds
    run      BLOB    NOT NULL,
    step     INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    PRIMARY KEY (org, kind, name, run, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE payloads (
    org    INTEGER NOT NULL,
    run    BLOB    NOT NULL,
    number INTEGER NOT NULL,
    body   BLOB    NOT NULL,
    PRIMARY KEY (org, run, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE ready (
    org      INTEGER NOT NULL,
    name     TEXT    NOT NULL, -- the type
    key      TEXT    NOT NULL, -- what it shares limits with; '' for nothing
    priority INTEGER NOT NULL,
    run      BLOB    NOT NULL,
    step     INTEGER NOT NULL,
    PRIMARY KEY (org, name, key, priority, run, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    org           INTEGER NOT NULL,
    id            BLOB    NOT NULL,
    workflow      BLOB    NOT NULL,
    workflow_name TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    hash          BLOB    NOT NULL,
    form          TEXT    NOT NULL,
    status        TEXT    NOT NULL CHECK (status IN (
        'pending', 'running', 'waiting', 'compensating', 'cancelling',
        'completed', 'failed', 'cancelled', 'timeout')),
    waiting       INTEGER NOT NULL,
    wake_at       INTEGER,
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    error_code    TEXT,
    -- Where the last record is, as of this row. Exact for parked and ended runs; for the others the
    -- journal after `settings.recovery_pos` may hold later ones.
    head          INTEGER NOT NULL,
    seq           INTEGER NOT NULL, gate BLOB, parked INTEGER NOT NULL DEFAULT 0, deleted_at INTEGER, lowering INTEGER NOT NULL DEFAULT 0, failed_steps TEXT,
    PRIMARY KEY (org, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE schema_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    sha256     TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

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

CREATE TABLE settings (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE snapshots (
    org  INTEGER NOT NULL,
    run  BLOB    NOT NULL,
    seq  INTEGER NOT NULL,
    pos  INTEGER NOT NULL,
    body BLOB    NOT NULL,
    PRIMARY KEY (org, run)
) STRICT, WITHOUT ROWID;

CREATE TABLE timers (
    at  INTEGER NOT NULL,
    org INTEGER NOT NULL,
    run BLOB    NOT NULL,
    PRIMARY KEY (at, org, run)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE versions (
    org      INTEGER NOT NULL,
    workflow BLOB    NOT NULL,
    number   INTEGER NOT NULL,
    hash     BLOB    NOT NULL,
    source   TEXT    NOT NULL,
    at       INTEGER NOT NULL, definition BLOB,
    PRIMARY KEY (org, workflow, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE waits (
    hash BLOB    NOT NULL PRIMARY KEY,
    org  INTEGER NOT NULL,
    run  BLOB    NOT NULL,
    step INTEGER NOT NULL,
    kind TEXT    NOT NULL
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

CREATE TABLE workflow_pauses (
    org      INTEGER NOT NULL,
    workflow BLOB    NOT NULL,
    at       INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    note     TEXT    NOT NULL,
    PRIMARY KEY (org, workflow)
) STRICT, WITHOUT ROWID;

CREATE TABLE workflows (
    org         INTEGER NOT NULL,
    id          BLOB    NOT NULL,
    name        TEXT    NOT NULL,
    slug        TEXT    NOT NULL,
    description TEXT,
    tags        TEXT    NOT NULL,
    form        TEXT    NOT NULL,
    trigger     TEXT    NOT NULL,
    steps       INTEGER NOT NULL,
    enabled     INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    hash        BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    deleted_at  INTEGER, lowering INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (org, id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX deliveries_by_id ON deliveries (org, trigger, id);

CREATE INDEX deliveries_queued ON deliveries (org, trigger, seq) WHERE outcome = 'queued';

CREATE INDEX inbox_of_sender ON inbox (org, sender) WHERE sender IS NOT NULL;

CREATE INDEX runs_by_gate ON runs (gate, id) WHERE gate IS NOT NULL AND finished_at IS NULL;

CREATE INDEX runs_by_status ON runs (status, parked, id) WHERE status <> 'completed';

CREATE INDEX runs_by_workflow ON runs (org, workflow, id);

CREATE INDEX runs_queued ON runs (id) WHERE status = 'pending' AND form <> 'task';

CREATE INDEX triggers_by_next ON triggers (next_at) WHERE next_at IS NOT NULL;

CREATE UNIQUE INDEX triggers_by_path ON triggers (path) WHERE path IS NOT NULL;

CREATE INDEX triggers_by_workflow ON triggers (org, workflow);

CREATE INDEX waits_of_run ON waits (org, run);

CREATE UNIQUE INDEX workflows_by_name ON workflows (org, name) WHERE deleted_at IS NULL;

CREATE UNIQUE INDEX workflows_by_slug ON workflows (org, slug) WHERE deleted_at IS NULL;
