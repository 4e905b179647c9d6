-- Everything is in a schema of its own, which the session's search path names. Times are microseconds of engine
-- time, ids are uuids, statuses are spelt as in `RunStatus`, text sorts by its bytes. Every row carries its
-- organisation. There are no foreign keys and no triggers: nothing is checked twice on the way of a step.

-- The truth: append-only. A run's next record takes the next number, and the primary key lets one writer have it.
-- The id of a run begins with the time it was made at, so a partition is a month of runs; see partitions.rs. Runs
-- of months nobody prepared land in the last one.
CREATE TABLE journal (
    org  integer NOT NULL,
    run  uuid    NOT NULL,
    seq  integer NOT NULL,
    body bytea   NOT NULL,
    PRIMARY KEY (org, run, seq)
) PARTITION BY RANGE (run);
CREATE TABLE journal_rest PARTITION OF journal DEFAULT;

-- Which records a batch wrote, 24 bytes each (organisation, run, number), until somebody looks at the order of the
-- journal and gives them their positions. Written last in its transaction, so that of two batches the one that
-- went on from the other has the larger id. `epoch` is the node that wrote it, and empty for one that was fenced:
-- which is not allowed, and ends the transaction.
CREATE TABLE arrivals (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch   bigint NOT NULL,
    records bytea  NOT NULL
);

-- The order of the journal: `records` as above, the first of them at position `first`.
CREATE TABLE positions (
    first   bigint NOT NULL PRIMARY KEY,
    records bytea  NOT NULL
);

-- Processes that write. The batches of one that was fenced are refused.
CREATE TABLE nodes (
    epoch  bigint      NOT NULL PRIMARY KEY,
    name   text        NOT NULL COLLATE "C",
    barred boolean     NOT NULL,
    until  timestamptz NOT NULL
);

-- What lists and recovery read. Written when a run's status changes, never per step.
CREATE TABLE runs (
    org           integer NOT NULL,
    id            uuid    NOT NULL,
    workflow      uuid    NOT NULL,
    workflow_name text    NOT NULL COLLATE "C",
    version       bigint  NOT NULL,
    hash          bytea   NOT NULL,
    form          text    NOT NULL COLLATE "C",
    status        text    NOT NULL COLLATE "C" CHECK (status IN (
        'pending', 'running', 'waiting', 'compensating', 'cancelling',
        'completed', 'failed', 'cancelled', 'timeout')),
    waiting       bigint  NOT NULL,
    wake_at       bigint,
    created_at    bigint  NOT NULL,
    expires_at    bigint  NOT NULL,
    finished_at   bigint,
    error_code    text COLLATE "C",
    -- 16 bytes of id, 4 of limit (big-endian), 1 for what happens when it is full.
    gate          bytea,
    parked        boolean NOT NULL,
    deleted_at    bigint,
    PRIMARY KEY (org, id)
);

-- Recovery and lists of what is open or went wrong; the many completed runs stay out of it.
CREATE INDEX runs_by_status ON runs (status, parked, org, id) WHERE status <> 'completed';
CREATE INDEX runs_by_workflow ON runs (org, workflow, id);
-- Places are counted from open runs at every start, never from a counter.
CREATE INDEX runs_by_gate ON runs (id) WHERE gate IS NOT NULL AND finished_at IS NULL;
-- Runs whose turn has not come; tasks that only wait for their time have a timer.
CREATE INDEX runs_queued ON runs (id) WHERE status = 'pending' AND form <> 'task';
-- Always empty: a row of version -1 is a change of a run that must be there (see `runs_update.sql`), and when it is
-- not there, dividing by zero keeps it out.
CREATE INDEX runs_never ON runs ((1 / (version + 1))) WHERE version = -1;

-- State after record `seq`; one per run.
CREATE TABLE snapshots (
    org  integer NOT NULL,
    run  uuid    NOT NULL,
    seq  integer NOT NULL,
    body bytea   NOT NULL,
    PRIMARY KEY (org, run)
);

CREATE TABLE timers (
    at  bigint  NOT NULL,
    org integer NOT NULL,
    run uuid    NOT NULL,
    PRIMARY KEY (at, org, run)
);

CREATE TABLE waits (
    hash bytea   NOT NULL PRIMARY KEY,
    org  integer NOT NULL,
    run  uuid    NOT NULL,
    step bigint  NOT NULL,
    kind text    NOT NULL COLLATE "C"
);

CREATE TABLE payloads (
    org    integer NOT NULL,
    run    uuid    NOT NULL,
    number bigint  NOT NULL,
    body   bytea   NOT NULL,
    PRIMARY KEY (org, run, number)
);

CREATE TABLE labels (
    org   integer NOT NULL,
    key   text    NOT NULL COLLATE "C",
    value text    NOT NULL COLLATE "C",
    run   uuid    NOT NULL,
    PRIMARY KEY (org, key, value, run)
);

CREATE TABLE idempotency (
    org         integer NOT NULL,
    scope       text    NOT NULL COLLATE "C",
    key         text    NOT NULL COLLATE "C",
    made        uuid    NOT NULL, -- the run, workflow or trigger the key brought about
    fingerprint bytea   NOT NULL,
    created_at  bigint  NOT NULL,
    PRIMARY KEY (org, scope, key)
);

CREATE TABLE workflows (
    org         integer NOT NULL,
    id          uuid    NOT NULL,
    name        text    NOT NULL COLLATE "C",
    slug        text    NOT NULL COLLATE "C",
    description text COLLATE "C",
    tags        text    NOT NULL COLLATE "C",
    form        text    NOT NULL COLLATE "C",
    trigger     text    NOT NULL COLLATE "C",
    steps       bigint  NOT NULL,
    enabled     boolean NOT NULL,
    version     bigint  NOT NULL,
    hash        bytea   NOT NULL,
    created_at  bigint  NOT NULL,
    updated_at  bigint  NOT NULL,
    deleted_at  bigint,
    PRIMARY KEY (org, id)
);

-- A deleted workflow gives its name back.
CREATE UNIQUE INDEX workflows_by_name ON workflows (org, name) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX workflows_by_slug ON workflows (org, slug) WHERE deleted_at IS NULL;

-- The line of editions a workflow has had, and where each came from.
CREATE TABLE versions (
    org      integer NOT NULL,
    workflow uuid    NOT NULL,
    number   bigint  NOT NULL,
    hash     bytea   NOT NULL,
    source   text    NOT NULL COLLATE "C",
    at       bigint  NOT NULL,
    PRIMARY KEY (org, workflow, number)
);

CREATE TABLE definitions (
    org    integer NOT NULL,
    hash   bytea   NOT NULL,
    source bytea   NOT NULL,
    plan   bytea   NOT NULL,
    PRIMARY KEY (org, hash)
);

CREATE TABLE settings (
    name  text NOT NULL COLLATE "C" PRIMARY KEY,
    value text NOT NULL COLLATE "C"
);

-- Workflows whose runs wait for their turn until somebody resumes them.
CREATE TABLE workflow_pauses (
    org      integer NOT NULL,
    workflow uuid    NOT NULL,
    at       bigint  NOT NULL,
    actor    text    NOT NULL COLLATE "C",
    note     text    NOT NULL COLLATE "C",
    PRIMARY KEY (org, workflow)
);

-- Somebody has yet to be told that a run ended: written with its last record, removed with the first record
-- of the run that tells them.
CREATE TABLE notices (
    org    integer NOT NULL,
    run    uuid    NOT NULL,
    number bigint  NOT NULL,
    error  text    NOT NULL COLLATE "C", -- why it could not be handed over yet
    PRIMARY KEY (org, run, number)
);

-- What starts runs by itself, and the log of what each trigger did.
CREATE TABLE triggers (
    org         integer NOT NULL,
    id          uuid    NOT NULL,
    name        text    NOT NULL COLLATE "C",
    kind        text    NOT NULL COLLATE "C" CHECK (kind IN ('schedule', 'webhook', 'manual')),
    workflow    uuid    NOT NULL,
    enabled     boolean NOT NULL,
    note        text COLLATE "C",
    config      text    NOT NULL COLLATE "C", -- checked JSON; a webhook's secret is in it
    path        text COLLATE "C",             -- webhooks: what stands after `/webhooks/`
    owned       boolean NOT NULL,             -- made by the workflow's own definition
    revision    bigint  NOT NULL,             -- counts the changes people made
    cursor      bigint,                       -- schedules: the last nominal moment that is dealt with
    next_at     bigint,                       -- schedules: when to look again; none while disabled
    created_at  bigint  NOT NULL,
    updated_at  bigint  NOT NULL,
    last_run_at bigint,
    last_run    uuid,
    PRIMARY KEY (org, id)
);

-- A path is one place for everybody: a request does not say whose it is.
CREATE UNIQUE INDEX triggers_by_path ON triggers (path) WHERE path IS NOT NULL;
CREATE INDEX triggers_by_next ON triggers (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX triggers_by_workflow ON triggers (org, workflow);

CREATE TABLE deliveries (
    org     integer NOT NULL,
    trigger uuid    NOT NULL,
    seq     bigint  NOT NULL, -- counts up per trigger
    id      text    NOT NULL COLLATE "C",
    at      bigint  NOT NULL,
    outcome text    NOT NULL COLLATE "C" CHECK (outcome IN ('started', 'queued', 'skipped', 'rejected')),
    reason  text    NOT NULL COLLATE "C",
    run     uuid,
    nominal bigint,
    PRIMARY KEY (org, trigger, seq)
);

CREATE UNIQUE INDEX deliveries_by_id ON deliveries (org, trigger, id);
CREATE INDEX deliveries_queued ON deliveries (org, trigger, seq) WHERE outcome = 'queued';

-- The newest requests of a webhook as they came, to be delivered again.
CREATE TABLE delivery_requests (
    org     integer NOT NULL,
    trigger uuid    NOT NULL,
    seq     bigint  NOT NULL,
    body    bytea   NOT NULL,
    PRIMARY KEY (org, trigger, seq)
);

-- Tasks nobody has claimed, of parked runs. The key is the order in which a lane is worked off.
CREATE TABLE ready (
    org      integer NOT NULL,
    name     text    NOT NULL COLLATE "C", -- the type
    key      text    NOT NULL COLLATE "C", -- what it shares limits with; '' for nothing
    priority bigint  NOT NULL,
    run      uuid    NOT NULL,
    step     bigint  NOT NULL,
    PRIMARY KEY (org, name, key, priority, run, step)
);

-- What tasks that workers have take up of the limits of their types: of as many as a limit allows, each is had once.
CREATE TABLE seats (
    org    integer  NOT NULL,
    name   text     NOT NULL COLLATE "C", -- the type
    of     smallint NOT NULL,             -- 0 its limit, 1 the limit of its keys, 2 its rate
    key    text     NOT NULL COLLATE "C", -- '' for what all keys share
    number bigint   NOT NULL,
    run    uuid     NOT NULL,
    step   bigint   NOT NULL,
    until  bigint   NOT NULL,             -- free again from then on
    PRIMARY KEY (org, name, of, key, number)
);

CREATE TABLE types (
    org           integer NOT NULL,
    name          text    NOT NULL COLLATE "C",
    runtime       text COLLATE "C",
    description   text COLLATE "C",
    enabled       boolean NOT NULL,
    paused_at     bigint, -- with who and why, or all three are NULL
    paused_by     text COLLATE "C",
    pause_note    text COLLATE "C",
    max_leased    bigint,
    max_per_key   bigint,
    rate_limit    bigint, -- with the two below, or all three are NULL
    rate_per_us   bigint,
    rate_is_keyed boolean,
    created_at    bigint  NOT NULL,
    updated_at    bigint  NOT NULL,
    PRIMARY KEY (org, name)
);

CREATE TABLE workers (
    org        integer NOT NULL,
    id         text    NOT NULL COLLATE "C",
    types      text    NOT NULL COLLATE "C", -- a JSON list
    runtime    text COLLATE "C",
    version    text COLLATE "C",
    slots      bigint,
    first_seen bigint  NOT NULL,
    last_seen  bigint  NOT NULL,
    PRIMARY KEY (org, id)
);
