-- Without a position in the journal, which the row does not have on Postgres.
SELECT org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at, expires_at,
       finished_at, error_code, gate, parked, deleted_at, lowering, failed_steps
FROM runs WHERE org = $1 AND id = $2
