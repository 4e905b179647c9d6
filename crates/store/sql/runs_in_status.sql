-- One status per statement, so that the index gives the order; not used for `completed`, which the index leaves out.
-- The index separates evicted runs (`parked`) from the others, so the two halves are merged. INDEXED BY is needed
-- because the planner would rather scan the primary key, past every run that has ended.
SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM runs INDEXED BY runs_by_status
WHERE status <> 'completed' AND org = $1 AND id < $2 AND id >= $3
  AND created_at >= $4 AND created_at < $5
  AND status = $6 AND parked = 0
  AND ($7 IS NULL OR workflow <> $7)
  AND ($8 IS NULL OR form IN (SELECT value FROM json_each($8)))
  AND deleted_at IS NULL
UNION ALL
SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM runs INDEXED BY runs_by_status
WHERE status <> 'completed' AND org = $1 AND id < $2 AND id >= $3
  AND created_at >= $4 AND created_at < $5
  AND status = $6 AND parked = 1
  AND ($7 IS NULL OR workflow <> $7)
  AND ($8 IS NULL OR form IN (SELECT value FROM json_each($8)))
  AND deleted_at IS NULL
ORDER BY id DESC LIMIT $9
