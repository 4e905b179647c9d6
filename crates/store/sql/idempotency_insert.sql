INSERT INTO idempotency (org, scope, key, run, fingerprint, created_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING
