SELECT run, fingerprint FROM idempotency WHERE org = $1 AND scope = $2 AND key = $3
