INSERT INTO workflows (org, id, name, slug, description, tags, form, trigger, steps, enabled, version, hash, created_at,
                       updated_at, lowering)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
