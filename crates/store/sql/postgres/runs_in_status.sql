-- One status at a time, so that the index gives the order; never asked for completed runs, which it leaves out.
-- It has parked runs apart from the others, so the two are merged.
(SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at
FROM runs
WHERE status <> 'completed' AND org = $1 AND id <= $2 AND id >= $3
  AND created_at >= $4 AND created_at < $5
  AND status = $6 AND NOT parked
  AND ($7::uuid IS NULL OR workflow <> $7)
  AND ($8::text IS NULL OR form = $8)
  AND deleted_at IS NULL
ORDER BY id DESC LIMIT $9)
UNION ALL
(SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at
FROM runs
WHERE status <> 'completed' AND org = $1 AND id <= $2 AND id >= $3
  AND created_at >= $4 AND created_at < $5
  AND status = $6 AND parked
  AND ($7::uuid IS NULL OR workflow <> $7)
  AND ($8::text IS NULL OR form = $8)
  AND deleted_at IS NULL
ORDER BY id DESC LIMIT $9)
ORDER BY id DESC LIMIT $9
