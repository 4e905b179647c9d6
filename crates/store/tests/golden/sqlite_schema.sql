CREATE TABLE definitions (
    org    INTEGER NOT NULL,
    hash   BLOB    NOT NULL,
    source BLOB    NOT NULL,
    plan   BLOB    NOT NULL,
    PRIMARY KEY (org, hash)
) STRICT, WITHOUT ROWID;

CREATE TABLE grants (
    org      INTEGER NOT NULL,
    run      BLOB    NOT NULL,
    step     INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    fence    INTEGER NOT NULL,
    worker   TEXT    NOT NULL,
    lease_us INTEGER NOT NULL,
    given_at INTEGER NOT NULL,
    PRIMARY KEY (org, run, step)
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

CREATE TABLE payloads (
    org    INTEGER NOT NULL,
    run    BLOB    NOT NULL,
    number INTEGER NOT NULL,
    body   BLOB    NOT NULL,
    PRIMARY KEY (org, run, number)
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
    seq           INTEGER NOT NULL, gate BLOB,
    PRIMARY KEY (org, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE schema_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    sha256     TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

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

CREATE TABLE versions (
    org      INTEGER NOT NULL,
    workflow BLOB    NOT NULL,
    number   INTEGER NOT NULL,
    hash     BLOB    NOT NULL,
    source   TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (org, workflow, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE waits (
    hash BLOB    NOT NULL PRIMARY KEY,
    org  INTEGER NOT NULL,
    run  BLOB    NOT NULL,
    step INTEGER NOT NULL,
    kind TEXT    NOT NULL
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
    deleted_at  INTEGER,
    PRIMARY KEY (org, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX runs_by_gate ON runs (gate, id) WHERE gate IS NOT NULL AND finished_at IS NULL;

CREATE INDEX runs_by_status ON runs (status, id) WHERE status <> 'completed';

CREATE INDEX runs_by_workflow ON runs (org, workflow, id);

CREATE UNIQUE INDEX workflows_by_name ON workflows (org, name) WHERE deleted_at IS NULL;

CREATE UNIQUE INDEX workflows_by_slug ON workflows (org, slug) WHERE deleted_at IS NULL;
