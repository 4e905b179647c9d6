SELECT org, id, name, kind, workflow, enabled, note, config, path, owned, revision, cursor, next_at, created_at, updated_at,
       last_run_at, last_run
FROM triggers
WHERE org = $1 AND id <= $2 AND ($3::text IS NULL OR kind = $3) AND ($4::uuid IS NULL OR workflow = $4)
ORDER BY id DESC LIMIT $5
