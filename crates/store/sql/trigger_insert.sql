INSERT INTO triggers (org, id, name, kind, workflow, enabled, note, config, path, owned, revision, cursor, next_at,
                      created_at, updated_at, last_run_at, last_run)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
