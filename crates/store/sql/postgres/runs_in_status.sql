-- One status per statement, so that the index gives the order; not used for `completed`, which the index leaves out.
-- The index separates evicted runs (`parked`) from the others, so the two halves are merged. Bounds and order name
-- all columns of the index, because on a table that looks empty the primary key would cost the same.
(SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM runs
WHERE status <> 'completed'
  AND (status, parked, org, id) <= ($6, false, $1, $2) AND (status, parked, org, id) >= ($6, false, $1, $3)
  AND created_at >= $4 AND created_at < $5
  AND ($7::uuid IS NULL OR workflow <> $7)
  AND ($8::text[] IS NULL OR form = ANY ($8))
  AND deleted_at IS NULL
ORDER BY status DESC, parked DESC, org DESC, id DESC LIMIT $9)
UNION ALL
(SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM runs
WHERE status <> 'completed'
  AND (status, parked, org, id) <= ($6, true, $1, $2) AND (status, parked, org, id) >= ($6, true, $1, $3)
  AND created_at >= $4 AND created_at < $5
  AND ($7::uuid IS NULL OR workflow <> $7)
  AND ($8::text[] IS NULL OR form = ANY ($8))
  AND deleted_at IS NULL
ORDER BY status DESC, parked DESC, org DESC, id DESC LIMIT $9)
ORDER BY id DESC LIMIT $9
