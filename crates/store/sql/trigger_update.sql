UPDATE triggers
SET revision = $1, name = $2, workflow = $3, enabled = $4, note = $5, config = $6, path = $7, updated_at = $8,
    cursor = CASE WHEN $9 THEN $10 ELSE cursor END, next_at = CASE WHEN $9 THEN $11 ELSE next_at END
WHERE org = $12 AND id = $13 AND revision + 1 = $1
