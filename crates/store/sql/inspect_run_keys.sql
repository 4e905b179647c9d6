SELECT org, made, scope, key FROM idempotency WHERE scope NOT IN ('workflows', 'triggers') ORDER BY org, made
