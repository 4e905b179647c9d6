SELECT number, body FROM payloads
WHERE org = $1 AND run = $2 AND number = ANY ($3)
  AND NOT EXISTS (SELECT FROM runs WHERE org = $1 AND id = $2 AND deleted_at IS NOT NULL)
