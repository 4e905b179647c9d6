SELECT org, made, key FROM idempotency
WHERE scope = 'workflows'
  AND NOT EXISTS (SELECT 1 FROM workflows WHERE workflows.org = idempotency.org AND workflows.id = idempotency.made)
