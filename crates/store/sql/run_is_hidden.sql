SELECT 1 FROM runs WHERE org = $1 AND id = $2 AND deleted_at IS NOT NULL
