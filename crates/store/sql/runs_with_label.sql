SELECT runs.org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM labels CROSS JOIN runs ON runs.org = labels.org AND runs.id = labels.run
WHERE labels.org = $1 AND labels.run < $2 AND labels.run >= $3
  AND created_at >= $4 AND created_at < $5
  AND ($6 IS NULL OR status IN (SELECT value FROM json_each($6)))
  AND ($7 IS NULL OR workflow = $7)
  AND ($8 IS NULL OR workflow <> $8)
  AND labels.key = $9 AND labels.value = $10
  AND ($11 IS NULL OR form IN (SELECT value FROM json_each($11)))
  AND deleted_at IS NULL
ORDER BY labels.run DESC LIMIT $12
