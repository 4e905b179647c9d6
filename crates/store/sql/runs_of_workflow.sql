SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate
FROM runs
WHERE org = $1 AND id < $2
  AND created_at >= $3 AND created_at < $4
  AND ($5 IS NULL OR status IN (SELECT value FROM json_each($5)))
  AND workflow = $6
ORDER BY id DESC LIMIT $7
