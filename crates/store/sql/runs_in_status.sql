-- One status at a time, so that the index gives the order; never asked for completed runs, which it leaves out.
SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate
FROM runs
WHERE status <> 'completed' AND org = $1 AND id < $2 AND id >= $3
  AND created_at >= $4 AND created_at < $5
  AND status = $6
  AND ($7 IS NULL OR workflow <> $7)
ORDER BY id DESC LIMIT $8
