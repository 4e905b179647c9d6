SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM runs
WHERE org = $1 AND id < $2 AND id >= $3
  AND created_at >= $4 AND created_at < $5
  AND ($6 IS NULL OR status IN (SELECT value FROM json_each($6)))
  AND ($7 IS NULL OR workflow <> $7)
  AND ($8 IS NULL OR form IN (SELECT value FROM json_each($8)))
  AND deleted_at IS NULL
ORDER BY id DESC LIMIT $9
