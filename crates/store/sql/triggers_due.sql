SELECT org, id, name, kind, workflow, enabled, note, config, path, owned, revision, cursor, next_at, created_at, updated_at,
       last_run_at, last_run
FROM triggers WHERE next_at IS NOT NULL AND next_at <= $1
ORDER BY next_at, org, id LIMIT $2
