SELECT org, id, name, slug, description, tags, form, trigger, steps, enabled, version, hash, created_at, updated_at, deleted_at, lowering
FROM workflows
WHERE org = $1 AND id < $2 AND deleted_at IS NULL AND substr(name, 1, length($3)) = $3
ORDER BY id DESC LIMIT $4
