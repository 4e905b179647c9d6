-- The caller has compared the row with the one it read, in this transaction.
UPDATE workflows
SET name = $1, slug = $2, description = $3, tags = $4, form = $5, trigger = $6, steps = $7, enabled = $8, version = $9,
    hash = $10, updated_at = $11, deleted_at = $12, lowering = $13
WHERE org = $14 AND id = $15
