SELECT runs.org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps, snapshots.seq, snapshots.body
FROM runs LEFT JOIN snapshots ON snapshots.org = runs.org AND snapshots.run = runs.id
WHERE runs.org = $1 AND runs.id = $2
