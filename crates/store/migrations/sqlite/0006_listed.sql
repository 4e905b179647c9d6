-- A run that was only just made is in no index but the primary key: most have ended before anybody asks for them by workflow
-- or status. It is listed when its row changes next, or after some thousand others were made.
ALTER TABLE runs ADD COLUMN listed INTEGER NOT NULL DEFAULT 1;

DROP INDEX runs_by_status;
CREATE INDEX runs_by_status ON runs (status, parked, id) WHERE listed = 1 AND status <> 'completed';
DROP INDEX runs_by_workflow;
CREATE INDEX runs_by_workflow ON runs (org, workflow, id) WHERE listed = 1;
