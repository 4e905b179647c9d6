-- Bounds and order are row comparisons that only the index of a workflow's runs supports: on a table that looks
-- empty the primary key would cost the same.
SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM runs
WHERE org = $1 AND (workflow, id) <= ($7, $2) AND (workflow, id) >= ($7, $3)
  AND created_at >= $4 AND created_at < $5
  AND ($6::text[] IS NULL OR status = ANY ($6))
  AND ($8::text[] IS NULL OR form = ANY ($8))
  AND deleted_at IS NULL
ORDER BY workflow DESC, id DESC LIMIT $9
