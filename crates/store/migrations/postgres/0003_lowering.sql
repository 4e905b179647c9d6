-- A definition may be lowered differently by a later release. Runs keep the plan they began with: a plan is found by the
-- hash of its definition and the number of its lowering. 0 is the lowering of all earlier releases.
ALTER TABLE runs ADD COLUMN lowering bigint NOT NULL DEFAULT 0;
ALTER TABLE workflows ADD COLUMN lowering bigint NOT NULL DEFAULT 0;
ALTER TABLE definitions ADD COLUMN lowering bigint NOT NULL DEFAULT 0;
ALTER TABLE definitions DROP CONSTRAINT definitions_pkey, ADD CONSTRAINT definitions_pkey PRIMARY KEY (org, hash, lowering);
