-- Each run is looked up by its primary key (`OFFSET 0` prevents a join): on tables that look empty a join would scan
-- all runs of the organisation for each label.
SELECT runs.*
FROM labels CROSS JOIN LATERAL (
    SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
           finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
    FROM runs WHERE org = labels.org AND id = labels.run OFFSET 0
) AS runs
WHERE labels.org = $1 AND labels.run <= $2 AND labels.run >= $3
  AND created_at >= $4 AND created_at < $5
  AND ($6::text[] IS NULL OR status = ANY ($6))
  AND ($7::uuid IS NULL OR workflow = $7)
  AND ($8::uuid IS NULL OR workflow <> $8)
  AND labels.key = $9 AND labels.value = $10
  AND ($11::text[] IS NULL OR form = ANY ($11))
  AND deleted_at IS NULL
ORDER BY labels.run DESC LIMIT $12
