SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps, seq, head
FROM runs WHERE org = $1 AND id = $2
