SELECT org, id, name, kind, workflow, enabled, note, config, path, owned, revision, cursor, next_at, created_at, updated_at,
       last_run_at, last_run
FROM triggers WHERE org = $1 AND workflow = $2 AND owned
