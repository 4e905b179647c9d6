-- Rows and indexes tell everything again. Before, a new run was in no index for a while, and the row of a run that a
-- worker had claimed could still say that it was evicted; a later record in the journal told the two apart.
UPDATE runs SET parked = 0, waiting = 0
FROM (
    SELECT org, run, max(pos) AS last
    FROM journal
    WHERE pos > coalesce((SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'recovery_pos'), 0)
      AND length(body) > 0
    GROUP BY org, run
) AS tail
WHERE runs.org = tail.org AND runs.id = tail.run
  AND runs.parked = 1 AND runs.status = 'running' AND runs.head < tail.last;

DROP INDEX runs_by_status;
DROP INDEX runs_by_workflow;
ALTER TABLE runs DROP COLUMN listed;
CREATE INDEX runs_by_status ON runs (status, parked, id) WHERE status <> 'completed';
CREATE INDEX runs_by_workflow ON runs (org, workflow, id);
