SELECT org, id, name, slug, description, tags, form, trigger, steps, enabled, version, hash, created_at, updated_at, deleted_at, lowering
FROM workflows WHERE org = $1 AND id = $2 AND deleted_at IS NULL
